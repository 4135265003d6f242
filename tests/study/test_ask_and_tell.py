import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import small
import trainings
from small import events, further, kinds, last, new, reloaded, script, small_study

import takg
from takg.errors import InputError, StaleError, StudyError
from takg.records import Asked, Finished, Given, fold
from takg.storage import open_storage
from takg.study import Evaluation, Study, Trial
from takg.study._suggest import Proposal
from takg.study._view import viewed

FOUR = {
    "epochs": takg.Fidelity(1, 20, trace=True),
    "width": takg.Fidelity(0.1, 1.0, trace=True),
    "data": takg.Fidelity(500, 50_000, trace=False),
    "folds": takg.Fidelity(1, 5, trace=False),
}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small_study(tmp_path)


def told(study: Study, *, saved: str | None = "model", cost: float | None = 1.0, value: float | None = None) -> int:
    """Ask, train, tell; the trial."""
    evaluation = study.ask()
    if saved is not None:
        (evaluation.checkpoint / "model").write_text(saved)
    study.tell(evaluation, evaluation.id * 1.0 if value is None else value, cost=cost)
    return evaluation.trial


def trained_and_told(study: Study, evaluation: Evaluation) -> None:
    (evaluation.checkpoint / "model").write_text("here")
    trace = [(epoch, trainings.loss(evaluation.config, epoch)) for epoch in evaluation.steps("epochs")]
    study.tell(evaluation, trace=trace, cost=len(trace))


# The initial design


def test_the_initial_design_is_spread_and_cheap_at_mixed_fidelities_with_a_trace(study: Study) -> None:
    evaluations = study.ask(16)
    for name in ("x", "y"):  # a Sobol design has one point in each of 16 parts
        assert sorted(int(16 * evaluation.config[name]) for evaluation in evaluations) == list(range(16))
    epochs = [evaluation.fidelity["epochs"] for evaluation in evaluations]
    assert set(epochs) == {1, 2}  # at most a tenth of 20
    for evaluation, event in zip(evaluations, events(study), strict=True):
        assert isinstance(event, Asked)
        assert event.kept[-1] == event.target == (evaluation.fidelity["epochs"],)
        assert len(event.kept) == min(2, evaluation.fidelity["epochs"])
        assert evaluation.reason == {"why": "initial design"}
        assert not evaluation.resumed and evaluation.start is None


