"""One leg of a training run, as the training function sees it."""

import copy
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from takg.errors import InputError, TakgError
from takg.records import Config, EvaluationState, FidelityValues, Observed, Saved
from takg.study._log import Log
from takg.study._plan import Plan


class DivergedError(TakgError):
    """Ends a training whose loss is no longer finite; raised by `Evaluation.report` where takg runs the training."""


class Checkpoints(Protocol):
    """Where the state of trainings is kept between legs."""

    def directory(self, trial: int) -> Path:
        """Of a trial; the same for all of its legs."""

    def copy(self, trial: int, name: str) -> None:
        """Keep a safe copy of the directory under a name, as it is now."""

    def discard_copies(self, trial: int, *, but: str | None = None) -> None:
        """Delete the safe copies of a trial, all but one."""

    def exists(self, trial: int) -> bool:
        """Whether anything was saved."""

    def mark(self, trial: int) -> Hashable:
        """Changes whenever the directory does."""


class Evaluation:
    """What was asked for: a configuration, and how far to train it.

    `config` is the configuration, `fidelity` the target by name, `start` where the checkpoint stands (None: train from
    scratch), `checkpoint` a directory that outlives the process and is the same for all legs of a trial.
    """

    def __init__(
        self, log: Log, plan: Plan, state: EvaluationState, checkpoints: Checkpoints, *, stops: bool = False
    ) -> None:
        self._log, self._plan, self._state, self._checkpoints = log, plan, state, checkpoints
        self._stops = stops
        self._saves = 0
        self._standing = (state.start, checkpoints.mark(state.asked.trial))  # what the directory holds, for certain
        self._began = time.perf_counter()
        self.id: int = state.id
        self.trial: int = state.asked.trial
        self.attempt: int = state.attempt
        self.config: Config = copy.deepcopy(log.state.trials[self.trial].config)  # the user may take it apart
        self.fidelity: dict[str, float] = plan.named(state.asked.target)
        self.start: dict[str, float] | None = None if state.start is None else plan.named(state.start)
        self.reason: Mapping[str, Any] = state.asked.reason
        self.reported_cost: float | None = None
        self.reports = 0  # of this attempt

    def __repr__(self) -> str:
        whence = f", start={self.start}" if self.start else ""
        return f"Evaluation({self.id}, trial={self.trial}, config={self.config}, fidelity={self.fidelity}{whence})"

    @property
    def resumed(self) -> bool:
        """Whether there is a checkpoint to load."""
        return self.start is not None

    @property
    def checkpoint(self) -> Path:
        return self._checkpoints.directory(self.trial)

    @property
    def seconds(self) -> float:
        """Since this attempt began."""
        return time.perf_counter() - self._began

    def steps(self, name: str) -> Iterator[int]:
        """The whole steps of a fidelity that are still to be trained: epochs 6..10 of a run that stands at 5."""
        if name not in self.fidelity:
            raise InputError(f"name={name!r}: expected one of the study's fidelities, {list(self.fidelity)}")
        is_trace = self._plan.fidelities.fidelities[name].trace
        start = int(self.start[name]) if self.start and is_trace else None
        return iter(self._plan.fidelities.steps(name, start, int(self.fidelity[name])))

    def report(self, value: float, /, **fidelity: float) -> None:
        """One point of the trace, durable when this returns.

        Args:
            value: the loss (or score) that is tuned; NaN or infinite if training diverged.
            fidelity: where training stands, by name; fidelities left out are at their target.
        """
        at, number = self._place(fidelity), as_number(value)
        self._log.append(
            Observed(evaluation=self.id, attempt=self.attempt, fidelity=at, value=number, time=time.time())
        )
        self.reports += 1
        if self._stops and not math.isfinite(number):
            raise DivergedError(f"evaluation {self.id} diverged at {self._plan.named(at)}: {number}")

    def saved(self, **fidelity: float) -> None:
        """The checkpoint directory holds the state of training at this point: from here on, a crash loses nothing.

        Without this, an evaluation whose worker dies is given again from where it started.
        """
        at = self._place(fidelity)
        self._saves += 1  # a new name each time: the last copy stays until the next one is in the log
        name = f"{self.trial}-{self.id}-{self.attempt}-{self._saves}"
        standing = (at, self._checkpoints.mark(self.trial))
        self._checkpoints.copy(self.trial, name)
        self._log.append(Saved(evaluation=self.id, attempt=self.attempt, fidelity=at, copy=name, time=time.time()))
        self._checkpoints.discard_copies(self.trial, but=name)
        self._standing = standing

    def cost(self, cost: float) -> None:
        """Say what this evaluation has cost so far, in a study with cost="reported"."""
        self.reported_cost = positive_cost(cost)

    def has_checkpoint(self) -> bool:
        """Whether the directory holds the state at the last report, for the trial to be continued from there.

        Not if nothing was written since it held another state: a training that saves now and then, and not at its end.
        """
        state = self._log.state.evaluations[self.id]
        reached = state.reached
        if reached is None or not math.isfinite(state.points[reached]) or not self._plan.fidelities.trace_dims:
            return False
        at, mark = self._standing
        return self._checkpoints.exists(self.trial) and (at == reached or self._checkpoints.mark(self.trial) != mark)

    def _place(self, fidelity: Mapping[str, float]) -> FidelityValues:
        target = self._plan.named(self._state.asked.target)
        values = {**target, **fidelity}
        self._plan.fidelities.check(values)
        for name, one in self._plan.fidelities.fidelities.items():
            values[name] = one.checked(name, values[name])  # a plain number, also if it came from numpy
            if not one.trace and values[name] != target[name]:
                raise InputError(f"{name}={values[name]}: this trial has {name}={target[name]}, which is fixed")
        return self._plan.ordered(values)


def as_number(value: Any) -> float:
    """A loss as a float; tensors and arrays of one element will do, texts and truth values will not."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError(f"it is of type {type(value).__name__}")
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"value={value!r:.100}: expected a number") from error


def positive_cost(cost: float) -> float:
    if isinstance(cost, bool) or not isinstance(cost, Real) or not math.isfinite(cost) or cost <= 0:
        raise InputError(f"cost={cost!r:.100}: expected a finite number > 0")
    return float(cost)


Train = Callable[[Evaluation], Any]
