"""Run in this process, at once."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Inline:
    """`submit` returns when the call is over: no pickling, so that functions of a notebook work."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        """Nothing to let go of."""
