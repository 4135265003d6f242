"""A connection to a database, one for each process that uses it, and what can go wrong with it.

The connection is held open, in autocommit mode, and shared by the threads of its process. SQLite runs in WAL mode:
readers never wait for writers, and what was committed survives the death of any process. A commit that is flushed to
the disk survives a power cut, with all before it, and takes as long as the disk does: often a hundred times as long.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, CursorResult, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from takg.errors import InputError, StorageError, TakgError
from takg.storage._schema import MIGRATIONS, migrate, version_of

T = TypeVar("T")

_SQLITE_TROUBLES = {
    "SQLITE_NOTADB": "is not an SQLite database",
    "SQLITE_CORRUPT": "is a damaged SQLite database",
    "SQLITE_BUSY": "was locked by other processes for too long",
    "SQLITE_READONLY": "cannot be written",
    "SQLITE_FULL": "cannot grow, the disk is full",
}
# Seconds that SQLite itself waits for a lock, asking less and less often, up to ten times a second; we go on asking.
_SQLITE_PATIENCE = 0.02
_MIGRATION_LOCK = 0x74616B67  # "takg": the one advisory lock of PostgreSQL that we take


class LostError(StorageError):
    """The server or the network closed the connection."""


@dataclass(slots=True)
class _Session:
    """What one process has of a database."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Connection | None = None

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.close()


class Database:
    """An SQLite file or a PostgreSQL database with our tables in it; see `SqlStorage` for the arguments."""

    def __init__(self, where: str | Path, *, create: bool, patience: float) -> None:
        self._url = _url(where)
        self._create = create
        self._patience = patience
        self.backend = self._url.get_backend_name()  # "sqlite" or "postgresql"
        self._is_sqlite = self.backend == "sqlite"
        self.label = self._url.database if self._is_sqlite else self._url.render_as_string(hide_password=True)
        # By process: what a fork copied belongs to the parent, and must not even be closed here.
        self._sessions: dict[int, _Session] = {}

    def once(self, work: Callable[[Connection], T]) -> T:
        """Work with the connection of this process; an error of the database becomes a StorageError."""
        process = os.getpid()
        session = self._sessions.get(process) or self._sessions.setdefault(process, _Session())
        deadline = time.monotonic() + self._patience
        while True:
            with session.lock:
                try:
                    if session.connection is None:
                        session.connection = self._opened()
                    return work(session.connection)
                except TakgError:
                    raise
                except SQLAlchemyError as error:
                    if not _is_busy(error) or time.monotonic() > deadline:
                        session.drop()
                        raise self._trouble(error) from error
                except BaseException:  # as Ctrl-C in the middle of a statement: nobody knows in what state it is
                    session.drop()
                    raise
            time.sleep(0.001)  # a database that was busy has written nothing, so all of it can be done again

    def run(self, work: Callable[[Connection], T]) -> T:
        """As `once`, and again if the connection was lost: for work that may be done twice."""
        try:
            return self.once(work)
        except LostError:
            return self.once(work)

    def execute(self, connection: Connection, statement: str, values: Any = ()) -> CursorResult[Any]:
        """Run SQL with `?` for values: one tuple of them, or a list of tuples to run it for each."""
        return connection.exec_driver_sql(statement if self._is_sqlite else statement.replace("?", "%s"), values)

    def change(self, connection: Connection, statement: str, values: tuple[Any, ...]) -> int:
        """Run one SQL statement that may be run again where it failed; how many rows it changed."""
        if self._is_sqlite:
            # Straight to the driver, which saves a fifth: a trace is written point by point. What goes wrong there has
            # changed nothing, and says so once more below in the words that all others here understand.
            with suppress(sqlite3.Error):
                driver: Any = connection.connection.driver_connection
                return int(driver.execute(statement, values).rowcount)
        return self.execute(connection, statement, values).rowcount

    def flush(self, connection: Connection, is_flushed: bool) -> None:
        """Whether commits of an SQLite file wait for the disk from now on."""
        if self._is_sqlite and connection.info.get("is_flushed") is not is_flushed:
            connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if is_flushed else 'NORMAL'}")
            connection.info["is_flushed"] = is_flushed

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """All or nothing, and nobody else writes meanwhile (SQLite)."""
        connection.exec_driver_sql("BEGIN IMMEDIATE" if self._is_sqlite else "BEGIN")
        try:
            yield
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            with suppress(SQLAlchemyError):  # it may be over already
                connection.exec_driver_sql("ROLLBACK")
            raise

    @contextmanager
    def named(self) -> Iterator[None]:
        """Say which store it is that an error is about."""
        try:
            yield
        except StorageError as error:
            raise StorageError(f"{self.label}: {error}") from error

    def close(self) -> None:
        """Let go of the connection of this process; the next call opens a new one."""
        if session := self._sessions.get(os.getpid()):
            with session.lock:
                session.drop()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sessions": {}}  # for another process, which opens its own connection

    def _opened(self) -> Connection:
        options: dict[str, Any] = {"timeout": _SQLITE_PATIENCE, "check_same_thread": False}
        if self._is_sqlite:
            with self.named():
                _check_file(Path(self._url.database or ""), create=self._create)
        else:
            options = {} if "connect_timeout" in self._url.query else {"connect_timeout": max(2, int(self._patience))}
        try:
            engine = create_engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=options)
        except ImportError as error:
            raise StorageError(f"{self.label}: needs a driver: pip install 'psycopg[binary]'") from error
        connection = engine.connect()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        with self.named():  # reads only: what is not ours stays as it is
            version = version_of(connection, newest=len(MIGRATIONS))
            if version == 0 and not self._create:
                raise StorageError("there is no takg store in it")
        if self._is_sqlite:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            self.flush(connection, True)
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        else:
            connection.exec_driver_sql(f"SET lock_timeout = {int(self._patience * 1000)}")
        if version < len(MIGRATIONS):
            with self.transaction(connection), self.named():
                if not self._is_sqlite:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
                migrate(connection, MIGRATIONS)  # looks at the version again: another process may have been faster

    def _trouble(self, error: SQLAlchemyError) -> StorageError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return LostError(f"{self.label}: the connection was lost: {cause}")
        for name, what in _SQLITE_TROUBLES.items():
            if _sqlite_name(error).startswith(name):
                return StorageError(f"{self.label} {what} ({cause})")
        return StorageError(f"{self.label}: {cause}")


