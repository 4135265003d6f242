"""What a store has to do. Implementations are in `takg.storage`; any that passes `takg.testing` will do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from takg.records._events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a study is about, fixed when it is created; plain JSON data."""

    name: str
    space: dict[str, Any]
    fidelities: dict[str, Any]
    settings: dict[str, Any]


class Storage(Protocol):
    """An ordered, append-only log of events for each study, and a little that may be lost beside it.

    `append` is the only way to change a study, and it takes events only from those who know all before them: two
    processes can never both act on the same state.
    """

    def create(self, definition: Definition) -> None:
        """Begin a study; StudyExistsError if the name is taken."""

    def definition(self, name: str) -> Definition:
        """What the study is about; NoStudyError if there is none of that name."""

    def names(self) -> list[str]:
        """Of all studies, in the order of their creation."""

    def delete(self, name: str) -> None:
        """Remove a study and all that belongs to it."""

    def append(self, name: str, events: Sequence[Event], *, after: int) -> int:
        """Add events, all or none, durably, if the log holds exactly `after` so far; else ConflictError.

        Returns:
            How many events the log holds now.
        """

    def read(self, name: str, *, after: int = 0) -> list[Event]:
        """The events from number `after` on, in order."""

    def beat(self, name: str, worker: str) -> None:
        """Note that a worker is alive."""

    def silences(self, name: str) -> dict[str, float]:
        """Seconds since each worker's last beat, by the store's own clock."""

    def remember(self, name: str, key: str, value: str) -> None:
        """Keep a note, replacing the last one of that key: what makes the next suggestion faster, never data."""

    def recall(self, name: str, key: str) -> str | None:
        """The note of that key."""

    def close(self) -> None:
        """Let go of files and connections."""
