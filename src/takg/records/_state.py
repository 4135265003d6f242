"""The state of a study: a fold over its events, changed by `apply` alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from takg.errors import StaleError, StudyError
from takg.records._events import (
    FAILURES,
    Asked,
    Config,
    Dropped,
    Event,
    Failed,
    FidelityValues,
    Finished,
    Given,
    Lost,
    Observed,
    Saved,
)

RUNNING, LOST, FINISHED, FAILED = "running", "lost", "finished", "failed"


@dataclass(slots=True)
class EvaluationState:
    """One leg of a trial."""

    asked: Asked
    status: str = RUNNING
    attempt: int = 1
    worker: str = ""
    start: FidelityValues | None = None  # of the present attempt
    given_at: float = 0.0
    points: dict[FidelityValues, float] = field(default_factory=dict)  # in the order of reports
    saved: Saved | None = None
    end: Finished | Failed | None = None
    lost: list[Lost] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.asked.evaluation

    @property
    def reached(self) -> FidelityValues | None:
        """Where the last report stands."""
        return next(reversed(self.points), None)


@dataclass(slots=True)
class TrialState:
    """One training run."""

    id: int
    config: Config
    evaluations: list[int] = field(default_factory=list)
    points: dict[FidelityValues, float] = field(default_factory=dict)  # of all legs
    checkpoint: FidelityValues | None = None  # what the directory holds, for certain
    dropped: str | None = None  # why it will not be continued


@dataclass(slots=True)
class StudyState:
    """All that is known of a study after `sequence` events."""

    sequence: int = 0
    trials: list[TrialState] = field(default_factory=list)
    evaluations: list[EvaluationState] = field(default_factory=list)
    open: dict[int, EvaluationState] = field(default_factory=dict)  # running or lost, by id
    cost: float = 0.0
    seconds: float = 0.0  # of training, over all workers

    def trial_of(self, evaluation: EvaluationState) -> TrialState:
        return self.trials[evaluation.asked.trial]

    def running(self) -> list[EvaluationState]:
        return [evaluation for evaluation in self.open.values() if evaluation.status == RUNNING]

    def lost(self) -> list[EvaluationState]:
        return [evaluation for evaluation in self.open.values() if evaluation.status == LOST]

    def is_busy(self, trial: TrialState) -> bool:
        return bool(trial.evaluations) and trial.evaluations[-1] in self.open

    def basket(self) -> list[TrialState]:
        """Trials that could be continued now."""
        return [t for t in self.trials if t.checkpoint is not None and t.dropped is None and not self.is_busy(t)]


def fold(events: Iterable[Event], state: StudyState | None = None) -> StudyState:
    state = state or StudyState()
    for event in events:
        apply(state, event)
    return state


def apply(state: StudyState, event: Event) -> None:
    """Let one event happen; one that does not fit is an error and changes nothing."""
    if isinstance(event, Observed):  # nearly all of them are
        _observe(state, event)
        return
    check(state, event)
    match event:
        case Asked():
            if event.config is not None:
                state.trials.append(TrialState(event.trial, event.config))
            evaluation = EvaluationState(event, worker=event.worker, start=event.start, given_at=event.time)
            state.evaluations.append(evaluation)
            state.open[event.evaluation] = evaluation
            state.trials[event.trial].evaluations.append(event.evaluation)
        case Given():
            evaluation = state.open[event.evaluation]
            evaluation.status, evaluation.attempt, evaluation.worker = RUNNING, event.attempt, event.worker
            evaluation.start, evaluation.given_at = event.start, event.time
        case Saved():
            state.open[event.evaluation].saved = event
        case Finished() | Failed():
            _close(state, state.open[event.evaluation], event)
        case Lost():
            evaluation = state.open[event.evaluation]
            evaluation.status = LOST
            evaluation.lost.append(event)
        case Dropped():
            trial = state.trials[event.trial]
            trial.dropped, trial.checkpoint = event.reason, None
        case _:
            assert_never(event)
    state.sequence += 1


def _observe(state: StudyState, event: Observed) -> None:
    evaluation = _held(state, event.evaluation, event.attempt)
    at, value = event.fidelity, event.value
    for points in (evaluation.points, state.trials[evaluation.asked.trial].points):
        # A second attempt repeats points; the last report of a fidelity is the one that counts.
        if at in points:
            del points[at]
        points[at] = value
    state.sequence += 1


def check(state: StudyState, event: Event) -> None:
    """Raise if the event does not fit what happened before; StaleError if somebody else was faster."""
    match event:
        case Observed() | Saved() | Finished() | Lost():
            _held(state, event.evaluation, event.attempt)
        case Asked():
            _check_asked(state, event)
        case Given():
            evaluation = _open(state, event.evaluation)
            if evaluation.status != LOST or event.attempt != evaluation.attempt + 1:
                raise StaleError(_story(evaluation, f"attempt {event.attempt} cannot begin"))
        case Failed():
            _held(state, event.evaluation, event.attempt)
            if event.kind not in FAILURES:
                raise StudyError(f"an evaluation cannot fail with {event.kind!r}; expected one of {FAILURES}")
        case Dropped():
            if not 0 <= event.trial < len(state.trials):
                raise StudyError(f"trial {event.trial} cannot be dropped: there are {len(state.trials)} trials")
            if state.is_busy(state.trials[event.trial]):
                raise StudyError(f"trial {event.trial} cannot be dropped: its evaluation is under way")
        case _:
            assert_never(event)


def _check_asked(state: StudyState, event: Asked) -> None:
    if event.evaluation != len(state.evaluations):
        raise StudyError(f"evaluation {event.evaluation} is out of turn: the next is {len(state.evaluations)}")
    if not 0 <= event.trial <= len(state.trials):
        raise StudyError(f"trial {event.trial} is out of turn: the next is {len(state.trials)}")
    is_new = event.trial == len(state.trials)
    if is_new != (event.config is not None):
        raise StudyError(f"trial {event.trial}: a new trial comes with a configuration, one that goes on without")
    if is_new:
        if event.start is not None:
            raise StudyError(f"trial {event.trial} is new and cannot start from {event.start}")
        return
    trial = state.trials[event.trial]
    if state.is_busy(trial):
        raise StaleError(f"trial {event.trial} cannot be continued: its evaluation is under way")
    if event.start is not None and event.start != trial.checkpoint:
        raise StaleError(f"trial {event.trial} has no checkpoint at {event.start} to go on from")


def _close(state: StudyState, evaluation: EvaluationState, event: Finished | Failed) -> None:
    trial = state.trials[evaluation.asked.trial]
    if isinstance(event, Finished):
        evaluation.status = FINISHED
        trial.checkpoint = evaluation.reached if event.has_checkpoint else None
    else:
        evaluation.status = FAILED
        trial.checkpoint, trial.dropped = None, event.kind
    evaluation.end = event
    state.cost += event.cost
    state.seconds += event.seconds
    del state.open[evaluation.id]


def _open(state: StudyState, evaluation_id: int) -> EvaluationState:
    if evaluation_id in state.open:
        return state.open[evaluation_id]
    if 0 <= evaluation_id < len(state.evaluations):
        raise StaleError(_story(state.evaluations[evaluation_id], "it is over"))
    raise StudyError(f"evaluation {evaluation_id} was never asked for; there are {len(state.evaluations)}")


def _held(state: StudyState, evaluation_id: int, attempt: int) -> EvaluationState:
    """The evaluation under way, of which this attempt must be the one that runs."""
    evaluation = state.open.get(evaluation_id) or _open(state, evaluation_id)
    if evaluation.status != RUNNING or evaluation.attempt != attempt:
        raise StaleError(_story(evaluation, f"attempt {attempt} is no longer its own"))
    return evaluation


def _story(evaluation: EvaluationState, trouble: str) -> str:
    return f"evaluation {evaluation.id} ({evaluation.status}, attempt {evaluation.attempt}): {trouble}"
