"""Numbers against ones that were worked out by hand from the events."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from made_studies import EPOCHS, EPOCHS_AND_DATA, History

import takg
from takg.plots._info import costs_of, curves_of, prediction_of, progress_of, slices_of, view_of
from takg.plots._numbers import Band, Dot, Nothing, View
from takg.records import Given

LR = {"lr": takg.Float(0.1, 10.0, log=True)}


@dataclass(frozen=True)
class Guess:
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Formula:
    """Stands for a model: the first coordinate plus ten times the sum of the fidelities, give or take 1 and 2."""

    config: dict[str, Any]

    @property
    def best(self) -> tuple[dict[str, Any], Guess]:
        return self.config, Guess(5.0, 4.0, 7.0)

    def predict(self, x: tuple[float, ...], fidelities: Sequence[tuple[float, ...]]) -> list[Guess]:
        means = [x[0] + 10 * sum(s) for s in fidelities]
        return [Guess(mean, mean - 1, mean + 2) for mean in means]


def seen(history: History, best: dict[str, Any] | None = None) -> View:
    view = view_of(history.study, with_forecast=False)
    forecaster = None if best is None else Formula(best)
    return View(name=view.name, plan=view.plan, trials=view.trials, evaluations=view.evaluations, forecaster=forecaster)


# Learning curves


def test_each_trial_is_one_curve_with_what_became_of_it(history: History) -> None:
    for fate in ("new", "dropped", "failed", "diverged", "running", "continued", "complete"):
        trial = history.asks({"lr": 1.0}, epochs=2)
        history.observes(trial, 3.0, math.nan if fate == "diverged" else 2.0)
        if fate == "failed":
            history.fails(trial)
        elif fate != "running":
            history.finishes(trial)
        if fate == "dropped":
            history.drops(trial)
        if fate in ("continued", "complete"):
            last = 20 if fate == "complete" else 4
            history.continues(trial, epochs=last)
            history.observes(trial, 1.5, first=last)
            history.finishes(trial)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert [curve.fate for curve in info.curves] == [
        "new",
        "dropped",
        "failed",
        "diverged",
        "running",
        "continued",
        "complete",
    ]
    assert info.curves[5].x == (1, 2, 4)
    assert info.curves[5].y == (3.0, 2.0, 1.5)
    assert info.curves[5].pauses == ((2, 2.0),)
    assert info.curves[0].pauses == ()
    assert (info.axis, info.x_low, info.x_high, info.are_lines, info.is_x_integer) == ("epochs", 0, 20, True, True)


def test_a_lost_evaluation_counts_as_running(history: History) -> None:
    trial = history.asks({"lr": 1.0}, epochs=5)
    history.observes(trial, 3.0)
    history.loses(trial)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert info.curves[0].fate == "running"


def test_a_curve_that_a_second_attempt_began_anew_is_still_in_order(history: History) -> None:
    trial = history.asks({"lr": 1.0}, epochs=5)
    history.observes(trial, 3.0, 2.0, 1.0)
    history.loses(trial)
    history.study.log.append(Given(evaluation=0, attempt=2, worker="w", time=9.0))
    history.observes(trial, 3.5)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert (info.curves[0].x, info.curves[0].y) == ((1, 2, 3), (3.5, 2.0, 1.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_curve_says_where_it_diverged_and_what_came_before(history: History, bad: float) -> None:
    late, at_once = history.asks({"lr": 1.0}, epochs=4), history.asks({"lr": 2.0}, epochs=4)
    history.observes(late, 3.0, 2.5, bad, bad)
    history.observes(at_once, bad)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert [curve.diverged for curve in info.curves] == [(3, 2.5), (1, None)]
    assert [curve.y for curve in info.curves] == [(3.0, 2.5), ()]
    assert (info.scale.low, info.scale.high) == (pytest.approx(2.475), pytest.approx(3.025))


def test_the_other_fidelities_are_a_share_of_full_training() -> None:
    history = History(LR, EPOCHS_AND_DATA)
    trial = history.asks({"lr": 1.0}, epochs=2, data=10_000)
    history.observes(trial, 3.0, 2.0)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert info.others == ("data",)
    assert info.curves[0].others == {"data": 10_000}
    assert info.curves[0].level == pytest.approx(0.2)


def test_without_a_trace_there_are_points_over_the_first_fidelity() -> None:
    history = History(LR, {"data": takg.Fidelity(100, 60_000, trace=False)})
    trial = history.asks({"lr": 1.0}, data=600)
    history.observes(trial, 3.0)
    history.finishes(trial)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert (info.axis, info.are_lines, info.is_x_log, info.x_low, info.x_high) == ("data", False, True, 100, 60_000)
    assert info.curves[0].x == (600,)


def test_without_fidelities_there_are_points_over_the_trials() -> None:
    history = History(LR)
    for value in (3.0, 1.0):
        trial = history.asks({"lr": 1.0})
        history.observes(trial, value)
        history.finishes(trial)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert (info.axis, info.x_low, info.x_high, info.are_lines) == (None, -0.5, 1.5, False)
    assert [(curve.x, curve.y, curve.fate) for curve in info.curves] == [
        ((0,), (3.0,), "complete"),
        ((1,), (1.0,), "complete"),
    ]


def test_trials_without_a_report_are_counted_and_not_drawn(history: History) -> None:
    history.asks({"lr": 1.0}, epochs=2)
    trial = history.asks({"lr": 2.0}, epochs=2)
    history.observes(trial, 1.0)
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    assert (info.silent, [curve.trial for curve in info.curves]) == (1, [1])


def test_curves_without_a_finite_value_say_so(history: History) -> None:
    empty = curves_of(seen(history))
    assert isinstance(empty, Nothing)
    assert empty.reason == "No trial has reported a value yet."
    history.observes(history.asks({"lr": 1.0}, epochs=2), math.nan)
    diverged = curves_of(seen(history))
    assert isinstance(diverged, Nothing)
    assert diverged.reason == "Every value reported so far is NaN or infinite."


def test_of_a_long_curve_three_hundred_points_are_kept_with_both_ends() -> None:
    history = History(LR, {"steps": takg.Fidelity(1, 5000, trace=True)})
    history.observes(history.asks({"lr": 1.0}, steps=1000), *(1.0 / (i + 1) for i in range(1000)))
    info = curves_of(seen(history))
    assert not isinstance(info, Nothing)
    (curve,) = info.curves
    assert (len(curve.x), curve.x[0], curve.x[-1]) == (300, 1, 1000)
    assert all(y == 1.0 / x for x, y in zip(curve.x, curve.y, strict=True))
    assert {b - a for a, b in itertools.pairwise(curve.x)} == {3, 4}


# Cost by fidelity


def test_cost_is_summed_over_the_level_reached_and_told_apart_by_whether_it_was_continued(history: History) -> None:
    first, second = history.asks({"lr": 1.0}, epochs=3), history.asks({"lr": 2.0}, epochs=3)
    for trial, cost in ((first, 1.25), (second, 2.0)):
        history.observes(trial, 3.0, 2.0, 1.0)
        history.finishes(trial, cost=cost)
    history.continues(first, epochs=5)
    history.observes(first, 0.5, 0.4, first=4)
    history.finishes(first, cost=7.0)
    history.observes(history.asks({"lr": 3.0}, epochs=9), 3.0)  # still running: its cost is not known
    info = costs_of(seen(history))
    assert not isinstance(info, Nothing)
    (histogram,) = info.histograms
    assert (info.total, info.unit) == (10.25, "as reported")
    assert histogram.edges == tuple(i + 0.5 for i in range(21))
    assert [(i + 1, cost) for i, cost in enumerate(histogram.new) if cost] == [(3, 3.25)]
    assert [(i + 1, cost) for i, cost in enumerate(histogram.continued) if cost] == [(5, 7.0)]


def test_an_evaluation_that_failed_at_once_is_counted_where_it_began() -> None:
    history = History(LR, EPOCHS_AND_DATA)
    history.fails(history.asks({"lr": 1.0}, epochs=5, data=50_000), cost=0.75)
    trial = history.asks({"lr": 1.0}, epochs=2, data=500)
    history.observes(trial, 2.0, 1.0)
    history.finishes(trial, cost=1.0)
    history.continues(trial, epochs=9, data=500)
    history.fails(trial, cost=0.5)
    info = costs_of(seen(history))
    assert not isinstance(info, Nothing)
    epochs, data = info.histograms
    assert epochs.edges[0] == -0.5
    assert [(i, cost) for i, cost in enumerate(epochs.new) if cost] == [(0, 0.75), (2, 1.0)]
    assert [(i, cost) for i, cost in enumerate(epochs.continued) if cost] == [(2, 0.5)]
    assert (data.new[0], data.new[-1], data.continued[0]) == (1.0, 0.75, 0.5)
    assert data.is_log
    assert data.edges[0] == 500
    assert data.edges[-1] == 50_000
    assert data.edges[10] == pytest.approx(5000)


def test_a_continuous_fidelity_has_twenty_bins_of_equal_width() -> None:
    history = History(LR, {"share": takg.Fidelity(0.1, 2.0, trace=True)})
    trial = history.asks({"lr": 1.0}, share=0.55)
    history.observes(trial, 2.0, share=0.55)
    history.finishes(trial, cost=3.0)
    info = costs_of(seen(history))
    assert not isinstance(info, Nothing)
    (histogram,) = info.histograms
    assert histogram.edges == pytest.approx([0.1 * i for i in range(21)])
    assert [(i, cost) for i, cost in enumerate(histogram.new) if cost] == [(5, 3.0)]


def test_costs_without_fidelities_or_without_cost_say_so(history: History) -> None:
    none_paid, plain = costs_of(seen(history)), costs_of(seen(History(LR)))
    assert isinstance(none_paid, Nothing)
    assert none_paid.reason == "No evaluation that cost something has ended yet."
    assert isinstance(plain, Nothing)
    assert plain.reason == "This study has no fidelities: every training is a full one."


# Best value against cost


@pytest.mark.parametrize(("direction", "sign"), [("minimise", 1), ("maximise", -1)])
def test_progress_keeps_each_improvement_with_the_cost_so_far(direction: str, sign: int) -> None:
    history = History(LR, EPOCHS, direction=direction)
    a = history.asks({"lr": 1.0}, epochs=2)
    history.observes(a, sign * 3.0, sign * 2.0)
    history.finishes(a, cost=1.5)
    b = history.asks({"lr": 2.0}, epochs=2)
    history.observes(b, sign * 4.0, math.nan)
    history.finishes(b, cost=1.0)
    for last, value, cost in ((20, 1.0, 4.0), (19, 0.5, 3.0), (20, 1.25, 6.0), (20, 0.75, 7.0)):
        trial = history.asks({"lr": 3.0}, epochs=last)
        history.observes(trial, sign * value, first=last)
        history.finishes(trial, cost=cost)
    info = progress_of(seen(history, {"lr": 1.0}))
    assert not isinstance(info, Nothing)
    assert info.anywhere == ((1.5, sign * 2.0), (6.5, sign * 1.0), (9.5, sign * 0.5))
    assert info.full == ((6.5, sign * 1.0), (22.5, sign * 0.75))
    assert info.total == 22.5
    assert info.predicted == Band(x=(22.5,), mean=(5.0,), low=(4.0,), high=(7.0,))


def test_progress_follows_the_order_in_which_evaluations_ended(history: History) -> None:
    slow, fast = history.asks({"lr": 1.0}, epochs=1), history.asks({"lr": 2.0}, epochs=1)
    history.observes(slow, 1.0)
    history.observes(fast, 2.0)
    history.finishes(slow, cost=5.0, time=200.0)
    history.finishes(fast, cost=1.0, time=100.0)
    history.observes(history.asks({"lr": 3.0}, epochs=3), 0.5)  # running, so at the cost that is known by now
    info = progress_of(seen(history))
    assert not isinstance(info, Nothing)
    assert info.anywhere == ((1.0, 2.0), (6.0, 1.0), (6.0, 0.5))
    assert (info.full, info.predicted) == ((), None)


def test_without_fidelities_every_value_is_at_full_fidelity() -> None:
    history = History(LR)
    trial = history.asks({"lr": 1.0})
    history.observes(trial, 3.0)
    history.finishes(trial, cost=2.0)
    info = progress_of(seen(history))
    assert not isinstance(info, Nothing)
    assert (info.full, info.anywhere) == (((2.0, 3.0),), ())


def test_progress_prediction_and_slices_say_so_while_nothing_finite_was_reported(history: History) -> None:
    history.observes(history.asks({"lr": 1.0}, epochs=2), math.inf)
    for make in (progress_of, prediction_of, slices_of):
        info = make(seen(history))
        assert isinstance(info, Nothing)
        assert info.reason == "No finite value was reported yet."


# Prediction


def test_the_prediction_runs_from_the_least_to_the_full_fidelity(history: History) -> None:
    trial = history.asks({"lr": 1.0}, epochs=3)
    history.observes(trial, 3.0, 2.0, math.nan)
    history.observes(history.asks({"lr": 10.0}, epochs=3), 1.0)
    info = prediction_of(seen(history, {"lr": 1.0}), 0)
    assert not isinstance(info, Nothing)
    assert info.observed == ((1, 3.0), (2, 2.0))
    assert info.own.x == tuple(range(1, 21))
    assert info.own.mean == pytest.approx([0.5 + 10 * epoch / 20 for epoch in range(1, 21)])
    assert info.own.low == pytest.approx([mean - 1 for mean in info.own.mean])
    assert info.own.high == pytest.approx([mean + 2 for mean in info.own.mean])
    assert (info.full, info.status) == (None, "running")


def test_the_prediction_is_at_the_trials_other_fidelities_and_at_the_full_ones() -> None:
    history = History(LR, EPOCHS_AND_DATA)
    history.observes(history.asks({"lr": 1.0}, epochs=3, data=5000), 3.0)
    history.observes(history.asks({"lr": 1.0}, epochs=3, data=50_000), 9.0)
    view = seen(history, {"lr": 1.0})
    small, whole = prediction_of(view, 0), prediction_of(view, 1)
    assert not isinstance(small, Nothing)
    assert not isinstance(whole, Nothing)
    assert small.others == {"data": 5000}
    assert small.own.mean[-1] == pytest.approx(0.5 + 10 + 1)
    assert small.full is not None
    assert small.full.mean[-1] == pytest.approx(0.5 + 10 + 10)
    assert whole.full is None


def test_a_trial_without_a_report_is_predicted_at_its_target(history: History) -> None:
    history.observes(history.asks({"lr": 1.0}, epochs=3), 3.0)
    silent = history.asks({"lr": 10.0}, epochs=3)
    info = prediction_of(seen(history, {"lr": 1.0}), silent)
    assert not isinstance(info, Nothing)
    assert info.observed == ()
    assert info.own.mean[-1] == pytest.approx(11.0)


def test_a_continuous_fidelity_is_predicted_at_forty_one_places() -> None:
    history = History(LR, {"share": takg.Fidelity(0.0, 2.0, trace=True)})
    history.observes(history.asks({"lr": 1.0}, share=0.5), 3.0, share=0.5)
    info = prediction_of(seen(history, {"lr": 1.0}))
    assert not isinstance(info, Nothing)
    assert (len(info.own.x), info.own.x[0], info.own.x[-1]) == (41, pytest.approx(0.05), 2.0)


def test_without_fidelities_there_is_one_prediction() -> None:
    history = History(LR)
    history.observes(history.asks({"lr": 10.0}), 3.0)
    info = prediction_of(seen(history, {"lr": 1.0}))
    assert not isinstance(info, Nothing)
    assert (info.axis, info.own.mean, info.observed) == (None, (1.0,), ((0, 3.0),))


@pytest.mark.parametrize(("direction", "expected"), [("minimise", 2), ("maximise", 1)])
def test_by_default_the_best_trial_that_is_not_complete_is_predicted(direction: str, expected: int) -> None:
    history = History(LR, EPOCHS, direction=direction)
    for value, last in ((0.5, 20), (3.0, 4), (1.0, 5), (9.0, 20), (math.inf, 3), (-math.inf, 3)):
        trial = history.asks({"lr": 1.0}, epochs=last)
        history.observes(trial, value, first=last)
        history.finishes(trial)
    info = prediction_of(seen(history, {"lr": 1.0}))
    assert not isinstance(info, Nothing)
    assert info.trial == expected


def test_if_all_trials_are_complete_the_best_is_predicted(history: History) -> None:
    for value in (0.7, 0.5, 0.6):
        trial = history.asks({"lr": 1.0}, epochs=20)
        history.observes(trial, value, first=20)
        history.finishes(trial)
    info = prediction_of(seen(history, {"lr": 1.0}))
    assert not isinstance(info, Nothing)
    assert info.trial == 1


def test_a_prediction_that_overflowed_is_cut_off(history: History) -> None:
    class Overflowing(Formula):
        def predict(self, x: tuple[float, ...], fidelities: Sequence[tuple[float, ...]]) -> list[Guess]:
            return [Guess(math.inf, -math.inf, math.inf) for _ in fidelities]

    history.observes(history.asks({"lr": 1.0}, epochs=3), 3.0)
    view = seen(history)
    view = dataclasses.replace(view, forecaster=Overflowing({"lr": 1.0}))
    info, sliced = prediction_of(view), slices_of(view)
    assert not isinstance(info, Nothing)
    assert not isinstance(sliced, Nothing)
    assert set(info.own.mean) == {1e300}
    assert set(sliced.slices[0].band.low) == {-1e300}
    # Observed 3 and recommended 5 span 2; the band adds half of that on either side, and the margin is 0.05 * 4.
    assert (sliced.scale.low, sliced.scale.high) == (pytest.approx(1.8), pytest.approx(6.2))


# Slices


def test_a_slice_has_the_last_value_of_each_trial_and_the_prediction_along_the_parameter() -> None:
    history = History(LR, EPOCHS_AND_DATA)
    for lr, values in ((1.0, (3.0, 2.0)), (10.0, (4.0, math.nan)), (0.1, ())):
        history.observes(history.asks({"lr": lr}, epochs=4, data=10_000), *values)
    info = slices_of(seen(history, {"lr": 0.1}))
    assert not isinstance(info, Nothing)
    (one,) = info.slices
    assert (one.parameter, one.low, one.high, one.is_log, one.is_integer) == ("lr", 0.1, 10.0, True, False)
    assert one.dots == (Dot(trial=0, x=1.0, y=2.0, share=pytest.approx(0.1 * 0.2)),)
    assert one.diverged == ((1, 10.0),)
    assert one.best == 0.1
    assert one.band.x == pytest.approx([0.1 * 100 ** (i / 40) for i in range(41)])
    assert one.band.mean == pytest.approx([i / 40 + 20 for i in range(41)])
    assert (info.fidelities, info.left_out) == (("epochs", "data"), 0)


def test_integers_and_choices_are_predicted_at_each_value_once_and_constants_not_at_all() -> None:
    space = {"units": takg.Int(2, 5), "kind": takg.Ordinal([True, 1, "x"]), "bias": takg.Categorical([0, 1]), "k": 3}
    history = History(space)
    config = {"units": 3, "kind": 1, "bias": 1, "k": 3}
    history.observes(history.asks(config), 2.0)
    info = slices_of(seen(history, config))
    assert not isinstance(info, Nothing)
    units, kind, bias = info.slices
    assert (units.band.x, units.choices, units.is_integer) == ((2, 3, 4, 5), (), True)
    assert units.band.mean == pytest.approx([0.125, 0.375, 0.625, 0.875])
    assert (kind.band.x, kind.choices, kind.best) == ((0, 1, 2), (True, 1, "x"), 1)
    assert [dot.x for dot in (*units.dots, *kind.dots, *bias.dots)] == [3, 1, 1]
    assert (bias.low, bias.high) == (0, 1)


def test_a_parameter_that_the_best_configuration_lacks_is_predicted_with_the_parents_that_it_needs() -> None:
    space = {
        "model": takg.Categorical(["tree", "net"]),
        "net": {
            "kind": takg.Categorical(["plain", "deep"], when={"model": "net"}),
            "layers": takg.Int(1, 4, when={"kind": "deep", "model": "net"}),
        },
    }
    history = History(space)
    history.observes(history.asks({"model": "tree"}), 2.0)
    history.observes(history.asks({"model": "net", "net": {"kind": "deep", "layers": 3}}), 1.0)
    info = slices_of(seen(history, {"model": "tree"}))
    assert not isinstance(info, Nothing)
    model, kind, layers = info.slices
    assert (model.given, model.best, model.band.mean) == ({}, 0, (0.0, 1.0))
    assert (kind.given, kind.best) == ({"model": "net"}, None)
    assert (layers.given, layers.best) == ({"model": "net", "net.kind": "deep"}, None)
    assert layers.band.mean == (1.0,) * 4  # the first coordinate is the model's: net
    assert [(dot.trial, dot.x) for dot in layers.dots] == [(1, 3)]


def test_of_too_many_parameters_those_with_the_largest_effect_are_kept_in_order() -> None:
    history = History({f"p{i}": takg.Float(0.0, 1.0) for i in range(14)})
    config = {f"p{i}": 0.5 for i in range(14)}
    history.observes(history.asks(config), 2.0)
    view = seen(history)

    class Weighted(Formula):
        def predict(self, x: tuple[float, ...], fidelities: Sequence[tuple[float, ...]]) -> list[Guess]:
            mean = sum((i - 6.4) * one for i, one in enumerate(x))  # p6 and p7 matter least
            return [Guess(mean, mean, mean)]

    info = slices_of(dataclasses.replace(view, forecaster=Weighted(config)))
    assert not isinstance(info, Nothing)
    assert [one.parameter for one in info.slices] == [f"p{i}" for i in range(14) if i not in (6, 7)]
    assert info.left_out == 2
