"""DEHB: differential evolution on Hyperband's rungs, driven by ask and tell."""

import math
from collections.abc import Sequence
from typing import Any

from dehb import DEHB
from loguru import logger

from rivals._protocol import STEPS, Incumbent, Method, Point, Reply, Request, Setting, scratch

logger.disable("dehb")  # it logs every evaluation

_WORST = 1e12


class Dehb(Method):
    """Budgets of 1..27 steps, eta = 3; a design that comes again at a higher rung continues its run."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.incumbent = Incumbent()
        self._runs: dict[Point, tuple[int, float]] = {}  # run, and where it stands
        self._dehb = DEHB(
            f=_never_called,
            dimensions=setting.d,
            configspace=False,
            min_fidelity=1,
            max_fidelity=STEPS,
            eta=3,
            n_workers=1,
            seed=setting.seed,
            output_path=str(scratch(self)),
        )
        self._job: dict[str, Any] = {}

    def ask(self) -> list[Request]:
        self._job = self._dehb.ask()
        x = tuple(float(value) for value in self._job["config"])
        s = self.setting.at_step(self._job["fidelity"])
        run, stands = self._runs.get(x, (None, 0.0))
        return [Request(x, s, run if stands < math.prod(s) else None)]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        (request,), (reply,) = requests, replies
        self.incumbent.see(request.x, reply.s, reply.value)
        if math.isfinite(reply.value):
            self._runs[request.x] = (reply.run, math.prod(reply.s))
        fitness = min(reply.value, _WORST) if math.isfinite(reply.value) else _WORST
        self._dehb.tell(self._job, {"fitness": fitness, "cost": reply.cost})

    def recommend(self) -> Point:
        return self.incumbent.x


def _never_called(*_: Any) -> dict[str, float]:
    raise AssertionError("DEHB is asked and told; it does not evaluate")
