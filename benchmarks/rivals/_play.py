"""One run of one method on one problem, written down evaluation by evaluation so that it can be taken up again."""

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rivals._protocol import Method, Request
from rivals._registry import build
from rivals._simulator import Simulator
from takg.problems import Problem

MOST = 300  # suggestions


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Which run, and where its files are."""

    problem: str
    method: str
    seed: int
    directory: Path

    @property
    def log(self) -> Path:
        """One line for each evaluation or batch."""
        return self.directory / self.problem / f"{self.method}-{self.seed}.jsonl"

    @property
    def state(self) -> Path:
        return self.log.with_suffix(".state.json")

    @property
    def result(self) -> Path:
        return self.log.with_suffix(".json")


def play(
    run: Run,
    problem: Problem,
    *,
    budget: float,
    make: Callable[..., Method] = build,
    most: int = MOST,
    engine: str | None = None,
) -> dict[str, Any]:
    """Go on until the budget or `most` suggestions are used up; a finished run is continued if the budget has grown.

    `engine` is noted in the result: which version of takg it was.
    """
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two runners on one run would spoil it
        return _played(run, problem, budget, make, most, engine)


def _played(
    run: Run, problem: Problem, budget: float, make: Callable[..., Method], most: int, engine: str | None
) -> dict[str, Any]:
    simulator, method, curve = _resumed(run, problem, make, budget, most)
    with run.log.open("a") as log:
        while simulator.cost < budget and simulator.suggestions < most:
            began = time.process_time()
            requests = method.ask()
            thinking = time.process_time() - began
            replies = simulator.evaluate(requests)
            began = time.process_time()
            method.tell(requests, replies)
            x = method.recommend()
            thinking += time.process_time() - began
            step = {
                "requests": [asdict(request) for request in requests],
                "values": [reply.value for reply in replies],
                "x": x,
                "cpu": thinking,
                "cost": simulator.cost,
            }
            log.write(json.dumps(step) + "\n")
            log.flush()
            os.fsync(log.fileno())
            curve.append(_point(simulator, x, thinking))
            if method.resumes_by == "state":
                _write(run.state, json.dumps({"lines": len(curve), "state": method.state()}))
    cpu, count = sum(point["cpu"] for point in curve), max(simulator.suggestions, 1)
    result = {
        "problem": run.problem,
        "method": run.method,
        "seed": run.seed,
        "budget": budget,
        "suggestions": simulator.suggestions,
        "is_exhausted": simulator.suggestions >= most,
        "cost": simulator.cost,
        "low_share": simulator.low_cost / simulator.cost if simulator.cost else 0.0,
        "cpu_per_suggestion": cpu / count,
        "regret": curve[-1]["regret"] if curve else None,
        **({} if engine is None else {"engine": engine}),
        "curve": curve,
    }
    _write(run.result, json.dumps(result))
    return result


def read_curve(log: Path) -> list[dict[str, Any]]:
    """The complete lines of a log; what a killed process left half-written is cut off."""
    if not log.exists():
        return []
    text = log.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        with log.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _resumed(
    run: Run, problem: Problem, make: Callable[..., Method], budget: float, most: int
) -> tuple[Simulator, Method, list[dict[str, Any]]]:
    """Simulator, method and curve as they were when the run was stopped; a run that cannot be replayed starts over."""
    lines = read_curve(run.log)
    simulator = Simulator(problem, run.seed, budget=budget, most=most)
    method = make(run.method, simulator.setting)
    if lines and method.resumes_by == "state":
        saved = json.loads(run.state.read_text()) if run.state.exists() else {"lines": 0}
        if saved["lines"] < len(lines):  # killed between the two files
            lines = lines[: saved["lines"]]
            _write(run.log, "".join(json.dumps(line) + "\n" for line in lines))
        if lines:
            method.load(saved["state"])
    curve = []
    for line in lines:
        requests = [Request(tuple(one["x"]), tuple(one["s"]), one["run"], one["gradient"]) for one in line["requests"]]
        if method.resumes_by == "asking" and method.ask() != requests:
            run.log.unlink()
            return _resumed(run, problem, make, budget, most)
        replies = simulator.evaluate(requests)
        if method.resumes_by != "state":
            method.tell(requests, replies)
        if method.resumes_by == "asking":
            method.recommend()
        curve.append(_point(simulator, tuple(line["x"]), line["cpu"]))
    return simulator, method, curve


def _point(simulator: Simulator, x: tuple[float, ...], cpu: float) -> dict[str, Any]:
    return {
        "cost": simulator.cost,
        "regret": simulator.regret(x),
        "low_cost": simulator.low_cost,
        "suggestions": simulator.suggestions,
        "cpu": cpu,
    }


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
