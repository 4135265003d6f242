"""Files that are no store, or no longer: a clear error that names the file, which stays as it was."""

import os
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from histories import DEFINITION, count_pages, history, make_store, point

from takg.errors import StorageError
from takg.storage import SqlStorage, open_storage

NAME = DEFINITION.name


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """The file keeps its bytes, and nothing is left beside it."""
    before, beside = path.read_bytes(), sorted(path.parent.iterdir())
    yield
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == beside


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    make_store(path)
    return path


@pytest.mark.parametrize(
    "content",
    [b"x", b"lr,loss\n0.1,0.5\n", b"\0" * 5000, random.Random(5).randbytes(9000), b"SQLite format 3"],
    ids=["one byte", "csv", "zeros", "random", "half a header"],
)
def test_a_file_that_is_not_sqlite_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(content)
    with unchanged(path), pytest.raises(StorageError, match=r"study\.db: is not an SQLite database"):
        open_storage(path)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_a_truncated_file_is_refused(share: float, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with unchanged(path), pytest.raises(StorageError, match=r"study\.db: is (a damaged|not an) SQLite database"):
        open_storage(path)


def test_garbage_on_any_page_is_an_error_or_harmless_but_never_a_wrong_log(path: Path) -> None:
    generator = random.Random(3)
    whole = path.read_bytes()
    pages = count_pages(path)
    size = len(whole) // pages
    refused = 0
    for page in range(pages):
        content = bytearray(whole)
        start = page * size + (100 if page == 0 else 0)
        content[start : (page + 1) * size] = generator.randbytes((page + 1) * size - start)
        path.write_bytes(content)
        with unchanged(path):
            try:
                with closing(open_storage(path)) as storage:
                    assert storage.read(NAME) == history()
                    assert storage.definition(NAME) == DEFINITION
            except StorageError as error:
                assert str(path) in str(error)
                refused += 1
    assert refused >= 4  # at least the pages of the tables, the version, the studies and the events


def test_a_row_that_is_not_an_event_is_named(path: Path) -> None:
    for payload, what in [("[1, 2", "Expecting"), ('{"a": 1}', "unexpected keyword"), ("[]", "missing 4 required")]:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE events SET payload = ? WHERE sequence = 2", (payload,))
        match = rf"study\.db: the log is damaged: event 2 of those read: .*{what}"
        with closing(open_storage(path)) as storage, pytest.raises(StorageError, match=match):
            storage.read(NAME)


def test_a_gap_in_the_log_is_seen(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM events WHERE sequence = 4")
    with closing(open_storage(path)) as storage:
        with pytest.raises(StorageError, match=r"log of study 'größer' is damaged: 14 events are numbered 1 to 15"):
            storage.read(NAME)
        assert storage.read(NAME, after=4) == history()[4:]
        with pytest.raises(StorageError, match=r"is damaged: 11 events are numbered 5 to 15, expected from 4"):
            storage.read(NAME, after=3)


def test_a_definition_that_is_damaged_is_named(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE studies SET definition = '{}'")
    match = r"study\.db: the definition of study 'größer' is damaged: .*missing"
    with closing(open_storage(path)) as storage, pytest.raises(StorageError, match=match):
        storage.definition(NAME)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_another_program_is_refused(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE trials (id INTEGER)")
        connection.execute("CREATE TABLE events (id INTEGER)")
    with unchanged(path), pytest.raises(StorageError, match=r"study\.db: .*another program, with the tables .*trials"):
        open_storage(path)


@pytest.mark.parametrize("versions", ["", "(1), (1)", "('x')"])
def test_a_store_without_one_version_number_is_refused(versions: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM takg_schema")
        if versions:
            connection.execute(f"INSERT INTO takg_schema VALUES {versions}")
    with unchanged(path), pytest.raises(StorageError, match=r"study\.db: its table takg_schema is damaged"):
        open_storage(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a directory; expected a file"):
        open_storage(tmp_path)


def test_a_path_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"runs/study\.db: there is no directory .*runs"):
        open_storage(tmp_path / "runs" / "study.db")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be reached: .*too long"):
        open_storage(tmp_path / ("a" * 300))


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everything; then be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_is_read_only_is_refused(what: str) -> None:
    with tempfile.TemporaryDirectory(prefix="takg-read-only-") as name:  # tmp_path is closed to other users
        path = Path(name) / "study.db"
        make_store(path)
        path.chmod(0o444 if what == "file" else 0o666)
        path.parent.chmod(0o555 if what == "directory" else 0o777)
        match = rf"study\.db: {path if what == 'file' else path.parent} cannot be written"
        try:
            with unchanged(path), without_privileges(), pytest.raises(StorageError, match=match):
                open_storage(path)
        finally:
            path.parent.chmod(0o755)


def test_a_store_that_is_locked_for_too_long_is_an_error_and_then_usable_again(path: Path) -> None:
    with closing(SqlStorage(path, patience=0.1)) as storage, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        for events in ([point(2, 1, 2, 0.5)], [point(2, 1, 2, 0.5), point(2, 1, 3, 0.5)]):
            with pytest.raises(StorageError, match=r"study\.db was locked by other processes for too long"):
                storage.append(NAME, events, after=15)
        assert len(storage.read(NAME)) == 15  # readers do not wait
        other.rollback()
        assert storage.append(NAME, [point(2, 1, 2, 0.5)], after=15) == 16


def test_a_writer_waits_for_another(path: Path) -> None:
    with closing(SqlStorage(path)) as storage:
        other = sqlite3.connect(path, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.15, other.close)
        release.start()
        begin = time.monotonic()
        assert storage.append(NAME, [point(2, 1, 2, 0.5)], after=15) == 16
        assert time.monotonic() - begin > 0.1
        release.join()


def test_a_full_disk_is_an_error_that_writes_nothing(path: Path) -> None:
    pages = count_pages(path)
    with closing(SqlStorage(path)) as storage:
        storage._database.once(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}"))
        events = [point(2, 1, epoch, 0.5) for epoch in range(2, 1000)]
        with pytest.raises(StorageError, match=r"study\.db cannot grow, the disk is full"):
            storage.append(NAME, events, after=15)
        assert len(storage.read(NAME)) == 15
        assert storage.append(NAME, events, after=15) == 15 + len(events)  # by a new connection, without the limit
