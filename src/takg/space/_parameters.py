"""The kinds of parameters, and their coordinates in the unit cube.

Each has `d` coordinates, `checked` for a user's value, `to_unit` and `from_unit` for a checked one, `usual` for the
value that it takes where nothing else is said, and `nearest` for what can be run close to given coordinates.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from enum import Enum
from typing import Any, cast

from takg.errors import SpaceError
from takg.space._scales import Bins, Interval
from takg.space._values import Scalar, as_float, as_int, check_scalars, identity, repeated

When = Mapping[str, Scalar | Sequence[Scalar]]
Near = list[tuple[float, Scalar]]
"""(how much larger the squared distance is than that of the first, value), first what `from_unit` gives."""

_MOST_INTEGERS = 2**40  # more would have bins that rounding errors can cross
_MOST_CATEGORIES = 3  # that `nearest` looks at


class _Unset(Enum):
    """No default, where None is a value like any other."""

    UNSET = "unset"


class _Described:
    """Equality and repr of a parameter by its arguments; the repr tells 1, 1.0 and True apart."""

    __slots__ = ()

    def arguments(self) -> dict[str, Any]:
        """What it was made with, without what is left at its default value."""
        values = {f.name: (f, getattr(self, f.name)) for f in fields(cast(Any, self)) if f.init}
        return {
            name: value
            for name, (f, value) in values.items()
            if value is not f.default and not (f.default_factory is not MISSING and value == f.default_factory())
        }

    def __repr__(self) -> str:
        shown = []
        for f in fields(cast(Any, self)):
            if f.name in (arguments := self.arguments()):
                text = _shown(arguments[f.name])
                shown.append(f"{f.name}={text}" if f.kw_only else text)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Float(_Described):
    """A number from low to high, both included; uniform, or uniform in its logarithm.

    Where several neighbouring floats share a coordinate, `from_unit` gives the one with the fewest digits.
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    default: float | None = None
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        shown = f"Float({self.low!r}, {self.high!r})"
        low, high = as_float(self.low), as_float(self.high)
        if low is None or high is None:
            raise SpaceError(f"{shown}: expected low and high to be finite numbers")
        _check_range(shown, low, high, self.log)
        _keep(self, low=low, high=high, when=_conditions(shown, self.when))
        if self.default is not None:
            _keep(self, default=self.checked("default", self.default))

    @property
    def d(self) -> int:
        return 1

    @property
    def usual(self) -> float:
        return self.from_unit((0.5,)) if self.default is None else self.default

    def checked(self, name: str, value: object) -> float:
        number = as_float(value)
        if number is None or not self.low <= number <= self.high:
            raise _refused(name, value, f"a number from {self.low!r} to {self.high!r}")
        return number

    def to_unit(self, value: float) -> tuple[float, ...]:
        return (Interval(self.low, self.high, self.log).to_unit(value),)

    def from_unit(self, u: Sequence[float]) -> float:
        return Interval(self.low, self.high, self.log).from_unit(u[0], self.default)

    def nearest(self, u: Sequence[float]) -> Near:
        return [(0.0, self.from_unit(u))]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Int(_Described):
    """An integer from low to high, both included, each with the same share, or one equal in the logarithm."""

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    default: int | None = None
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        shown = f"Int({self.low!r}, {self.high!r})"
        low, high = as_int(self.low), as_int(self.high)
        if low is None or high is None:
            raise SpaceError(f"{shown}: expected low and high to be integers")
        _check_range(shown, low, high, self.log)
        if (high if self.log else high - low + 1) > _MOST_INTEGERS:
            what = "high up to" if self.log else "a range of at most"
            raise SpaceError(f"{shown}: expected {what} 2**40 = {_MOST_INTEGERS}; use Float and round")
        _keep(self, low=low, high=high, when=_conditions(shown, self.when))
        if self.default is not None:
            _keep(self, default=self.checked("default", self.default))

    @property
    def d(self) -> int:
        return 1

    @property
    def usual(self) -> int:
        return self.from_unit((0.5,)) if self.default is None else self.default

    def checked(self, name: str, value: object) -> int:
        number = as_int(value)
        if number is None or not self.low <= number <= self.high:
            raise _refused(name, value, f"an integer from {self.low} to {self.high}")
        return number

    def to_unit(self, value: int) -> tuple[float, ...]:
        return (Bins(self.low, self.high, self.log).to_unit(value),)

    def from_unit(self, u: Sequence[float]) -> int:
        return Bins(self.low, self.high, self.log).from_unit(u[0])

    def nearest(self, u: Sequence[float]) -> Near:
        return [*Bins(self.low, self.high, self.log).nearest(u[0])]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Categorical(_Described):
    """One of several choices without an order: str, int, float, bool or None.

    Three or more choices have one coordinate each, of which the largest wins; two share one, 0 or 1.
    """

    choices: Sequence[Scalar]
    _: KW_ONLY
    default: Scalar | _Unset = _Unset.UNSET
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        _keep_choices(self)

    @property
    def d(self) -> int:
        k = len(self.choices)
        return k if k > 2 else k - 1

    @property
    def usual(self) -> Scalar:
        return self.choices[0] if isinstance(self.default, _Unset) else self.default

    def checked(self, name: str, value: object) -> Scalar:
        return self.choices[_place(name, value, self.choices)]

    def to_unit(self, value: Scalar) -> tuple[float, ...]:
        place = _place("value", value, self.choices)
        return tuple(float(i == place) for i in range(self.d)) if self.d > 1 else (float(place),) * self.d

    def from_unit(self, u: Sequence[float]) -> Scalar:
        return self.nearest(u)[0][1]

    def nearest(self, u: Sequence[float]) -> Near:
        if self.d == 0:
            return [(0.0, self.choices[0])]
        weights = u if self.d > 1 else (1 - u[0], u[0])
        best = sorted(range(len(weights)), key=lambda i: -weights[i])[:_MOST_CATEGORIES]  # stable: the first of equals
        factor = 2.0 if self.d > 1 else 1.0  # |u - vertex|^2 falls by 2 u_i, or by u_i - (1 - u_i)
        near = [(factor * (weights[best[0]] - weights[i]), self.choices[i]) for i in best if weights[i] > 0]
        return near or [(0.0, self.choices[0])]  # all weights 0


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Ordinal(_Described):
    """One of several choices in an order, on one coordinate with the same share for each."""

    choices: Sequence[Scalar]
    _: KW_ONLY
    default: Scalar | _Unset = _Unset.UNSET
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        _keep_choices(self)

    @property
    def d(self) -> int:
        return 1 if len(self.choices) > 1 else 0

    @property
    def usual(self) -> Scalar:
        return self.from_unit((0.5,) * self.d) if isinstance(self.default, _Unset) else self.default

    def checked(self, name: str, value: object) -> Scalar:
        return self.choices[_place(name, value, self.choices)]

    def to_unit(self, value: Scalar) -> tuple[float, ...]:
        return (self._bins().to_unit(_place("value", value, self.choices)),) * self.d

    def from_unit(self, u: Sequence[float]) -> Scalar:
        return self.choices[self._bins().from_unit(u[0]) if self.d else 0]

    def nearest(self, u: Sequence[float]) -> Near:
        places = self._bins().nearest(u[0]) if self.d else [(0.0, 0)]
        return [(further, self.choices[place]) for further, place in places]

    def _bins(self) -> Bins:
        return Bins(0, len(self.choices) - 1)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Constant(_Described):
    """A value that is part of every configuration and is not tuned."""

    value: Scalar
    _: KW_ONLY
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        shown = f"Constant({self.value!r})"
        check_scalars(shown, [self.value])
        _keep(self, when=_conditions(shown, self.when))

    @property
    def d(self) -> int:
        return 0

    @property
    def usual(self) -> Scalar:
        return self.value

    def checked(self, name: str, value: object) -> Scalar:
        if identity(value) != identity(self.value):
            raise _refused(name, value, f"the constant {self.value!r}")
        return self.value

    def to_unit(self, value: Scalar) -> tuple[float, ...]:
        return ()

    def from_unit(self, u: Sequence[float]) -> Scalar:
        return self.value

    def nearest(self, u: Sequence[float]) -> Near:
        return [(0.0, self.value)]


