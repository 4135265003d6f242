import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from takg.checkpoints import DirectoryCheckpoints
from takg.errors import StudyError
from takg.records import Asked, EvaluationState, Given, Lost, Saved, StudyState, apply

TRIAL, LEG = 12, 30


@pytest.fixture
def checkpoints(tmp_path: Path) -> DirectoryCheckpoints:
    return DirectoryCheckpoints(tmp_path / "checkpoints")


def leg(start: tuple[float, ...] | None = (5,)) -> EvaluationState:
    asked = Asked(evaluation=LEG, trial=TRIAL, target=(10,), worker="w", time=0.0, start=start)
    return EvaluationState(asked, worker="w", start=start)


def lost(evaluation: EvaluationState, start: tuple[float, ...] | None) -> EvaluationState:
    """The next attempt, from a start of its own."""
    state = StudyState(open={LEG: evaluation})
    apply(state, Lost(evaluation=LEG, attempt=evaluation.attempt, reason="", time=0.0))
    apply(state, Given(evaluation=LEG, attempt=evaluation.attempt + 1, worker="w", time=0.0, start=start))
    return evaluation


def saved(evaluation: EvaluationState, fidelity: tuple[float, ...], copy: str) -> None:
    evaluation.saved = Saved(evaluation=LEG, attempt=evaluation.attempt, fidelity=fidelity, copy=copy, time=0.0)


def write(checkpoints: DirectoryCheckpoints, text: str) -> None:
    (checkpoints.directory(TRIAL) / "model").write_text(text)


def read(checkpoints: DirectoryCheckpoints) -> str:
    return (checkpoints.directory(TRIAL) / "model").read_text()


def test_a_directory_is_the_same_for_all_legs_and_empty_at_first(checkpoints: DirectoryCheckpoints) -> None:
    assert not checkpoints.exists(TRIAL)
    directory = checkpoints.directory(TRIAL)
    assert directory == checkpoints.directory(TRIAL) and directory.is_dir()
    assert not checkpoints.exists(TRIAL)
    write(checkpoints, "at 5")
    assert checkpoints.exists(TRIAL)


def test_a_leg_that_overwrites_the_checkpoint_and_dies_leaves_the_state_of_its_start(
    checkpoints: DirectoryCheckpoints,
) -> None:
    write(checkpoints, "at 5")
    evaluation = leg()
    assert checkpoints.begin(TRIAL, evaluation)
    write(checkpoints, "torn")
    (checkpoints.directory(TRIAL) / "more").write_text("rubbish")
    assert checkpoints.last_state(TRIAL, evaluation) == (5,)
    assert checkpoints.begin(TRIAL, lost(evaluation, (5,)))
    assert read(checkpoints) == "at 5"
    assert [path.name for path in checkpoints.directory(TRIAL).iterdir()] == ["model"]


def test_a_leg_that_saved_on_its_way_goes_on_from_there(checkpoints: DirectoryCheckpoints) -> None:
    write(checkpoints, "at 5")
    evaluation = leg()
    checkpoints.begin(TRIAL, evaluation)
    write(checkpoints, "at 8")
    checkpoints.copy(TRIAL, "12-30-1-1")
    saved(evaluation, (8,), "12-30-1-1")
    checkpoints.discard_copies(TRIAL, but="12-30-1-1")
    write(checkpoints, "torn")
    assert checkpoints.last_state(TRIAL, evaluation) == (8,)
    assert checkpoints.begin(TRIAL, lost(evaluation, (8,)))
    assert read(checkpoints) == "at 8"


def test_a_directory_that_was_written_since_is_no_start_once_the_copies_are_gone(
    checkpoints: DirectoryCheckpoints,
) -> None:
    write(checkpoints, "at 5")
    evaluation = leg()
    checkpoints.begin(TRIAL, evaluation)
    write(checkpoints, "at 8")
    saved(evaluation, (8,), "12-30-1-1")
    checkpoints.discard_copies(TRIAL)
    assert checkpoints.last_state(TRIAL, evaluation) is None
    assert not checkpoints.begin(TRIAL, lost(evaluation, (5,)))


def test_what_an_attempt_from_scratch_left_is_no_start_of_the_leg(checkpoints: DirectoryCheckpoints) -> None:
    evaluation = leg()
    assert not checkpoints.begin(TRIAL, evaluation)  # its checkpoint is gone
    assert checkpoints.begin(TRIAL, lost(evaluation, None))
    write(checkpoints, "at 2")
    assert checkpoints.last_state(TRIAL, evaluation) is None


