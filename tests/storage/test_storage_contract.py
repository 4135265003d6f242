"""Every backend passes `takg.testing`; PostgreSQL if TAKG_TEST_POSTGRES has the URL of a database to play with."""

import os
from pathlib import Path

import pytest

from takg.records import Storage
from takg.storage import MemoryStorage, SqlStorage, open_storage
from takg.testing import StorageContract


class TestMemoryStorage(StorageContract):
    def make_storage(self) -> Storage:
        return MemoryStorage()


class TestSqlStorageInAFile(StorageContract):
    @pytest.fixture(autouse=True)
    def own_directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make_storage(self) -> Storage:
        return SqlStorage(self.directory / "study.db")

    def opened_again(self, storage: Storage) -> Storage:
        return SqlStorage(self.directory / "study.db")


if postgres := os.environ.get("TAKG_TEST_POSTGRES"):

    class TestSqlStorageInPostgres(StorageContract):
        def make_storage(self) -> Storage:
            storage = open_storage(postgres)
            for name in storage.names():
                storage.delete(name)
            return storage

        def opened_again(self, storage: Storage) -> Storage:
            return open_storage(postgres)
