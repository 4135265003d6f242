"""From a study to the numbers that the plots show; no drawing library, and no model but the one that is handed in."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from takg.plots._numbers import (
    Band,
    Costs,
    Curve,
    Curves,
    Dot,
    Estimate,
    Forecaster,
    Histogram,
    Nothing,
    Point,
    Prediction,
    Progress,
    Slice,
    Slices,
    View,
)
from takg.plots._scale import scale_of, within_bounds
from takg.records import EvaluationState
from takg.space import Categorical, Fidelity, Float, Int, Ordinal, Parameter, Space
from takg.study import Plan, Study, Trial

MOST_SLICES = 12
_MOST_POINTS = 300  # of a curve
_MOST_BARS = 30  # an integer fidelity with no more values than this has a bar for each
_BINS = 20
_WIDE = 50.0  # a fidelity whose bounds differ by more than this factor is shown on a log axis
_STEPS = 40  # of a predicted curve
_NOTHING_FINITE = "No finite value was reported yet."


def view_of(study: Study, *, with_forecast: bool) -> View:
    """The study as it is now; a forecast fits the model, unless that was done since the last event."""
    forecaster = study.belief() if with_forecast else None
    trials = tuple(study.trials)
    evaluations = tuple(study.state.evaluations)
    return View(name=study.name, plan=study.plan, trials=trials, evaluations=evaluations, forecaster=forecaster)


# Learning curves


def curves_of(view: View) -> Curves | Nothing:
    title = "Learning curves"
    plan = view.plan
    axis, are_lines = axis_of(plan), bool(plan.fidelities.trace_names)
    found = tuple(_curve(view, trial, axis) for trial in view.trials if trial.trace)
    values = [value for curve in found for value in curve.y]
    if not found:
        return Nothing(title=title, reason="No trial has reported a value yet.")
    if not values:
        return Nothing(title=title, reason="Every value reported so far is NaN or infinite.")
    if axis is None:
        low, high, is_log = -0.5, len(view.trials) - 0.5, False
    else:
        fidelity = plan.fidelities.fidelities[axis]
        is_log = not are_lines and _is_wide(fidelity)
        low, high = fidelity.low if is_log else 0.0, fidelity.high
    return Curves(
        name=view.name,
        sign=plan.sign,
        axis=axis,
        x_low=min(low, *(x for curve in found for x in curve.x)),
        x_high=high,
        is_x_log=is_log,
        is_x_integer=axis is None or plan.fidelities.fidelities[axis].integer,
        are_lines=are_lines,
        others=tuple(name for name in plan.fidelities.names if name != axis),
        curves=found,
        silent=len(view.trials) - len(found),
        scale=scale_of(values, sign=plan.sign),
    )


def axis_of(plan: Plan) -> str | None:
    """The fidelity that curves are drawn over: the first trace, else the first."""
    return next(iter(plan.fidelities.trace_names + plan.fidelities.names), None)


def _curve(view: View, trial: Trial, axis: str | None) -> Curve:
    points = [(_x(at, axis, trial), value) for at, value in trial.trace]
    points.sort(key=lambda point: point[0])  # a second attempt reports lower fidelities after higher ones
    finite = _thinned([(x, y) for x, y in points if math.isfinite(y)])
    first_bad = next((i for i, (_, y) in enumerate(points) if not math.isfinite(y)), None)
    diverged = None
    if first_bad is not None:
        before = [y for _, y in points[:first_bad]]
        diverged = (points[first_bad][0], before[-1] if before else None)
    others = {name: value for name, value in (trial.fidelity or {}).items() if name != axis}
    return Curve(
        trial=trial.id,
        config=trial.config,
        fate=_fate(trial),
        x=tuple(x for x, _ in finite),
        y=tuple(y for _, y in finite),
        pauses=_pauses(view, trial, axis),
        diverged=diverged,
        others=others,
        level=_level(view.plan, others),
    )


def _thinned(points: list[Point]) -> list[Point]:
    """Evenly chosen, the first and the last among them."""
    last, most = len(points) - 1, _MOST_POINTS - 1
    return points if last <= most else [points[i * last // most] for i in range(_MOST_POINTS)]


def _fate(trial: Trial) -> str:
    if trial.status in ("complete", "dropped", "diverged", "failed"):
        return trial.status
    if trial.status in ("running", "waiting"):
        return "running"
    return "continued" if trial.legs > 1 else "new"


def _pauses(view: View, trial: Trial, axis: str | None) -> tuple[Point, ...]:
    values = {view.plan.ordered(at): value for at, value in trial.trace}
    ends = [leg.reached for leg in view.legs(trial.id)[:-1]]
    return tuple(
        (_x(view.plan.named(at), axis, trial), values[at])
        for at in ends
        if at is not None and math.isfinite(values[at])
    )


def _x(at: Mapping[str, float], axis: str | None, trial: Trial) -> float:
    return trial.id if axis is None else at[axis]


def _level(plan: Plan, values: Mapping[str, float]) -> float:
    """Some fidelities as a share of full training."""
    return math.prod(plan.fidelities.fidelities[name].to_unit(value) for name, value in values.items())


def _is_wide(fidelity: Fidelity) -> bool:
    return 0 < fidelity.low * _WIDE < fidelity.high


# Cost by fidelity


def costs_of(view: View) -> Costs | Nothing:
    title = "Cost by fidelity"
    ended = [evaluation for evaluation in view.evaluations if evaluation.end is not None]
    total = sum(evaluation.end.cost for evaluation in ended if evaluation.end)
    if view.plan.fidelities.m == 0:
        return Nothing(title=title, reason="This study has no fidelities: every training is a full one.")
    if not total > 0:
        return Nothing(title=title, reason="No evaluation that cost something has ended yet.")
    return Costs(
        name=view.name,
        unit=unit_of(view.plan),
        total=total,
        histograms=tuple(_histogram(view.plan, name, ended) for name in view.plan.fidelities.names),
    )


def unit_of(plan: Plan) -> str:
    return {"time": "seconds of training", "reported": "as reported", "function": "by the given function"}[
        plan.options.cost
    ]


def _histogram(plan: Plan, name: str, ended: Iterable[EvaluationState]) -> Histogram:
    fidelity = plan.fidelities.fidelities[name]
    legs = [
        (_reached(plan, name, one), one.asked.start is not None, one.end.cost) for one in ended if one.end is not None
    ]
    edges = _edges(fidelity, [level for level, _, _ in legs])
    new, continued = [0.0] * (len(edges) - 1), [0.0] * (len(edges) - 1)
    for level, is_continued, cost in legs:
        place = sum(edge <= level for edge in edges[1:-1])
        (continued if is_continued else new)[place] += cost
    return Histogram(
        fidelity=name, edges=edges, new=tuple(new), continued=tuple(continued), is_log=_is_by_ratio(fidelity)
    )


def _reached(plan: Plan, name: str, evaluation: EvaluationState) -> float:
    """How far an evaluation came; where it began, if it reported nothing."""
    if evaluation.reached is not None:
        return plan.named(evaluation.reached)[name]
    if not plan.fidelities.fidelities[name].trace:
        return plan.named(evaluation.asked.target)[name]
    return 0.0 if evaluation.asked.start is None else plan.named(evaluation.asked.start)[name]


def _edges(fidelity: Fidelity, levels: Sequence[float]) -> tuple[float, ...]:
    low = min([fidelity.low, *(level for level in levels if level > 0 or not _is_by_ratio(fidelity))])
    if _has_bar_for_each(fidelity):
        return tuple(value - 0.5 for value in range(int(low), int(fidelity.high) + 2))
    if _is_by_ratio(fidelity):
        inner = [low * (fidelity.high / low) ** (i / _BINS) for i in range(1, _BINS)]
    else:
        low = 0.0
        inner = [fidelity.high * i / _BINS for i in range(1, _BINS)]
    return (low, *inner, fidelity.high)


def _has_bar_for_each(fidelity: Fidelity) -> bool:
    return fidelity.integer and fidelity.high <= _MOST_BARS


def _is_by_ratio(fidelity: Fidelity) -> bool:
    return _is_wide(fidelity) and not _has_bar_for_each(fidelity)


# Best value against cost


def progress_of(view: View) -> Progress | Nothing:
    plan = view.plan
    spent = 0.0
    anywhere: list[Point] = []
    full: list[Point] = []
    ended = sorted((one for one in view.evaluations if one.end), key=lambda one: one.end.time if one.end else 0.0)
    for evaluation in [*ended, *(one for one in view.evaluations if one.end is None)]:
        spent += evaluation.end.cost if evaluation.end else 0.0
        finite = {at: value for at, value in evaluation.points.items() if math.isfinite(value)}
        _improve(anywhere, spent, finite.values(), plan.sign)
        _improve(full, spent, [value for at, value in finite.items() if at == plan.full], plan.sign)
    if not anywhere:
        return Nothing(title="Best value against cost", reason=_NOTHING_FINITE)
    predicted = _band([spent], [view.forecaster.best[1]]) if view.forecaster else None
    values = [value for _, value in (*anywhere, *full)] + (list(predicted.mean) if predicted else [])
    return Progress(
        name=view.name,
        sign=plan.sign,
        unit=unit_of(plan),
        total=spent,
        full=tuple(full),
        anywhere=tuple(anywhere) if plan.fidelities.m else (),
        predicted=predicted,
        scale=scale_of(
            values,
            sign=plan.sign,
            band=predicted.low + predicted.high if predicted else (),
            stretch=1.0,
            shows_all=True,
        ),
    )


def _improve(best: list[Point], spent: float, values: Iterable[float], sign: float) -> None:
    """Add a point if one of the values is better than the last point's."""
    value = min(values, key=lambda one: sign * one, default=None)
    if value is not None and (not best or sign * value < sign * best[-1][1]):
        best.append((spent, value))