def test_a_leg_that_never_began_finds_its_start_untouched(checkpoints: DirectoryCheckpoints) -> None:
    write(checkpoints, "at 5")
    evaluation = leg()
    assert checkpoints.last_state(TRIAL, evaluation) == (5,)
    assert checkpoints.begin(TRIAL, lost(evaluation, (5,)))
    assert read(checkpoints) == "at 5"


def test_training_from_scratch_finds_an_empty_directory(checkpoints: DirectoryCheckpoints) -> None:
    write(checkpoints, "of another study, perhaps")
    checkpoints.copy(TRIAL, "12-3-start")
    assert checkpoints.begin(TRIAL, leg(None))
    assert not checkpoints.exists(TRIAL)
    assert checkpoints.size(TRIAL) == 0


def test_copies_of_one_trial_are_not_those_of_another(checkpoints: DirectoryCheckpoints) -> None:
    (checkpoints.directory(1) / "model").write_text("1")
    write(checkpoints, "12")
    for trial in (1, TRIAL):
        checkpoints.copy(trial, f"{trial}-30-start")
    checkpoints.discard_copies(1)
    assert checkpoints.last_state(TRIAL, leg()) == (5,)
    assert sorted(path.name for path in (checkpoints.root / ".safe").iterdir()) == ["12-30-start"]


def test_removing_leaves_nothing_of_a_trial_not_even_what_somebody_died_over(
    checkpoints: DirectoryCheckpoints,
) -> None:
    write(checkpoints, "at 5")
    checkpoints.copy(TRIAL, "12-30-start")
    for rest in (".safe/12-30-start.partial", "trial-00012.1234.gone", "trial-00012.partial"):
        (checkpoints.root / rest).mkdir()
        (checkpoints.root / rest / "file").write_text("rest")
    with checkpoints.held(TRIAL):
        pass
    (checkpoints.directory(1) / "model").write_text("1")
    checkpoints.remove(TRIAL)
    checkpoints.remove(TRIAL)  # others may do the same at the same time
    assert sorted(path.name for path in checkpoints.root.iterdir()) == [".safe", "trial-00001"]
    assert list((checkpoints.root / ".safe").iterdir()) == []


def test_the_size_counts_all_files_and_copies_of_the_trial(checkpoints: DirectoryCheckpoints) -> None:
    assert checkpoints.size(TRIAL) == 0
    (checkpoints.directory(TRIAL) / "deep").mkdir()
    (checkpoints.directory(TRIAL) / "deep" / "a").write_bytes(b"x" * 300)
    (checkpoints.directory(TRIAL) / "b").write_bytes(b"x" * 70)
    (checkpoints.directory(1) / "b").write_bytes(b"x" * 5)
    assert checkpoints.size(TRIAL) == 370
    checkpoints.copy(TRIAL, "12-30-start")
    assert checkpoints.size(TRIAL) == 740


def test_the_mark_changes_with_the_files_and_only_then(checkpoints: DirectoryCheckpoints) -> None:
    marks = [checkpoints.mark(TRIAL)]
    write(checkpoints, "5")
    marks.append(checkpoints.mark(TRIAL))
    write(checkpoints, "6")
    marks.append(checkpoints.mark(TRIAL))
    (checkpoints.directory(TRIAL) / "large").write_bytes(b"x" * 10_000)
    marks.append(checkpoints.mark(TRIAL))
    checkpoints.copy(TRIAL, "12-30-start")
    assert checkpoints.mark(TRIAL) == marks[-1]
    (checkpoints.directory(TRIAL) / "large").unlink()
    assert checkpoints.mark(TRIAL) == marks[2]
    assert len(set(marks)) == 4


HOLDER = """
import sys, time
from takg.checkpoints import DirectoryCheckpoints
with DirectoryCheckpoints(sys.argv[1]).held(12):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_trial_is_held_by_one_process_until_that_is_gone(checkpoints: DirectoryCheckpoints) -> None:
    command = [sys.executable, "-c", HOLDER, str(checkpoints.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            impatient = DirectoryCheckpoints(checkpoints.root, patience=0.05)
            with pytest.raises(StudyError, match="trial 12: another process still works in"), impatient.held(TRIAL):
                pass
            with impatient.held(1):
                pass
            os.kill(holder.pid, signal.SIGKILL)
            began = time.monotonic()
            with checkpoints.held(TRIAL):
                assert time.monotonic() - began < 10
        finally:
            holder.kill()