def test_asking_one_by_one_or_together_gives_the_same_design(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    together = small_study(tmp_path).ask(5)
    other = small_study(tmp_path / "other")
    assert [one.config for one in together] == [other.ask().config for _ in range(5)]


def test_another_seed_gives_another_design(tmp_path: Path) -> None:
    first, second = (small_study(tmp_path, seed=seed, name=str(seed)).ask() for seed in (0, 1))
    assert first.config != second.config


SIX = {f"x{i}": takg.Float(0.0, 1.0) for i in range(6)}


@pytest.mark.parametrize(
    ("options", "cost_of_an_epoch", "length"),
    [
        ({}, lambda epoch: 1.0, 7),  # d + 1 at a few hundredths of a full training
        ({}, lambda epoch: 30.0 if epoch == 1 else 1.0, 4),  # the first epoch costs more than all others
        ({"initial": 7}, lambda epoch: 30.0 if epoch == 1 else 1.0, 7),  # as was asked for
        ({"fidelities": None}, lambda epoch: 1.0, 7),  # nothing is cheaper than a full training
    ],
)
def test_the_initial_design_ends_when_it_has_cost_as_much_as_a_full_training(
    tmp_path: Path, options: dict[str, Any], cost_of_an_epoch: Callable[[int], float], length: int
) -> None:
    study = small_study(tmp_path, **{"space": SIX, "initial": None, "samples": 2, "cost": "reported", **options})
    for number in range(8):
        evaluation = study.ask()
        is_initial = evaluation.reason["why"] == "initial design"
        assert is_initial == (number < length), number
        if not is_initial:
            return
        epochs = int(evaluation.fidelity.get("epochs", 1))
        study.tell(evaluation, number * 0.1, cost=sum(cost_of_an_epoch(1 + i) for i in range(epochs)))


@pytest.mark.parametrize("names", [[], ["epochs"], ["data"], ["epochs", "data"], ["epochs", "width", "data"], [*FOUR]])
def test_any_fidelities_will_do(tmp_path: Path, names: list[str]) -> None:
    study = small_study(tmp_path, {name: FOUR[name] for name in names})
    for _ in range(3):
        evaluation = study.ask()
        assert list(evaluation.fidelity) == names
        for name in names:
            assert FOUR[name].low <= evaluation.fidelity[name] <= FOUR[name].high
        (evaluation.checkpoint / "model").write_text("trained")
        study.tell(evaluation, 0.5)
    has_trace = bool({"epochs", "width"} & set(names))
    assert {trial.status for trial in study.trials} == (
        {"paused"} if has_trace else {"complete", "stopped"} - ({"stopped"} if not names else {"complete"})
    )
    assert [row["value"] for row in study.to_rows()] == [0.5] * 3
    assert reloaded(tmp_path).trials == study.trials


def test_without_fidelities_every_evaluation_is_a_full_training(tmp_path: Path) -> None:
    study = small_study(tmp_path, None)
    for value in (0.5, 0.25, 0.75):
        told(study, value=value)
    assert study.best_trained is not None and (study.best_trained.trial, study.best_trained.value) == (1, 0.25)
    assert study.trials[0].fidelity == {} and study.trials[0].trace == (({}, 0.5),)


# Asking


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "3"])
def test_the_number_to_ask_for_is_checked(study: Study, n: object) -> None:
    with pytest.raises(InputError, match="expected an integer >= 1"):
        study.ask(n)  # type: ignore[arg-type]


def test_an_evaluation_knows_what_to_train_and_from_where(study: Study) -> None:
    script(study, new(6), lambda: further(study, 0, 9))
    first = study.ask()
    assert (first.resumed, first.start, first.fidelity) == (False, None, {"epochs": 6})
    assert list(first.steps("epochs")) == [1, 2, 3, 4, 5, 6]
    assert list(first.checkpoint.iterdir()) == []
    (first.checkpoint / "model").write_text("at 6")
    study.tell(first, 0.5)
    second = study.ask()
    assert (second.id, second.trial, second.resumed, second.start) == (1, 0, True, {"epochs": 6})
    assert list(second.steps("epochs")) == [7, 8, 9]
    assert second.config == first.config
    assert second.checkpoint == first.checkpoint
    assert (second.checkpoint / "model").read_text() == "at 6"
    assert "start={'epochs': 6}" in repr(second)
    with pytest.raises(InputError, match="name='steps': expected one of the study's fidelities"):
        second.steps("steps")


def test_a_released_evaluation_is_given_again_with_the_checkpoint_of_its_start(study: Study) -> None:
    script(study, new(6), lambda: further(study, 0, 9))
    told(study, saved="at 6")
    evaluation = study.ask()
    (evaluation.checkpoint / "model").write_text("torn")
    study.release(evaluation, "my machine was switched off")
    assert study.trials[0].status == "waiting"
    again = study.ask()
    assert (again.id, again.attempt, again.start) == (1, 2, {"epochs": 6})
    assert (again.checkpoint / "model").read_text() == "at 6"
    with pytest.raises(StaleError, match="attempt 1 is no longer its own"):
        study.tell(evaluation, 0.5)
    with pytest.raises(StaleError, match="attempt 1 is over"):
        study.fail(evaluation, "no")
    (again.checkpoint / "model").write_text("at 9")
    study.tell(again, 0.25)
    assert study.checkpoints.size(0) == len("at 9")  # no copies are left


def test_what_another_study_left_in_the_directory_is_no_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    (root / "trial-00000").mkdir(parents=True)
    (root / "trial-00000" / "model").write_text("old")
    study = small_study(tmp_path, checkpoints=root)
    told(study, saved=None)
    assert study.trials[0].status == "stopped"


# Telling


