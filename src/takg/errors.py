"""The errors that takg raises by itself.

TakgError
├── InputError            an argument has the wrong shape, range, name or type
│   └── SpaceError        a search or fidelity space contradicts itself, or a value lies outside it
├── NumericsError         a computation has no meaningful result even after its remedies
├── StorageError          a store cannot be read or written
│   ├── ConflictError     somebody else wrote first; read what is new and try again
│   ├── StudyExistsError  a study of that name is in the store already
│   └── NoStudyError      no study of that name is in the store
└── StudyError            a study cannot go on, or an event does not fit its history
    └── StaleError        an evaluation was given to somebody else, or is over
"""

__all__ = [
    "ConflictError",
    "InputError",
    "NoStudyError",
    "NumericsError",
    "SpaceError",
    "StaleError",
    "StorageError",
    "StudyError",
    "StudyExistsError",
    "TakgError",
]


class TakgError(Exception):
    """Parent of every error that takg raises on purpose."""


class InputError(TakgError, ValueError):
    """An argument is not what the function takes; the message names it, what came and what was expected."""


class SpaceError(InputError):
    """A space contradicts itself, or a value does not belong to it."""


class NumericsError(TakgError, ArithmeticError):
    """A matrix stayed singular, or a result non-finite, after every remedy was tried."""


class StorageError(TakgError):
    """A store is missing, damaged, from a newer version, or cannot be written; it was not changed."""


class ConflictError(StorageError):
    """The log has grown since it was read, so what was to be appended may no longer fit."""


class StudyExistsError(StorageError):
    """A study of that name is in the store already."""


class NoStudyError(StorageError):
    """The store holds no study of that name."""


class StudyError(TakgError):
    """A study cannot go on, or an event does not fit its history."""


class StaleError(StudyError):
    """The evaluation is over or was given to another worker; whoever still runs it should stop."""
