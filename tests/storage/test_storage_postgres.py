"""What only PostgreSQL does; collected if TAKG_TEST_POSTGRES has a URL (see with_postgres.py)."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from histories import DEFINITION, history, point
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from takg.errors import ConflictError, StorageError
from takg.storage import SqlStorage

NAME = DEFINITION.name

if url := os.environ.get("TAKG_TEST_POSTGRES"):

    @pytest.fixture
    def admin() -> Iterator[Connection]:
        """A connection of its own, to a schema without tables."""
        engine = create_engine(
            url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.exec_driver_sql("DROP SCHEMA IF EXISTS other CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA other")
            yield connection
            connection.exec_driver_sql("DROP SCHEMA other CASCADE")

    OTHER = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dother"

    def cut_connections(admin: Connection) -> int:
        query = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE pid != pg_backend_pid() AND "
        return int(admin.exec_driver_sql(query + "datname = current_database()").scalar_one())

    def test_a_connection_that_was_cut_is_opened_again(admin: Connection) -> None:
        with closing(SqlStorage(OTHER)) as storage:
            storage.create(DEFINITION)
            storage.append(NAME, history(), after=0)
            for use in (
                lambda: storage.read(NAME),
                lambda: storage.append(NAME, [point(2, 1, 2, 0.5)], after=15),
                lambda: storage.append(NAME, [point(2, 1, 3, 0.5), point(2, 1, 4, 0.5)], after=16),
                lambda: storage.beat(NAME, "w"),
            ):
                assert cut_connections(admin) == 1
                use()
            assert len(storage.read(NAME)) == 18
            assert cut_connections(admin) == 1
            with pytest.raises(ConflictError, match="holds 18 events, not 17"):
                storage.append(NAME, [point(2, 1, 5, 0.5)], after=17)

    @pytest.mark.parametrize("count", [1, 3])
    def test_an_append_that_was_written_before_the_connection_was_cut_is_not_a_conflict(
        count: int, admin: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events = [point(2, 1, 2 + i, 0.5) for i in range(count)]
        with closing(SqlStorage(OTHER)) as storage:
            storage.create(DEFINITION)
            storage.append(NAME, history(), after=0)
            write = storage._write

            def write_and_lose(connection: Connection, values: list[tuple[int, str, str, str, int]]) -> bool:
                monkeypatch.undo()
                assert write(connection, values)
                assert cut_connections(admin) == 1
                connection.exec_driver_sql("SELECT 1")  # where the writer notices
                return True

            monkeypatch.setattr(storage, "_write", write_and_lose)
            assert storage.append(NAME, events, after=15) == 15 + count
            assert storage.read(NAME, after=15) == events

    def test_a_table_of_another_program_is_not_touched(admin: Connection) -> None:
        admin.exec_driver_sql("CREATE TABLE other.events (id INTEGER)")
        with pytest.raises(StorageError, match='relation "events" already exists'):
            SqlStorage(OTHER)
        tables = admin.exec_driver_sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'other'")
        assert tables.scalars().all() == ["events"]

    def test_a_store_that_must_be_there_is_not_made_in_postgres(admin: Connection) -> None:
        with pytest.raises(StorageError, match="there is no takg store in it"):
            SqlStorage(OTHER, create=False)
        tables = admin.exec_driver_sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'other'")
        assert tables.scalars().all() == []

    def test_a_store_of_a_newer_version_is_refused_in_postgres(admin: Connection) -> None:
        SqlStorage(OTHER).close()
        admin.exec_driver_sql("UPDATE other.takg_schema SET version = 1000")
        with pytest.raises(
            StorageError, match=r"have version 1000 and this takg knows versions up to \d+; use the new"
        ):
            SqlStorage(OTHER)

    def test_threads_that_make_the_same_new_store_at_once_all_succeed(admin: Connection) -> None:
        gate = threading.Barrier(4)
        made: list[SqlStorage] = []

        def make() -> None:
            gate.wait()
            made.append(SqlStorage(OTHER))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [storage.names() for storage in made] == [[]] * 4
        for storage in made:
            storage.close()

    def test_a_lock_that_is_held_for_too_long_is_an_error(admin: Connection) -> None:
        with closing(SqlStorage(OTHER, patience=0.1)) as storage:
            storage.create(DEFINITION)
            admin.exec_driver_sql("BEGIN")
            admin.exec_driver_sql("LOCK TABLE other.events")
            with pytest.raises(StorageError, match="lock timeout"):
                storage.append(NAME, history(), after=0)
            admin.exec_driver_sql("ROLLBACK")
            assert storage.append(NAME, history(), after=0) == 15

    def test_delete_leaves_no_row_behind_in_postgres(admin: Connection) -> None:
        with closing(SqlStorage(OTHER)) as storage:
            storage.create(DEFINITION)
            storage.append(NAME, history(), after=0)
            storage.beat(NAME, "w")
            storage.remember(NAME, "key", "value")
            storage.delete(NAME)
        for table in ("studies", "events", "beats", "notes"):
            assert admin.exec_driver_sql(f"SELECT count(*) FROM other.{table}").scalar_one() == 0
