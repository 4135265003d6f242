"""From what a user writes to a store, and from one process to another."""

import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from histories import DEFINITION, history, make_store

import takg
from takg.errors import InputError, StorageError
from takg.storage import MemoryStorage, SqlStorage, open_storage

PATH = list(takg.__path__)


def test_none_is_a_new_store_in_memory() -> None:
    one, other = open_storage(None), open_storage(None)
    assert isinstance(one, MemoryStorage)
    one.create(DEFINITION)
    assert other.names() == []


@pytest.mark.parametrize("where", ["study.db", Path("study.db"), "sqlite:///study.db", "./study.db", "sqlite:///{}"])
def test_a_path_or_its_url_is_a_file_in_the_directory_of_the_moment(
    where: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    if where == "sqlite:///{}":
        where = f"sqlite:///{tmp_path}/a/study.db"
    with closing(open_storage(where)) as storage:
        storage.create(DEFINITION)
        monkeypatch.chdir(tmp_path / "b")
        storage.close()
        assert storage.names() == [DEFINITION.name]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["study.db"]
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("name", ["größer 日本.db", "a?b#c%20.db", "study", "sp ace'\".db"])
def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    with closing(open_storage(tmp_path / name)) as storage:
        storage.create(DEFINITION)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_home_directory_may_be_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_storage("~/study.db").close()
    assert (tmp_path / "study.db").exists()


@pytest.mark.parametrize(
    "where", ["", ":memory:", "mysql://host/db", "redis://host", "https://host/study.db", 3, b"study.db", ["study.db"]]
)
def test_anything_else_is_refused_with_what_came_and_what_is_expected(where: Any) -> None:
    with pytest.raises(InputError, match=r"storage=.*expected a path like 'study.db', .*postgresql://.* None for mem"):
        open_storage(where)


@pytest.mark.parametrize(
    "where", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:study.db", "sqlite:///a?b=c"]
)
def test_an_sqlite_url_without_a_path_is_refused(where: str) -> None:
    with pytest.raises(InputError, match=r"storage='sqlite.* expected 'sqlite:///' and a path"):
        open_storage(where)


@pytest.mark.parametrize("where", ["postgresql:", "postgresql://user:secret@host:port/db", "mysql://u:secret@host/db"])
def test_a_url_that_is_wrong_is_refused_without_its_password(where: str) -> None:
    with pytest.raises(InputError, match=r"expected a path, 'sqlite.*postgresql://user:password") as caught:
        SqlStorage(where)
    assert "secret" not in str(caught.value)


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"postgresql\+psycopg://user:\*\*\*@/db.*No such file") as caught:
        open_storage(f"postgresql://user:secret@/db?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_a_store_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"study\.db: there is no such file"):
        open_storage(tmp_path / "study.db", create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty.db").touch()
    with pytest.raises(StorageError, match=r"empty\.db: there is no takg store in it"):
        open_storage(tmp_path / "empty.db", create=False)
    assert (tmp_path / "empty.db").read_bytes() == b""
    open_storage(tmp_path / "study.db").close()
    with closing(open_storage(tmp_path / "study.db", create=False)) as storage:
        assert storage.names() == []


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with closing(open_storage(tmp_path / "empty.db")) as storage:
        storage.create(DEFINITION)
        assert storage.names() == [DEFINITION.name]


def test_a_store_in_a_file_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with closing(open_storage(tmp_path / "study.db")) as storage:
        storage.create(DEFINITION)
        storage.append(DEFINITION.name, history(), after=0)
        storage.beat(DEFINITION.name, "w")
        storage.remember(DEFINITION.name, "key", "value")
    with closing(open_storage(tmp_path / "study.db")) as storage:
        assert storage.definition(DEFINITION.name) == DEFINITION
        assert storage.read(DEFINITION.name) == history()
        assert set(storage.silences(DEFINITION.name)) == {"w"}
        assert storage.recall(DEFINITION.name, "key") == "value"


def test_a_store_that_was_closed_opens_itself_when_it_is_used(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "study.db")
    storage.create(DEFINITION)
    storage.close()
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
    assert storage.names() == [DEFINITION.name]
    storage.close()


def test_a_store_in_a_file_can_be_sent_to_another_process(tmp_path: Path) -> None:
    with closing(SqlStorage(tmp_path / "study.db")) as storage:
        storage.create(DEFINITION)
        with closing(pickle.loads(pickle.dumps(storage))) as other:
            other.append(DEFINITION.name, history(), after=0)
        assert storage.read(DEFINITION.name) == history()
        assert repr(storage) == f"SqlStorage({str(tmp_path / 'study.db')!r})"


def test_a_store_in_memory_cannot_be_sent_to_another_process() -> None:
    with pytest.raises(StorageError, match=r"a store in memory belongs to the process that made it .*cannot be sent"):
        pickle.dumps(MemoryStorage())


def test_a_forked_copy_of_a_store_in_memory_refuses_to_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    storage.create(DEFINITION)
    monkeypatch.setattr("os.getpid", lambda: -5)
    with pytest.raises(StorageError, match=r"belongs to the process that made it .*this is -5"):
        storage.read(DEFINITION.name)


def test_records_import_no_database_and_storage_imports_no_torch() -> None:
    package = f"import sys, types; sys.modules['takg'] = types.ModuleType('takg'); import takg; takg.__path__ = {PATH}"
    code = "import takg.records; print(*sys.modules); import takg.storage, takg.testing; print(*sys.modules)"
    command = [sys.executable, "-c", f"{package}; {code}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    records, storage = (set(line.split()) for line in output.splitlines())
    assert not records & {"sqlalchemy", "sqlite3", "torch", "numpy", "pytest"}
    assert "sqlalchemy" in storage
    assert not storage & {"torch", "numpy", "psycopg", "pytest"}


def test_delete_leaves_no_row_behind(tmp_path: Path) -> None:
    make_store(tmp_path / "study.db")
    with closing(SqlStorage(tmp_path / "study.db")) as storage:
        storage.delete(DEFINITION.name)
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection:
        for table in ("studies", "events", "beats", "notes"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
