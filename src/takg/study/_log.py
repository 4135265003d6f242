"""A process's view of one study in a store: the state folded so far, and the one way to add to it."""

import threading

from takg.errors import ConflictError, StaleError, StorageError
from takg.records import Event, Storage, StudyState, check, fold
from takg.records import apply as apply_event

_TRIES = 1000  # each one lost means that somebody else's event was written


class Log:
    """The events of a study, and what they add up to; safe to use from several threads."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.name = storage, name
        self.state = StudyState()
        self.lock = threading.RLock()
        self.refresh()

    def refresh(self) -> StudyState:
        """Take in what others have written."""
        with self.lock:
            return fold(self.storage.read(self.name, after=self.state.sequence), self.state)

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
            apply_event(self.state, event)
            return True

    def refresh_is_news(self) -> bool:
        before = self.state.sequence
        return self.refresh().sequence > before
