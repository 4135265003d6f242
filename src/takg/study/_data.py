"""From the state of a study to what the models are fitted to: plain numbers in the unit cube, smaller is better."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from takg.records import Config, EvaluationState, Failed, FidelityValues, Finished, StudyState
from takg.study._plan import Plan

Point = tuple[float, ...]
CostFunction = Callable[[Config, dict[str, float]], float]

_AFTERWARDS = (0.0, 1 / 3, 2 / 3, 1.0)  # of what is left of a training when it diverges


class Row(NamedTuple):
    """One value that the model sees, or that is under way."""

    x: Point
    s: Point
    y: float  # NaN if the run diverged, and where it is still to come


class Paid(NamedTuple):
    """What training x from scratch to s took."""

    x: Point
    s: Point
    cost: float


def designs(plan: Plan, state: StudyState) -> list[Point]:
    """The x of every trial."""
    return [plan.space.to_unit(trial.config) for trial in state.trials]


def observed(plan: Plan, state: StudyState, xs: Sequence[Point]) -> list[Row]:
    """Of every trace the points that were to be kept; a run that diverged counts as one that ended badly."""
    rows: list[Row] = []
    for trial, x in zip(state.trials, xs, strict=True):
        kept: dict[FidelityValues, float] = {}
        bad: dict[Point, None] = {}
        for evaluation in (state.evaluations[i] for i in trial.evaluations):
            finite = {at: value for at, value in evaluation.points.items() if math.isfinite(value)}
            has_ended_badly = isinstance(evaluation.end, Failed) and not finite  # whatever it was, it would come again
            if len(finite) < len(evaluation.points) or has_ended_badly:
                # What has diverged stays so. Were only its end known to be bad, all that is like it so far would seem
                # to end as badly.
                since = min((at for at in evaluation.points if at not in finite), default=evaluation.asked.target)
                bad |= dict.fromkeys(_from_there_on(plan, plan.to_s(since)))
            kept |= {at: finite[at] for at in _nearest(plan, wanted(plan, evaluation), finite)}
        rows += [Row(x, plan.to_s(at), plan.sign * value) for at, value in kept.items()]
        rows += [Row(x, s, math.nan) for s in bad]
    return rows


def pending(plan: Plan, state: StudyState) -> list[Row]:
    """What the evaluations under way are still going to show."""
    rows = []
    for evaluation in state.open.values():
        x = plan.space.to_unit(state.trial_of(evaluation).config)
        reached = evaluation.reached
        for at in wanted(plan, evaluation):
            if reached is None or any(a > b for a, b in zip(at, reached, strict=True)):
                rows.append(Row(x, plan.to_s(at), math.nan))
    return rows


def wanted(plan: Plan, evaluation: EvaluationState) -> tuple[FidelityValues, ...]:
    """The fidelities of the trace that the model is to see."""
    return evaluation.asked.kept or (evaluation.asked.target,)


def paid(plan: Plan, state: StudyState, xs: Sequence[Point]) -> list[Paid]:
    """What each evaluation would have cost from a cold start: with all the legs that it continued."""
    found = []
    for trial, x in zip(state.trials, xs, strict=True):
        before: float | None = None  # what the run has cost up to its checkpoint, where that is known
        for evaluation in (state.evaluations[i] for i in trial.evaluations):
            so_far, before = (0.0 if evaluation.start is None else before), None
            end = evaluation.end
            if end is None or evaluation.reached is None or not end.cost > 0 or so_far is None:
                continue
            if isinstance(end, Failed) and end.kind != "timeout":
                continue
            if evaluation.start not in (None, evaluation.asked.start):  # it began half-way and paid for the rest
                continue
            total = end.cost + so_far
            if isinstance(end, Finished):
                before = total
            found.append(Paid(x, plan.to_s(evaluation.reached), total))
    return found


def _from_there_on(plan: Plan, s: Point) -> list[Point]:
    """From s to the end of the training, a few places on the way: with the ends alone it seemed to recover between."""
    return [
        tuple(value + (1.0 - value) * share if j in plan.fidelities.trace_dims else value for j, value in enumerate(s))
        for share in _AFTERWARDS
    ]


def _nearest(plan: Plan, places: Iterable[FidelityValues], points: dict[FidelityValues, float]) -> list[FidelityValues]:
    """For each wanted place of the trace the point observed that is nearest to it."""
    if not points:
        return []
    chosen = []
    for place in places:
        if place not in points:  # as a rule it is there
            s = plan.to_s(place)
            place = min(points, key=lambda at: math.dist(plan.to_s(at), s))
        chosen.append(place)
    return chosen
