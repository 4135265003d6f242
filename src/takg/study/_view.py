"""A study as its user sees it: what is best, trials with what became of them, and a table of all points."""

import math
from dataclasses import dataclass
from typing import Any

from takg.records import FAILED, FINISHED, RUNNING, Config, EvaluationState, Failed, StudyState, TrialState
from takg.space import flat
from takg.study._plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The recommended configuration and what is predicted of it at full fidelity."""

    config: Config
    mean: float
    sd: float
    median: float
    low: float  # 5 % quantile
    high: float  # 95 % quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The best configuration that was trained in full, and its observed value."""

    config: Config
    value: float
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training run, as it stands."""

    id: int
    config: Config
    status: str  # running, waiting, paused (can be continued), complete, diverged, failed, dropped, stopped
    fidelity: dict[str, float] | None  # how far it was trained
    value: float | None  # reported there
    cost: float
    legs: int
    trace: tuple[tuple[dict[str, float], float], ...]
    reason: str  # why it is not continued, if it is not


def is_complete(plan: Plan, trial: TrialState) -> bool:
    """A run that stands at the end of every trace cannot go on."""
    at = trial.checkpoint
    return at is not None and all(at[j] >= plan.full[j] for j in plan.fidelities.trace_dims)


def viewed(plan: Plan, state: StudyState, trial: TrialState) -> Trial:
    legs = [state.evaluations[i] for i in trial.evaluations]
    last = next(reversed(trial.points.items()), None)
    status, reason = _status(plan, trial, legs[-1], last and last[1])
    return Trial(
        id=trial.id,
        config=trial.config,
        status=status,
        fidelity=last and plan.named(last[0]),
        value=last and last[1],
        cost=sum(evaluation.end.cost for evaluation in legs if evaluation.end),
        legs=len(legs),
        trace=tuple((plan.named(at), value) for at, value in trial.points.items()),
        reason=reason,
    )


def _status(plan: Plan, trial: TrialState, last: EvaluationState, value: float | None) -> tuple[str, str]:
    if last.status not in (FINISHED, FAILED):
        return ("running" if last.status == RUNNING else "waiting"), ""
    if value is not None and not math.isfinite(value):
        return "diverged", "its loss is not finite"
    if isinstance(last.end, Failed):
        return "failed", f"{last.end.kind}: {(last.end.message.strip().splitlines() or [''])[-1]}"
    if plan.full in trial.points or is_complete(plan, trial):
        return "complete", ""
    if trial.dropped is not None:
        return "dropped", trial.dropped
    return ("paused", "") if trial.checkpoint is not None else ("stopped", "no checkpoint was saved")


def point_rows(plan: Plan, state: StudyState) -> list[dict[str, Any]]:
    """One flat dictionary for each reported point."""
    rows = []
    for evaluation in state.evaluations:
        config = {f"config.{name}": value for name, value in flat(state.trial_of(evaluation).config).items()}
        for at, value in evaluation.points.items():
            place = {"trial": evaluation.asked.trial, "evaluation": evaluation.id, **plan.named(at)}
            rows.append({**place, "value": value, **config})
    return rows
