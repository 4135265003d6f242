"""Local processes that can die, be killed and be replaced without harm to each other or to the caller.

`concurrent.futures.ProcessPoolExecutor` gives up altogether when one of its processes is killed, and cannot kill one
that hangs; trainings do both.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from takg.errors import InputError, TakgError

_THREADS_SETTING = "OMP_NUM_THREADS"
_PR_SET_PDEATHSIG = 1
_PING, _READY = b"ping", "ready"
_POLL = 0.5  # seconds between two looks whether a process lives
_PATIENCE = 5.0  # seconds for a process to end that has nothing more to say
_environment_lock = threading.Lock()


class WorkerDiedError(TakgError):
    """The process that ran the call is gone; the message says how."""


class _Task(NamedTuple):
    future: "Future[Any]"
    payload: bytes


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection

    def received(self) -> Any:
        """What the process sends next; EOFError if it dies before.

        Children that a training has forked may outlive it and keep the pipe open: that it ends says too little.
        """
        while not self.connection.poll(_POLL):
            if not self.process.is_alive() and not self.connection.poll():
                raise EOFError
        return self.connection.recv()

    def is_ready(self) -> bool:
        """Whether it lives; one that was killed a moment ago may still seem to, and would not answer."""
        try:
            self.connection.send_bytes(_PING)
            return bool(self.received() == _READY)
        except (EOFError, OSError):
            return False

    def obituary(self) -> str:
        self.process.join(_PATIENCE)
        self.process.kill()  # one that has closed its end and lives on is of no use
        self.process.join()
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"the worker process exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"the worker process was killed by {name}"


class LocalProcesses:
    """`count` processes, each a fresh interpreter (spawn), each running one call at a time."""

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"count={count!r}: expected at least one process")
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._processes: dict[Future[Any], BaseProcess] = {}  # by the future that each works on
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads_each = max(1, (os.cpu_count() or 1) // count)
        self._keepers = [threading.Thread(target=self._keep, daemon=True) for _ in range(count)]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Run function(*arguments) in the next free process."""
        if self._is_closed:
            raise TakgError("these processes were shut down; make new ones")
        try:
            payload = pickle.dumps((function, arguments))
        except Exception as error:
            raise InputError(
                f"{function!r} and its arguments cannot be sent to another process ({error}): expected functions that "
                "can be imported by name, defined at the top of a module, not lambdas or functions inside functions"
            ) from error
        future: Future[Any] = Future()
        self._tasks.put(_Task(future, payload))
        return future

    def kill(self, future: "Future[Any]") -> None:
        """Kill the process that works on a future, which then has a WorkerDiedError."""
        with self._lock:
            if not future.cancel() and future in self._processes:
                self._processes[future].kill()

    def shutdown(self) -> None:
        """Kill all processes."""
        self._is_closed = True
        with self._lock:
            for process in self._processes.values():
                process.kill()
        for _ in self._keepers:
            self._tasks.put(None)
        for keeper in self._keepers:
            keeper.join()

    def _keep(self) -> None:
        """One process at a time, and the calls that it is given; a new process after one has died."""
        worker: _Worker | None = None
        while (task := self._tasks.get()) is not None:
            if self._is_closed:
                task.future.cancel()
            trouble = None
            if not task.future.cancelled() and (worker is None or not worker.is_ready()):
                _end(worker)
                worker, trouble = self._started()
            with self._lock:
                if not task.future.set_running_or_notify_cancel():
                    continue
                if worker is not None:
                    self._processes[task.future] = worker.process
            is_good, outcome = self._answer(worker, task) if worker is not None else (False, trouble)
            with self._lock:
                self._processes.pop(task.future, None)
            if is_good:
                task.future.set_result(outcome)
            else:
                task.future.set_exception(outcome)
        _end(worker)

    def _answer(self, worker: _Worker, task: _Task) -> tuple[bool, Any]:
        if self._is_closed:
            worker.process.kill()
        try:
            worker.connection.send_bytes(task.payload)
            answer: tuple[bool, Any] = worker.received()
            return answer
        except (EOFError, OSError):
            return False, WorkerDiedError(worker.obituary())
        except Exception as error:
            return False, TakgError(f"the answer of a worker process cannot be read: {type(error).__name__}: {error}")

    def _started(self) -> tuple[_Worker | None, WorkerDiedError | None]:
        """A process that is ready, so that what is timed from then on is the call; or why there is none."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        worker = _Worker(context.Process(target=_serve, args=(there,), daemon=True), here)
        try:
            with _limited_threads(self._threads_each):
                worker.process.start()
            there.close()
            worker.received()
        except EOFError:
            return None, WorkerDiedError(worker.obituary())
        except Exception as error:  # as when the system has no more processes to give
            return None, WorkerDiedError(f"no worker process could be started: {type(error).__name__}: {error}")
        return worker, None


@contextlib.contextmanager
def _limited_threads(count: int) -> Iterator[None]:
    """Child processes share the cores, unless the user has decided how many threads each may have."""
    with _environment_lock:
        if _THREADS_SETTING in os.environ:
            yield
            return
        os.environ[_THREADS_SETTING] = str(count)
        try:
            yield
        finally:
            del os.environ[_THREADS_SETTING]


def _serve(connection: Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _let_the_system_kill_it_with_its_parent()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection.send(_READY)
    while True:
        try:
            payload = connection.recv_bytes()
        except (EOFError, OSError):
            return
        if payload == _PING:
            connection.send(_READY)
            continue
        try:
            function, arguments = pickle.loads(payload)
            answer = pickle.dumps((True, function(*arguments)))
        except Exception as error:
            answer = pickle.dumps((False, TakgError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")))
        connection.send_bytes(answer)  # `recv` of the other side reads it


def _let_the_system_kill_it_with_its_parent() -> None:
    """Linux can, at once, whatever the worker is busy with. The thread that started it lives as long as it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _die_with_parent() -> None:
    """A worker without its parent would train for nobody, and hold its cores or its accelerator."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end(worker: _Worker | None) -> None:
    if worker is not None:
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
