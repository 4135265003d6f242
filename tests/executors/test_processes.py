import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import calls
import pytest

from takg.errors import InputError, TakgError
from takg.executors import LocalProcesses, WorkerDiedError

PATIENCE = 30.0


@pytest.fixture(scope="module")
def one() -> Iterator[LocalProcesses]:
    processes = LocalProcesses(1)
    yield processes
    processes.shutdown()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def awaited(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


def assert_dies(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_call_runs_in_another_process_that_is_used_again(one: LocalProcesses) -> None:
    assert one.submit(calls.add, 3, 4).result(PATIENCE) == 7
    first, second = (one.submit(calls.pid).result(PATIENCE) for _ in range(2))
    assert first == second != os.getpid()


def test_an_error_of_the_call_comes_back_with_its_traceback(one: LocalProcesses) -> None:
    with pytest.raises(TakgError, match=r"ValueError: out of range\n[\s\S]*in fail"):
        one.submit(calls.fail, "out of range").result(PATIENCE)


def test_an_answer_that_cannot_be_sent_is_an_error_and_the_process_lives(one: LocalProcesses) -> None:
    before = one.submit(calls.pid).result(PATIENCE)
    with pytest.raises(TakgError, match="cannot pickle"):
        one.submit(calls.lock).result(PATIENCE)
    assert one.submit(calls.pid).result(PATIENCE) == before


def test_an_answer_that_cannot_be_read_is_an_error_and_the_next_call_works(one: LocalProcesses) -> None:
    with pytest.raises(TakgError, match="cannot be read"):
        one.submit(calls.unreadable).result(PATIENCE)
    assert one.submit(calls.add, 1, 1).result(PATIENCE) == 2


def test_what_cannot_be_sent_is_refused_at_once(one: LocalProcesses) -> None:
    with pytest.raises(InputError, match="not lambdas or functions inside functions"):
        one.submit(lambda: 1)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (calls.kill_self, (), "the worker process was killed by SIGKILL"),
        (calls.leave, (3,), "the worker process exited with code 3"),
        (calls.kill_self_and_leave_a_child, (), "the worker process was killed by SIGKILL"),
    ],
)
def test_the_death_of_a_process_is_noticed_and_another_takes_its_place(
    one: LocalProcesses, call: object, arguments: tuple[int, ...], message: str
) -> None:
    with pytest.raises(WorkerDiedError, match=message):
        one.submit(call, *arguments).result(3.5)
    assert one.submit(calls.add, 2, 3).result(PATIENCE) == 5


def test_an_idle_process_that_was_killed_is_replaced(one: LocalProcesses) -> None:
    before = one.submit(calls.pid).result(PATIENCE)
    os.kill(before, signal.SIGKILL)
    assert_dies(before)
    assert one.submit(calls.pid).result(PATIENCE) != before


def test_a_call_that_hangs_can_be_killed(one: LocalProcesses, tmp_path: Path) -> None:
    future = one.submit(calls.hang, str(tmp_path / "sign"))
    pid = int(awaited(tmp_path / "sign"))
    one.kill(future)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        future.result(PATIENCE)
    assert not is_alive(pid)


def test_a_call_is_not_running_before_its_process_is_ready_and_can_be_cancelled_until_then() -> None:
    processes = LocalProcesses(1)
    try:
        future = processes.submit(calls.pid)
        assert not future.running()  # an interpreter takes longer than that to start
        processes.kill(future)
        assert wait([future], timeout=PATIENCE).done == {future}
        assert future.cancelled()
        assert processes.submit(calls.add, 1, 2).result(PATIENCE) == 3
    finally:
        processes.shutdown()


def test_shutdown_kills_what_runs_and_cancels_what_waits(tmp_path: Path) -> None:
    processes = LocalProcesses(1)
    running = processes.submit(calls.hang, str(tmp_path / "sign"))
    waiting = processes.submit(calls.pid)
    pid = int(awaited(tmp_path / "sign"))
    processes.shutdown()
    assert not is_alive(pid)
    assert isinstance(running.exception(0), WorkerDiedError)
    assert waiting.cancelled()
    with pytest.raises(TakgError, match="were shut down"):
        processes.submit(calls.pid)


def test_processes_run_side_by_side_and_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    processes = LocalProcesses(2)
    try:
        pids = {future.result(PATIENCE) for future in [processes.submit(calls.pid) for _ in range(8)]}
        assert processes.submit(calls.threads).result(PATIENCE) == str(max(1, (os.cpu_count() or 1) // 2))
        assert len(pids) <= 2
        assert "OMP_NUM_THREADS" not in os.environ
    finally:
        processes.shutdown()


def test_workers_die_with_a_parent_that_is_killed_whatever_they_do(tmp_path: Path) -> None:
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import calls\n"
        "from takg.executors import LocalProcesses\n"
        "if __name__ == '__main__':\n"
        "    processes = LocalProcesses(2)\n"
        "    processes.submit(calls.hang, sys.argv[2])\n"
        "    processes.submit(calls.hold_the_interpreter, sys.argv[3])\n"
        "    time.sleep(60)\n"
    )
    (tmp_path / "parent.py").write_text(program)
    signs = [tmp_path / "hangs", tmp_path / "works"]
    here = str(Path(__file__).parent)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), here, *map(str, signs)])
    try:
        workers = [int(awaited(sign)) for sign in signs]
    finally:
        parent.kill()
        parent.wait()
    for worker in workers:
        assert_dies(worker)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_the_number_of_processes_is_checked(count: object) -> None:
    with pytest.raises(InputError, match="expected at least one process"):
        LocalProcesses(count)  # type: ignore[arg-type]
