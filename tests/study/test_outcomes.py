"""What becomes of an evaluation, whatever its training does; the rows of docs/outcomes.md, by their letters."""

import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
import small
import trainings
from small import events, further, last, new, script, small_study

import takg
from takg.errors import InputError, StudyError
from takg.records import Failed, Finished, Lost
from takg.study import Evaluation, Study
from takg.study._data import designs, observed


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small_study(tmp_path)


def run(study: Study, train: Any, *, epochs: int = 6, **options: Any) -> Any:
    """One evaluation of a new trial; how it ended."""
    script(study, new(epochs))
    study.optimize(train, evaluations=len(study.state.evaluations) + 1, **options)
    return last(study).end


def reporting(*points: tuple[int, float], result: object = None) -> Any:
    def train(evaluation: Evaluation) -> object:
        (evaluation.checkpoint / "model").write_text("trained")
        for epoch, value in points:
            evaluation.report(value, epochs=epoch)
        return result

    return train


def test_a_training_that_does_as_asked_is_finished_and_can_be_continued(study: Study) -> None:
    end = run(study, trainings.trained)
    assert isinstance(end, Finished) and end.has_checkpoint and end.cost == end.seconds > 0
    [trial] = study.trials
    assert (trial.status, trial.fidelity, len(trial.trace)) == ("paused", {"epochs": 6}, 6)


def test_b_a_number_that_is_returned_is_the_value_at_the_target(study: Study) -> None:
    assert isinstance(run(study, reporting((3, 0.5), result=0.25)), Finished)
    assert study.trials[0].trace == (({"epochs": 3}, 0.5), ({"epochs": 6}, 0.25))


def test_b_a_number_that_is_returned_is_ignored_if_the_target_was_reported(study: Study) -> None:
    run(study, reporting((6, 0.5), result=0.25))
    assert study.trials[0].trace == (({"epochs": 6}, 0.5),)


def test_c_a_training_that_stops_early_stands_where_its_last_report_does(study: Study) -> None:
    assert run(study, reporting((1, 0.9), (4, 0.5))).has_checkpoint
    assert study.state.trials[0].checkpoint == (4,)
    assert study.trials[0].status == "paused"


def test_d_reports_beyond_the_target_count_and_the_trial_stands_there(study: Study) -> None:
    run(study, reporting((6, 0.5), (8, 0.4)))
    assert study.state.trials[0].checkpoint == (8,)
    run(study, reporting((6, 0.5), (20, 0.3)))
    assert study.trials[1].status == "complete"
    assert study.best_trained is not None and (study.best_trained.value, study.best_trained.trial) == (0.3, 1)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"epochs": 21}, "epochs=21; expected an integer above 0 and at most 20"),
        ({"epochs": 0}, "epochs=0; expected an integer above 0"),
        ({"epochs": 2.5}, "epochs=2.5; expected an integer"),
        ({"epochs": 3, "data": 7}, "data=7: this trial has data=60, which is fixed"),
        ({"steps": 3}, r"fidelities \['steps'\] are unknown"),
    ],
)
def test_e_a_report_that_cannot_be_is_refused_and_fails_the_evaluation_unless_it_is_caught(
    tmp_path: Path, report: dict[str, float], message: str
) -> None:
    study = small_study(tmp_path, {**small.EPOCHS, "data": takg.Fidelity(50, 100, trace=False)})
    proposal = takg.study._suggest.Proposal(config={"x": 0.25, "y": 0.75}, target=(6, 60))

    def wrong(evaluation: Evaluation) -> None:
        evaluation.report(0.5, epochs=2)
        evaluation.report(0.25, **report)

    def careful(evaluation: Evaluation) -> None:
        with pytest.raises(InputError, match=message):
            wrong(evaluation)

    script(study, proposal, proposal)
    study.optimize(wrong, evaluations=1)
    end = last(study).end
    assert isinstance(end, Failed) and end.kind == "error" and re.search(message, end.message)
    assert study.trials[0].trace == (({"epochs": 2, "data": 60}, 0.5),)
    study.optimize(careful, evaluations=2)
    assert isinstance(last(study).end, Finished)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_f_a_value_that_is_not_finite_ends_the_training_and_marks_the_trial(study: Study, value: float) -> None:
    end = run(study, trainings.nan_at(3, value))
    assert isinstance(end, Finished) and not end.has_checkpoint
    [trial] = study.trials
    assert (trial.status, len(trial.trace)) == ("diverged", 3)
    assert not study.checkpoints.exists(0)  # nobody will go on from there
    bad = [row for row in observed(study.plan, study.state, designs(study.plan, study.state)) if math.isnan(row.y)]
    assert [row.s[0] for row in bad] == pytest.approx([0.15, 0.15 + 0.85 / 3, 0.15 + 1.7 / 3, 1.0])  # from there on


