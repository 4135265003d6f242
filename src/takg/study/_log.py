"""A process's view of one study in a store: the state folded so far, and the one way to add to it."""

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from takg.errors import ConflictError, StaleError, StorageError
from takg.records import Event, Storage, StudyState, check, fold

_TRIES = 1000  # each one lost means that somebody else's event was written


class Log:
    """The events of a study, and what they add up to; safe to use from several threads."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.name = storage, name
        self.state = StudyState()
        self.lock = threading.RLock()
        self._is_whole = True
        self.refresh()

    def refresh(self) -> StudyState:
        """Take in what others have written."""
        with self.lock:
            if not self._is_whole:
                self.state = StudyState()
            with _collector_at_rest():
                return self._taken_in(self.storage.read(self.name, after=self.state.sequence))

    def append(self, event: Event) -> None:
        """Write an event as soon as it fits; StaleError or StudyError if what others wrote rules it out."""
        for _ in range(_TRIES):
            if self.try_append(event):
                return
        raise StorageError(
            f"study {self.name!r}: no event could be written in {_TRIES} attempts, others always were first"
        )

    def try_append(self, event: Event) -> bool:
        """Write an event unless others have written meanwhile; then take in what they wrote, and return False."""
        with self.lock:
            if not self._is_whole:
                self.refresh()
            try:
                check(self.state, event)
                self.storage.append(self.name, [event], after=self.state.sequence)
            except ConflictError:
                self.refresh()
                return False
            except StaleError:
                if self.refresh_is_news():  # what made it stale may be over
                    return False
                raise
            self._taken_in([event])
            return True

    def refresh_is_news(self) -> bool:
        before = self.state.sequence
        return self.refresh().sequence > before

    def _taken_in(self, events: Sequence[Event]) -> StudyState:
        self._is_whole = False  # until the end: Ctrl-C may leave an event that has half happened
        fold(events, self.state)
        self._is_whole = True
        return self.state


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """No cyclic garbage collection: many new objects that stay would set it off time and again, half of a long read."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
