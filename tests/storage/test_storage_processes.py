"""Several processes with one SQLite file; `appender.py` is what they run."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from histories import DEFINITION, point

from takg.storage import SqlStorage

NAME = DEFINITION.name


def started(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).with_name("appender.py")), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(process: "subprocess.Popen[str]") -> list[str]:
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    return output.splitlines()


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing_and_write_nothing_twice(tmp_path: Path) -> None:
    processes, each = 4, 200
    with closing(SqlStorage(tmp_path / "study.db")) as storage:
        storage.create(DEFINITION)
        running = [started("append", tmp_path / "study.db", worker, each) for worker in range(processes)]
        for process in running:
            assert lines(process) == []
        found = storage.read(NAME)
        assert len(found) == processes * each
        for worker in range(processes):
            own = [event for event in found if event.evaluation == worker]
            assert own == [point(worker, 1, i, 0.5) for i in range(each)]


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_it_had_said_to_be_done(tmp_path: Path) -> None:
    rounds = [line.split() for line in lines(started("kill", tmp_path / "study.db", 20, 11))]
    assert len(rounds) == 20
    for done, held, is_as_expected in rounds:
        assert int(held) - int(done) in (0, 1)  # it may have died between writing and saying so
        assert is_as_expected == "True"


@pytest.mark.slow
def test_processes_that_make_the_same_new_store_at_once_all_succeed(tmp_path: Path) -> None:
    assert lines(started("create", tmp_path, 8, 4)) == ["0 0 0 0"] * 8


def test_a_fork_opens_a_connection_of_its_own(tmp_path: Path) -> None:
    assert lines(started("fork", tmp_path / "study.db")) == ["written", "[0.0, 1.0, 2.0]"]
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