def test_f_a_training_that_swallows_the_news_of_its_divergence_is_not_continued(study: Study) -> None:
    def deaf(evaluation: Evaluation) -> None:
        try:
            trainings.nan_at(6)(evaluation)
        except Exception:
            return

    assert not run(study, deaf).has_checkpoint
    assert study.trials[0].status == "diverged"


def test_f_a_nan_that_is_returned_is_a_divergence_too(study: Study) -> None:
    assert isinstance(run(study, reporting((2, 0.5), result=math.nan)), Finished)
    assert study.trials[0].status == "diverged"


def test_g_a_training_that_raises_fails_and_keeps_its_points(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    def broken(evaluation: Evaluation) -> None:
        evaluation.report(0.5, epochs=2)
        raise RuntimeError("out of memory")

    with caplog.at_level(logging.WARNING, logger="takg"):
        end = run(study, broken)
    assert isinstance(end, Failed) and (end.kind, end.cost > 0) == ("error", True)
    assert end.message.startswith("Traceback") and end.message.rstrip().endswith("RuntimeError: out of memory")
    [trial] = study.trials
    assert (trial.status, trial.reason, trial.value) == ("failed", "error: RuntimeError: out of memory", 0.5)
    assert [row.y for row in observed(study.plan, study.state, designs(study.plan, study.state))] == [0.5]
    assert caplog.messages == ["evaluation 0 failed: RuntimeError: out of memory"]


@pytest.mark.parametrize("kind", ["error", "timeout", "killed"])
def test_h_a_configuration_that_came_to_nothing_counts_as_a_bad_one(study: Study, kind: str) -> None:
    script(study, new(6))
    study.fail(study.ask(), "no", kind=kind)
    rows = observed(study.plan, study.state, designs(study.plan, study.state))
    assert [row.s[0] for row in rows] == pytest.approx([0.3, 0.3 + 0.7 / 3, 0.3 + 1.4 / 3, 1.0])  # from there on
    assert all(math.isnan(row.y) for row in rows)


def test_i_a_checkpoint_that_cannot_be_read_means_training_from_scratch_at_its_full_cost(study: Study) -> None:
    run(study, trainings.trained)
    script(study, lambda: further(study, 0, 9))
    study.optimize(trainings.unreadable, evaluations=2)
    evaluation = last(study)
    assert (evaluation.attempt, evaluation.start, evaluation.asked.start) == (2, None, (6,))
    assert isinstance(evaluation.end, Finished)
    assert "bad magic number" in evaluation.lost[0].reason
    assert list(evaluation.points) == [(epoch,) for epoch in range(1, 10)]


def test_i_a_training_that_raises_from_scratch_too_fails(study: Study) -> None:
    run(study, trainings.trained)
    script(study, lambda: further(study, 0, 9))

    def broken(evaluation: Evaluation) -> None:
        raise OSError("no data")

    study.optimize(broken, evaluations=2)
    assert [type(event).__name__ for event in events(study)][-4:] == ["Asked", "Lost", "Given", "Failed"]


def test_i_a_training_that_raises_after_a_report_is_not_blamed_on_its_checkpoint(study: Study) -> None:
    """Also if it only repeats points that an attempt before it had reported."""
    run(study, trainings.trained)
    script(study, lambda: further(study, 0, 9))
    evaluation = study.ask()
    evaluation.report(0.5, epochs=7)
    evaluation.report(0.5, epochs=8)
    study.release(evaluation, "its worker died")

    def broken(again: Evaluation) -> None:
        again.report(0.5, epochs=7)
        raise RuntimeError("out of memory")

    study.optimize(broken, evaluations=2)
    assert last(study).attempt == 2
    assert isinstance(last(study).end, Failed)


def test_j_a_training_that_reports_nothing_fails(study: Study) -> None:
    end = run(study, lambda evaluation: None)
    assert isinstance(end, Failed) and end.message == "the training function returned without reporting a value"


def test_j_points_of_an_attempt_before_are_no_report(study: Study) -> None:
    script(study, new(6))
    evaluation = study.ask()
    evaluation.report(0.5, epochs=3)
    study.release(evaluation, "its worker died")
    study.optimize(lambda again: None, evaluations=1)
    assert isinstance(last(study).end, Failed)


@pytest.mark.parametrize("result", ["0.5", [0.5], {"loss": 0.5}, True, object()])
def test_k_a_training_that_returns_no_number_fails(study: Study, result: object) -> None:
    end = run(study, reporting((2, 0.5), result=result))
    assert isinstance(end, Failed)
    assert "the training function returned" in end.message and "expected None or a number" in end.message


def test_l_a_training_that_exits_fails_and_the_study_goes_on(study: Study) -> None:
    end = run(study, trainings.left)
    assert isinstance(end, Failed) and (end.kind, end.message.rstrip()[-18:]) == ("error", "SystemExit: enough")
    assert isinstance(run(study, trainings.trained), Finished)


@pytest.mark.slow
def test_m_a_worker_that_is_killed_loses_nothing_saved_and_the_third_time_the_evaluation_fails(study: Study) -> None:
    end = run(study, trainings.killed, epochs=12, workers=1)
    assert isinstance(end, Failed) and end.kind == "killed"
    assert end.message == "3 workers died while running it; the last: the worker process was killed by SIGKILL"
    assert small.notes(study) == ["0 1 - -", "0 2 2 2", "0 3 2 2"]  # start, and what the checkpoint says
    assert [event.is_suspect for event in events(study) if isinstance(event, Lost)] == [True, True]
    assert study.trials[0].value == trainings.loss(study.trials[0].config, 3)
    assert study.trials[0].reason.startswith("killed: 3 workers died")


@pytest.mark.slow
def test_m_a_worker_that_is_killed_once_costs_one_attempt(study: Study) -> None:
    end = run(study, trainings.killed_once, workers=1)
    assert isinstance(end, Finished)
    assert small.notes(study) == ["0 1 - -", "0 2 2 2"]
    assert list(last(study).points) == [(1,), (2,), (3,), (4,), (5,), (6,)]
    assert study.state.cost == end.cost


@pytest.mark.slow
def test_m_a_worker_that_exits_at_once_is_one_that_died(study: Study) -> None:
    end = run(study, trainings.gone, workers=1)
    assert isinstance(end, Failed) and (end.kind, end.cost) == ("killed", 0.0)
    assert end.message.endswith("the worker process exited with code 3")


@pytest.mark.slow
def test_n_a_training_that_hangs_is_stopped_in_time_and_keeps_its_points(study: Study) -> None:
    end = run(study, trainings.hung, workers=1, timeout=1.5)
    assert isinstance(end, Failed)
    assert (end.kind, end.message) == ("timeout", "took longer than 1.5 s")
    assert 1.5 < end.seconds == end.cost < 10.0
    assert study.trials[0].trace == (({"epochs": 1}, 0.5),)
    assert len(events(study)) == 3


def test_n_a_training_in_this_process_cannot_be_stopped(study: Study) -> None:
    with pytest.raises(InputError, match="timeout=5: training in this process cannot be stopped"):
        study.optimize(trainings.trained, evaluations=1, timeout=5)
    with pytest.raises(InputError, match=r"timeout=5: expected an executor with kill"):
        study.optimize(trainings.trained, evaluations=1, timeout=5, executor=object())


def test_o_a_cost_that_was_to_be_reported_and_was_not_fails_the_evaluation(tmp_path: Path) -> None:
    study = small_study(tmp_path, cost="reported")
    end = run(study, trainings.trained)
    assert isinstance(end, Failed) and (end.cost, end.kind) == (0.0, "error")
    assert "evaluation.cost(...) never" in end.message
    assert run(study, trainings.costly).cost == 2.5


@pytest.mark.parametrize("trouble", [lambda config, fidelity: 1 / 0, lambda config, fidelity: -1.0])
def test_p_a_cost_function_that_has_no_answer_fails_the_evaluation(tmp_path: Path, trouble: Any) -> None:
    study = small_study(tmp_path, cost=trouble)
    end = run(study, trainings.trained)
    assert isinstance(end, Failed) and end.message.startswith("its cost is unknown:\n")
    assert len(events(study)) == 8  # at the first attempt


def test_q_a_checkpoint_that_is_gone_means_training_from_scratch(study: Study) -> None:
    run(study, trainings.trained)
    script(study, lambda: further(study, 0, 9))
    evaluation = study.next_evaluation()
    assert evaluation is not None and evaluation.start == {"epochs": 6}
    study.checkpoints.remove(0)
    study.release(evaluation, "its worker died")
    study.optimize(trainings.trained, evaluations=2)
    assert (last(study).start, list(last(study).points)) == (None, [(epoch,) for epoch in range(1, 10)])


def test_q_a_checkpoint_that_goes_missing_before_the_worker_begins_is_noticed_there(study: Study) -> None:
    run(study, trainings.trained)

    def meanwhile() -> Any:
        proposal = further(study, 0, 9)
        study.checkpoints.remove(0)
        return proposal

    script(study, meanwhile)
    study.optimize(trainings.trained, evaluations=2)
    assert [lost.reason for lost in last(study).lost] == ["its checkpoint is gone"]
    assert isinstance(last(study).end, Finished)


def test_q_trials_whose_checkpoint_is_gone_are_not_suggested(study: Study) -> None:
    run(study, trainings.trained)
    study.checkpoints.remove(0)
    run(study, trainings.trained)
    assert (study.trials[0].status, study.trials[0].reason) == ("dropped", "its checkpoint is gone")


def test_r_a_training_that_saved_nothing_is_not_continued(study: Study) -> None:
    assert not run(study, trainings.unsaved).has_checkpoint
    assert (study.trials[0].status, study.trials[0].reason) == ("stopped", "no checkpoint was saved")


def test_r_a_leg_that_leaves_its_checkpoint_as_it_was_is_not_continued(study: Study) -> None:
    """The directory holds the state of the leg before, which is not where this one got to."""
    run(study, trainings.trained)
    script(study, lambda: further(study, 0, 9))
    study.optimize(trainings.unsaved, evaluations=2)
    end = last(study).end
    assert isinstance(end, Finished) and not end.has_checkpoint


def test_r_a_training_that_saves_now_and_then_and_not_at_its_end_is_not_continued(study: Study) -> None:
    def now_and_then(evaluation: Evaluation) -> None:
        for epoch in evaluation.steps("epochs"):
            evaluation.report(0.5, epochs=epoch)
            if epoch % 4 == 0:
                (evaluation.checkpoint / "epoch").write_text(str(epoch))
                evaluation.saved(epochs=epoch)

    assert not run(study, now_and_then, epochs=6).has_checkpoint
    assert run(study, now_and_then, epochs=8).has_checkpoint


def test_s_after_five_evaluations_that_all_failed_the_study_stops(study: Study) -> None:
    def broken(evaluation: Evaluation) -> None:
        raise ModuleNotFoundError(f"No module named 'torch{evaluation.id}'")

    with pytest.raises(StudyError, match=r"the first 5 evaluations all failed[\s\S]*No module named 'torch4'"):
        study.optimize(broken, evaluations=20)
    assert len(study.state.evaluations) == 5
    study.optimize(trainings.trained, evaluations=6)  # mended, it goes on
    assert isinstance(last(study).end, Finished)


def test_s_one_success_is_reason_enough_to_go_on(study: Study) -> None:
    def mostly_broken(evaluation: Evaluation) -> None:
        if evaluation.id != 2:
            raise ValueError("no")
        trainings.trained(evaluation)

    study.optimize(mostly_broken, evaluations=9)
    assert sum(isinstance(one.end, Failed) for one in study.state.evaluations) == 8


def test_t_a_budget_that_can_never_be_measured_ends(study: Study) -> None:
    with pytest.raises(StudyError, match="none of the first 20 evaluations reported a finite value"):
        study.optimize(trainings.nan_at(1), budget=3.0)


def test_a_training_may_take_its_configuration_apart(study: Study) -> None:
    def train(evaluation: Evaluation) -> float:
        evaluation.fidelity.clear()
        return float(evaluation.config.pop("x"))

    end = run(study, train)
    assert isinstance(end, Finished)
    assert study.trials[0].config == {"x": 0.25, "y": 0.75}
    assert small.reloaded(Path(study.checkpoints.directory(0)).parents[2]).trials == study.trials


def test_numbers_of_numpy_and_torch_are_taken(study: Study) -> None:
    import numpy
    import torch

    def train(evaluation: Evaluation) -> object:
        evaluation.report(numpy.float32(0.5), epochs=numpy.int64(2))
        evaluation.report(torch.tensor(0.25), epochs=4.0)
        evaluation.cost(numpy.float32(2.0))
        return torch.tensor(0.125, dtype=torch.float64)

    assert isinstance(run(study, train), Finished)
    assert study.trials[0].trace == (({"epochs": 2}, 0.5), ({"epochs": 4}, 0.25), ({"epochs": 6}, 0.125))