def test_a_trace_can_be_told_by_number_or_by_name(study: Study) -> None:
    script(study, new(6))
    evaluation = study.ask()
    study.tell(evaluation, trace=[(2, 0.5), ({"epochs": 4}, 0.4)], value=0.3)
    assert [(at["epochs"], value) for at, value in study.trials[0].trace] == [(2, 0.5), (4, 0.4), (6, 0.3)]


def test_a_trace_of_several_fidelities_needs_names(tmp_path: Path) -> None:
    study = small_study(tmp_path, FOUR)
    evaluation = study.ask()
    with pytest.raises(InputError, match=r"trace has the fidelity 2: expected a mapping with \('epochs', 'width'\)"):
        study.tell(evaluation, trace=[(2, 0.5)])
    study.report(evaluation, 0.5, epochs=1, width=0.125)
    study.tell(evaluation)
    assert study.trials[0].fidelity == {**evaluation.fidelity, "epochs": 1, "width": 0.125}


def test_telling_nothing_is_an_error_and_telling_twice_is_too(study: Study) -> None:
    evaluation = study.ask()
    with pytest.raises(InputError, match="expected a value or a trace, and nothing was reported so far"):
        study.tell(evaluation)
    for value in ("0.5", None, [1.0, 2.0], True):
        with pytest.raises(InputError, match="expected a number"):
            evaluation.report(value)
    study.tell(evaluation, 0.5)
    with pytest.raises(StaleError, match=r"evaluation 0 \(finished, attempt 1\): it is over"):
        study.tell(evaluation, 0.5)


def test_a_divergence_that_is_told_is_no_error(study: Study) -> None:
    evaluation = study.ask()
    (evaluation.checkpoint / "model").write_text("trained")
    study.tell(evaluation, math.nan)
    assert study.trials[0].status == "diverged"
    assert study.state.trials[0].checkpoint is None


def test_a_report_is_in_the_store_when_it_returns(study: Study, tmp_path: Path) -> None:
    evaluation = study.ask()
    evaluation.report(0.5, epochs=1)
    assert reloaded(tmp_path).trials[0].trace == (({"epochs": 1}, 0.5),)


# Cost


def test_the_cost_is_the_time_unless_it_is_told(study: Study) -> None:
    told(study, cost=None)
    assert 0 < study.state.cost == study.state.seconds < 10
    told(study, cost=7.0)
    assert study.state.cost == pytest.approx(7.0 + study.trials[0].cost)
    assert study.trials[1].cost == 7.0


def test_a_cost_that_is_to_be_reported_must_be(tmp_path: Path) -> None:
    study = small_study(tmp_path, cost="reported")
    evaluation = study.ask()
    with pytest.raises(InputError, match='cost=None: expected a number > 0 in a study with cost="reported"'):
        study.tell(evaluation, 0.5)
    for cost in (0.0, -1.0, math.nan, math.inf, True, "3"):
        with pytest.raises(InputError, match="expected a finite number > 0"):
            evaluation.cost(cost)
    evaluation.cost(2.0)
    evaluation.cost(3.0)  # so far
    study.tell(evaluation)
    assert study.state.cost == 3.0
    study.fail(study.ask(), "no")
    assert study.state.cost == 3.0  # seconds are another unit


def price(config: Any, fidelity: dict[str, float]) -> float:
    return 2.0 * fidelity["epochs"] + float(config["x"])


def test_a_cost_function_charges_the_difference_for_a_leg_that_goes_on(tmp_path: Path) -> None:
    study = small_study(tmp_path, cost=price)
    script(study, new(6), lambda: further(study, 0, 9), lambda: further(study, 0, 12))
    told(study, cost=None)
    told(study, cost=None)
    assert [end.cost for end in events(study) if isinstance(end, Finished)] == [12.25, 6.0]
    evaluation = study.next_evaluation()
    study.checkpoints.remove(0)
    study.release(evaluation, "its worker died")
    study.optimize(trainings.trained, evaluations=3)
    assert study.state.evaluations[2].end.cost == 24.25  # from scratch, at the full price