Parameter = Float | Int | Categorical | Ordinal | Constant
KINDS: dict[str, type[Parameter]] = {
    "float": Float,
    "int": Int,
    "categorical": Categorical,
    "ordinal": Ordinal,
    "constant": Constant,
}


def conditions_of(parameter: Parameter) -> dict[str, tuple[Scalar, ...]]:
    """The values that each parent may have."""
    return cast(dict[str, tuple[Scalar, ...]], parameter.when)


def _keep(parameter: Parameter, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(parameter, name, value)


def _keep_choices(parameter: Categorical | Ordinal) -> None:
    shown = f"{type(parameter).__name__}({parameter.choices!r})"
    choices = parameter.choices
    if isinstance(choices, str | bytes) or not isinstance(choices, Sequence):
        raise SpaceError(f"{shown}: the choices are a {type(choices).__name__}; expected a list or tuple")
    check_scalars(shown, choices)
    if not choices:
        raise SpaceError(f"{shown}: no choices; expected at least one")
    if twice := repeated(choices):
        raise SpaceError(f"{shown}: {twice} more than once; list each choice once")
    _keep(parameter, choices=tuple(choices), when=_conditions(shown, parameter.when))
    if not isinstance(parameter.default, _Unset):
        parameter.checked("default", parameter.default)


def _check_range(shown: str, low: float, high: float, log: object) -> None:
    if not isinstance(log, bool):
        raise SpaceError(f"{shown}: log={log!r}; expected True or False")
    if not low < high:
        raise SpaceError(f"{shown}: expected low < high; use Constant for a single value")
    if log and low <= 0:
        raise SpaceError(f"{shown}: low={low!r} has no logarithm; expected low > 0 with log=True")


def _conditions(shown: str, when: object) -> dict[str, tuple[Scalar, ...]]:
    """`when` as parent -> values that it may have, sorted by parent."""
    if not isinstance(when, Mapping):
        raise SpaceError(f"{shown}: when={when!r}; expected a dict such as {{'optimizer': 'sgd'}}")
    if bad := [name for name in when if not isinstance(name, str) or not name]:
        raise SpaceError(f"{shown}: when has the parents {bad}; expected names of parameters")
    conditions = {}
    for name, value in sorted(when.items()):
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        check_scalars(f"{shown}: when {name!r}", values)
        if not values or repeated(values):
            raise SpaceError(f"{shown}: when {name!r} is one of {list(values)}; expected one or more distinct values")
        conditions[name] = values
    return conditions


def _place(name: str, value: object, choices: Iterable[Scalar]) -> int:
    try:
        return [identity(choice) for choice in choices].index(identity(value))
    except ValueError:
        raise _refused(name, value, f"one of {list(choices)}") from None


def _refused(name: str, value: object, expected: str) -> SpaceError:
    return SpaceError(f"{name}={value!r} ({type(value).__name__}); expected {expected}")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return repr(list(value))
    if isinstance(value, dict):
        items = ((name, values[0] if len(values) == 1 else list(values)) for name, values in value.items())
        return repr(dict(items))
    return repr(value)
