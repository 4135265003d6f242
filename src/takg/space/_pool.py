"""A search space of which only listed configurations can be run."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from random import Random
from typing import Any

from takg.errors import SpaceError
from takg.space._space import Space, Values
from takg.space._values import as_int

Point = tuple[float, ...]


class Pool(Space):
    """Some configurations of a space, as those of a table of runs that were made before, or of models at hand.

    A point of the cube means the nearest of them.
    """

    __slots__ = ("_configs",)

    def __init__(self, parameters: Mapping[str, Any], configs: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(parameters)
        self._configs: dict[Point, dict[str, Any]] = {}
        for i, config in enumerate(configs):
            try:
                values = super()._checked(config)
            except SpaceError as error:
                raise SpaceError(f"configs[{i}]: {error}") from None
            self._configs.setdefault(self._coordinates(values), self._nested(values))
        if len(self._configs) < 2:
            raise SpaceError(f"configs has {len(self._configs)} distinct configurations; expected at least 2")

    @property
    def points(self) -> tuple[Point, ...]:
        """The coordinates of the configurations, each once."""
        return tuple(self._configs)

    def from_unit(self, u: Sequence[float]) -> dict[str, Any]:
        return copy.deepcopy(self._configs[self.snapped(u)])

    def snapped(self, u: Sequence[float]) -> Point:
        return self.neighbours(u, 1)[0]

    def neighbours(self, u: Sequence[float], limit: int = 16) -> list[Point]:
        """The coordinates of the nearest configurations, the nearest first."""
        if (most := as_int(limit)) is None or most < 1:
            raise SpaceError(f"limit={limit!r}; expected an integer of at least 1")
        place = self._clamped(u)
        return nsmallest(most, self._configs, key=lambda point: math.dist(place, point))

    def sample(self, random: Random) -> dict[str, Any]:
        """One of the configurations, all equally likely."""
        return self.from_unit(random.choice(self.points))

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "configs": [*self._configs.values()]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Pool":
        if not isinstance(data, Mapping) or not isinstance(data.get("configs"), list):
            raise SpaceError("the JSON of a pool has no 'configs'; expected a list of configurations")
        whole = Space.from_json({key: value for key, value in data.items() if key != "configs"})
        return cls(whole._nested(whole._parameters), data["configs"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pool) and super().__eq__(other) and set(self.points) == set(other.points)

    def __hash__(self) -> int:
        return hash((super().__hash__(), frozenset(self.points)))

    def __repr__(self) -> str:
        return f"Pool({self._nested(self._parameters)!r}, <{len(self._configs)} configurations>)"

    def _checked(self, config: Mapping[str, Any]) -> Values:
        values = super()._checked(config)
        if self._coordinates(values) not in self._configs:
            raise SpaceError(f"{dict(config)!r} is not in the pool; expected one of its {len(self._configs)}")
        return values
