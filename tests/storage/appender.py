"""What the tests of several processes run as processes of their own: `python appender.py COMMAND ARGUMENTS`."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from histories import DEFINITION, point

from takg.errors import ConflictError, StorageError
from takg.records import Observed
from takg.storage import SqlStorage

NAME = DEFINITION.name


def append(path: Path, worker: int, count: int) -> None:
    """Append events one by one, trying again after each conflict."""
    after = 0
    with closing(SqlStorage(path)) as storage:
        for i in range(count):
            while True:
                try:
                    after = storage.append(NAME, [point(worker, 1, i, 0.5)], after=after)
                    break
                except ConflictError:
                    after += len(storage.read(NAME, after=after))


def kill(path: Path, rounds: int, seed: int) -> None:
    """Kill children amid their appends; what they had said to be done must be there."""
    generator = random.Random(seed)
    storage = SqlStorage(path)
    storage.create(DEFINITION)
    for round_ in range(rounds):
        before = len(storage.read(NAME))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for i in range(1_000_000):
                storage.append(NAME, [point(round_, 1, i, 0.5)], after=before + i)
                os.write(writer, b".")
        os.close(writer)
        os.read(reader, 1)
        time.sleep(generator.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = 1
        while said := os.read(reader, 65536):
            done += len(said)
        os.close(reader)
        new = storage.read(NAME, after=before)
        expected = [point(round_, 1, i, 0.5) for i in range(len(new))]
        print(done, len(new), new == expected)
    storage.close()


def create(directory: Path, rounds: int, processes: int) -> None:
    """Let several processes make the same new store at the same moment."""
    for round_ in range(rounds):
        path = directory / f"{round_}.db"
        gate, opener = os.pipe()
        children = []
        for _ in range(processes):
            child = os.fork()
            if child == 0:
                os.close(opener)
                os.read(gate, 1)  # until the parent closes the other end
                open_and_close(path)
                os._exit(0)
            children.append(child)
        os.close(gate)
        os.close(opener)
        print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def open_and_close(path: Path) -> None:
    try:
        with closing(SqlStorage(path)) as storage:
            storage.names()
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def fork(path: Path) -> None:
    """Use one store object before a fork, in the child, and in the parent again."""
    storage = SqlStorage(path, patience=0.1)
    storage.create(DEFINITION)
    storage.append(NAME, [point(0, 1, 0, 0.5)], after=0)
    storage._database.once(lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    if in_child(lambda: storage.append(NAME, [point(0, 1, 9, 0.5)], after=1)) != "was locked":
        print("the child wrote in its parent's transaction")
    storage._database.once(lambda connection: connection.exec_driver_sql("ROLLBACK"))
    print(in_child(lambda: storage.append(NAME, [point(0, 1, 1, 0.5)], after=1)))
    storage.append(NAME, [point(0, 1, 2, 0.5)], after=2)
    print([event.fidelity[0] for event in storage.read(NAME) if isinstance(event, Observed)])
    storage.close()


def in_child(work: Callable[[], object]) -> str:
    """How it went in a child that ends like any program."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except StorageError as error:
            sys.exit(3 if "was locked by other processes" in str(error) else 4)
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "written", 3: "was locked"}.get(status, f"ended with {status}")


if __name__ == "__main__":
    command, where, *numbers = sys.argv[1:]
    {"append": append, "kill": kill, "create": create, "fork": fork}[command](Path(where), *map(int, numbers))