def test_a_study_with_a_cost_function_needs_it_when_it_is_loaded(tmp_path: Path) -> None:
    small_study(tmp_path, cost=price)
    study = reloaded(tmp_path)
    with pytest.raises(InputError, match=r"cost: this study has cost=\"function\"; expected the function"):
        study.optimize(trainings.trained, evaluations=1)
    evaluation = study.ask()
    with pytest.raises(InputError, match='cost=None: expected a number > 0 in a study with cost="function"'):
        study.tell(evaluation, 0.5)
    study = reloaded(tmp_path, cost=price)
    study.optimize(trainings.trained, evaluations=2)
    assert study.trials[1].cost == price(study.trials[1].config, study.trials[1].fidelity or {})


# Checkpoints


def test_checkpoints_of_trials_that_left_the_basket_are_deleted_unless_they_are_to_be_kept(tmp_path: Path) -> None:
    for keep in (False, True):
        study = small_study(tmp_path, name=str(keep), keep_checkpoints=keep)
        told(study)
        told(study)
        study._drop(0, "no longer promising")
        assert [study.checkpoints.exists(trial) for trial in (0, 1)] == [keep, True]
        assert (study.trials[0].status, study.trials[0].reason) == ("dropped", "no longer promising")


@pytest.mark.parametrize("direction", ["minimise", "maximise"])
def test_of_complete_trials_the_checkpoint_of_the_best_is_kept(tmp_path: Path, direction: str) -> None:
    study = small_study(tmp_path, direction=direction)
    script(study, new(20), new(20), new(20))
    for value in (0.5, 0.25, 0.75):
        told(study, value=value)
    best = 1 if direction == "minimise" else 2
    assert [study.checkpoints.exists(trial) for trial in range(3)] == [trial == best for trial in range(3)]
    assert study.best_trained is not None and study.best_trained.trial == best


def test_checkpoints_take_no_more_room_than_they_may_and_the_best_stay(tmp_path: Path) -> None:
    study = small_study(tmp_path, disk_limit=2500)
    for value in (0.2, 0.9, 0.1, 0.4):
        told(study, saved="x" * 1000, value=value)
    assert [study.checkpoints.exists(trial) for trial in range(4)] == [True, False, True, False]
    assert study.trials[1].reason == "checkpoints took too much room"
    assert sum(study.checkpoints.size(trial) for trial in range(4)) <= 2500


def test_a_checkpoint_that_others_go_on_from_is_not_taken_from_them(tmp_path: Path) -> None:
    """The view of the one who makes room is older than that."""
    study = small_study(tmp_path, disk_limit=1500)
    told(study, saved="x" * 1000, value=0.9)
    other = reloaded(tmp_path)
    script(other, lambda: further(other, 0, 9))
    evaluation = other.ask()
    told(study, saved="x" * 1000, value=0.1)
    assert (evaluation.checkpoint / "model").exists()
    assert study.trials[0].status == "running"


# Looking


def test_the_best_that_was_trained_follows_the_direction(tmp_path: Path) -> None:
    study = small_study(tmp_path, direction="maximise")
    assert study.best_trained is None
    script(study, new(20, x=0.5), new(20, x=0.75), new(6, x=0.9), new(20))
    for value in (0.5, 0.7, 0.9, math.inf):
        told(study, value=value)
    assert study.best_trained is not None
    assert (study.best_trained.config["x"], study.best_trained.value) == (0.75, 0.7)


def test_nothing_can_be_recommended_before_anything_is_known(study: Study) -> None:
    with pytest.raises(StudyError, match="no finite value was reported yet, so nothing can be recommended"):
        _ = study.best
    with pytest.raises(StudyError, match="no finite value was reported yet, so nothing can be predicted"):
        study.predict({"x": 0.5, "y": 0.5})
    assert (study.trials, study.to_rows(), study.best_trained, study.spent()) == ([], [], None, None)


