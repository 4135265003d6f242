"""`Study.optimize`: limits, workers, several processes, interrupts."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import small
import trainings
from small import events, further, kinds, last, new, reloaded, script, small_study

import takg
from takg.errors import InputError, StudyError
from takg.records import Asked, Failed, Finished, Given, Lost
from takg.study import Evaluation, Study
from takg.study._drive import Limits, is_dead, snapshot, worker_name


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small_study(tmp_path)


def ends(study: Study) -> list[Finished | Failed]:
    return [event for event in events(study) if isinstance(event, Finished | Failed)]


# Limits


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "optimize needs a limit"),
        ({"timeout": 3}, "optimize needs a limit"),
        ({"evaluations": 0}, "evaluations=0: expected a number > 0"),
        ({"budget": -1.0}, "budget=-1.0: expected a number > 0"),
        ({"cost": float("nan")}, "cost=nan: expected a number > 0"),
        ({"seconds": "3"}, "seconds='3': expected a number > 0"),
        ({"stop_below": True}, "stop_below=True: expected a number > 0"),
        ({"evaluations": 1, "workers": 0}, "workers=0: expected an integer >= 1, or None"),
        ({"evaluations": 1, "workers": True}, "workers=True: expected an integer >= 1, or None"),
    ],
)
def test_limits_are_checked_before_anything_is_done(study: Study, limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        study.optimize(trainings.trained, **limits)
    assert events(study) == []


def test_the_training_function_is_checked_too(study: Study) -> None:
    with pytest.raises(InputError, match="train=3: expected a function of an evaluation"):
        study.optimize(3, evaluations=1)  # type: ignore[arg-type]


def test_the_number_of_evaluations_is_a_total(study: Study, tmp_path: Path) -> None:
    study.optimize(trainings.trained, evaluations=3)
    reloaded(tmp_path).optimize(trainings.trained, evaluations=5)
    study.optimize(trainings.trained, evaluations=5)
    study.optimize(trainings.trained, evaluations=2)
    assert kinds(study).count("Asked") == kinds(study).count("Finished") == 5


def test_the_cost_is_a_total_too(tmp_path: Path) -> None:
    study = small_study(tmp_path, cost="reported")
    study.optimize(trainings.costly, cost=6.0)
    assert study.state.cost == 7.5
    study.optimize(trainings.costly, cost=7.5)
    assert len(ends(study)) == 3


def test_the_time_counts_from_now(study: Study) -> None:
    def sleepy(evaluation: Evaluation) -> float:
        time.sleep(0.05)
        return 0.5

    began = time.monotonic()
    study.optimize(sleepy, seconds=0.2)
    assert 0.2 <= time.monotonic() - began < 5.0
    before = len(ends(study))
    assert 1 <= before <= 5
    study.optimize(sleepy, seconds=0.01)
    assert len(ends(study)) == before + 1


def test_it_stops_when_the_next_evaluation_promises_too_little(study: Study) -> None:
    proposals = [
        takg.study._suggest.Proposal(config={"x": 0.5, "y": 0.5}, target=(3,), reason={"value": value})
        for value in (0.9, 0.5, 0.2, 0.1, 0.05)
    ]
    script(study, *proposals)
    study.optimize(trainings.trained, stop_below=0.15)
    assert len(ends(study)) == 4


def test_a_budget_is_measured_in_full_trainings(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "spent", lambda: len(study.state.evaluations) / 4)
    study.optimize(trainings.trained, budget=1.5)
    assert len(ends(study)) == 6


def test_evaluations_are_scarce_where_their_number_and_their_cost_are_limited(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    given, propose = [], study._proposals

    def scarcity(**limits: Any) -> float:
        asked.append(limits)
        return 0.25 * len(asked)

    def noted(count: int, *, overhead: float) -> Any:
        given.append(overhead)
        return propose(count, overhead=overhead)

    monkeypatch.setattr(study, "scarcity", scarcity)
    monkeypatch.setattr(study, "_proposals", noted)
    study.optimize(trainings.trained, evaluations=3)
    assert given == [0.0] * 3 and not asked  # without a limit on the cost there is nothing to compare
    study.optimize(trainings.trained, evaluations=5, cost=1e6)
    assert given == [0.0] * 3 + [0.25, 0.5]
    assert asked == [{"evaluations": 5, "budget": None, "cost": 1e6}] * 2


# Evaluations that were lost


def test_what_was_lost_is_taken_up_before_anything_new_and_counts_once(study: Study) -> None:
    study.optimize(trainings.trained, evaluations=2)
    evaluation = study.ask()
    study.release(evaluation, "lost")
    study.optimize(trainings.trained, evaluations=3)
    assert [type(event).__name__ for event in events(study)].count("Asked") == 3
    assert (last(study).id, last(study).attempt) == (evaluation.id, 2)
    assert len(ends(study)) == 3


def test_an_evaluation_of_a_driver_that_died_is_given_again(study: Study, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    parts = worker_name().rsplit(":", 3)
    study.worker = f"{parts[0]}:{process.pid}:12345:1"
    assert study.next_evaluation() is not None
    other = reloaded(tmp_path)
    other.optimize(trainings.trained, evaluations=1)
    assert [lost.reason.split(" ", 2)[2] for lost in last(other).lost] == ["fell silent"]
    assert isinstance(last(other).end, Finished)


def test_an_evaluation_of_a_driver_elsewhere_that_fell_silent_is_given_again(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.worker = "elsewhere:1:1:1"
    study.log.storage.beat(study.name, study.worker)
    assert study.next_evaluation() is not None
    other = reloaded(tmp_path)
    other.optimize(trainings.trained, evaluations=2)  # not yet
    assert [one.status for one in other.state.evaluations] == ["running", "finished"]
    monkeypatch.setattr("takg.study._drive._SILENCE", 0.0)
    other.optimize(trainings.trained, evaluations=2)
    other.optimize(trainings.trained, evaluations=3)
    assert other.state.evaluations[0].attempt == 2
    assert len(ends(other)) == len(other.state.evaluations) == 3


def test_who_is_dead_is_known_on_this_host_and_in_this_process_only() -> None:
    assert is_dead(worker_name())  # a driver of this process that is not at work
    host, pid, start, _ = worker_name().rsplit(":", 3)
    assert is_dead(f"{host}:{pid}:{int(start) + 1}:1")  # another process had that number before
    parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    assert not is_dead(f"{host}:{os.getppid()}:{parent}:1")
    for name in ("elsewhere:1:1:1", "asker/7f", f"{host}:x:1:1", ""):
        assert not is_dead(name)


def test_a_driver_at_work_is_not_dead_for_others_in_its_process(study: Study, tmp_path: Path) -> None:
    other = reloaded(tmp_path)

    def train(evaluation: Evaluation) -> float:
        if evaluation.id == 0:
            other.optimize(trainings.trained, evaluations=2)
        return 0.5

    study.optimize(train, evaluations=2)
    assert kinds(study).count("Lost") == 0
    assert len(ends(study)) == 2


def test_nobody_trains_in_a_directory_where_a_worker_that_was_given_up_still_is(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study.checkpoints, "_patience", 0.01)
    holder = (
        "import sys, takg.checkpoints\n"
        "with takg.checkpoints.DirectoryCheckpoints(sys.argv[1]).held(0):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", holder, str(Path(study.checkpoints.directory(0)).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        study.optimize(lambda evaluation: pytest.fail("two at once"), evaluations=1)
    [end] = ends(study)
    assert isinstance(end, Failed) and end.kind == "killed"
    assert "trial 0: another process still works in" in end.message


# Interrupts


def test_ctrl_c_gives_back_what_ran_here_and_the_next_run_goes_on_with_it(study: Study, tmp_path: Path) -> None:
    def interrupted(evaluation: Evaluation) -> None:
        evaluation.report(0.5, epochs=1)
        if evaluation.id == 1:
            signal.raise_signal(signal.SIGINT)
        trainings.unsaved(evaluation)

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        study.optimize(interrupted, evaluations=3)
    assert [
        (event.evaluation, event.reason, event.is_suspect) for event in events(study) if isinstance(event, Lost)
    ] == [(1, "interrupted", False)]
    reloaded(tmp_path).optimize(trainings.trained, evaluations=3)
    assert [one.attempt for one in study.log.refresh().evaluations] == [1, 2, 1]
    assert len(ends(study)) == 3


def test_ctrl_c_after_training_started_over_gives_that_attempt_back(study: Study) -> None:
    script(study, new(6), lambda: further(study, 0, 9))
    study.optimize(trainings.trained, evaluations=1)

    def interrupted(evaluation: Evaluation) -> None:
        if evaluation.resumed:
            raise OSError("bad magic number")
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        study.optimize(interrupted, evaluations=2)
    assert (last(study).status, last(study).attempt, last(study).lost[-1].reason) == ("lost", 2, "interrupted")


PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
import takg, trainings
if __name__ == "__main__":
    study = takg.load_study(storage=sys.argv[2])
    workers = int(sys.argv[5]) or None
    study.optimize(getattr(trainings, sys.argv[3]), evaluations=int(sys.argv[4]), workers=workers)
"""