def _sqlite_name(error: SQLAlchemyError) -> str:
    return getattr(getattr(error, "orig", None), "sqlite_errorname", "")


def _is_busy(error: SQLAlchemyError) -> bool:
    return _sqlite_name(error).startswith("SQLITE_BUSY")


def _url(where: str | Path) -> URL:
    if isinstance(where, str) and where.startswith("sqlite:"):
        path = where.removeprefix("sqlite:///")
        if path in (where, "", ":memory:") or "?" in path:
            raise InputError(f"storage={where!r}: expected 'sqlite:///' and a path, without options")
        where = Path(path)
    if isinstance(where, Path):
        return URL.create("sqlite", database=str(where.absolute()))
    try:
        url = make_url(where)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        # The text itself is not shown: it may hold a password.
        raise InputError("storage: expected a path, 'sqlite:///path' or 'postgresql://user:password@host/database'")
    return url.set(drivername="postgresql+psycopg")


def _check_file(path: Path, *, create: bool) -> None:
    """What SQLite would say in fewer words, or only after it had made files beside it."""
    ids: dict[str, Any] = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
    try:
        if path.is_dir():
            raise StorageError("is a directory; expected a file")
        if not path.parent.is_dir():
            raise StorageError(f"there is no directory {path.parent}")
        if not path.exists() and not create:
            raise StorageError("there is no such file")
        for one in (path, path.parent):  # SQLite keeps files beside its own
            if one.exists() and not os.access(one, os.R_OK | os.W_OK, **ids):
                raise StorageError(f"{one} cannot be written: it is read-only, or belongs to somebody else")
        if path.exists() and path.stat().st_size > 0:
            _check_header(path)
    except OSError as error:
        raise StorageError(f"cannot be reached: {error}") from error


def _check_header(path: Path) -> None:
    """SQLite overwrites a file of a few bytes, and takes a last page that is cut for one that ends in zeros."""
    with path.open("rb") as file:
        header = file.read(100)
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        raise StorageError("is not an SQLite database")
    page_size, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
    expected = pages * (65536 if page_size == 1 else page_size)
    # With a log beside it the file may be short for now. In this order, as another process may just be finishing that.
    if not path.with_name(f"{path.name}-wal").exists() and path.stat().st_size < expected:
        raise StorageError(f"is a damaged SQLite database: it has {path.stat().st_size} of {expected} bytes")