def test_rows_and_frames_have_one_line_for_each_point(tmp_path: Path) -> None:
    space = {"x": takg.Float(0.0, 1.0), "optimizer": {"name": takg.Categorical(["sgd", "adam"]), "decay": 0.125}}
    study = takg.create_study(space, small.EPOCHS, storage=tmp_path / "study.db", initial=50)
    script(
        study,
        lambda: takg.study._suggest.Proposal(
            config={"x": 0.25, "optimizer": {"name": "adam", "decay": 0.125}}, target=(3,)
        ),
    )
    study.tell(study.ask(), trace=[(1, 0.9), (3, 0.5)])
    config = {"config.x": 0.25, "config.optimizer.name": "adam", "config.optimizer.decay": 0.125}
    assert study.to_rows() == [
        {"trial": 0, "evaluation": 0, "epochs": 1, "value": 0.9, **config},
        {"trial": 0, "evaluation": 0, "epochs": 3, "value": 0.5, **config},
    ]
    pandas.testing.assert_frame_equal(study.to_frame(), pandas.DataFrame(study.to_rows()))


def everything(study: Study) -> list[Trial]:
    """A history with something of every kind."""
    script(
        study,
        new(6),
        new(6),
        new(20),
        new(6),
        new(6),
        lambda: further(study, 0, 9),
        new(6),
        lambda: further(study, 5, 8),
    )
    told(study)
    study.fail(study.ask(), "no")
    told(study)
    told(study, value=math.nan)
    told(study, saved=None)
    told(study)
    told(study)
    study._drop(0, "enough")
    study.ask().report(0.5, epochs=7)
    study.log.storage.beat(study.name, "w")
    return study.trials


def test_replaying_the_log_gives_the_same_trials_as_the_live_study(study: Study, tmp_path: Path) -> None:
    live = everything(study)
    statuses = [trial.status for trial in live]
    assert statuses == ["dropped", "failed", "complete", "diverged", "stopped", "running"]
    assert live[0].legs == 2 and live[0].cost == 2.0
    assert repr(fold(events(study))) == repr(study.state)  # NaN is not equal to itself
    assert repr(reloaded(tmp_path).trials) == repr(live)
    for count in range(len(events(study))):  # and so it was at any time
        state = fold(events(study)[:count])
        assert [viewed(study.plan, state, trial).id for trial in state.trials] == list(range(len(state.trials)))


def test_evaluations_asked_by_hand_are_never_taken_away(study: Study, tmp_path: Path) -> None:
    mine = study.ask()
    other = reloaded(tmp_path)
    other.optimize(trainings.trained, evaluations=3)
    study.tell(mine, 0.5)
    assert kinds(study).count("Given") == 0
    assert not any(isinstance(event, Given) for event in events(study))


def test_asking_after_a_run_is_by_hand_again(study: Study, tmp_path: Path) -> None:
    study.optimize(trainings.trained, evaluations=1)
    mine = study.ask()
    study.optimize(trainings.trained, evaluations=3)
    study.tell(mine, 0.5)
    assert last(study).attempt == 1


@pytest.mark.parametrize("store", [lambda path: path / "study.db", lambda path: None])
def test_two_askers_at_once_get_different_evaluations(tmp_path: Path, store: Callable[[Path], Path | None]) -> None:
    """The second asks between the first one's idea and its writing it down."""
    study = small_study(tmp_path, storage=open_storage(store(tmp_path)))
    other = takg.load_study(storage=study.log.storage)
    ideas, propose = [], study._proposals

    def overtaken(count: int, *, overhead: float) -> Any:
        idea = propose(count, overhead=overhead)
        if not ideas:
            ideas.append(other.ask())
        return idea

    study._proposals = overtaken  # type: ignore[method-assign]
    mine = study.ask()
    assert (ideas[0].id, mine.id) == (0, 1)
    assert ideas[0].config != mine.config


# Where the number of evaluations is limited