def program(directory: Path, train: str, evaluations: int, workers: int) -> "subprocess.Popen[str]":
    (directory / "program.py").write_text(PROGRAM)
    here, store = Path(__file__).parent, directory / "study.db"
    command = [sys.executable, directory / "program.py", here, store, train, evaluations, workers]
    return subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)


def awaited(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_stops_a_program_with_its_workers_and_another_goes_on_at_once(tmp_path: Path, workers: int) -> None:
    study = small_study(tmp_path)
    count = max(1, workers)
    process = program(tmp_path, "patient", 3, workers)
    awaited(lambda: len([one for one in study.log.refresh().running() if one.points]) == count)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0 and errors.rstrip().endswith("KeyboardInterrupt")
    study.log.refresh()
    assert [one.lost[-1].reason for one in study.state.lost()] == ["interrupted"] * count
    study.optimize(trainings.patient_no_more, evaluations=3)
    assert [one.attempt for one in study.state.evaluations] == [2] * count + [1] * (3 - count)
    assert len(ends(study)) == 3


@pytest.mark.slow
def test_a_program_that_is_killed_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    process = program(tmp_path, "patient", 2, 2)
    awaited(lambda: len([one for one in study.log.refresh().running() if one.points]) == 2)
    process.kill()
    process.communicate()
    study.optimize(trainings.patient_no_more, evaluations=2)
    assert [one.attempt for one in study.state.evaluations] == [2, 2]
    assert len(ends(study)) == 2
    assert all("fell silent" in event.reason for event in events(study) if isinstance(event, Lost))


# Workers


@pytest.mark.slow
def test_workers_run_side_by_side_and_each_gets_a_new_one_as_soon_as_it_is_free(study: Study) -> None:
    study.optimize(trainings.outlasting, evaluations=8, workers=2)
    assert kinds(study).count("Asked") == kinds(study).count("Finished") == 8  # the first did not wait in vain
    open_ones, most = 0, 0
    for event in events(study):
        open_ones += isinstance(event, Asked) - isinstance(event, Finished)
        most = max(most, open_ones)
    assert most == 2
    begun = list(Path(study.checkpoints.directory(0)).parent.glob("begun-*"))
    assert len(begun) == 8 and len({path.read_text() for path in begun}) == 2


@pytest.mark.slow
def test_processes_with_one_store_do_exactly_the_number_asked_for_and_none_twice(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    processes = [program(tmp_path, "outlasting", 24, workers) for workers in (0, 0, 2)]
    for process in processes:
        _, errors = process.communicate(timeout=90)
        assert (process.returncode, errors) == (0, "")
    study.log.refresh()
    assert len(study.state.evaluations) == len(ends(study)) == 24
    assert kinds(study).count("Lost") == 0
    configs = [(trial.config["x"], trial.config["y"]) for trial in study.trials]
    assert len(set(configs)) == 24
    assert len({one.worker for one in study.state.evaluations}) >= 2


def test_the_last_evaluation_is_not_asked_for_twice(study: Study, tmp_path: Path) -> None:
    """Another process asks for it between our look at the number and our writing it down."""
    other = reloaded(tmp_path)
    propose = study._proposals

    def overtaken(count: int, *, overhead: float) -> Any:
        idea = propose(count, overhead=overhead)
        other.optimize(trainings.trained, evaluations=3)
        return idea

    study._proposals = overtaken  # type: ignore[method-assign]
    study.optimize(trainings.trained, evaluations=3)
    assert kinds(study).count("Asked") == 3


def test_one_who_is_always_overtaken_gets_its_turn(study: Study, tmp_path: Path) -> None:
    other = reloaded(tmp_path)
    propose = study._proposals

    def overtaken(count: int, *, overhead: float) -> Any:
        idea = propose(count, overhead=overhead)
        other.tell(other.ask(), 0.5)
        return idea

    study._proposals = overtaken  # type: ignore[method-assign]
    assert study.ask().id == 4
    assert len({tuple(trial.config.items()) for trial in study.trials}) == 5  # not one that others were given


def test_a_study_in_memory_cannot_be_shared_with_workers() -> None:
    study = takg.create_study(small.SPACE, small.EPOCHS, storage=None, initial=50)
    with pytest.raises(InputError, match="this study is kept in memory, where workers cannot see it"):
        study.optimize(trainings.trained, evaluations=2, workers=1)
    assert [one.lost[0].reason for one in study.state.lost()] == ["it could not be handed to a worker"]


def test_functions_that_cannot_be_sent_are_refused(study: Study) -> None:
    with pytest.raises(InputError, match="can be imported by name"):
        study.optimize(lambda evaluation: 0.5, evaluations=2, workers=1)


def test_any_executor_will_do(study: Study) -> None:
    with ThreadPoolExecutor(3) as pool:
        study.optimize(trainings.trained, evaluations=9, workers=3, executor=pool)
    assert len(ends(study)) == 9
    assert {trial.status for trial in study.trials} == {"paused"}


class Late:
    """Runs at once, and says so only when it is to be killed: a worker that finishes as it is stopped."""

    def submit(self, function: Any, /, *arguments: Any) -> "Future[Any]":
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        function(*arguments)
        return self.future

    def kill(self, future: "Future[Any]") -> None:
        future.set_exception(takg.executors.WorkerDiedError("killed"))


def test_an_evaluation_that_ends_as_it_is_stopped_for_being_late_has_ended(study: Study) -> None:
    study.optimize(trainings.trained, evaluations=1, executor=Late(), timeout=0.01)
    assert [type(end) for end in ends(study)] == [Finished]


class Restarting(Late):
    """Its worker starts over, which is a new attempt, and then dies."""

    def submit(self, function: Any, /, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def train(evaluation: Evaluation) -> None:
            if evaluation.resumed:
                raise OSError("bad magic number")
            raise KeyboardInterrupt  # as far as the log is concerned

        *others, _, cost_function = arguments
        try:
            function(*others, train, cost_function)
        except KeyboardInterrupt:
            future.set_exception(takg.executors.WorkerDiedError("killed"))
        return future


def test_a_worker_that_dies_after_it_started_over_is_noticed(study: Study) -> None:
    script(study, new(6), lambda: further(study, 0, 9))
    study.optimize(trainings.trained, evaluations=1)
    with pytest.raises(StudyError, match="enough"):
        _after_one_loss(study)
    assert (last(study).status, last(study).attempt, last(study).lost[-1].reason) == ("lost", 2, "killed")


def _after_one_loss(study: Study) -> None:
    executor = Restarting()
    release = study.release

    def released(*arguments: Any, **options: Any) -> None:
        release(*arguments, **options)
        raise StudyError("enough")

    study.release = released  # type: ignore[method-assign]
    study.optimize(trainings.trained, evaluations=2, executor=executor)


# What is shown


def test_what_happens_is_logged_as_takg_and_nothing_is_printed(
    study: Study, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(evaluation: Evaluation) -> float:
        if evaluation.id == 1:
            raise ValueError("too large")
        return 0.5

    with caplog.at_level(logging.DEBUG, logger="takg"):
        study.optimize(broken, evaluations=3)
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("takg", "evaluation 1 failed: ValueError: too large")
    ]
    assert capfd.readouterr() == ("", "")


def test_progress_is_shown_when_told_so(study: Study, capfd: pytest.CaptureFixture[str]) -> None:
    study.optimize(trainings.trained, evaluations=3, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "study" in shown.err and "of 3 evaluations" in shown.err


def test_the_snapshot_has_the_numbers(study: Study) -> None:
    script(study, new(6), new(8), lambda: further(study, 0, 10))
    study.optimize(trainings.trained, evaluations=1)
    study.ask().report(0.75, epochs=4)
    study.ask().report(0.5, epochs=7)
    shown = snapshot(study, Limits(evaluations=10))
    assert (shown.spent, shown.goal, shown.unit) == (1, 10, "evaluations")
    assert (shown.name, shown.evaluations, shown.trials, shown.paused, shown.best) == ("study", 1, 2, 0, None)
    fresh, going_on = shown.running
    assert (fresh.trial, fresh.is_continued, fresh.share, fresh.value) == (1, False, 0.5, 0.75)
    assert (going_on.trial, going_on.is_continued, going_on.share, going_on.value) == (0, True, 0.7, 0.5)
    assert (going_on.target, going_on.config) == ({"epochs": 10}, {"x": 0.25, "y": 0.75})
    by_cost = snapshot(study, Limits(cost=3.0))
    assert (by_cost.spent, by_cost.goal, by_cost.unit) == (study.state.cost, 3.0, "s")


def test_signs_of_life_are_given_while_it_runs(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takg.study._drive._BEAT", 0.01)
    seen: list[float] = []
    before = threading.active_count()

    def train(evaluation: Evaluation) -> float:
        worker = study.state.evaluations[evaluation.id].worker
        time.sleep(0.2)
        seen.append(study.log.storage.silences(study.name)[worker])
        return 0.5

    study.optimize(train, evaluations=1)
    assert seen[0] < 0.19
    assert threading.active_count() == before


def test_given_again_is_from_the_last_checkpoint_that_was_saved(study: Study) -> None:
    def interrupted(evaluation: Evaluation) -> None:
        for epoch in evaluation.steps("epochs"):
            evaluation.report(0.5, epochs=epoch)
            (evaluation.checkpoint / "epoch").write_text(str(epoch))
            if epoch == 4:
                evaluation.saved(epochs=4)
                evaluation.saved(epochs=4)  # twice does no harm
        raise KeyboardInterrupt

    script(study, new(6))
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        study.optimize(interrupted, evaluations=1)
    study.optimize(trainings.trained, evaluations=1)
    given = [event for event in events(study) if isinstance(event, Given)]
    assert [event.start for event in given] == [(4,)]
    assert isinstance(last(study).end, Finished) and last(study).end.has_checkpoint
