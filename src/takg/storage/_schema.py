"""The tables, and how those of an older version become those of this one.

Version 0 is a database without our tables, so that making a store is the first migration. A migration is never edited
once it was released: it says what it makes in full, whatever the tables look like today.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Double, ForeignKey, Integer, MetaData, Table, Text, inspect

from takg.errors import StorageError

Migration = Callable[[Connection], None]


def _first_tables(connection: Connection) -> None:
    """0 -> 1"""
    tables = MetaData()
    Table("takg_schema", tables, Column("version", Integer, nullable=False))
    Table(
        "studies",
        tables,
        Column("id", Integer, primary_key=True),
        Column("name", Text, nullable=False, unique=True),
        Column("definition", Text, nullable=False),
        sqlite_autoincrement=True,  # never an id twice: names() is in the order of creation
    )
    Table(
        "events",
        tables,
        _study(),
        Column("sequence", Integer, primary_key=True, autoincrement=False),
        Column("kind", Text, nullable=False),
        Column("payload", Text, nullable=False),
        sqlite_with_rowid=False,  # the primary key is the table: one tree to write, not two
    )
    Table(
        "beats",
        tables,
        _study(),
        Column("worker", Text, primary_key=True),
        Column("time", Double, nullable=False),  # in seconds since 1970, by the clock of the database
        sqlite_with_rowid=False,
    )
    Table("notes", tables, _study(), Column("key", Text, primary_key=True), Column("value", Text, nullable=False))
    tables.create_all(connection, checkfirst=False)  # a table of that name is somebody else's: an error
    connection.exec_driver_sql("INSERT INTO takg_schema (version) VALUES (0)")


def _study() -> Column[int]:
    return Column(
        "study_id", Integer, ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )


MIGRATIONS: tuple[Migration, ...] = (_first_tables,)


def version_of(connection: Connection, *, newest: int) -> int:
    """What version the tables have; reads only. StorageError for one that this takg does not know."""
    inspector = inspect(connection)
    tables = inspector.get_table_names()
    if "takg_schema" not in tables:
        if tables and connection.dialect.name == "sqlite":
            raise StorageError(f"an SQLite database of another program, with the tables {', '.join(tables):.200}")
        return 0
    found = connection.exec_driver_sql("SELECT version FROM takg_schema").scalars().all()
    if len(found) != 1 or not isinstance(found[0], int):
        raise StorageError(f"its table takg_schema is damaged: expected one version number, found {found}")
    if found[0] > newest:
        raise StorageError(
            f"its tables have version {found[0]} and this takg knows versions up to {newest}; use the newer takg that "
            "wrote it, or another store"
        )
    return found[0]


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the tables to the newest version, inside the caller's transaction."""
    version = version_of(connection, newest=len(migrations))
    for migration in migrations[version:]:
        migration(connection)
    if version < len(migrations):
        connection.exec_driver_sql(f"UPDATE takg_schema SET version = {len(migrations)}")
