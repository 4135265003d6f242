"""What a method knows of a problem, what it asks for, and what it gets for its money."""

import math
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from takg.numerics import sobol_points

Point = tuple[float, ...]

STEPS = 27  # a trace is seen at s = 1/27, 2/27, ..., 1
LEAST = 0.01  # the least of a fidelity without a trace
_CHEAP = (0.02, 0.1)  # product of the fidelities in the initial design, as in takg's own


@dataclass(frozen=True, slots=True)
class Request:
    """Train x to s, from scratch or on from where `run` stands; `gradient` also wants d g / d x."""

    x: Point
    s: Point
    run: int | None = None
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """The new part of a run's trace, and what it cost; NaN at its end if the training diverged."""

    run: int
    trace: tuple[tuple[Point, float], ...]
    cost: float
    gradient: Point | None = None

    @property
    def s(self) -> Point:
        return self.trace[-1][0]

    @property
    def value(self) -> float:
        return self.trace[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All that a method may know before it starts: everything in the unit cube, smaller values are better."""

    d: int
    names: tuple[str, ...]  # of the fidelities
    trace_dims: tuple[int, ...]
    cost: Callable[[Tensor, Tensor], Tensor] | None  # (..., d), (..., m) -> (...); None: see what you have paid
    seed: int
    pool: tuple[Point, ...] | None = None  # the only designs there are; what is asked for means the nearest of them
    budget: float = math.inf  # at which the run ends, unless it has come to
    most: int | None = None  # suggestions before

    @property
    def m(self) -> int:
        return len(self.names)

    @property
    def full(self) -> Point:
        return (1.0,) * self.m

    @property
    def initial_size(self) -> int:
        return max(4, self.d + 1)

    def runnable(self, s: Sequence[float]) -> Point:
        """The nearest fidelity that can be run."""
        return tuple(
            min(max(round(value * STEPS), 1), STEPS) / STEPS if j in self.trace_dims else min(max(value, LEAST), 1.0)
            for j, value in enumerate(s)
        )

    def at_step(self, step: float) -> Point:
        """For methods with a single budget of 1..27: it turns the trace, other fidelities stay at their target."""
        dims = self.trace_dims or range(self.m)
        return self.runnable([step / STEPS if j in dims else 1.0 for j in range(self.m)])

    def initial(self, *, s: Point | None = None) -> list[Request]:
        """The same designs for every method; at mixed cheap fidelities, unless the method has one of its own."""
        low, high = (cost ** (1 / max(self.m, 1)) for cost in _CHEAP)
        found = []
        for point in sobol_points(self.initial_size, self.d + self.m, seed=self.seed).tolist():
            cheap = self.runnable([low * (high / low) ** u for u in point[self.d :]])
            found.append(Request(tuple(point[: self.d]), cheap if s is None else s))
        return found

    def seed_of(self, count: int) -> int:
        """Of a decision: after the same number of evaluations the same, so that a run can be resumed."""
        return (1_000_003 * self.seed + count) % 2**31


class Method(ABC):
    """Decides what to evaluate; every decision is a function of the setting and of what was told.

    `resumes_by` says how a killed run is taken up again: "telling" it the replies, "asking" again and checking that the
    requests are the same, or loading the "state" it gave.
    """

    resumes_by: ClassVar[str] = "asking"

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def ask(self) -> list[Request]:
        """One request, or several that run at the same time and cost as much as the dearest."""

    @abstractmethod
    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None: ...

    @abstractmethod
    def recommend(self) -> Point:
        """The design to be judged, after at least one reply."""

    def state(self) -> Any:
        """As JSON data; only of methods that resume by it."""
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError


class Incumbent:
    """The recommendation of methods without a model: the best value at the highest fidelity that was reached."""

    def __init__(self) -> None:
        self._best: tuple[float, float, Point] | None = None

    def see(self, x: Point, s: Point, value: float) -> None:
        loss = value if math.isfinite(value) else math.inf
        seen = (-math.prod(s) if math.isfinite(value) else 0.0, loss, x)
        if self._best is None or seen[:2] < self._best[:2]:
            self._best = seen

    @property
    def x(self) -> Point:
        assert self._best is not None, "nothing was seen yet"
        return self._best[2]


def scratch(owner: object) -> Path:
    """A directory that is gone with its owner."""
    path = tempfile.mkdtemp(prefix="takg-rival-")
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def as_point(x: Tensor) -> Point:
    return tuple(x.detach().clamp(0, 1).tolist())


def tensor(points: Sequence[Point]) -> Tensor:
    return torch.tensor(points, dtype=torch.float64)
