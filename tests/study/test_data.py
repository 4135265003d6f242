"""What the models are fitted to."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small import further, new, script, small_study

import takg
from takg.study import Study
from takg.study._data import designs, observed, paid, pending
from takg.study._suggest import Proposal


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small_study(tmp_path, cost="reported")


def told(study: Study, *trace: tuple[int, float], cost: float = 1.0) -> None:
    evaluation = study.ask()
    (evaluation.checkpoint / "model").write_text(str(evaluation.id))
    study.tell(evaluation, trace=trace, cost=cost)


def wanting(*epochs: int, **more: Any) -> Proposal:
    return Proposal(config={"x": 0.25, "y": 0.75}, target=(epochs[-1],), kept=tuple((one,) for one in epochs), **more)


def test_of_a_trace_the_points_nearest_to_the_wanted_ones_are_seen(study: Study) -> None:
    script(study, wanting(4, 10))
    told(study, (1, 0.9), (5, 0.5), (8, 0.4), (11, 0.3))
    assert [(row.s, row.y) for row in observed(study.plan, study.state, designs(study.plan, study.state))] == [
        ((0.25,), 0.5),
        ((0.55,), 0.3),
    ]
    assert {row.x for row in observed(study.plan, study.state, designs(study.plan, study.state))} == {(0.25, 0.75)}


@pytest.mark.parametrize(("direction", "sign"), [("minimise", 1.0), ("maximise", -1.0)])
def test_the_model_always_minimises(tmp_path: Path, direction: str, sign: float) -> None:
    study = small_study(tmp_path, direction=direction, cost="reported")
    script(study, new(6))
    told(study, (6, 0.5))
    assert [row.y for row in observed(study.plan, study.state, designs(study.plan, study.state))] == [sign * 0.5]
    assert study.trials[0].value == 0.5  # as the user said it


def test_a_divergence_is_seen_from_where_it_came_to_the_end_beside_the_points_before_it(tmp_path: Path) -> None:
    fidelities = {"epochs": takg.Fidelity(1, 20, trace=True), "data": takg.Fidelity(10, 100, trace=False)}
    study = small_study(tmp_path, fidelities, cost="reported")
    script(study, Proposal(config={"x": 0.25, "y": 0.75}, target=(10, 50)))
    study.tell(study.ask(), trace=[(4, 0.5), (5, math.inf)], cost=1.0)
    [point, *bad] = observed(study.plan, study.state, designs(study.plan, study.state))
    assert (point.s, point.y) == ((0.2, 0.5), 0.5)
    assert [row.s for row in bad] == [(0.25, 0.5), (pytest.approx(0.5), 0.5), (pytest.approx(0.75), 0.5), (1.0, 0.5)]
    assert all(math.isnan(row.y) for row in bad)


def test_points_of_a_failed_evaluation_are_seen_and_it_is_not_a_bad_one(study: Study) -> None:
    script(study, new(6))
    evaluation = study.ask()
    evaluation.report(0.5, epochs=2)
    study.fail(evaluation, "no")
    assert [(row.s, row.y) for row in observed(study.plan, study.state, designs(study.plan, study.state))] == [
        ((0.1,), 0.5)
    ]
    assert paid(study.plan, study.state, designs(study.plan, study.state)) == []


def test_what_runs_is_pending_where_it_has_not_got_to_yet(study: Study) -> None:
    script(study, wanting(4, 10))
    evaluation = study.ask()
    assert [row.s for row in pending(study.plan, study.state)] == [(0.2,), (0.5,)]
    evaluation.report(0.5, epochs=4)
    assert [row.s for row in pending(study.plan, study.state)] == [(0.5,)]
    study.release(evaluation, "it will be given again")
    assert [row.s for row in pending(study.plan, study.state)] == [(0.5,)]
    study.tell(study.ask(), 0.5, cost=1.0)
    assert pending(study.plan, study.state) == []


def test_legs_are_summed_to_the_cost_of_a_cold_start(study: Study) -> None:
    script(study, new(4), lambda: further(study, 0, 8), lambda: further(study, 0, 10))
    for cost, epochs in ((4.5, 4), (3.5, 8), (2.5, 10)):
        told(study, (epochs, 0.5), cost=cost)
    assert [(one.s, one.cost) for one in paid(study.plan, study.state, designs(study.plan, study.state))] == [
        ((0.2,), 4.5),
        ((0.4,), 8.0),
        ((0.5,), 10.5),
    ]


def test_a_leg_that_began_half_way_has_an_unknown_cost_and_so_have_those_that_go_on_from_it(study: Study) -> None:
    script(study, new(4), lambda: further(study, 0, 8), lambda: further(study, 0, 10))
    told(study, (4, 0.5), cost=4.5)
    evaluation = study.ask()
    evaluation.report(0.5, epochs=6)
    (evaluation.checkpoint / "model").write_text("at 6")
    evaluation.saved(epochs=6)
    study.release(evaluation, "its worker died")
    told(study, (8, 0.5), cost=2.0)
    told(study, (10, 0.5), cost=2.0)
    assert [one.start for one in study.state.evaluations] == [None, (6,), (8,)]
    assert [(one.s, one.cost) for one in paid(study.plan, study.state, designs(study.plan, study.state))] == [
        ((0.2,), 4.5)
    ]


def test_a_leg_that_was_trained_from_scratch_has_its_own_cost(study: Study) -> None:
    script(study, new(4), lambda: further(study, 0, 8))
    told(study, (4, 0.5), cost=4.5)
    evaluation = study.next_evaluation()
    assert evaluation is not None
    study.checkpoints.remove(0)
    study.release(evaluation, "its worker died")
    told(study, (8, 0.5), cost=8.5)
    assert [(one.s, one.cost) for one in paid(study.plan, study.state, designs(study.plan, study.state))] == [
        ((0.2,), 4.5),
        ((0.4,), 8.5),
    ]


@pytest.mark.slow
def test_what_learns_fast_next_to_what_diverges_is_expected_to_end_well(tmp_path: Path) -> None:
    """With diverged runs as the only ones at full fidelity, the faster a run learned the worse it seemed to end."""
    study = small_study(tmp_path, initial=1, cost="reported", samples=4, seed=2)
    xs = [i / 23 for i in range(24)]
    script(study, *(new(2, x=x, y=(7 * i % 24) / 23) for i, x in enumerate(xs)))
    for x in xs:
        slow = [(epoch, 0.7 - 0.2 * max(0.0, x - 0.4) * epoch) for epoch in (1, 2)]
        told(study, *([(1, math.nan)] if x > 0.8 else slow))
    at_once, never = (study.belief().predict((x, 0.5), [(1.0,)])[0].mean for x in (0.75, 0.2))
    assert at_once < never


@pytest.mark.slow
def test_what_has_diverged_is_not_taken_to_recover_later_on(tmp_path: Path) -> None:
    """With labels at the two ends only it seemed to survive in between, and one corner was tried again and again."""
    study = small_study(tmp_path, initial=1, cost="reported", samples=4, seed=2)
    places = [(x, y / 6) for x in (0.1, 0.3, 0.5, 0.7, 0.93, 0.95, 0.97, 0.99) for y in range(1, 6)]
    script(study, *(new(3, x=x, y=y) for x, y in places))
    for x, _ in places:
        lasts = int(20 * (1 - x) / 0.5)  # epochs
        told(study, *[(epoch, 0.7 - 0.1 * epoch if epoch <= lasts else math.nan) for epoch in (1, 2, 3)])
    survival = study.belief().survival
    assert survival is not None
    s = torch.linspace(0.15, 1.0, 18, dtype=torch.float64)[:, None]
    with torch.no_grad():
        chance = torch.stack([survival(torch.tensor((0.99, y), dtype=torch.float64), s) for y in (0.25, 0.6)])
    assert chance.max() < 0.5
