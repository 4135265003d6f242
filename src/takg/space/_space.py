"""A search space: named parameters, some of them conditional, and the unit cube that they are tuned in."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from graphlib import CycleError, TopologicalSorter
from itertools import count
from random import Random
from types import MappingProxyType
from typing import Any, cast

from takg.errors import SpaceError
from takg.space._parameters import KINDS, Constant, Float, Parameter, conditions_of
from takg.space._values import Scalar, as_coordinate, as_int, check_name, identity

Values = dict[str, Scalar]
"""Full name -> value of the active parameters."""


class Space:
    """Parameters by name, in order; nested dicts make groups, and a plain value is a constant.

    A configuration is a dict nested like the definition and in its order, without the parameters that are not
    active. Inside, names are joined with dots: `optimizer.lr`. `when` names parents by that full name or as a
    sibling in the same dict.

    Every configuration that the space hands out comes back from its coordinates bit for bit. So does one that a
    user writes down, unless it has floats with more digits than a coordinate can resolve (about 15 on a linear
    scale, counted from the size of the range; 12 to 15 on a log scale): those come back as the nearest float with
    fewer digits, which is then stable.
    """

    __slots__ = ("_dims", "_imputed", "_order", "_parameters")

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        if not isinstance(parameters, Mapping):
            raise SpaceError(f"parameters is a {type(parameters).__name__}; expected a dict of names and parameters")
        given = dict(_flattened(parameters, ""))
        self._parameters = {name: _with_full_names(name, parameter, given) for name, parameter in given.items()}
        self._order = _parents_first(self._parameters)
        _check_reachable(self._parameters, self._order)
        self._dims: dict[str, range] = {}
        start = 0
        for name, parameter in self._parameters.items():
            self._dims[name] = range(start, start + parameter.d)
            start += parameter.d
        self._imputed = {name: _to_unit(p, p.usual) for name, p in self._parameters.items()}

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """By full name, in the order of definition; their `when` has full names, too."""
        return MappingProxyType(self._parameters)

    @property
    def names(self) -> tuple[str, ...]:
        """The full names, in the order of definition."""
        return tuple(self._parameters)

    @property
    def dims(self) -> Mapping[str, range]:
        """Which coordinates each parameter has."""
        return MappingProxyType(self._dims)

    @property
    def d(self) -> int:
        """How many coordinates there are."""
        return sum(parameter.d for parameter in self._parameters.values())

    def to_unit(self, config: Mapping[str, Any]) -> tuple[float, ...]:
        """The coordinates of a configuration, which is checked; those of inactive parameters are imputed."""
        return self._coordinates(self._checked(config))

    def from_unit(self, u: Sequence[float]) -> dict[str, Any]:
        """The configuration at d coordinates in [0, 1]."""
        return self._nested(self._values_at(self._clamped(u)))

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise SpaceError unless this is a configuration of the space."""
        self._checked(config)

    def snapped(self, u: Sequence[float]) -> tuple[float, ...]:
        """The coordinates of what would really be run at u."""
        return self._coordinates(self._values_at(self._clamped(u)))

    def neighbours(self, u: Sequence[float], limit: int = 16) -> list[tuple[float, ...]]:
        """Distinct snapped points around u, `snapped(u)` first, then by their distance from u.

        Integers and ordinals are rounded either way, categories may be any of the three largest that are above 0,
        so a point that is snapped already has no neighbours but itself. What is not active adds no distance.
        """
        if (most := as_int(limit)) is None or most < 1:
            raise SpaceError(f"limit={limit!r}; expected an integer of at least 1")
        u = self._clamped(u)
        points: list[tuple[float, ...]] = []
        pushes = count()
        # Assignments of the first parameters, parents first. The cheapest goes on, of equals the longest, and as each
        # can go on at no cost, no more than `limit` times the number of parameters are looked at.
        open_ends: list[tuple[float, int, int, Values]] = [(0.0, 0, next(pushes), {})]
        while open_ends and len(points) < most:
            further, depth, _, values = heapq.heappop(open_ends)
            if -depth == len(self._order):
                points.append(self._coordinates(values))
                continue
            name = self._order[-depth]
            if self._is_active(name, values):
                near = self._parameters[name].nearest(self._part(name, u))
                extended = [(further + more, {**values, name: value}) for more, value in near]
            else:
                extended = [(further, values)]
            for distance, longer in extended:
                heapq.heappush(open_ends, (distance, depth - 1, next(pushes), longer))
        return points

    def sample(self, random: Random) -> dict[str, Any]:
        """A configuration drawn uniformly over the cube."""
        return self.from_unit([random.random() for _ in range(self.d)])

    def defaults(self) -> dict[str, Any]:
        """The configuration of all defaults; without one, the middle of the range or the first category."""
        return self.from_unit([coordinate for part in self._imputed.values() for coordinate in part])

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data, a list because stores may reorder the keys of an object."""
        kinds = {kind: name for name, kind in KINDS.items()}
        return {
            "parameters": [
                {"name": name, "kind": kinds[type(parameter)], **_plain(parameter.arguments())}
                for name, parameter in self._parameters.items()
            ]
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Space":
        """The space that `to_json` described."""
        if not isinstance(data, Mapping) or set(data) != {"parameters"} or not isinstance(data["parameters"], list):
            shown = sorted(map(str, data)) if isinstance(data, Mapping) else repr(data)
            raise SpaceError(f"the JSON of a space has {shown}; expected one key, 'parameters', that holds a list")
        tree: dict[str, Any] = {}
        for entry in data["parameters"]:
            name, parameter = _parameter_from_json(entry)
            *groups, own = name.split(".")
            branch = tree
            for group in groups:
                branch = branch.setdefault(group, {})
                if not isinstance(branch, dict):
                    raise SpaceError(f"parameter {name!r} is inside {group!r}, which is a parameter, not a group")
            if own in branch:
                raise SpaceError(f"parameter {name!r} is there twice, or a group has its name; expected distinct names")
            branch[own] = parameter
        return cls(tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and [*self._parameters.items()] == [*other._parameters.items()]

    def __hash__(self) -> int:
        return hash(tuple(self._parameters.items()))

    def __repr__(self) -> str:
        return f"Space({self._nested(self._parameters)!r})"

    def _checked(self, config: Mapping[str, Any]) -> Values:
        given = dict(self._given(config, ""))
        values: Values = {}
        for name in self._order:
            parameter, is_given = self._parameters[name], name in given
            if self._is_active(name, values):
                if not is_given:
                    raise SpaceError(f"{name!r} is missing in the configuration; expected a value of {parameter!r}")
                values[name] = parameter.checked(name, given[name])
            elif is_given:
                raise SpaceError(f"{name}={given[name]!r} is not active here: {parameter!r}; leave it out")
        return values

    def _given(self, config: object, prefix: str) -> Iterator[tuple[str, object]]:
        """The full names and the values, not checked, of a configuration."""
        if not isinstance(config, Mapping):
            where = f"group {prefix[:-1]!r} of the configuration" if prefix else "the configuration"
            raise SpaceError(f"{where} is {config!r}; expected a dict")
        for key, value in config.items():
            name = f"{prefix}{key}"
            is_name = isinstance(key, str) and "." not in key
            if is_name and name in self._parameters:
                yield name, value
            elif is_name and any(known.startswith(f"{name}.") for known in self._parameters):
                yield from self._given(value, f"{name}.")
            else:
                raise SpaceError(f"{name!r} in the configuration is unknown; expected nested dicts with {self.names}")

    def _clamped(self, u: Sequence[float]) -> list[float]:
        if len(u) != self.d:
            raise SpaceError(f"{len(u)} coordinates; expected {self.d}, as many as the space has")
        owners = [name for name, dims in self._dims.items() for _ in dims]
        return [as_coordinate(c, f"coordinate {i} ({owners[i]})") for i, c in enumerate(u)]

    def _part(self, name: str, u: Sequence[float]) -> list[float]:
        return [u[i] for i in self._dims[name]]

    def _values_at(self, u: Sequence[float]) -> Values:
        values: Values = {}
        for name in self._order:
            if self._is_active(name, values):
                values[name] = self._parameters[name].from_unit(self._part(name, u))
        return values

    def _coordinates(self, values: Values) -> tuple[float, ...]:
        parts = (
            _to_unit(parameter, values[name]) if name in values else self._imputed[name]
            for name, parameter in self._parameters.items()
        )
        return tuple(coordinate for part in parts for coordinate in part)

    def _is_active(self, name: str, values: Values) -> bool:
        """Whether all conditions hold, given the values of the active ones among the parents."""
        return all(
            parent in values and identity(values[parent]) in map(identity, allowed)
            for parent, allowed in conditions_of(self._parameters[name]).items()
        )

    def _nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name in self._parameters:
            if name in values:
                *groups, own = name.split(".")
                branch = tree
                for group in groups:
                    branch = branch.setdefault(group, {})
                branch[own] = values[name]
        return tree


def _to_unit(parameter: Parameter, value: Any) -> tuple[float, ...]:
    return parameter.to_unit(value)


def _flattened(parameters: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Parameter]]:
    if not parameters:
        raise SpaceError(f"{f'group {prefix[:-1]!r}' if prefix else 'the space'} is empty; expected parameters in it")
    for key, value in parameters.items():
        check_name(f"the name under {prefix[:-1]!r}" if prefix else "the name", key)
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{name}.")
        elif isinstance(value, Parameter):
            yield name, value
        elif value is None or type(value) in (str, int, float, bool):
            yield name, Constant(value)
        else:
            raise SpaceError(
                f"{name!r} is a {type(value).__name__}, {value!r}; expected Float, Int, Categorical, Ordinal, "
                "Constant, a dict of them, or a plain value for a constant"
            )


def _with_full_names(name: str, parameter: Parameter, given: Mapping[str, Parameter]) -> Parameter:
    """The parameter with the full names of its parents in `when`, and their values checked."""
    prefix = name.rpartition(".")[0]
    when: dict[str, list[Scalar]] = {}
    for parent, values in conditions_of(parameter).items():
        full = parent if parent in given or not prefix else f"{prefix}.{parent}"
        if full not in given:
            raise SpaceError(f"{name!r} has a condition on {parent!r}, which is unknown; expected one of {[*given]}")
        if full in when:
            raise SpaceError(f"{name!r} has two conditions on {full!r}; expected one with the values that both allow")
        decider = given[full]
        if isinstance(decider, Float):
            raise SpaceError(
                f"{name!r} has a condition on {full!r}, {decider!r}; expected a Categorical, Ordinal, Int or Constant"
            )
        try:
            when[full] = [decider.checked(full, value) for value in values]
        except SpaceError as error:
            raise SpaceError(f"{name!r} has a condition that cannot hold: {error}") from None
    return replace(parameter, when=when)


def _parents_first(parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    graph = {name: [*conditions_of(parameter)] for name, parameter in parameters.items()}
    try:
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " -> ".join(map(repr, reversed(error.args[1])))
        raise SpaceError(f"the conditions go round in a circle, {cycle}; expected parents that come first") from None


def _check_reachable(parameters: Mapping[str, Parameter], order: Sequence[str]) -> None:
    """Raise SpaceError for a parameter whose conditions and those of its ancestors contradict each other."""
    needs: dict[str, dict[str, set[tuple[type, object]]]] = {}
    for name in order:
        conditions = conditions_of(parameters[name])
        needs[name] = own = {parent: set(map(identity, values)) for parent, values in conditions.items()}
        for parent in conditions:
            for ancestor, allowed in needs[parent].items():
                own[ancestor] = own.get(ancestor, allowed) & allowed
                if not own[ancestor]:
                    raise SpaceError(
                        f"{name!r} can never be active: its conditions and those of its parents leave no value for "
                        f"{ancestor!r}; expected conditions that can hold together"
                    )


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(arguments)
    if "choices" in plain:
        plain["choices"] = list(plain["choices"])
    if "when" in plain:
        plain["when"] = {parent: list(values) for parent, values in plain["when"].items()}
    return plain


def _parameter_from_json(entry: object) -> tuple[str, Parameter]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise SpaceError(f"a parameter in JSON is {entry!r}; expected an object with a 'name'")
    name, kind = entry["name"], entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpaceError(f"parameter {name!r} has the kind {kind!r}; expected one of {[*KINDS]}")
    known = [f for f in fields(KINDS[kind]) if f.init]
    if unknown := sorted(set(entry) - {"name", "kind"} - {f.name for f in known}):
        raise SpaceError(f"parameter {name!r}, {kind}, has the unknown keys {unknown}; drop them")
    needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
    if missing := [key for key in needed if key not in entry]:
        raise SpaceError(f"parameter {name!r}, {kind}, lacks {missing}; expected all of {needed}")
    try:
        return name, cast(Any, KINDS[kind])(**{key: entry[key] for key in entry if key not in ("name", "kind")})
    except SpaceError as error:
        raise SpaceError(f"parameter {name!r}: {error}") from None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration with its names joined by dots."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
