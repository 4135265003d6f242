"""Kill workers and drivers of a study at random moments, and see that nothing is lost, run twice or counted twice.

    python kills.py --kills 200 --workers 4 --seed 0

Two drivers share one store, each with half of the workers. The training is simulated: short sleeps, a report for every
step, a checkpoint of two files that is overwritten in place, so that a kill may leave it torn. What a training knows to
be reported, because `report` has returned, it writes to a file of its own; what it finds wrong, to `errors`. When the
kills are over, the study is finished without any, and its log is held against all that.
"""

import argparse
import fcntl
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import takg
from takg.records import Asked, Event, Failed, Finished, Given, Lost, Observed, Saved, StudyState, fold
from takg.study import Study

STEPS = 40  # of a full training
DRIVERS = 2
ENDLESS = 1_000_000  # evaluations: more than anybody will see
EXTRA = 6  # evaluations after the last kill


# The training


def train(evaluation: takg.Evaluation) -> None:
    root = evaluation.checkpoint.parent.parent
    with (root / f"trial-{evaluation.trial}.lock").open("wb") as lock:
        try:
            fcntl.lockf(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note(root, f"{evaluation!r}: somebody else trains this trial")
        verify(evaluation, root)
        with (root / f"reported-{os.getpid()}").open("a") as reported:
            for step in evaluation.steps("steps"):
                time.sleep(random.uniform(0.002, 0.02))
                value = loss(evaluation.config["x"], step)
                evaluation.report(value, steps=step)
                reported.write(f"{evaluation.id} {evaluation.attempt} {step} {value!r}\n")
                reported.flush()
                os.fsync(reported.fileno())
                if step % 3 == 0:
                    save(evaluation.checkpoint, step)
                    evaluation.saved(steps=step)
        save(evaluation.checkpoint, int(evaluation.fidelity["steps"]))


def loss(x: float, step: int) -> float:
    return float((x - 0.3) ** 2 + 1.0 / step)


def save(directory: Path, step: int) -> None:
    """In place and slowly: in between, the checkpoint is useless."""
    for name in ("weights", "step"):
        with (directory / name).open("w") as file:
            time.sleep(0.002)
            file.write(str(step))


def verify(evaluation: takg.Evaluation, root: Path) -> None:
    found = [(path.name, path.read_text()) for path in sorted(evaluation.checkpoint.iterdir())]
    expected = []
    if evaluation.start is not None:
        step = str(int(evaluation.start["steps"]))
        expected = [("step", step), ("weights", step)]
    if found != expected:
        note(root, f"{evaluation!r}, attempt {evaluation.attempt}: found {found}, expected {expected}")


def note(root: Path, trouble: str) -> None:
    with (root / "errors").open("a") as file:
        file.write(trouble + "\n")


# The drivers


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """As the engine makes them, without the engine."""

    target: tuple[int]
    config: dict[str, float] | None = None
    trial: int | None = None
    start: tuple[float, ...] | None = None
    kept: tuple[tuple[float, ...], ...] = ()
    reason: dict[str, Any] = field(default_factory=dict)
    place: int | None = None


def scripted(study: Study) -> Study:
    """Half of the evaluations are new trials, half go on with one; now and then, one is dropped."""

    def proposals(count: int, *, overhead: float) -> tuple[int, Sequence[Proposal]]:
        asked = len(study.state.evaluations)
        draw = random.Random(asked)
        idle = [trial for trial in study.state.basket() if trial.checkpoint and trial.checkpoint[0] < STEPS]
        if idle and draw.random() < 0.1:
            study._drop(idle.pop(draw.randrange(len(idle))).id, "chance")
        if idle and draw.random() < 0.6:
            trial = draw.choice(idle)
            at = int(trial.checkpoint[0])
            target = min(STEPS, at + draw.randint(3, 8))
            return asked, [Proposal(trial=trial.id, start=trial.checkpoint, target=(target,))]
        return asked, [Proposal(config={"x": draw.random()}, target=(draw.randint(4, 10),))]

    study._proposals = proposals
    return study


def opened(directory: Path) -> Study:
    return scripted(takg.load_study(storage=directory / "study.db", checkpoints=directory / "checkpoints"))


def drive(directory: Path, evaluations: int, workers: int) -> None:
    opened(directory).optimize(train, evaluations=evaluations, workers=workers)


# The killer


class Herd:
    """The drivers; those that have died are replaced."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.directory, self.workers = directory, workers
        self.drivers: list[subprocess.Popen[bytes]] = []

    def complete(self, evaluations: int) -> None:
        self.drivers = [driver for driver in self.drivers if driver.poll() is None]
        for i in range(len(self.drivers), DRIVERS):
            share = max(1, (self.workers + i) // DRIVERS)
            command = [sys.executable, __file__, "--driver", self.directory, evaluations, "--workers", share]
            with (self.directory / "drivers.log").open("ab") as log:
                self.drivers.append(subprocess.Popen([str(part) for part in command], stderr=log))

    def victims(self) -> tuple[list[int], list[int]]:
        """Process numbers of the drivers, and of their workers."""
        drivers = [driver.pid for driver in self.drivers]
        return drivers, [pid for pid, parent in spawned() if parent in drivers]

    def await_workers(self) -> None:
        deadline = time.monotonic() + 10.0
        while len(self.victims()[1]) < self.workers and time.monotonic() < deadline:
            time.sleep(0.05)

    def kill(self, draw: random.Random) -> str:
        """One of them; what it was."""
        drivers, workers = self.victims()
        kind, pids = ("driver", drivers) if draw.random() < 0.2 or not workers else ("worker", workers)
        pid = draw.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return "nobody"
        if kind == "driver":
            next(driver for driver in self.drivers if driver.pid == pid).wait()
        return kind


def spawned() -> Iterator[tuple[int, int]]:
    """Worker processes, each with its parent."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                command = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"spawn_main" in command:
                yield int(path.name), parent


def kill_many(directory: Path, *, kills: int, workers: int, seed: int) -> Counter[str]:
    """Start, kill and replace; at the end let what is left come to its end."""
    takg.create_study(
        {"x": takg.Float(0.0, 1.0)},
        {"steps": takg.Fidelity(1, STEPS, trace=True)},
        storage=directory / "study.db",
        initial=10_000,
    )
    draw, killed = random.Random(seed), Counter[str]()
    herd = Herd(directory, workers)
    try:
        while killed["driver"] + killed["worker"] < kills:
            herd.complete(ENDLESS)
            if draw.random() < 0.8:  # else they die while they start
                herd.await_workers()
            time.sleep(draw.choice((0.02, 0.1, 0.4, 0.8)))
            killed[herd.kill(draw)] += 1
        for driver in herd.drivers:
            driver.kill()
            driver.wait()
            killed["driver"] += 1
        herd.complete(len(opened(directory).state.evaluations) + EXTRA)
        for driver in herd.drivers:
            if driver.wait(timeout=120) != 0:
                raise SystemExit(f"a driver ended with {driver.returncode}; see {directory / 'drivers.log'}")
        opened(directory).optimize(
            train, evaluations=len(opened(directory).state.evaluations)
        )  # what the last one left
    finally:
        for driver in herd.drivers:
            driver.kill()
            driver.wait()
    return killed


# The reckoning


def violations(directory: Path) -> list[str]:
    """All that is wrong."""
    with sqlite3.connect(directory / "study.db") as connection:
        numbers = [number for (number,) in connection.execute("SELECT sequence FROM events ORDER BY sequence")]
    study = opened(directory)
    events = study.log.storage.read(study.name)
    found = []
    if numbers != list(range(1, len(events) + 1)):
        found.append("the sequence of events has gaps")
    state = fold(events)
    if state != study.state:
        found.append("replaying the log gives another state")
    if state.open:
        found.append(f"evaluations {list(state.open)} are still open")
    found += [f"a training found: {line}" for line in lines(directory / "errors")]
    found += missing_reports(directory, events)
    found += itertools.chain.from_iterable(attempt_troubles(i, part) for i, part in by_evaluation(events).items())
    found += overlaps(events)
    found += end_troubles(state, events)
    return found


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def by_evaluation(events: Sequence[Event]) -> dict[int, list[Event]]:
    parts: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if not isinstance(event, takg.records.Dropped):
            parts[event.evaluation].append(event)
    return parts


def missing_reports(directory: Path, events: Sequence[Event]) -> list[str]:
    held = {(e.evaluation, e.attempt, e.fidelity[0], e.value) for e in events if isinstance(e, Observed)}
    found = []
    for path in directory.glob("reported-*"):
        for line in lines(path):
            number, attempt, step, value = line.split()
            if (int(number), int(attempt), int(step), float(value)) not in held:
                found.append(f"{path.name}: {line} is not in the log")
    return found


def attempt_troubles(number: int, events: Sequence[Event]) -> list[str]:
    """One attempt after the other, each with its reports in a row, right after its start."""
    found, attempt, last, is_open = [], 0, 0.0, False
    for event in events:
        what = f"evaluation {number}: {event}"
        match event:
            case Asked() | Given():
                expected = 1 if isinstance(event, Asked) else attempt + 1
                given = 1 if isinstance(event, Asked) else event.attempt
                if is_open or given != expected:
                    found.append(f"{what} in the middle of attempt {attempt}")
                attempt, is_open = given, True
                last = event.start[0] if event.start else 0
            case _:
                if not is_open or event.attempt != attempt:
                    found.append(f"{what} does not belong to attempt {attempt}")
                if isinstance(event, Observed):
                    if event.fidelity[0] != last + 1:
                        found.append(f"{what} does not follow {last}")
                    last = event.fidelity[0]
                elif not isinstance(event, Saved):
                    is_open = False
    return found


def overlaps(events: Sequence[Event]) -> list[str]:
    """A trial with two evaluations at the same time."""
    found, trials, busy = [], {}, {}
    for event in events:
        if isinstance(event, Asked):
            trials[event.evaluation] = event.trial
            if event.trial in busy:
                found.append(f"trial {event.trial} has evaluations {busy[event.trial]} and {event.evaluation} at once")
            busy[event.trial] = event.evaluation
        elif isinstance(event, Finished | Failed):
            busy.pop(trials[event.evaluation], None)
    return found


def end_troubles(state: StudyState, events: Sequence[Event]) -> list[str]:
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    found = [f"evaluation {i} ends {n} times" for i, n in Counter(e.evaluation for e in ends).items() if n != 1]
    if abs(state.cost - sum(event.cost for event in ends)) > 1e-9 * max(1.0, state.cost):
        found.append(f"the cost is {state.cost}, and the ends cost {sum(event.cost for event in ends)}")
    return found


def summary(directory: Path, killed: Counter[str], seconds: float) -> str:
    events = opened(directory).log.storage.read("study")
    kinds = Counter(type(event).__name__ for event in events)
    resumed = sum(isinstance(event, Given) and event.start is not None for event in events)
    suspects = sum(isinstance(event, Lost) and event.is_suspect for event in events)
    reports = sum(len(lines(path)) for path in directory.glob("reported-*"))
    return (
        f"{killed['worker']} workers and {killed['driver']} drivers killed in {seconds:.0f} s\n"
        f"{len(events)} events: {dict(kinds)}\n"
        f"{kinds['Lost']} attempts lost ({suspects} with their worker, the rest with their driver), "
        f"{kinds['Given']} given again, {resumed} of them from a checkpoint\n"
        f"{reports} reports known to be durable, all looked up"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="12 kills")
    parser.add_argument("--directory", type=Path, help="kept; a temporary one if left out")
    parser.add_argument("--driver", nargs=2, metavar=("DIRECTORY", "EVALUATIONS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        drive(Path(given.driver[0]), int(given.driver[1]), given.workers)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        killed = kill_many(directory, kills=12 if given.quick else given.kills, workers=given.workers, seed=given.seed)
        found = violations(directory)
        print(summary(directory, killed, time.monotonic() - began))
    for one in found:
        print("VIOLATION:", one)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
