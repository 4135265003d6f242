"""Studies with a history that was written by hand, event by event."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import takg
from takg.records import Asked, Dropped, Failed, Finished, Lost, Observed
from takg.storage import MemoryStorage
from takg.study import Study

EPOCHS = {"epochs": takg.Fidelity(1, 20, trace=True)}
EPOCHS_AND_DATA = {**EPOCHS, "data": takg.Fidelity(500, 50_000, trace=False)}


class History:
    """Writes the events of one study, in order; time is the number of the event."""

    def __init__(
        self, space: Mapping[str, Any], fidelities: Mapping[str, takg.Fidelity] | None = None, **options: Any
    ) -> None:
        options = {"storage": MemoryStorage(), "cost": "reported", **options}
        self.study: Study = takg.create_study(space, fidelities, **options)

    @property
    def now(self) -> float:
        return float(self.study.state.sequence)

    def asks(self, config: Mapping[str, Any], **target: float) -> int:
        """A new trial; its id."""
        state = self.study.state
        trial = len(state.trials)
        self._ask(trial, target, config=config)
        return trial

    def continues(self, trial: int, **target: float) -> None:
        self._ask(trial, target, start=self.study.state.trials[trial].checkpoint)

    def observes(self, trial: int, *values: float, first: int = 1, **fixed: float) -> None:
        """Values at epochs first, first + 1, ...; at the target, without a trace."""
        evaluation = self._open(trial)
        for i, value in enumerate(values):
            at = dict(self.study.plan.named(evaluation.asked.target))
            if self.study.plan.fidelities.trace_names:
                at |= {self.study.plan.fidelities.trace_names[0]: first + i}
            self.study.log.append(
                Observed(
                    evaluation=evaluation.id,
                    attempt=evaluation.attempt,
                    fidelity=self.study.plan.ordered(at | fixed),
                    value=value,
                    time=self.now,
                )
            )

    def finishes(
        self, trial: int, cost: float = 1.0, *, has_checkpoint: bool = True, time: float | None = None
    ) -> None:
        evaluation = self._open(trial)
        self.study.log.append(
            Finished(
                evaluation=evaluation.id,
                attempt=evaluation.attempt,
                cost=cost,
                seconds=cost,
                time=self.now if time is None else time,
                has_checkpoint=True,
            )
        )

    def fails(self, trial: int, cost: float = 0.5) -> None:
        evaluation = self._open(trial)
        self.study.log.append(
            Failed(
                evaluation=evaluation.id,
                attempt=evaluation.attempt,
                kind="error",
                message="ValueError: no",
                cost=cost,
                seconds=cost,
                time=self.now,
            )
        )

    def loses(self, trial: int) -> None:
        evaluation = self._open(trial)
        self.study.log.append(
            Lost(evaluation=evaluation.id, attempt=evaluation.attempt, reason="worker died", time=self.now)
        )

    def drops(self, trial: int) -> None:
        self.study.log.append(Dropped(trial=trial, reason="not promising", time=self.now))

    def _ask(self, trial: int, target: Mapping[str, float], **more: Any) -> None:
        at = self.study.plan.ordered(target)
        event = Asked(
            evaluation=len(self.study.state.evaluations), trial=trial, target=at, worker="w", time=self.now, **more
        )
        self.study.log.append(event)

    def _open(self, trial: int) -> Any:
        return self.study.state.evaluations[self.study.state.trials[trial].evaluations[-1]]


def curve(quality: float, epochs: Iterable[int], *, floor: float = 0.1) -> list[float]:
    """Losses that fall towards floor + quality."""
    return [floor + quality + 2.0 * math.exp(-0.25 * epoch) for epoch in epochs]
