"""A small study with every kind of event, and the store of it: `python tests/storage/histories.py FILE` makes one.

The files in tests/assets/stores are such stores, each made by the first takg of its version, never made again.
"""

import sqlite3
import sys
from pathlib import Path

from takg.records import Asked, Definition, Dropped, Event, Failed, Finished, Given, Lost, Observed, Saved
from takg.storage import SqlStorage

DEFINITION = Definition(
    name="größer",
    space={"lr": {"low": 1e-6, "high": 1.0, "log": True}},
    fidelities={"epochs": {"low": 1, "high": 20, "trace": True}},
    settings={"seed": 7},
)


def history() -> list[Event]:
    return [
        Asked(
            evaluation=0,
            trial=0,
            target=(4.0,),
            worker="host:1",
            time=100.5,
            config={"lr": 0.01, "shape": (64, 32), "off": None},
            kept=((2.0,), (4.0,)),
            reason={"gain": 0.5, "limit": float("inf")},
        ),
        *(point(0, 1, epoch, 1.0 / epoch) for epoch in (1, 2)),
        Saved(evaluation=0, attempt=1, fidelity=(2.0,), copy="copies/0", time=103.0),
        Lost(evaluation=0, attempt=1, reason="silent", time=110.0),
        Given(evaluation=0, attempt=2, worker="host:2", time=111.0, start=(2.0,)),
        *(point(0, 2, epoch, 1.0 / epoch) for epoch in (3, 4)),
        Finished(evaluation=0, attempt=2, cost=0.25, seconds=9.5, time=120.0, has_checkpoint=True),
        Asked(evaluation=1, trial=0, target=(20.0,), worker="host:1", time=121.0, start=(4.0,)),
        Asked(evaluation=2, trial=1, target=(5.0,), worker="host:2", time=122.0, config={"lr": 0.5}),
        point(1, 1, 5, float("inf")),
        point(2, 1, 1, 0.75),
        Failed(evaluation=1, attempt=1, kind="error", message="diverged", cost=0.5, seconds=2.0, time=130.0),
        Dropped(trial=0, reason="no use", time=131.0),
    ]


def point(evaluation: int, attempt: int, epoch: int, value: float) -> Observed:
    return Observed(evaluation=evaluation, attempt=attempt, fidelity=(float(epoch),), value=value, time=100.0 + epoch)


def make_store(path: Path) -> None:
    storage = SqlStorage(path)
    storage.create(DEFINITION)
    storage.append(DEFINITION.name, history(), after=0)
    storage.beat(DEFINITION.name, "host:1")
    storage.remember(DEFINITION.name, "chains", '{"z": [0.5]}')
    storage.close()


def count_pages(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA page_count").fetchone()[0])
    finally:
        connection.close()


if __name__ == "__main__":
    make_store(Path(sys.argv[1]))