@pytest.fixture
def priced(tmp_path: Path) -> Study:
    """Four evaluations that cost 5 each, at a cost of 1 an epoch: a full training costs 20."""
    study = small_study(tmp_path, cost=lambda config, fidelity: fidelity["epochs"], initial=4, samples=2)
    for _ in range(4):
        told(study, cost=5.0)
    return study


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"evaluations": 7, "cost": 20.0 + 3 * 12}, 12.0 - 5.0),  # three more could cost 12 each
        ({"evaluations": 8, "cost": 20.0 + 4 * 12}, 12.0 - 5.0),
        ({"evaluations": 9, "cost": 20.0 + 5 * 12}, 0.0),  # not half of them are used
        ({"evaluations": 7, "cost": 20.0 + 3 * 4}, 0.0),
        ({"evaluations": 7, "cost": 7.0}, 0.0),  # all is spent
        ({"evaluations": 3, "cost": 20.0 + 12}, 12.0 - 5.0),  # there are more than that already
    ],
)
def test_an_evaluation_is_as_scarce_as_it_could_cost_more_than_they_did(
    priced: Study, limits: dict[str, Any], expected: float
) -> None:
    assert priced.scarcity(**limits) == pytest.approx(expected)


def test_a_budget_in_full_trainings_is_one_in_their_cost_and_the_tighter_limit_counts(priced: Study) -> None:
    full = priced.state.cost / (priced.spent() or math.nan)
    assert full == pytest.approx(20, rel=0.2)
    assert priced.scarcity(evaluations=7, budget=5.0) == pytest.approx((5 * full - 20) / 3 - 5)
    assert priced.scarcity(evaluations=7, budget=100.0, cost=56.0) == pytest.approx(7.0)
    assert priced.scarcity(evaluations=7, budget=5.0, cost=1e6) == priced.scarcity(evaluations=7, budget=5.0)


def test_what_is_under_way_is_as_good_as_paid(priced: Study) -> None:
    script(priced, Proposal(config={"x": 0.1, "y": 0.1}, target=(20,), reason={"cost": 19.0}))
    priced.ask()
    assert priced.scarcity(evaluations=8, cost=20.0 + 19 + 3 * 12) == pytest.approx(7.0)


def test_nothing_is_known_to_be_scarce_before_there_are_results(study: Study) -> None:
    study.ask()
    assert study.scarcity(evaluations=2, cost=1000.0) == study.scarcity(evaluations=2, budget=1000.0) == 0.0


def test_scarcity_needs_a_limit_on_the_cost_and_an_overhead_is_a_cost(study: Study) -> None:
    with pytest.raises(InputError, match="budget=None, cost=None: expected a total of at least one of them"):
        study.scarcity(evaluations=1)
    for bad in (-1.0, math.inf, math.nan, "1"):
        with pytest.raises(InputError, match=r"overhead=.*: expected a finite cost >= 0"):
            study.ask(overhead=bad)  # type: ignore[arg-type]
    assert events(study) == []


@pytest.mark.slow
def test_the_dearer_an_evaluation_is_beside_its_training_the_longer_that_is(tmp_path: Path) -> None:
    reached = {}
    for overhead in (0.0, 1e4):
        (tmp_path / str(overhead)).mkdir()
        study = small_study(tmp_path / str(overhead), cost="reported", initial=6, samples=4)
        for _ in range(6):
            trained_and_told(study, study.ask(overhead=overhead))
        evaluation = study.ask(overhead=overhead)
        reached[overhead] = evaluation.fidelity["epochs"]
        reason = evaluation.reason
        assert reason["overhead"] == overhead and 0 < reason["cost"] < 100  # of the training alone
        full = (study.belief() or pytest.fail("no belief")).full_cost
        assert reason["value"] == pytest.approx(reason["gain"] * full / reason["cost"], rel=0.01)
    assert reached[0.0] < 20 == reached[1e4]


@pytest.mark.slow
def test_without_fidelities_an_overhead_is_of_no_matter(tmp_path: Path) -> None:
    study = small_study(tmp_path, None, cost="reported", initial=2, samples=2)
    for _ in range(2):
        study.tell(one := study.ask(), float(one.config["x"]), cost=1.0)
    assert study.ask(overhead=50.0).reason["cost"] > 0
