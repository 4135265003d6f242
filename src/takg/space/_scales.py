"""Intervals of floats and of integers as [0, 1], and back.

[0, 1] has fewer floats than most intervals, above all on a log scale and around zero, so several neighbouring
values can share a coordinate. One of them stands for all, and it alone comes back: the interval's end or its
`preferred` value if they are among them, otherwise the one that takes the fewest digits to write. So 0.1 comes back
as 0.1, as does everything else that is given to fewer digits than a coordinate resolves.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Floats from low to high, linear or in their logarithm."""

    low: float
    high: float
    log: bool = False

    def to_unit(self, value: float) -> float:
        """Never decreasing in the value; exactly 0 at low and 1 at high."""
        low, high = self.low, self.high
        if not self.log:
            if math.isinf(high - low):
                value, low, high = value / 2, low / 2, high / 2
            return (value - low) / (high - low)
        ratio = (high - low) / low
        if math.isinf(ratio):
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return math.log1p((value - low) / low) / math.log1p(ratio)  # exact differences, where low is close to high

    def from_unit(self, u: float, preferred: float | None = None) -> float:
        """The value that stands for all whose coordinate is u, or else is the closest to u.

        Args:
            u: in [0, 1].
            preferred: a value in [low, high] that stands for its neighbours, even if they are shorter to write.
        """
        lowest, highest = _rank(self.low), _rank(self.high)

        def unit(rank: int) -> float:
            return self.to_unit(_float(rank))

        rank = _rank(self._guess(u))
        if unit(rank) <= u:
            rank = _furthest(lambda i: unit(i) <= u, rank, highest)
        else:
            rank = _furthest(lambda i: unit(i) > u, rank, lowest) - 1
        own = unit(rank)  # the largest coordinate up to u
        if own < u and unit(rank + 1) - u < u - own:
            rank += 1
            own = unit(rank)
        first = _float(_furthest(lambda i: unit(i) == own, rank, lowest))
        last = _float(_furthest(lambda i: unit(i) == own, rank, highest))
        for value in (self.low, self.high, preferred):
            if value is not None and first <= value <= last:
                return value
        return _shortest(first, last)

    def _guess(self, u: float) -> float:
        """Right but for rounding."""
        if self.log:
            first, last = math.log(self.low), math.log(self.high)
            value = math.exp(min(first + u * (last - first), last))
        else:
            value = self.low * (1 - u) + self.high * u
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True)
class Bins:
    """Integers from low to high, each with a bin of equal width, or one of equal width in the logarithm.

    An integer's own coordinate is the centre of its bin.
    """

    low: int
    high: int
    log: bool = False

    def to_unit(self, value: int) -> float:
        if self.log:
            return (self._log_edge(value) + self._log_edge(value + 1)) / (2 * self._log_edge(self.high + 1))
        return (value - self.low + 0.5) / (self.high - self.low + 1)

    def from_unit(self, u: float) -> int:
        if self.log:
            edge = (self.low - 0.5) * math.exp(u * self._log_edge(self.high + 1))
            value = math.floor(edge + 0.5)
        else:
            value = self.low + math.floor(u * (self.high - self.low + 1))
        return min(max(value, self.low), self.high)

    def nearest(self, u: float) -> list[tuple[float, int]]:
        """The integer at u and the one on its other side, each with how much further it is; `Parameter.nearest`."""
        value = self.from_unit(u)
        own = self.to_unit(value)
        other = value + 1 if u > own else value - 1
        if u == own or not self.low <= other <= self.high:
            return [(0.0, value)]
        further = (u - self.to_unit(other)) ** 2 - (u - own) ** 2
        return [(0.0, value), (max(further, 0.0), other)]  # below 0 near the edge of a wide bin

    def _log_edge(self, value: int) -> float:
        """Where the value's bin begins, in the logarithm and from low's."""
        return math.log((value - 0.5) / (self.low - 0.5))


def _rank(value: float) -> int:
    """The place of a float among all floats, 0 at zero: neighbours differ by 1."""
    (bits,) = struct.unpack("<q", struct.pack("<d", abs(value)))
    return int(bits) if value >= 0 else -int(bits)


def _float(rank: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<q", abs(rank)))
    return float(value) if rank >= 0 else -float(value)


def _furthest(holds: Callable[[int], bool], start: int, end: int) -> int:
    """The last integer from start to end, in either direction, up to which `holds` holds; it does at start."""
    sign = 1 if end >= start else -1
    reach, jump = 0, 1
    limit = abs(end - start)
    while reach + jump <= limit and holds(start + sign * (reach + jump)):
        reach += jump
        jump *= 2
    while jump > 1:
        jump //= 2
        if reach + jump <= limit and holds(start + sign * (reach + jump)):
            reach += jump
    return start + sign * reach


def _shortest(first: float, last: float) -> float:
    """The float in [first, last] with the fewest digits, close to the middle."""
    if first <= 0 <= last:
        return 0.0
    middle = first + (last - first) / 2
    rounded = (float(f"{middle:.{digits}e}") for digits in range(17))  # the last one is the middle itself
    return next(value for value in rounded if first <= value <= last)
