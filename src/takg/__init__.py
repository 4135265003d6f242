"""Tune iteratively trained models with the trace-aware knowledge gradient."""

from takg._api import create_study, load_study
from takg.errors import InputError, NumericsError, SpaceError, StorageError, StudyError, TakgError
from takg.space import Categorical, Constant, Fidelity, Float, Int, Ordinal, Pool
from takg.study import Evaluation, Study

__all__ = [
    "Categorical",
    "Constant",
    "Evaluation",
    "Fidelity",
    "Float",
    "InputError",
    "Int",
    "NumericsError",
    "Ordinal",
    "Pool",
    "SpaceError",
    "StorageError",
    "Study",
    "StudyError",
    "TakgError",
    "create_study",
    "load_study",
]
__version__ = "0.1.0.dev0"
