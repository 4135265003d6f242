"""Tune iteratively trained models with the trace-aware knowledge gradient."""

from takg.errors import InputError, NumericsError, SpaceError, TakgError

__all__ = ["InputError", "NumericsError", "SpaceError", "TakgError"]
__version__ = "0.1.0.dev0"
