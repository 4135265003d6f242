"""SMAC3's multi-fidelity facade, random forests on Hyperband's rungs, driven by ask and tell."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

from ConfigSpace import ConfigurationSpace, Float
from smac import MultiFidelityFacade, Scenario
from smac.runhistory.dataclasses import TrialValue

from rivals._protocol import STEPS, Incumbent, Method, Point, Reply, Request, Setting, scratch

_WORST = 1e12
_NO_LIMIT = 100_000  # trials; the simulator ends the run


class Smac(Method):
    """Budgets of 1..27 steps, eta = 3; a configuration that is promoted continues its run."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.incumbent = Incumbent()
        self._runs: dict[Point, tuple[int, float]] = {}
        space = ConfigurationSpace(seed=setting.seed)
        space.add([Float(f"x{i}", (0.0, 1.0)) for i in range(setting.d)])
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=_NO_LIMIT,
            min_budget=1,
            max_budget=STEPS,
            seed=setting.seed,
            output_directory=scratch(self),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._smac = MultiFidelityFacade(
                scenario,
                _never_called,
                initial_design=MultiFidelityFacade.get_initial_design(scenario, n_configs=setting.initial_size),
                intensifier=MultiFidelityFacade.get_intensifier(scenario, eta=3),
                logging_level=False,
                overwrite=True,
            )
        self._info: Any = None

    def ask(self) -> list[Request]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._info = self._smac.ask()
        x = tuple(float(self._info.config[f"x{i}"]) for i in range(self.setting.d))
        s = self.setting.at_step(self._info.budget)
        run, stands = self._runs.get(x, (None, 0.0))
        return [Request(x, s, run if stands < math.prod(s) else None)]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        (request,), (reply,) = requests, replies
        self.incumbent.see(request.x, reply.s, reply.value)
        if math.isfinite(reply.value):
            self._runs[request.x] = (reply.run, math.prod(reply.s))
        loss = min(reply.value, _WORST) if math.isfinite(reply.value) else _WORST
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._smac.tell(self._info, TrialValue(cost=loss))

    def recommend(self) -> Point:
        return self.incumbent.x


def _never_called(config: Any, seed: int = 0, budget: float = 0.0) -> float:
    raise AssertionError("SMAC is asked and told; it does not evaluate")
