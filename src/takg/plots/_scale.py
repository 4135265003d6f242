"""What part of the values an axis shows: limits that neither a diverged run nor a wide band can blow up."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LOG_FROM = 100.0  # positive values that span more than this factor are shown on a log axis
_FEWEST_TO_HIDE_SOME = 10
_USUAL = 0.9  # the share of the values, best first, that is always shown
_FAR, _NEAR = 10.0, 3.0  # in spans of the usual values: where hiding begins, and what it leaves
_PADDING = 0.05
_LARGEST = 1e300  # no axis goes further, so that sums and differences of its ends are finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis: its kind, its limits, and how many values lie beyond them."""

    is_log: bool
    low: float
    high: float
    hidden: int = 0

    def clamped(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def bad_end(self, sign: float) -> float:
        """Where a run that diverged is marked; sign is 1 where smaller values are better, -1 where larger are."""
        share = 1 - _PADDING / 2 if sign > 0 else _PADDING / 2
        low, high = (math.log(end) if self.is_log else end for end in (self.low, self.high))
        place = low * (1 - share) + high * share
        return math.exp(place) if self.is_log else place


def scale_of(
    values: Sequence[float],
    *,
    sign: float,
    band: Iterable[float] = (),
    stretch: float = math.inf,
    shows_all: bool = False,
) -> Scale:
    """The axis for some finite values.

    Args:
        values: what is to be seen; of many, those that are far worse than most are hidden.
        sign: 1 if smaller values are better, -1 if larger are.
        band: what may be cut off.
        stretch: how far the band may extend the axis on either side, in spans of the values.
        shows_all: hide no value.
    """
    kept = list(values) if shows_all else _without_the_far(values, sign)
    is_log = min(kept) > 0 and max(kept) > _LOG_FROM * min(kept)
    places = [math.log(value) for value in kept] if is_log else kept
    low, high = min(places), max(places)
    room = stretch * (high - low) if high > low else math.inf
    lowest, highest = low - room, high + room
    for value in band:
        place = (math.log(value) if value > 0 else low if math.isinf(room) else lowest) if is_log else value
        low, high = min(low, max(place, lowest)), max(high, min(place, highest))
    padding = _PADDING * high - _PADDING * low or _PADDING * abs(high) or 1.0
    most = math.log(_LARGEST) if is_log else _LARGEST
    low, high = max(low - padding, -most), min(high + padding, most)
    if is_log:
        low, high = math.exp(low), math.exp(high)
    return Scale(is_log=is_log, low=low, high=high, hidden=len(values) - len(kept))


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers for a log axis, about as many as can be read."""
    first, last = math.log10(low), math.log10(high)
    decades = last - first
    digits = (1, 2, 5) if 3 * decades <= most else (1, 3) if 2 * decades <= most else (1,)
    powers = range(math.floor(first), math.floor(last) + 1)
    apart = math.ceil(decades / most) if len(digits) == 1 else 1
    ticks = [float(f"{digit}e{power}") for power in powers if power % apart == 0 for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def within_bounds(value: float) -> float:
    """What a prediction that overflowed is taken for."""
    return min(max(value, -_LARGEST), _LARGEST)


def _without_the_far(values: Sequence[float], sign: float) -> list[float]:
    is_positive = min(values) > 0
    badness = {value: sign * (math.log(value) if is_positive else value) for value in values}
    ranked = sorted(badness[value] for value in values)
    best, usual, worst = ranked[0], ranked[int(_USUAL * (len(ranked) - 1))], ranked[-1]
    span = usual - best
    if len(values) < _FEWEST_TO_HIDE_SOME or span <= 0 or worst - best <= _FAR * span:
        return list(values)
    return [value for value in values if badness[value] <= best + _NEAR * span]