# The predicted curve of one trial


def prediction_of(view: View, trial: int | None = None) -> Prediction | Nothing:
    """Of the trial with that id; by default of the best that is not complete, else of the best."""
    plan = view.plan
    chosen = _promising(view) if trial is None else view.trials[trial]
    if view.forecaster is None or chosen is None:
        return Nothing(title="Prediction", reason=_NOTHING_FINITE)
    axis = axis_of(plan)
    points = sorted((_x(at, axis, chosen), value) for at, value in chosen.trace if math.isfinite(value))
    last = chosen.fidelity or plan.named(view.legs(chosen.id)[-1].asked.target)
    others = {name: value for name, value in last.items() if name != axis}
    own = _band_along_fidelity(view, view.forecaster, chosen, axis, others)
    at_full = {name: plan.fidelities.full[name] for name in others}
    full = None if at_full == others else _band_along_fidelity(view, view.forecaster, chosen, axis, at_full)
    bands = [own, full] if full else [own]
    return Prediction(
        name=view.name,
        sign=plan.sign,
        trial=chosen.id,
        config=chosen.config,
        status=chosen.status,
        axis=axis,
        is_x_integer=axis is not None and plan.fidelities.fidelities[axis].integer,
        observed=tuple(points),
        own=own,
        others=others,
        full=full,
        scale=scale_of(
            [value for _, value in points] + [value for band in bands for value in band.mean],
            sign=plan.sign,
            band=[*own.low, *own.high],
            stretch=math.inf if axis is None else 1.0,
            shows_all=True,
        ),
    )


