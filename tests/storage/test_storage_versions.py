"""Stores of older versions are brought up to date; those of newer ones are left alone."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from histories import DEFINITION, history, make_store
from sqlalchemy import Connection

from takg.errors import StorageError
from takg.records import fold
from takg.storage import SqlStorage, _database, _schema, open_storage

STORES = sorted((Path(__file__).parents[1] / "assets" / "stores").glob("*.db"))


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT version FROM takg_schema").fetchone()[0])


def test_there_is_a_store_of_every_version() -> None:
    assert [int(path.stem) for path in STORES] == list(range(1, len(_schema.MIGRATIONS) + 1))
    assert all(path.stat().st_size < 60_000 for path in STORES)


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.stem)
def test_a_store_of_every_version_loads(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    shutil.copyfile(store, path)
    with closing(open_storage(path)) as storage:
        assert storage.names() == [DEFINITION.name]
        assert storage.definition(DEFINITION.name) == DEFINITION
        assert storage.read(DEFINITION.name) == history()
        assert storage.recall(DEFINITION.name, "chains") == '{"z": [0.5]}'
        assert storage.silences(DEFINITION.name)["host:1"] > 0
        assert fold(storage.read(DEFINITION.name)).cost == 0.75
    assert version(path) == len(_schema.MIGRATIONS)


def _add_column(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE studies ADD COLUMN owner TEXT DEFAULT 'nobody'")


def _fill_column(connection: Connection) -> None:
    connection.exec_driver_sql("UPDATE studies SET owner = name")


def _fail(connection: Connection) -> None:
    connection.exec_driver_sql("DELETE FROM studies")
    raise RuntimeError("out of luck")


def test_migrations_run_in_order_from_the_version_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.db"
    make_store(path)
    for migrations in [(*_schema.MIGRATIONS, _add_column), (*_schema.MIGRATIONS, _add_column, _fill_column)]:
        monkeypatch.setattr(_database, "MIGRATIONS", migrations)
        for _ in range(2):  # the second time there is nothing to do
            with closing(SqlStorage(path)) as storage:
                assert storage.read(DEFINITION.name) == history()
        assert version(path) == len(migrations)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT owner FROM studies").fetchall() == [(DEFINITION.name,)]
    make_store(tmp_path / "new.db")
    assert version(tmp_path / "new.db") == len(_schema.MIGRATIONS) + 2


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.db"
    make_store(path)
    before = path.read_bytes()
    monkeypatch.setattr(_database, "MIGRATIONS", (*_schema.MIGRATIONS, _add_column, _fail))
    with pytest.raises(RuntimeError, match="out of luck"):
        SqlStorage(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    with closing(SqlStorage(path)) as storage:
        assert storage.read(DEFINITION.name) == history()


def test_a_store_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study.db"
    newest = len(_schema.MIGRATIONS)
    monkeypatch.setattr(_database, "MIGRATIONS", (*_schema.MIGRATIONS, _add_column))
    make_store(path)
    monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(
        StorageError, match=rf"study\.db: .*have version {newest + 1} and .* up to {newest}; use the newer takg"
    ):
        open_storage(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
