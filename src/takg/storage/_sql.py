"""Studies in an SQL database: SQLite or PostgreSQL.

An append of one event is one statement, which checks and writes at once; the primary key (study, sequence) decides
between two that check at the same moment.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from takg.errors import ConflictError, NoStudyError, StorageError, StudyExistsError
from takg.records import Asked, Definition, Event, Observed, decoded, encoded
from takg.storage._database import Database, LostError
from takg.storage._definition import definition_of, definition_text

_APPEND = """
INSERT INTO events (study_id, sequence, kind, payload)
SELECT id, ? + 1, ?, ? FROM studies
WHERE name = ? AND ? = (SELECT coalesce(max(sequence), 0) FROM events WHERE study_id = studies.id)
"""
_COUNT = """
SELECT (SELECT coalesce(max(sequence), 0) FROM events WHERE study_id = studies.id) FROM studies WHERE name = ?
"""
# The outer joins tell a study without such rows (one row of NULLs) from no study (no row) in one statement.
_READ = """
SELECT sequence, kind, payload FROM studies LEFT JOIN events ON study_id = id AND sequence > ?
WHERE name = ? ORDER BY sequence
"""
_BEAT = """
INSERT INTO beats (study_id, worker, time) SELECT id, ?, {now} FROM studies WHERE name = ?
ON CONFLICT (study_id, worker) DO UPDATE SET time = excluded.time
"""
_SILENCES = "SELECT worker, {now} - time FROM studies LEFT JOIN beats ON study_id = id WHERE name = ?"
_REMEMBER = """
INSERT INTO notes (study_id, key, value) SELECT id, ?, ? FROM studies WHERE name = ?
ON CONFLICT (study_id, key) DO UPDATE SET value = excluded.value
"""
_RECALL = "SELECT value FROM studies LEFT JOIN notes ON study_id = id AND key = ? WHERE name = ?"

_NOW = {  # seconds since 1970, by the clock of the machine that has the store
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch FROM clock_timestamp())::double precision",
}


def _waits_for_the_disk(event: Event) -> bool:
    """Whether an event is to survive a power cut at once; it takes all before it along.

    A point of a trace need not, nor the beginning of a training from scratch: only what the power cut has ended, too,
    can lack them. One that goes on does: after a leg that nobody knows of, its checkpoint would not be what the log
    says.
    """
    if isinstance(event, Asked):
        return event.config is None
    return not isinstance(event, Observed)


class _RefusedError(Exception):
    """The log is not as long as the writer thought; rolls a transaction back."""


class SqlStorage:
    """A store in an SQLite file or a PostgreSQL database; any number of threads and processes may use it.

    Args:
        where: The path of an SQLite file, `sqlite:///path`, or `postgresql://user:password@host/database`.
        create: Make the file or the tables if there are none; else that is a StorageError.
        patience: Seconds to wait for other writers before a StorageError.
    """

    def __init__(self, where: str | Path, *, create: bool = True, patience: float = 60.0) -> None:
        self._database = Database(where, create=create, patience=patience)
        now = _NOW[self._database.backend]
        self._beat, self._silences = _BEAT.replace("{now}", now), _SILENCES.replace("{now}", now)
        self._database.once(lambda connection: None)

    def create(self, definition: Definition) -> None:
        values = (definition.name, definition_text(definition))

        def write(connection: Connection) -> None:
            try:
                self._database.execute(connection, "INSERT INTO studies (name, definition) VALUES (?, ?)", values)
            except IntegrityError:
                message = f"{self._database.label}: there is a study {definition.name!r} already"
                raise StudyExistsError(message) from None

        self._database.once(write)

    def definition(self, name: str) -> Definition:
        [(text,)] = self._rows("SELECT definition FROM studies WHERE name = ?", name)
        with self._database.named():
            return definition_of(name, text)

    def names(self) -> list[str]:
        query = "SELECT name FROM studies ORDER BY id"
        return [name for (name,) in self._database.run(lambda c: self._database.execute(c, query).all())]

    def delete(self, name: str) -> None:
        self._change("DELETE FROM studies WHERE name = ?", name)  # the rest goes with it, by its foreign keys

    def append(self, name: str, events: Sequence[Event], *, after: int) -> int:
        rows = [encoded(event) for event in events]
        values = [(after + i, kind, text, name, after + i) for i, (kind, text) in enumerate(rows)]
        is_flushed = any(map(_waits_for_the_disk, events))

        def write(connection: Connection) -> bool:
            self._database.flush(connection, is_flushed)
            return self._write(connection, values)

        try:
            fits = self._database.once(write)
        except LostError:  # before or after it was written?
            if rows and self._tail(name, after)[: len(rows)] == rows:
                return after + len(rows)
            fits = self._database.once(write)
        if not rows or not fits:
            [(count,)] = self._rows(_COUNT, name)
            if rows or count != after:
                raise ConflictError(
                    f"{self._database.label}: study {name!r} holds {count} events, not {after}: "
                    "read what is new and try again"
                )
        return after + len(rows)

    def read(self, name: str, *, after: int = 0) -> list[Event]:
        rows = self._tail(name, after)
        with self._database.named():
            return decoded(rows)

    def beat(self, name: str, worker: str) -> None:
        self._change(self._beat, worker, name)

    def silences(self, name: str) -> dict[str, float]:
        rows = self._rows(self._silences, name)
        return {worker: max(0.0, silence) for worker, silence in rows if worker is not None}

    def remember(self, name: str, key: str, value: str) -> None:
        self._change(_REMEMBER, key, value, name)

    def recall(self, name: str, key: str) -> str | None:
        [(value,)] = self._rows(_RECALL, key, name)
        return None if value is None else str(value)

    def close(self) -> None:
        """Let go of the connection of this process; the next call opens a new one."""
        self._database.close()

    def __repr__(self) -> str:
        return f"SqlStorage({self._database.label!r})"

    def _write(self, connection: Connection, values: list[tuple[int, str, str, str, int]]) -> bool:
        """Whether the log was as long as the first row needs it; if not, nothing was written."""
        try:
            if len(values) == 1:
                return self._database.change(connection, _APPEND, values[0]) == 1
            with self._database.transaction(connection):
                # A later row may fit where the first does not: what counts is that all of them did.
                if values and self._database.execute(connection, _APPEND, values).rowcount != len(values):
                    raise _RefusedError
        except (IntegrityError, _RefusedError):
            return False
        return True

    def _tail(self, name: str, after: int) -> list[tuple[str, str]]:
        """The rows from number `after` on, without a gap."""
        rows = self._rows(_READ, after, name)
        if rows[0][0] is None:
            return []
        if (rows[0][0], rows[-1][0]) != (after + 1, after + len(rows)):
            raise StorageError(
                f"{self._database.label}: the log of study {name!r} is damaged: "
                f"{len(rows)} events are numbered {rows[0][0]} to {rows[-1][0]}, expected from {after + 1} on"
            )
        return [(kind, payload) for _, kind, payload in rows]

    def _rows(self, query: str, *values: Any) -> Sequence[Any]:
        """What a query gives that has a row for every study; its last value is the name."""
        rows = self._database.run(lambda connection: self._database.execute(connection, query, values).all())
        if not rows:
            raise self._no_study(values[-1])
        return rows

    def _change(self, statement: str, *values: Any) -> None:
        """Run a statement that changes a row of every study; its last value is the name."""

        def change(connection: Connection) -> int:
            self._database.flush(connection, False)
            return self._database.change(connection, statement, values)

        if not self._database.run(change):
            raise self._no_study(values[-1])

    def _no_study(self, name: str) -> NoStudyError:
        return NoStudyError(f"{self._database.label}: there is no study {name!r}; it has {self.names()[:20]}")