def _promising(view: View) -> Trial | None:
    found = [trial for trial in view.trials if trial.value is not None and math.isfinite(trial.value)]
    unfinished = [trial for trial in found if trial.status != "complete"]
    return min(unfinished or found, key=lambda trial: view.plan.sign * (trial.value or 0.0), default=None)


def _band_along_fidelity(
    view: View, forecaster: Forecaster, trial: Trial, axis: str | None, others: Mapping[str, float]
) -> Band:
    plan = view.plan
    x = plan.space.to_unit(trial.config)
    if axis is None:
        return _band([float(trial.id)], forecaster.predict(x, [()]))
    fidelity = plan.fidelities.fidelities[axis]
    low = min([fidelity.low or fidelity.high / _STEPS, *(at[axis] for at, _ in trial.trace)])
    steps = (low + (fidelity.high - low) * i / _STEPS for i in range(_STEPS))
    values = sorted({max(round(step), 1) if fidelity.integer else step for step in steps} | {fidelity.high})
    places = [plan.fidelities.to_unit({**others, axis: value}) for value in values]
    return _band(values, forecaster.predict(x, places))


def _band(x: Iterable[float], estimates: Sequence[Estimate]) -> Band:
    return Band(
        x=tuple(x),
        mean=tuple(within_bounds(one.mean) for one in estimates),
        low=tuple(within_bounds(one.low) for one in estimates),
        high=tuple(within_bounds(one.high) for one in estimates),
    )


# Parameter by parameter


def slices_of(view: View) -> Slices | Nothing:
    plan = view.plan
    if view.forecaster is None:
        return Nothing(title="Value by parameter", reason=_NOTHING_FINITE)
    tuned = [name for name, parameter in plan.space.parameters.items() if parameter.d]
    found = [_slice(view, view.forecaster, name) for name in tuned]
    by_effect = sorted(found, key=lambda one: min(one.band.mean) - max(one.band.mean))
    chosen = {one.parameter for one in by_effect[:MOST_SLICES]}
    kept = [one for one in found if one.parameter in chosen]
    values = [trial.value for trial in view.trials if trial.value is not None and math.isfinite(trial.value)]
    return Slices(
        name=view.name,
        sign=plan.sign,
        fidelities=plan.fidelities.names,
        slices=tuple(kept),
        left_out=len(found) - len(kept),
        scale=scale_of(
            [*values, within_bounds(view.forecaster.best[1].mean)],
            sign=plan.sign,
            band=[end for one in kept for end in (*one.band.mean, *one.band.low, *one.band.high)],
            stretch=0.5,
        ),
    )


