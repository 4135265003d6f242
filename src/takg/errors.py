"""The errors that takg raises by itself.

TakgError
├── InputError      an argument has the wrong shape, range, name or type
│   └── SpaceError  a search or fidelity space contradicts itself
└── NumericsError   a computation has no meaningful result even after its remedies
"""

__all__ = ["InputError", "NumericsError", "SpaceError", "TakgError"]


class TakgError(Exception):
    """Parent of every error that takg raises on purpose."""


class InputError(TakgError, ValueError):
    """An argument is not what the function takes; the message names it, what came and what was expected."""


class SpaceError(InputError):
    """A space is defined in a way that contradicts itself."""


class NumericsError(TakgError, ArithmeticError):
    """A matrix stayed singular, or a result non-finite, after every remedy was tried."""
