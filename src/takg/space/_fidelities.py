"""What can be turned down to make training cheaper, in the user's units and as s in [0, 1]^m."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, cast

from takg.errors import SpaceError
from takg.space._scales import Interval
from takg.space._space import Space
from takg.space._values import as_coordinate, as_float, as_int, check_name

FIDELITY_KERNELS = ("curve", "data_size", "freeze_thaw", "size", "smooth")
_MOST_STEPS = 2**50  # more would not come back from s
_MOST = 4


@dataclass(frozen=True, slots=True, repr=False)
class Fidelity:
    """A control such as epochs or the number of training points; full training is at `high`, and s = value / high.

    Args:
        low: the least that is worth running to, 0 <= low < high; in the user's units, like high.
        trace: every lower value is seen on the way up and a run can be continued, as with epochs.
        integer: whole numbers only; the default is whether both bounds are ints.
        kernel: how the loss depends on it, one of FIDELITY_KERNELS; the default is curve for a trace and
            size otherwise.
    """

    low: int | float
    high: int | float
    trace: bool
    integer: bool
    kernel: str

    def __init__(
        self,
        low: int | float,
        high: int | float,
        *,
        trace: bool,
        integer: bool | None = None,
        kernel: str | None = None,
    ) -> None:
        shown = f"Fidelity({low!r}, {high!r})"
        if not isinstance(trace, bool) or not isinstance(integer, bool | None):
            raise SpaceError(f"{shown}: trace={trace!r}, integer={integer!r}; expected True or False")
        is_integer = all(as_int(bound) is not None for bound in (low, high)) if integer is None else integer
        bounds = [_whole(bound) if is_integer else as_float(bound) for bound in (low, high)]
        first, last = bounds
        if first is None or last is None:
            raise SpaceError(f"{shown}: expected low and high to be {'integers' if is_integer else 'finite numbers'}")
        if not 0 <= first < last:
            raise SpaceError(f"{shown}: expected 0 <= low < high")
        if is_integer and last > _MOST_STEPS:
            raise SpaceError(f"{shown}: expected high up to 2**50; use integer=False or a larger unit")
        name = _usual_kernel(trace) if kernel is None else kernel
        if name not in FIDELITY_KERNELS:
            raise SpaceError(f"{shown}: kernel={kernel!r}; expected one of {FIDELITY_KERNELS}")
        for key, value in {"low": first, "high": last, "trace": trace, "integer": is_integer, "kernel": name}.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        kernel = "" if self.kernel == _usual_kernel(self.trace) else f", kernel={self.kernel!r}"
        return f"Fidelity({self.low!r}, {self.high!r}, trace={self.trace}{kernel})"  # the bounds show `integer`

    def checked(self, name: str, value: object, *, target: bool = False) -> int | float:
        """The value as int or float; SpaceError unless 0 < value <= high and, for a target, value >= low."""
        number = _whole(value) if self.integer else as_float(value)
        is_high_enough = number is not None and number > 0 and (number >= self.low or not target)
        if number is None or not is_high_enough or number > self.high:
            kind = "an integer" if self.integer else "a number"
            bound = f"at least {self.low!r}" if target and self.low > 0 else "above 0"
            raise SpaceError(f"{name}={value!r}; expected {kind} {bound} and at most {self.high!r}")
        return number

    def to_unit(self, value: int | float) -> float:
        return value / self.high

    def from_unit(self, s: float) -> int | float:
        if self.integer:
            return min(max(round(s * self.high), self.low), self.high)
        scale = Interval(0.0, self.high)
        return max(scale.from_unit(s, self.low), self.low)


class Fidelities:
    """Up to four fidelities by name, in order; with none, every evaluation is a full training.

    A value comes back from its s exactly if it is an integer or has fewer digits than s resolves (15).
    """

    __slots__ = ("_fidelities",)

    def __init__(self, fidelities: Mapping[str, Fidelity]) -> None:
        if not isinstance(fidelities, Mapping):
            raise SpaceError(f"fidelities is a {type(fidelities).__name__}; expected a dict of names and Fidelity")
        for name, fidelity in fidelities.items():
            check_name("the fidelity's name", name)
            if not isinstance(fidelity, Fidelity):
                raise SpaceError(f"fidelity {name!r} is {fidelity!r}; expected a Fidelity(low, high, trace=...)")
        if len(fidelities) > _MOST:
            raise SpaceError(f"{len(fidelities)} fidelities, {[*fidelities]}; expected at most {_MOST}")
        self._fidelities = dict(fidelities)

    @property
    def fidelities(self) -> Mapping[str, Fidelity]:
        """By name, in order."""
        return MappingProxyType(self._fidelities)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._fidelities)

    @property
    def m(self) -> int:
        """How many there are."""
        return len(self._fidelities)

    @property
    def trace_names(self) -> tuple[str, ...]:
        return tuple(name for name, fidelity in self._fidelities.items() if fidelity.trace)

    @property
    def trace_dims(self) -> tuple[int, ...]:
        """The components of s that are trace fidelities."""
        return tuple(j for j, fidelity in enumerate(self._fidelities.values()) if fidelity.trace)

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(fidelity.kernel for fidelity in self._fidelities.values())

    @property
    def least(self) -> tuple[float, ...]:
        """s of all lows."""
        return tuple(fidelity.to_unit(fidelity.low) for fidelity in self._fidelities.values())

    @property
    def full(self) -> dict[str, int | float]:
        """The values of full training, s = 1."""
        return {name: fidelity.high for name, fidelity in self._fidelities.items()}

    def check(self, values: Mapping[str, float], *, target: bool = False) -> None:
        """Raise SpaceError unless each fidelity has a value that can be reported or, with `target`, be run to."""
        self._check_names(values)
        for name, fidelity in self._fidelities.items():
            fidelity.checked(name, values[name], target=target)

    def to_unit(self, values: Mapping[str, float]) -> tuple[float, ...]:
        """s of values as in a report; 0, the state before training, is taken, too."""
        self._check_names(values)
        return tuple(
            0.0 if as_float(values[name]) == 0 else fidelity.to_unit(fidelity.checked(name, values[name]))
            for name, fidelity in self._fidelities.items()
        )

    def from_unit(self, s: Sequence[float]) -> dict[str, int | float]:
        """The values at s in [0, 1]^m, integers rounded to the nearest, none below its low."""
        if len(s) != self.m:
            raise SpaceError(f"s has {len(s)} components; expected {self.m}, one for each of {self.names}")
        return {
            name: fidelity.from_unit(as_coordinate(component, f"s of {name!r}"))
            for (name, fidelity), component in zip(self._fidelities.items(), s, strict=True)
        }

    def steps(self, name: str, start: int | None, target: int) -> range:
        """The values of an integer fidelity still to train for, after `start`; None is before training."""
        if name not in self._fidelities:
            raise SpaceError(f"fidelity {name!r} is unknown; expected one of {self.names}")
        fidelity = self._fidelities[name]
        if not fidelity.integer:
            raise SpaceError(
                f"{name!r} has no steps, as it is continuous: {fidelity!r}; loop from start to target yourself"
            )
        begin = 0 if start is None or as_int(start) == 0 else fidelity.checked("start", start)
        end = fidelity.checked("target", target)
        if begin > end:
            raise SpaceError(f"steps of {name!r} from start={start!r} to target={target!r}; expected start <= target")
        return range(int(begin) + 1, int(end) + 1)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data, a list because stores may reorder the keys of an object."""
        return {
            "fidelities": [
                {"name": name, **{f.name: getattr(fidelity, f.name) for f in fields(fidelity)}}
                for name, fidelity in self._fidelities.items()
            ]
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Fidelities":
        """What `to_json` described."""
        if not isinstance(data, Mapping) or set(data) != {"fidelities"} or not isinstance(data["fidelities"], list):
            shown = sorted(map(str, data)) if isinstance(data, Mapping) else repr(data)
            raise SpaceError(f"the JSON of fidelities has {shown}; expected one key, 'fidelities', that holds a list")
        found: dict[str, Fidelity] = {}
        for entry in data["fidelities"]:
            name, fidelity = _fidelity_from_json(entry)
            if name in found:
                raise SpaceError(f"fidelity {name!r} is there twice; expected distinct names")
            found[name] = fidelity
        return cls(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fidelities) and [*self._fidelities.items()] == [*other._fidelities.items()]

    def __hash__(self) -> int:
        return hash(tuple(self._fidelities.items()))

    def __repr__(self) -> str:
        return f"Fidelities({self._fidelities!r})"

    def _check_names(self, values: Mapping[str, float]) -> None:
        if not isinstance(values, Mapping):
            raise SpaceError(f"the fidelities are {values!r}; expected a dict with {self.names}")
        if unknown := [name for name in values if name not in self._fidelities]:
            raise SpaceError(f"fidelities {unknown} are unknown; expected {self.names}")
        if missing := [name for name in self._fidelities if name not in values]:
            raise SpaceError(f"fidelities {missing} are missing; expected {self.names}")


def check_names(space: Space, fidelities: Fidelities) -> None:
    """Raise SpaceError if a fidelity has the name of a parameter or group: each name means one thing in a study."""
    taken = {name.partition(".")[0] for name in space.names}
    if shared := [name for name in fidelities.names if name in taken]:
        raise SpaceError(f"{shared} are names in the space and of fidelities; expected distinct names: rename one")


def _usual_kernel(trace: bool) -> str:
    return "curve" if trace else "size"


def _whole(value: object) -> int | None:
    """3 or 3.0 as 3."""
    number = as_float(value)
    return None if number is None or number != int(number) else int(cast(Any, value))


def _fidelity_from_json(entry: object) -> tuple[str, Fidelity]:
    keys = [f.name for f in fields(Fidelity)]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise SpaceError(f"a fidelity in JSON is {entry!r}; expected an object with a 'name'")
    name = entry["name"]
    if unknown := sorted(set(entry) - {"name", *keys}):
        raise SpaceError(f"fidelity {name!r} has the unknown keys {unknown}; drop them")
    if missing := [key for key in keys if key not in entry]:
        raise SpaceError(f"fidelity {name!r} lacks {missing}; expected all of {keys}")
    try:
        return name, Fidelity(entry["low"], entry["high"], **{key: entry[key] for key in keys[2:]})
    except SpaceError as error:
        raise SpaceError(f"fidelity {name!r}: {error}") from None
