"""Keep workers busy until a limit is reached: ask, hand out, take in, and notice who has died."""

import contextlib
import functools
import itertools
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
from takg.errors import InputError, StudyError
from takg.executors import Inline, WorkerDiedError
from takg.records import RUNNING, EvaluationState, Failed
from takg.space import flat
from takg.study._evaluation import Evaluation, Train
from takg.study._runner import run, run_elsewhere

if TYPE_CHECKING:
    from takg.study._study import Study

logger = logging.getLogger("takg")

_BEAT = 5.0  # seconds between signs of life
_SILENCE = 30.0  # seconds without one after which a worker counts as dead
_POLL = 0.25
_HOPELESS = 5  # evaluations that may fail before one has succeeded
_FRUITLESS = 20  # evaluations that may diverge before one has not, where the budget needs a model of the cost


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
    if limits.timeout is not None and executor is not None and not hasattr(executor, "kill"):
        raise InputError(f"timeout={limits.timeout}: expected an executor with kill(future), to stop what takes longer")
    own = executor is None
    if executor is None:
        executor = Inline() if workers is None else study.processes(workers)
    asker = study.worker
    driver = _Driver(study, train, limits, executor, slots=workers or 1, is_here=is_here)
    try:
        with _signs_of_life(study, driver.worker), Display(progress) as display:
            driver.loop(display)
    finally:
        study.worker = asker
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
        self.running: dict[Future[None], Evaluation] = {}
        self.began_at: dict[Future[None], float] = {}  # of those that a worker has taken up
        self.late: set[Future[None]] = set()  # those that were stopped for taking too long
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
        evaluation = self.study.next_evaluation(at_most=self.limits.evaluations, overhead=self._scarcity())
        if evaluation is None:
            return
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
        except Exception:
            study.release(evaluation, "it could not be handed to a worker")
            raise
        self.running[future] = evaluation

    def _take_in(self, patience: float) -> None:
        """Wait for an evaluation to end, and see to those whose worker died or that take too long."""
        done, _ = wait(self.running, timeout=patience, return_when=FIRST_COMPLETED) if self.running else (set(), set())
        self.study.log.refresh()
        for future in done:
            evaluation = self.running.pop(future)
            if self._is_mine(evaluation.id):
                self._end(evaluation, future)
            self.study.tidy()
            self._check_hope()
        if self.limits.timeout is not None:
            self._stop_the_late(self.limits.timeout)

    def _end(self, evaluation: Evaluation, future: "Future[None]") -> None:
        """Close an evaluation whose worker has not done so."""
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        # The worker may have started over, which is an attempt that this process did not ask for.
        state = self.study.state.evaluations[evaluation.id]
        if future in self.late:
            seconds = time.monotonic() - self.began_at[future]
            self.study.give_up(state, f"took longer than {self.limits.timeout:g} s", kind="timeout", seconds=seconds)
        elif isinstance(error, WorkerDiedError):
            logger.warning("evaluation %d: %s", evaluation.id, error)
            self.study.release(state, str(error), is_suspect=True)
        else:
            self.study.release(state, f"its worker had an error: {error}", is_suspect=True)

    def _stop_the_late(self, timeout: float) -> None:
        now = time.monotonic()
        for future in self.running:
            if future.running():
                self.began_at.setdefault(future, now)  # the start of a worker process does not count
            if now - self.began_at.get(future, now) > timeout and future not in self.late:
                self.late.add(future)
                self.executor.kill(future)

    def _is_mine(self, number: int) -> bool:
        state = self.study.state.evaluations[number]
        return state.status == RUNNING and state.worker == self.worker

    def _check_hope(self) -> None:
        ends = [evaluation.end for evaluation in self.study.state.evaluations if evaluation.end is not None]
        failures = [end for end in ends if isinstance(end, Failed)]
        if len(failures) == len(ends) >= _HOPELESS:
            raise StudyError(
                f"the first {len(failures)} evaluations all failed; the last one so:\n{failures[-1].message}"
            )
        if self.limits.budget is None or len(ends) < _FRUITLESS:
            return
        values = [value for trial in self.study.state.trials for value in trial.points.values()]
        if not any(map(math.isfinite, values)):
            raise StudyError(
                f"none of the first {len(ends)} evaluations reported a finite value, so that the budget of full "
                "trainings has no measure; expected a space with configurations that train, or another limit"
            )

    def _is_over(self) -> bool:
        limits, state = self.limits, self.study.state
        if limits.seconds is not None and time.monotonic() - self.began >= limits.seconds:
            return True
        if limits.evaluations is not None and len(state.evaluations) - len(state.lost()) >= limits.evaluations:
            return True
        if limits.cost is not None and state.cost >= limits.cost:
            return True
        if limits.stop_below is not None and self.last_gain < limits.stop_below:
            return True
        if limits.budget is None or len(self.running) >= self.slots:
            return False
        spent = self.study.spent()
        return spent is not None and spent >= limits.budget

    def _scarcity(self) -> float:
        limits = self.limits
        if limits.evaluations is None or (limits.budget is None and limits.cost is None):
            return 0.0
        return self.study.scarcity(evaluations=limits.evaluations, budget=limits.budget, cost=limits.cost)

    def _take_from_the_dead(self) -> None:
        """Evaluations whose worker died without a word are given back, to be given again."""
        mine = {evaluation.id for evaluation in self.running.values()}
        others = [one for one in self.study.state.running() if one.id not in mine]
        if not others:
            return
        silences = self.study.log.storage.silences(self.study.name)
        for evaluation in others:
            if is_dead(evaluation.worker) or silences.get(evaluation.worker, 0.0) > _SILENCE:
                self.study.release(evaluation, f"worker {evaluation.worker} fell silent")

    def _let_go(self) -> None:
        """Stopped from outside: kill what runs and give it back, so that the next run goes on from there."""
        if hasattr(self.executor, "kill"):
            for future in self.running:
                self.executor.kill(future)
            wait(self.running, timeout=_SILENCE)  # what is given again must not meet who ran it before
        self.study.log.refresh()
        for mine in self.study.state.running():
            if mine.worker == self.worker:
                with contextlib.suppress(StudyError):
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
        best=None if best is None else (best[1].median, best[1].low, best[1].high),
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


_numbers = itertools.count(1)
_alive: set[str] = set()  # the drivers of this process


def worker_name() -> str:
    """host:process:start:number, so that others on this host can tell whether the process still lives."""
    return f"{_host()}:{os.getpid()}:{_started_at(os.getpid())}:{next(_numbers)}"


def is_dead(worker: str) -> bool:
    """Whether a worker of this host is certainly gone; False for those of other hosts."""
    host, *rest = worker.rsplit(":", 3)
    if host != _host() or len(rest) != 3 or not rest[0].isdigit():
        return False
    if int(rest[0]) == os.getpid() and rest[1] == _started_at(os.getpid()):
        return worker not in _alive
    return _started_at(int(rest[0])) != rest[1]


@functools.cache
def _host() -> str:
    """Where process numbers mean the same: one boot of one machine, and not another container on it."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text()[:8])
        parts.append(Path("/proc/self/ns/pid").readlink().name.strip("pid:[]"))
    return "/".join(parts)


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
    _alive.add(worker)
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
        _alive.discard(worker)
