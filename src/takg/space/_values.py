"""What a plain value, a name and a number are, for every kind of parameter and fidelity."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from takg.errors import SpaceError

Scalar = str | int | float | bool | None
_ROUNDING = 1e-9  # by which a coordinate may miss the unit interval


def identity(value: object) -> tuple[type, object]:
    """The value and its type: tells 1, 1.0 and True apart, which are equal to Python."""
    return type(value), value


def repeated(values: Sequence[Scalar]) -> list[Scalar]:
    """The values that occur earlier in the sequence, too."""
    kinds = [identity(value) for value in values]
    return [value for i, value in enumerate(values) if kinds[i] in kinds[:i]]


def check_scalars(owner: str, values: Iterable[object]) -> None:
    """Raise SpaceError unless each value is one that JSON can hold by itself."""
    for value in values:
        if type(value) not in (str, int, float, bool, type(None)):
            raise SpaceError(f"{owner}: {value!r} is a {type(value).__name__}; expected str, int, float, bool or None")
        if isinstance(value, float) and not math.isfinite(value):
            raise SpaceError(f"{owner}: {value!r} is not finite; expected a finite number")


def check_name(owner: str, name: object) -> None:
    """Raise SpaceError unless this can name a parameter, a group or a fidelity."""
    if not isinstance(name, str) or not name:
        raise SpaceError(f"{owner} {name!r}; expected a name: a string that is not empty")
    if "." in name:
        raise SpaceError(f"{owner} {name!r} contains a dot; dots join the names of nested groups: nest a dict instead")
    if not name.isprintable():
        raise SpaceError(f"{owner} {name!r} contains control characters; expected printable ones")


def as_float(value: object) -> float | None:
    """A finite real number as a Python float; None for anything else, also for True."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_int(value: object) -> int | None:
    """An integer as a Python int; None for anything else, also for True and 3.0."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def as_coordinate(value: object, place: str) -> float:
    """A number in [0, 1], clamped if rounding took it out by a little; SpaceError names its `place`."""
    number = as_float(value)
    if number is None or not -_ROUNDING <= number <= 1 + _ROUNDING:
        raise SpaceError(f"{place} is {value!r}; expected a number in [0, 1]")
    return min(max(number, 0.0), 1.0)
