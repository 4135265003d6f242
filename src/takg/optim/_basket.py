"""Runs that may be continued: at most b of them, the least valuable dropped first; docs/paper.md#warm-start."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from takg.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Basket:
    """(x, s) of runs with a saved state; `size` is the paper's b."""

    entries: tuple[tuple[Tensor, Tensor], ...] = ()
    size: int = 10

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.entries) > self.size:
            raise InputError(f"size={self.size} for {len(self.entries)} entries: expected 0 <= entries <= size")

    def continued(self, index: int, s: Tensor) -> "Basket":
        """Entry `index` was trained on to s; it stays in its place."""
        if not 0 <= index < len(self.entries):
            raise InputError(f"index={index}: expected 0..{len(self.entries) - 1}, an entry of the basket")
        x, before = self.entries[index]
        if bool((s < before).any()):
            raise InputError(f"s={s.tolist()} lies below {before.tolist()}, where the run stands; it can only go on")
        entries = (*self.entries[:index], (x, s), *self.entries[index + 1 :])
        return Basket(entries=entries, size=self.size)

    def started(self, x: Tensor, s: Tensor, values: Sequence[float]) -> tuple["Basket", int | None]:
        """A new run joins; if there are too many then, the one of the smallest value leaves.

        Args:
            values: the acquisition value of each present entry and, last, that of the new run.
        Returns:
            The basket, and which entry left it (the new one has the last index), if any.
        """
        if len(values) != len(self.entries) + 1:
            raise InputError(f"values has {len(values)} entries; expected {len(self.entries) + 1}, the new run's last")
        if any(math.isnan(value) for value in values):
            raise InputError(f"values={list(values)}: expected numbers that can be compared, without NaN")
        entries = (*self.entries, (x, s))
        if len(entries) <= self.size:
            return Basket(entries=entries, size=self.size), None
        dropped = min(range(len(values)), key=lambda j: values[j])
        return Basket(entries=entries[:dropped] + entries[dropped + 1 :], size=self.size), dropped
