"""Local processes that can die, be killed and be replaced without harm to each other or to the caller.

`concurrent.futures.ProcessPoolExecutor` gives up altogether when one of its processes is killed, and cannot kill one
that hangs; trainings do both.
"""

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from takg.errors import InputError, TakgError

_THREADS_SETTING = "OMP_NUM_THREADS"
_environment_lock = threading.Lock()


class WorkerDiedError(TakgError):
    """The process that ran the call is gone; the message says how."""


class _Task(NamedTuple):
    future: "Future[Any]"
    payload: bytes


class LocalProcesses:
    """`count` processes, each a fresh interpreter (spawn), each running one call at a time."""

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"count={count!r}: expected at least one process")
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._processes: dict[int, BaseProcess] = {}  # by the id of the future that each works on
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads_each = max(1, (os.cpu_count() or 1) // count)
        self._keepers = [threading.Thread(target=self._keep, daemon=True) for _ in range(count)]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Run function(*arguments) in the next free process."""
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
            process = self._processes.get(id(future))
            if process is None:
                future.cancel()
            else:
                process.kill()

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
        process, connection = None, None
        while (task := self._tasks.get()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            if process is None or connection is None or not process.is_alive():
                process, connection = self._started()
            with self._lock:
                self._processes[id(task.future)] = process
            if self._is_closed:
                process.kill()
            try:
                connection.send_bytes(task.payload)
                is_good, outcome = connection.recv()
            except (EOFError, OSError):
                process.join()
                is_good, outcome = False, WorkerDiedError(_obituary(process.exitcode))
            with self._lock:
                del self._processes[id(task.future)]
            if is_good:
                task.future.set_result(outcome)
            else:
                task.future.set_exception(outcome)
        if process is not None:
            process.kill()
            process.join()

    def _started(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        with _limited_threads(self._threads_each):
            process.start()
        there.close()
        return process, here


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
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            payload = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, arguments = pickle.loads(payload)
            outcome = (True, function(*arguments))
        except Exception as error:
            outcome = (False, TakgError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        connection.send(outcome)


def _die_with_parent() -> None:
    """A worker without its parent would train for nobody, and hold its cores or its accelerator."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _obituary(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else str(-exitcode)
        return f"the worker process was killed by {name}"
    return f"the worker process exited with code {exitcode}"
