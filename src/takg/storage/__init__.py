"""Stores of studies: in memory, in an SQLite file, in PostgreSQL."""

from takg.storage._memory import MemoryStorage
from takg.storage._opening import open_storage
from takg.storage._sql import SqlStorage

__all__ = ["MemoryStorage", "SqlStorage", "open_storage"]
