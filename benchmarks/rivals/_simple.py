"""Random search and Hyperband: no model, no library."""

import math
from collections.abc import Sequence

import numpy as np

from rivals._protocol import STEPS, Incumbent, Method, Point, Reply, Request, Setting

ETA = 3


class RandomSearch(Method):
    """Uniform designs, trained in full."""

    resumes_by = "telling"

    def __init__(self, setting: Setting, *, q: int = 1) -> None:
        super().__init__(setting)
        self.q, self._told, self._incumbent = q, 0, Incumbent()

    def ask(self) -> list[Request]:
        rng = np.random.default_rng(self.setting.seed_of(self._told))
        return [Request(tuple(rng.random(self.setting.d).tolist()), self.setting.full) for _ in range(self.q)]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        self._told += len(requests)
        for request, reply in zip(requests, replies, strict=True):
            self._incumbent.see(request.x, reply.s, reply.value)

    def recommend(self) -> Point:
        return self._incumbent.x


class Hyperband(Method):
    """Li et al. 2017, R = 27 and eta = 3: brackets of 27, 12, 6 and 4 runs, over and over; runs are continued."""

    def __init__(self, setting: Setting, *, q: int = 1) -> None:
        super().__init__(setting)
        self.q, self._incumbent = q, Incumbent()
        self._rng = np.random.default_rng(setting.seed)
        self._most = round(math.log(STEPS, ETA))
        self._bracket = self._most + 1  # the first to come is the one with the most runs
        self._step, self._waiting = 0, []
        self._done: list[tuple[float, Point, int]] = []  # value, x, run: of this rung

    def ask(self) -> list[Request]:
        if not self._waiting:
            self._next_rung()
        return [Request(x, self.setting.at_step(self._step), run) for x, run in self._waiting[: self.q]]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        del self._waiting[: len(requests)]
        for request, reply in zip(requests, replies, strict=True):
            self._incumbent.see(request.x, reply.s, reply.value)
            if math.isfinite(reply.value):
                self._done.append((reply.value, request.x, reply.run))

    def recommend(self) -> Point:
        return self._incumbent.x

    def _next_rung(self) -> None:
        promoted = sorted(self._done)[: self._size // ETA] if self._done and self._step < STEPS else []
        self._done = []
        if promoted:
            self._step *= ETA
            self._size //= ETA
            self._waiting = [(x, run) for _, x, run in promoted]
            return
        self._bracket = (self._bracket - 1) % (self._most + 1) if self._bracket <= self._most else self._most
        self._step = STEPS // ETA**self._bracket
        self._size = math.ceil((self._most + 1) / (self._bracket + 1) * ETA**self._bracket)
        self._waiting = [(tuple(self._rng.random(self.setting.d).tolist()), None) for _ in range(self._size)]
