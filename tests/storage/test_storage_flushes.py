"""Which events wait for the disk, and so survive a power cut with all before them."""

from pathlib import Path

from histories import DEFINITION, history

from takg.records import Asked, Observed
from takg.storage import SqlStorage

NORMAL, FULL = 1, 2  # SQLite's numbers for commits that do not wait for the disk, and that do


def test_only_points_and_new_trainings_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    storage = SqlStorage(tmp_path / "study.db")
    storage.create(DEFINITION)
    for after, event in enumerate(history()):
        storage.append(DEFINITION.name, [event], after=after)
        mode = storage._database.once(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar())
        is_free = isinstance(event, Observed) or (isinstance(event, Asked) and event.start is None)
        assert mode == (NORMAL if is_free else FULL), event


def test_a_batch_waits_if_one_of_its_events_does(tmp_path: Path) -> None:
    storage = SqlStorage(tmp_path / "study.db")
    storage.create(DEFINITION)
    storage.append(DEFINITION.name, history(), after=0)
    mode = storage._database.once(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar())
    assert mode == FULL
