"""Suggestions of the model: the same again after a restart, and in either direction."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small import EPOCHS, reloaded, small_study
from trainings import loss

import takg
from takg.records import Asked
from takg.study import Evaluation, Study, _suggest

SPACE = {"x": takg.Float(0.0, 1.0)}


def study_of(directory: Path, direction: str) -> Study:
    directory.mkdir()
    return small_study(
        directory, EPOCHS, space=SPACE, direction=direction, initial=3, samples=2, seed=5, cost="reported"
    )


def tell(study: Study, evaluation: Evaluation) -> None:
    (evaluation.checkpoint / "model").write_text(str(evaluation.id))
    trace = [
        (epoch, study.plan.sign * loss({**evaluation.config, "y": 0.6}, epoch)) for epoch in evaluation.steps("epochs")
    ]
    study.tell(evaluation, trace=trace, cost=0.1 + len(trace))


def suggestion(study: Study) -> tuple[Any, ...]:
    event = study.log.storage.read(study.name)[-1]
    assert isinstance(event, Asked)
    return event.trial, event.config, event.start, event.target, event.kept


@pytest.mark.slow
def test_suggestions_are_the_same_after_restarts_and_in_either_direction(tmp_path: Path) -> None:
    live, maximising = study_of(tmp_path / "live", "minimise"), study_of(tmp_path / "restarted", "maximise")
    for number in range(5):
        first = live.ask()
        restarted = reloaded(tmp_path / "restarted")
        second = restarted.ask()
        assert suggestion(live) == suggestion(restarted), number
        assert first.reason.get("why") == ("initial design" if number < 3 else first.reason["why"])
        tell(live, first)
        tell(reloaded(tmp_path / "restarted"), second) if number == 2 else tell(restarted, second)
    assert {"new", "continued"} & {one.asked.reason["why"] for one in live.state.evaluations}
    best, opposite = live.best, maximising.best
    assert best.config == opposite.config
    assert best.mean == pytest.approx(-opposite.mean) and best.sd == pytest.approx(opposite.sd)
    assert (best.low, best.high) == (pytest.approx(-opposite.high), pytest.approx(-opposite.low))
    assert best.low < best.mean < best.high


@pytest.mark.slow
def test_batches_can_go_on_with_runs_and_each_at_least_doubles_or_ends(tmp_path: Path) -> None:
    study = study_of(tmp_path / "batches", "minimise")
    went_on = 0
    for _ in range(4):
        for evaluation in study.ask(3):
            if evaluation.start is not None:
                went_on += 1
                assert evaluation.fidelity["epochs"] >= min(2 * evaluation.start["epochs"], 20)
            tell(study, evaluation)
    assert went_on > 0


@pytest.mark.slow
def test_many_at_once_are_the_hills_of_few_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(tmp_path / "many", "minimise")
    for _ in range(4):
        tell(study, study.ask())
    searches = []
    maximise = _suggest.maximise
    monkeypatch.setattr(_suggest, "maximise", lambda *a, **k: searches.append(k["spares"]) or maximise(*a, **k))
    evaluations = study.ask(20)
    assert searches[0] == 15 and all(searches[i] > searches[i + 1] for i in range(1, len(searches) - 1))
    assert len(searches) < 12
    assert len({one.id for one in evaluations}) == 20
    assert len({one.config["x"] for one in evaluations if not one.resumed}) > 1
    continued = [one.trial for one in evaluations if one.resumed]
    assert len(set(continued)) == len(continued)


def test_two_runs_of_one_configuration_go_on_each_from_where_it_stands(tmp_path: Path) -> None:
    """They differ in a fidelity without a trace; taken for each other, one seemed to be beyond its target already."""
    data = takg.Fidelity(0.01, 1.0, trace=False)
    plan = small_study(tmp_path, {"data": data, **EPOCHS}, space=SPACE, seed=1).plan
    x = torch.tensor([[0.5]], dtype=torch.float64)
    short, long = torch.tensor([[0.25, 0.1]], dtype=torch.float64), torch.tensor([[0.5, 0.8]], dtype=torch.float64)
    for start in (short, long, torch.full_like(short, torch.nan)):
        goal = (start + torch.tensor([0.0, 0.1], dtype=torch.float64)).nan_to_num(0.3)
        xs, Ss = _suggest._runnable(plan, x, goal[:, None, :], start)
        assert len(xs) == len(Ss) > 0
        assert torch.equal(xs, x.expand_as(xs))
        if not start.isnan().any():
            assert (Ss[..., 0] == start[:, 0]).all()
            assert (Ss[..., 1] > start[:, 1]).all()


def test_of_three_fidelities_kept_the_target_is_the_highest_even_if_two_are_the_same(tmp_path: Path) -> None:
    """The target came first and was taken for a second one, and a run was to go on to where it stood."""
    plan = small_study(tmp_path, EPOCHS, space=SPACE, seed=1).plan
    kept = torch.tensor([[0.2], [0.1], [0.2]], dtype=torch.float64)
    assert _suggest._kept(plan, kept) == ((2,), (4,))
    assert _suggest._kept(plan, kept[[1, 0, 2]]) == ((2,), (4,))


POOL = takg.Pool(
    {"x": takg.Float(0.0, 1.0), "y": takg.Float(0.0, 1.0)},
    [{"x": ((7 * i) % 30) / 29, "y": i / 29} for i in range(30)],
)


def flat_curve(config: dict[str, float], epoch: float) -> float:
    return loss(config, 20) + 0.1 / epoch


def runs_of_pool(directory: Path, count: int, **options: Any) -> Study:
    study = small_study(directory, EPOCHS, space=POOL, initial=4, samples=2, seed=3, cost="reported", **options)
    for _ in range(count):
        evaluation = study.ask()
        POOL.check(evaluation.config)
        if study.plan.options.basket:
            (evaluation.checkpoint / "model").write_text("here")
        trace = [(epoch, flat_curve(evaluation.config, epoch)) for epoch in evaluation.steps("epochs")]
        study.tell(evaluation, trace=trace, cost=0.1 + len(trace))
    return study


@pytest.mark.slow
def test_out_of_a_pool_only_its_configurations_are_run_and_one_of_the_best_is_found(tmp_path: Path) -> None:
    study = runs_of_pool(tmp_path, 20)
    losses = {point: flat_curve(POOL.from_unit(point), 20) for point in POOL.points}
    ranks = sorted(losses, key=lambda point: losses[point])
    assert ranks.index(POOL.to_unit(study.best.config)) < 5  # of 30, after about two full trainings
    again = takg.load_study(storage=tmp_path / "study.db")
    assert again.plan.space == POOL and again.best.config == study.best.config
    new = [one.config["y"] for one in study.trials]
    assert len(set(new)) > 0.7 * len(new)  # of the nearest, those that are new are worth more


@pytest.mark.slow
def test_a_batch_out_of_a_pool_has_no_configuration_twice(tmp_path: Path) -> None:
    study = runs_of_pool(tmp_path, 5)
    fresh = [one.config["y"] for one in study.ask(5) if not one.resumed]
    assert len(set(fresh)) == len(fresh) > 0


@pytest.mark.slow
def test_where_no_run_can_be_continued_one_of_the_pool_is_run_again(tmp_path: Path) -> None:
    """All of a small pool were tried, at low fidelity: there is nothing else to do."""
    pool = takg.Pool({"x": takg.Float(0.0, 1.0)}, [{"x": i / 4} for i in range(5)])
    study = small_study(tmp_path, EPOCHS, space=pool, initial=6, samples=2, seed=1, cost="reported", basket=0)
    for _ in range(9):
        evaluation = study.ask()
        pool.check(evaluation.config)
        trace = [(epoch, loss({**evaluation.config, "y": 0.6}, epoch)) for epoch in evaluation.steps("epochs")]
        study.tell(evaluation, trace=trace, cost=0.1 + len(trace))
    assert len(study.trials) == 9
