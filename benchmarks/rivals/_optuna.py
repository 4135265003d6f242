"""Optuna's samplers and pruner, driven by ask and tell."""

import math
from collections.abc import Sequence
from typing import Any

import optuna

from rivals._protocol import STEPS, Incumbent, Method, Point, Reply, Request, Setting

optuna.logging.set_verbosity(optuna.logging.WARNING)

_WORST = 1e12  # stands for a loss that is not finite; larger ones are cut off


class OptunaMethod(Method):
    """At full fidelity; its first trials are the initial design of all methods."""

    def __init__(self, setting: Setting, *, pruner: Any = None) -> None:
        super().__init__(setting)
        self.incumbent = Incumbent()
        # The name decides which bracket of the pruner a trial is in; a random one would make runs differ.
        self.study = optuna.create_study(
            study_name=f"seed-{setting.seed}", sampler=self.sampler(), pruner=pruner or optuna.pruners.NopPruner()
        )
        for request in setting.initial():
            self.study.enqueue_trial({f"x{i}": value for i, value in enumerate(request.x)})
        self._trial: Any = None

    def sampler(self) -> Any:
        raise NotImplementedError

    def ask(self) -> list[Request]:
        return [Request(self.new_design(), self.setting.full)]

    def new_design(self) -> Point:
        self._trial = self.study.ask()
        return tuple(self._trial.suggest_float(f"x{i}", 0.0, 1.0) for i in range(self.setting.d))

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        (request,), (reply,) = requests, replies
        self.incumbent.see(request.x, reply.s, reply.value)
        self.study.tell(self._trial, bounded(reply.value))

    def recommend(self) -> Point:
        return self.incumbent.x


class Tpe(OptunaMethod):
    def sampler(self) -> Any:
        return optuna.samplers.TPESampler(seed=self.setting.seed, n_startup_trials=self.setting.initial_size)


class Gp(OptunaMethod):
    def sampler(self) -> Any:
        return optuna.samplers.GPSampler(seed=self.setting.seed, n_startup_trials=self.setting.initial_size)


class TpeHyperband(Tpe):
    """TPE whose runs are stopped by the HyperbandPruner; a run goes on from rung to rung: 1, 3, 9, 27."""

    def __init__(self, setting: Setting) -> None:
        pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=STEPS, reduction_factor=3)
        super().__init__(setting, pruner=pruner)
        self._going: tuple[Point, int, int] | None = None  # x, run, step

    def ask(self) -> list[Request]:
        if self._going is None:
            return [Request(self.new_design(), self.setting.at_step(1))]
        x, run, step = self._going
        return [Request(x, self.setting.at_step(3 * step), run)]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        (request,), (reply,) = requests, replies
        self.incumbent.see(request.x, reply.s, reply.value)
        first = 1 if self._going is None else self._going[2] + 1
        last = 1 if self._going is None else 3 * self._going[2]
        is_pruned = False
        for step, (_, value) in enumerate(reply.trace, start=first):
            self._trial.report(bounded(value), step)
            is_pruned = is_pruned or self._trial.should_prune()
        if is_pruned:
            self.study.tell(self._trial, state=optuna.trial.TrialState.PRUNED)
        elif last == STEPS or not math.isfinite(reply.value):
            self.study.tell(self._trial, bounded(reply.value))
        else:
            self._going = (request.x, reply.run, last)
            return
        self._going = None


def bounded(value: float) -> float:
    return min(value, _WORST) if math.isfinite(value) else _WORST
