"""Keep workers busy until a limit is reached: ask, hand out, take in, and notice who has died."""

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from takg.display import Display, Row, Snapshot
from takg.errors import InputError, StaleError, StudyError
from takg.executors import Inline, WorkerDiedError
from takg.records import EvaluationState, Failed
from takg.study._evaluation import Evaluation, Train
from takg.study._plan import flat
from takg.study._runner import run, run_elsewhere

if TYPE_CHECKING:
    from takg.study._study import Study

logger = logging.getLogger("takg")

_BEAT = 5.0  # seconds between signs of life
_SILENCE = 30.0  # seconds without one after which a worker counts as dead
_POLL = 0.25
_HOPELESS = 5  # evaluations that may fail before one has succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop."""

    budget: float | None = None
    cost: float | None = None
    evaluations: int | None = None
    seconds: float | None = None
    stop_below: float | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value <= 0:
                raise InputError(f"{field.name}={value!r}: expected a number > 0")
        if all(value is None for value in (self.budget, self.cost, self.evaluations, self.seconds, self.stop_below)):
            raise InputError("optimize needs a limit: expected one of budget, cost, evaluations, seconds, stop_below")


def drive(
    study: "Study", train: Train, limits: Limits, *, workers: int | None, executor: Any, progress: bool | None
) -> None:
    """See `Study.optimize`."""
    if not callable(train):
        raise InputError(f"train={train!r}: expected a function of an evaluation")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers={workers!r}: expected an integer >= 1, or None to train in this process")
    is_here = workers is None and executor is None
    if limits.timeout is not None and is_here:
        raise InputError(f"timeout={limits.timeout}: training in this process cannot be stopped; expected workers >= 1")
    if study.plan.options.cost == "function" and study.cost_function is None:
        raise InputError('cost: this study has cost="function"; expected the function, as in load_study(cost=...)')
    own = executor is None
    if executor is None:
        executor = Inline() if workers is None else study.processes(workers)
    driver = _Driver(study, train, limits, executor, slots=workers or 1, is_here=is_here)
    try:
        with _signs_of_life(study, driver.worker), Display(progress) as display:
            driver.loop(display)
    finally:
        if own:
            executor.shutdown()


class _Driver:
    def __init__(
        self, study: "Study", train: Train, limits: Limits, executor: Any, *, slots: int, is_here: bool
    ) -> None:
        self.study, self.train, self.limits, self.executor = study, train, limits, executor
        self.slots, self.is_here = slots, is_here
        self.worker = study.worker = worker_name()
        self.began = time.monotonic()
        self.running: dict[Future[None], tuple[Evaluation, float]] = {}
        self.late: set[int] = set()  # evaluations that were stopped for taking too long
        self.last_gain = math.inf

    def loop(self, display: Display) -> None:
        try:
            while True:
                self.study.log.refresh()
                self._take_from_the_dead()
                is_over = self._is_over()
                if not is_over and len(self.running) < self.slots:
                    self._start(display)
                elif is_over and not self.running:
                    return
                self._take_in(0.0 if len(self.running) < self.slots and not is_over else _POLL)
                display.show(self._snapshot)
        except BaseException:
            self._let_go()
            raise

    def _start(self, display: Display) -> None:
        display.show(self._snapshot, activity="choosing what to train next")
        evaluation = self.study.ask()
        self.last_gain = evaluation.reason.get("value", self.last_gain)
        display.show(self._snapshot)
        study = self.study
        number, attempt = evaluation.id, evaluation.attempt
        if self.is_here:
            arguments: tuple[Any, ...] = (study.log, study.plan, study.checkpoints, number, attempt)
            function: Any = run
        else:
            arguments, function = (study.connect, study.name, number, attempt), run_elsewhere
        try:
            future = self.executor.submit(function, *arguments, self.train, study.cost_function)
        except BaseException:
            study.release(evaluation, "it could not be handed to a worker")
            raise
        self.running[future] = (evaluation, time.monotonic())

    def _take_in(self, patience: float) -> None:
        """Wait for an evaluation to end, and see to those whose worker died or that take too long."""
        done, _ = wait(self.running, timeout=patience, return_when=FIRST_COMPLETED) if self.running else (set(), set())
        self.study.log.refresh()
        for future in done:
            evaluation, _ = self.running.pop(future)
            try:
                error = future.exception()
            except CancelledError as cancelled:
                error = cancelled
            if evaluation.id in self.late:
                self.study.fail(evaluation, f"took longer than {self.limits.timeout:g} s", kind="timeout")
            elif isinstance(error, WorkerDiedError):
                logger.warning("evaluation %d: %s", evaluation.id, error)
                self.study.release(evaluation, str(error), is_suspect=True)
            elif error is not None:
                self.study.release(evaluation, f"its worker had an error: {error}", is_suspect=True)
            self.study.tidy()
            self._check_hope()
        for future, (evaluation, began) in self.running.items():
            is_late = self.limits.timeout is not None and time.monotonic() - began > self.limits.timeout
            if is_late and evaluation.id not in self.late:
                self.late.add(evaluation.id)
                self.executor.kill(future)

    def _check_hope(self) -> None:
        ends = [evaluation.end for evaluation in self.study.state.evaluations if evaluation.end is not None]
        failures = [end for end in ends if isinstance(end, Failed)]
        if len(failures) == len(ends) >= _HOPELESS:
            raise StudyError(
                f"the first {len(failures)} evaluations all failed; the last one so:\n{failures[-1].message}"
            )

    def _is_over(self) -> bool:
        limits, state = self.limits, self.study.state
        if limits.seconds is not None and time.monotonic() - self.began >= limits.seconds:
            return True
        if limits.evaluations is not None and len(state.evaluations) - len(state.lost()) >= limits.evaluations:
            return not state.lost() or len(state.evaluations) > limits.evaluations
        if limits.cost is not None and state.cost >= limits.cost:
            return True
        if limits.stop_below is not None and self.last_gain < limits.stop_below:
            return True
        if limits.budget is None or len(self.running) >= self.slots:
            return False
        spent = self.study.spent()
        return spent is not None and spent >= limits.budget

    def _take_from_the_dead(self) -> None:
        """Evaluations whose worker died without a word are given back, to be given again."""
        mine = {evaluation.id for evaluation, _ in self.running.values()}
        others = [one for one in self.study.state.running() if one.id not in mine]
        if not others:
            return
        silences = self.study.log.storage.silences(self.study.name)
        for evaluation in others:
            if is_dead(evaluation.worker) or silences.get(evaluation.worker, 0.0) > _SILENCE:
                self.study.release(evaluation, f"worker {evaluation.worker} fell silent")

    def _let_go(self) -> None:
        """Stopped from outside: kill what runs and give it back, so that the next run goes on from there."""
        for future, (evaluation, _) in self.running.items():
            with contextlib.suppress(AttributeError):
                self.executor.kill(future)
            with contextlib.suppress(StaleError, StudyError):
                self.study.release(evaluation, "interrupted")
        if self.is_here:
            for mine in self.study.state.running():
                if mine.worker == self.worker:
                    with contextlib.suppress(StaleError, StudyError):
                        self.study.release(mine, "interrupted")

    def _snapshot(self) -> Snapshot:
        return snapshot(self.study, self.limits)


