"""What the tests run in worker processes."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def threads() -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def fail(message: str) -> None:
    raise ValueError(message)


def leave(code: int) -> None:
    sys.exit(code)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_self_and_leave_a_child() -> None:
    """The child has all pipes of its parent and outlives it."""
    if os.fork() == 0:
        time.sleep(4)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(sign: str) -> None:
    Path(sign).write_text(str(os.getpid()))
    time.sleep(60)


def hold_the_interpreter(sign: str) -> None:
    """No other thread of the process runs from here on."""
    Path(sign).write_text(str(os.getpid()))
    sys.setswitchinterval(1000)
    while True:
        pass


def lock() -> Any:
    return threading.Lock()  # cannot be pickled


class Unreadable:
    """Can be sent, and not be read."""

    def __reduce__(self) -> Any:
        return fail, ("cannot be read",)


def unreadable() -> Unreadable:
    return Unreadable()
