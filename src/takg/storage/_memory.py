"""Studies in memory: gone when the process ends."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from takg.errors import ConflictError, NoStudyError, StorageError, StudyExistsError
from takg.records import Definition, Event, decoded, encoded
from takg.storage._definition import definition_of, definition_text


@dataclass(slots=True)
class _Study:
    definition: str
    rows: list[tuple[str, str]] = field(default_factory=list)  # as text, so that all stores refuse and return the same
    beats: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class MemoryStorage:
    """A store that lives and dies with its process; any number of threads may use it."""

    def __init__(self) -> None:
        self._studies: dict[str, _Study] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def create(self, definition: Definition) -> None:
        text = definition_text(definition)
        with self._held():
            if definition.name in self._studies:
                raise StudyExistsError(f"there is a study {definition.name!r} in memory already")
            self._studies[definition.name] = _Study(text)

    def definition(self, name: str) -> Definition:
        with self._study(name) as study:
            return definition_of(name, study.definition)

    def names(self) -> list[str]:
        with self._held():
            return list(self._studies)

    def delete(self, name: str) -> None:
        with self._study(name):
            del self._studies[name]

    def append(self, name: str, events: Sequence[Event], *, after: int) -> int:
        rows = [encoded(event) for event in events]
        with self._study(name) as study:
            if len(study.rows) != after:
                raise ConflictError(
                    f"study {name!r} holds {len(study.rows)} events, not {after}: read what is new and try again"
                )
            study.rows += rows
            return len(study.rows)

    def read(self, name: str, *, after: int = 0) -> list[Event]:
        with self._study(name) as study:
            rows = study.rows[after:]
        return decoded(rows)

    def beat(self, name: str, worker: str) -> None:
        with self._study(name) as study:
            study.beats[worker] = time.monotonic()

    def silences(self, name: str) -> dict[str, float]:
        with self._study(name) as study:
            now = time.monotonic()
            return {worker: now - beat for worker, beat in study.beats.items()}

    def remember(self, name: str, key: str, value: str) -> None:
        with self._study(name) as study:
            study.notes[key] = value

    def recall(self, name: str, key: str) -> str | None:
        with self._study(name) as study:
            return study.notes.get(key)

    def close(self) -> None:
        """Nothing to let go of; what is in memory stays."""

    def __reduce__(self) -> str:
        raise StorageError(f"{_ONE_PROCESS}; it cannot be sent to another")

    @contextmanager
    def _held(self) -> Iterator[None]:
        if self._process != os.getpid():  # a copy that a fork made: what is written here would be lost
            raise StorageError(f"{_ONE_PROCESS}, {self._process}, and this is {os.getpid()}")
        with self._lock:
            yield

    @contextmanager
    def _study(self, name: str) -> Iterator[_Study]:
        with self._held():
            if name not in self._studies:
                raise NoStudyError(f"there is no study {name!r} in memory; it has {list(self._studies)}")
            yield self._studies[name]


_ONE_PROCESS = "a store in memory belongs to the process that made it (use a file for several)"
