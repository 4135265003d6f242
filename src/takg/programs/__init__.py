"""Any program as a training function: started as a list of arguments, its trace read from its output."""

from takg.programs._command import RESERVED, filled, placeholders
from takg.programs._train import KEYS, ProgramError, ProgramTimeoutError, ProgramTrain

__all__ = ["KEYS", "RESERVED", "ProgramError", "ProgramTimeoutError", "ProgramTrain", "filled", "placeholders"]
