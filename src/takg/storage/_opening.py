"""From what a user writes to a store."""

from pathlib import Path

from takg.errors import InputError
from takg.records import Storage
from takg.storage._memory import MemoryStorage
from takg.storage._sql import SqlStorage

_EXPECTED = (
    "expected a path like 'study.db', 'sqlite:///study.db', 'postgresql://user@host/database', or None for memory"
)


def open_storage(where: str | Path | None, *, create: bool = True) -> Storage:
    """The store at a path or URL; None is a new one in memory.

    Args:
        where: A path or `sqlite:///path` is an SQLite file, `postgresql://...` a PostgreSQL database.
        create: Make a store where there is none; else that is a StorageError.
    """
    match where:
        case None:
            return MemoryStorage()
        case Path():
            return SqlStorage(where, create=create)
        case str() if where.startswith(("sqlite:", "postgresql:", "postgresql+psycopg:", "postgres:")):
            return SqlStorage(where, create=create)
        case str() if where and "://" not in where and where != ":memory:":
            return SqlStorage(Path(where).expanduser(), create=create)
        case _:
            raise InputError(f"storage={where!r}: {_EXPECTED}")
