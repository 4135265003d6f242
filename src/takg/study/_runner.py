"""Carry out one evaluation: prepare its checkpoint, call the training function, write down how it ended."""

import logging
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from takg.errors import InputError, StaleError, StudyError
from takg.records import RUNNING, Config, EvaluationState, Failed, FidelityValues, Finished, Given, Lost, Storage
from takg.study._data import CostFunction
from takg.study._evaluation import Checkpoints, DivergedError, Evaluation, Train, as_number, positive_cost
from takg.study._log import Log
from takg.study._plan import Plan

logger = logging.getLogger("takg")

_MESSAGE = 4000  # characters of a traceback that are kept, its end


class KeptCheckpoints(Checkpoints, Protocol):
    """Checkpoints as the runner needs them; see `takg.checkpoints`."""

    def held(self, trial: int) -> AbstractContextManager[None]: ...
    def begin(self, trial: int, evaluation: EvaluationState) -> bool: ...
    def last_state(self, trial: int, evaluation: EvaluationState) -> FidelityValues | None: ...
    def remove(self, trial: int) -> None: ...
    def size(self, trial: int) -> int: ...


Connect = Callable[[], tuple[Storage, KeptCheckpoints]]
"""Opens the store and the checkpoints in whatever process it is called; can be sent to another process."""


def run_elsewhere(
    connect: Connect, name: str, number: int, attempt: int, train: Train, cost_function: CostFunction | None
) -> None:
    """Carry out an evaluation in a process that has nothing of the study yet."""
    storage, checkpoints = connect()
    log = Log(storage, name)
    plan = Plan.from_definition(storage.definition(name))
    run(log, plan, checkpoints, number, attempt, train, cost_function)


def run(
    log: Log,
    plan: Plan,
    checkpoints: KeptCheckpoints,
    number: int,
    attempt: int,
    train: Train,
    cost_function: CostFunction | None,
) -> None:
    """Carry out one attempt of one evaluation; every outcome ends up in the log, none is raised."""
    try:
        state = log.state.evaluations[number]
        with checkpoints.held(state.asked.trial):
            log.refresh()  # in the meantime it may have been given to others
            if state.attempt != attempt or state.status != RUNNING:
                raise StaleError(f"evaluation {number} ({state.status}) is at attempt {state.attempt}, not {attempt}")
            prepare(log, checkpoints, state)
            try:
                _train(log, plan, checkpoints, state, train, cost_function)
            except _CannotResumeError as trouble:
                logger.warning(
                    "evaluation %d: the checkpoint of trial %d cannot be used, training starts over:\n%s",
                    number,
                    state.asked.trial,
                    trouble,
                )
                _start_over(log, state, f"training could not go on from its checkpoint: {trouble}"[:_MESSAGE])
                prepare(log, checkpoints, state)
                _train(log, plan, checkpoints, state, train, cost_function)
    except StaleError as error:
        logger.warning("%s; this attempt is given up", error)


class _CannotResumeError(Exception):
    """The training raised before its first report, with a checkpoint to go on from."""


def prepare(log: Log, checkpoints: KeptCheckpoints, state: EvaluationState) -> None:
    """Bring the directory to where the attempt starts; one whose checkpoint is gone becomes one from scratch."""
    if not checkpoints.begin(state.asked.trial, state):
        _start_over(log, state, "its checkpoint is gone")
        checkpoints.begin(state.asked.trial, state)


def _start_over(log: Log, state: EvaluationState, reason: str) -> None:
    log.append(Lost(evaluation=state.id, attempt=state.attempt, reason=reason, time=time.time()))
    log.append(Given(evaluation=state.id, attempt=state.attempt + 1, worker=state.worker, time=time.time(), start=None))


def _train(
    log: Log,
    plan: Plan,
    checkpoints: KeptCheckpoints,
    state: EvaluationState,
    train: Train,
    cost_function: CostFunction | None,
) -> None:
    evaluation = Evaluation(log, plan, state, checkpoints, stops=True)
    began = time.perf_counter()
    failure = None
    try:
        _last_report(evaluation, state, train(evaluation))
        if not evaluation.reports and (state.reached is None or state.reached != state.start):
            failure = "the training function returned without reporting a value"
        elif plan.options.cost == "reported" and evaluation.reported_cost is None:
            failure = 'this study has cost="reported", but the training function called evaluation.cost(...) never'
    except DivergedError:
        pass
    except StaleError:
        raise
    except (Exception, SystemExit) as error:  # a training that ends its program has failed; the study has not
        message = "".join(traceback.format_exception(error))[-_MESSAGE:]
        if evaluation.resumed and not evaluation.reports:
            raise _CannotResumeError(message) from error
        failure = message
    seconds = time.perf_counter() - began
    try:
        cost = cost_of(
            plan,
            log.state.trial_of(state).config,
            state,
            seconds=seconds,
            reported=evaluation.reported_cost,
            function=cost_function,
        )
    except Exception as error:
        cost, failure = 0.0, f"its cost is unknown:\n{''.join(traceback.format_exception(error))[-_MESSAGE:]}"
    now = time.time()
    end: Finished | Failed
    if failure is not None:
        logger.warning("evaluation %d failed: %s", state.id, failure.strip().splitlines()[-1])
        end = Failed(
            evaluation=state.id,
            attempt=state.attempt,
            kind="error",
            message=failure,
            cost=cost,
            seconds=seconds,
            time=now,
        )
    else:
        end = Finished(
            evaluation=state.id,
            attempt=state.attempt,
            cost=cost,
            seconds=seconds,
            time=now,
            has_checkpoint=evaluation.has_checkpoint(),
        )
    log.append(end)
    checkpoints.discard_copies(evaluation.trial)


def _last_report(evaluation: Evaluation, state: EvaluationState, result: Any) -> None:
    """A number that the training function returns is its report at the target, unless it made one there."""
    if result is None or (evaluation.reports and state.asked.target in state.points):
        return
    try:
        value = as_number(result)
    except InputError as error:
        raise StudyError(f"the training function returned {result!r:.100}; expected None or a number") from error
    evaluation.report(value)


def cost_of(
    plan: Plan,
    config: Config,
    state: EvaluationState,
    *,
    seconds: float,
    reported: float | None,
    function: CostFunction | None,
) -> float:
    """What the attempt has cost, in the study's unit; 0 where that cannot be known."""
    if plan.options.cost == "function":
        if function is None or state.reached is None:
            return 0.0
        whole = positive_cost(function(config, plan.named(state.reached)))
        before = positive_cost(function(config, plan.named(state.start))) if state.start is not None else 0.0
        return max(whole - before, 0.0)
    if plan.options.cost == "reported":
        return reported or 0.0
    return seconds