def snapshot(study: "Study", limits: Limits) -> Snapshot:
    """What the display shows."""
    state = study.state
    belief = study._belief[1]
    full = belief.full_cost if belief else None
    best = belief.best if belief else None
    goal, spent, unit = None, state.cost, "s" if study.plan.options.cost == "time" else ""
    if limits.budget is not None:
        goal, spent, unit = limits.budget, state.cost / full if full else 0.0, "full trainings"
    elif limits.cost is not None:
        goal = limits.cost
    elif limits.evaluations is not None:
        goal, spent, unit = limits.evaluations, len(state.evaluations) - len(state.open), "evaluations"
    return Snapshot(
        name=study.name,
        spent=spent,
        goal=goal,
        unit=unit,
        evaluations=len(state.evaluations) - len(state.open),
        trials=len(state.trials),
        paused=len(state.basket()),
        best=None if best is None else (best[1].mean, best[1].sd),
        running=[_row(study, evaluation) for evaluation in state.running()],
    )


def _row(study: "Study", evaluation: EvaluationState) -> Row:
    dims = study.plan.fidelities.trace_dims or range(study.plan.fidelities.m)
    target = evaluation.asked.target
    reached = evaluation.reached or evaluation.start
    share = min((reached[j] / target[j] for j in dims), default=0.0) if reached else 0.0
    return Row(
        trial=evaluation.asked.trial,
        is_continued=evaluation.start is not None,
        share=share,
        target=study.plan.named(target),
        value=next(reversed(evaluation.points.values()), None),
        config=flat(study.state.trial_of(evaluation).config),
    )


def worker_name() -> str:
    """host:process:start, so that others on this host can tell whether the process still lives."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started_at(os.getpid())}"


def is_dead(worker: str) -> bool:
    """Whether a worker of this host is certainly gone; False for those of other hosts."""
    host, *rest = worker.rsplit(":", 2)
    if host != socket.gethostname() or len(rest) != 2 or not rest[0].isdigit():
        return False
    return _started_at(int(rest[0])) != rest[1]


def _started_at(pid: int) -> str:
    """When a process began, as the system counts it: tells it from a later one with the same number."""
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "gone" if parts[0] == "Z" else parts[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").is_dir():
            return "gone"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    return "alive"


@contextlib.contextmanager
def _signs_of_life(study: "Study", worker: str) -> Iterator[None]:
    """Beat until the end, from a thread of its own."""
    is_over = threading.Event()
    storage, name = study.log.storage, study.name
    storage.beat(name, worker)

    def beat() -> None:
        while not is_over.wait(_BEAT):
            try:
                storage.beat(name, worker)
            except Exception:
                logger.exception("no sign of life could be written")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