def _slice(view: View, forecaster: Forecaster, name: str) -> Slice:
    space = view.plan.space
    parameter = space.parameters[name]
    best = _flat(forecaster.best[0])
    dots: list[Dot] = []
    diverged: list[tuple[int, float]] = []
    for trial in view.trials:
        config, value = _flat(trial.config), trial.value
        if value is None or name not in config:
            continue
        place = _position(parameter, config[name])
        if math.isfinite(value):
            dots.append(Dot(trial=trial.id, x=place, y=value, share=_level(view.plan, trial.fidelity or {})))
        else:
            diverged.append((trial.id, place))
    base = _with_active(space, space.to_unit(forecaster.best[0]), name)
    parents = {parent: value for parent, value in base.items() if _identity(value) != _identity(best.get(parent, ...))}
    low, high, is_log = _range(parameter)
    return Slice(
        parameter=name,
        low=low,
        high=high,
        is_log=is_log,
        is_integer=isinstance(parameter, Int),
        choices=_choices(parameter),
        dots=tuple(dots),
        diverged=tuple(diverged),
        best=_position(parameter, best[name]) if name in best else None,
        band=_band_along_parameter(view.plan, forecaster, name, base),
        given=parents,
    )


def _band_along_parameter(plan: Plan, forecaster: Forecaster, name: str, parents: Mapping[str, Any]) -> Band:
    """At full fidelity, from the recommended configuration with the parents that the parameter needs."""
    space, parameter = plan.space, plan.space.parameters[name]
    start = _moved(space, space.to_unit(forecaster.best[0]), parents)
    steps = [parameter.from_unit([i / _STEPS]) for i in range(_STEPS + 1)] if not _choices(parameter) else ()
    values = list(dict.fromkeys(steps)) or _choices(parameter)
    full = [(1.0,) * plan.fidelities.m]
    estimates = [forecaster.predict(space.snapped(_moved(space, start, {name: one})), full)[0] for one in values]
    return _band([_position(parameter, one) for one in values], estimates)


def _with_active(space: Space, u: Sequence[float], name: str) -> dict[str, Any]:
    """Values of all the parents, and of theirs, with which the parameter is active: those at u where possible."""
    allowed: dict[str, list[Any]] = {}
    open_ends = [name]
    while open_ends:
        for parent, values in space.parameters[open_ends.pop()].when.items():
            these = list(values) if isinstance(values, tuple) else [values]
            kinds = [_identity(value) for value in these]
            allowed[parent] = [value for value in allowed.get(parent, these) if _identity(value) in kinds]
            open_ends.append(parent)
    found = {}
    for parent, these in allowed.items():
        now = space.parameters[parent].from_unit([u[i] for i in space.dims[parent]])
        found[parent] = now if _identity(now) in map(_identity, these) else these[0]
    return found


def _moved(space: Space, u: Sequence[float], values: Mapping[str, Any]) -> tuple[float, ...]:
    """The coordinates with some parameters at other values."""
    moved = list(u)
    for name, value in values.items():
        parameter: Any = space.parameters[name]  # the value is one of its own
        for i, coordinate in zip(space.dims[name], parameter.to_unit(value), strict=True):
            moved[i] = coordinate
    return tuple(moved)


def _range(parameter: Parameter) -> tuple[float, float, bool]:
    """Low, high, and whether the axis is logarithmic."""
    match parameter:
        case Float() | Int():
            return parameter.low, parameter.high, parameter.log
        case _:
            return 0.0, len(_choices(parameter)) - 1.0, False


def _choices(parameter: Parameter) -> tuple[Any, ...]:
    return tuple(parameter.choices) if isinstance(parameter, Categorical | Ordinal) else ()


def _position(parameter: Parameter, value: Any) -> float:
    """Where a value stands on the axis."""
    choices = _choices(parameter)
    return [_identity(one) for one in choices].index(_identity(value)) if choices else value


def _identity(value: object) -> tuple[type, object]:
    """Tells 1, 1.0 and True apart."""
    return type(value), value


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration by full names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
