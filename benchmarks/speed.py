"""How fast a study is: suggestions, start-up, storage, and many workers at once; and what a suggestion is worth.

Every figure that has a peer is measured beside it in the same run; each side has a process of its own, so that its peak
memory is its own. `--only ask,storage` runs some of the parts.
"""

import argparse
import functools
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import Bar, Timing, arguments, at_least, at_most, finish, median, quiet_median, timed

HERE = Path(__file__).parent
PROBLEMS = ("hartmann6", "rosenbrock3")
SIZES, QUICK_SIZES = (25, 50, 100, 200, 400, 1000), (25, 50)
STEPS = 27  # of a trace
BASKET = 10
PATIENCE = 240.0  # seconds that a peer may take
PARTS = ("ask", "peers", "guard", "imports", "storage", "workers")


# Suggestions


def filled_study(name: str, count: int, directory: Path) -> None:
    """A store with `count` finished evaluations of a problem, ten of which can be continued."""
    import torch

    import takg
    from takg import problems
    from takg.checkpoints import DirectoryCheckpoints
    from takg.records import Asked, Dropped, Finished, Observed

    problem = problems.PROBLEMS[name]
    study = _study(takg.create_study, name, directory)
    checkpoints = DirectoryCheckpoints(study.checkpoints.root)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, problem.d, generator=generator, dtype=torch.float64)
    s = 0.02 * 50 ** torch.rand(count, problem.fidelities.m, generator=generator, dtype=torch.float64)
    events: list[Any] = []
    for i in range(count):
        config = study.plan.space.from_unit(tuple(x[i].tolist()))
        target = study.plan.from_s(tuple(s[i].tolist()))
        half = tuple(
            max(1, value // 2) if j in problem.fidelities.trace_dims else value for j, value in enumerate(target)
        )
        kept = tuple(dict.fromkeys([half, target]))
        events.append(
            Asked(evaluation=i, trial=i, target=target, worker="none", time=float(i), config=config, kept=kept)
        )
        for at in kept:
            point = torch.tensor([study.plan.to_s(at)], dtype=torch.float64)
            value = float(problem.evaluate(torch.tensor([study.plan.space.to_unit(config)]), point))
            events.append(Observed(evaluation=i, attempt=1, fidelity=at, value=value, time=float(i)))
        cost = _cost(config, study.plan.named(target), study.plan.fidelities.full)
        events.append(Finished(evaluation=i, attempt=1, cost=cost, seconds=cost, time=float(i), has_checkpoint=True))
        if i < count - BASKET:
            events.append(Dropped(trial=i, reason="made so", time=float(i)))
        else:
            (checkpoints.directory(i) / "state").write_text("here")
    study.log.storage.append(study.name, events, after=0)


def _study(opened: Any, name: str, directory: Path) -> Any:
    import takg
    from takg import problems

    problem = problems.PROBLEMS[name]
    fidelities = {
        label: takg.Fidelity(1, STEPS, trace=True)
        if j in problem.fidelities.trace_dims
        else takg.Fidelity(0.01, 1.0, trace=False)
        for j, label in enumerate(problem.fidelities.names)
    }
    full = {label: float(one.high) for label, one in fidelities.items()}
    cost = functools.partial(_cost, full=full)
    if opened is takg.load_study:
        return takg.load_study("speed", storage=directory / "study.db", cost=cost)
    space = {f"x{k}": takg.Float(0.0, 1.0) for k in range(problem.d)}
    return takg.create_study(space, fidelities, name="speed", storage=directory / "study.db", cost=cost)


def _cost(config: Any, fidelity: dict[str, float], full: dict[str, float]) -> float:
    return 0.01 + math.prod(fidelity[name] / full[name] for name in full)


def ask(name: str, count: int, repetitions: int) -> dict[str, Any]:
    """Open the store, refit, suggest."""
    with tempfile.TemporaryDirectory() as folder:
        middle = quiet_median(asks(name, count, Path(folder)), repetitions)
    return {**vars(middle), "peak_mb": _peak_mb()}


def asks(name: str, count: int, directory: Path) -> Iterator[Timing]:
    """One after the other, each time with one evaluation more."""
    import torch

    import takg
    from takg import _api, problems

    problem = problems.PROBLEMS[name]
    filled_study(name, count, directory)

    def opened_and_asked() -> Any:
        study = _study(takg.load_study, name, directory)
        return study, study.ask()

    for i in itertools.count():
        _api._stores.clear()
        timing, (study, evaluation) = timed(opened_and_asked)
        at = torch.tensor([study.plan.to_s(study.plan.ordered(evaluation.fidelity))], dtype=torch.float64)
        x = torch.tensor([study.plan.space.to_unit(evaluation.config)], dtype=torch.float64)
        study.tell(evaluation, float(problem.evaluate(x, at)))
        del study, evaluation  # the next one is opened as by a process that has none open
        if i >= 2:  # the first finds no chains to go on with, the second warms up
            yield timing


def optuna_asks(name: str, count: int) -> Iterator[Timing]:
    """Optuna's Gaussian-process sampler at as many finished trials, full fidelity."""
    import optuna
    import torch

    from takg import problems

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    problem = problems.PROBLEMS[name]
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=0))
    spread = {f"x{k}": optuna.distributions.FloatDistribution(0.0, 1.0) for k in range(problem.d)}
    x = torch.rand(count, problem.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = problem.evaluate(x, torch.ones(count, problem.fidelities.m, dtype=torch.float64))
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={f"x{k}": float(v) for k, v in enumerate(row)}, distributions=spread, value=float(value)
            )
            for row, value in zip(x, values, strict=True)
        ]
    )
    while True:
        timing, trial = timed(lambda: study.ask(spread))
        study.tell(trial, 0.0)
        yield timing


def beside_optuna(name: str, count: int, repetitions: int) -> dict[str, Any]:
    """In turns in one process, since the machine may change its pace."""
    with tempfile.TemporaryDirectory() as folder:
        both = zip(asks(name, count, Path(folder)), optuna_asks(name, count), strict=True)
        ours, theirs = zip(*itertools.islice(both, repetitions), strict=True)
    return {"ours": vars(median(list(ours))), **vars(median(list(theirs)))}


def botorch(name: str, count: int, _: int) -> dict[str, Any]:
    from acquisition import botorch as suggestion

    return suggestion(name, 2 * count, 1)


def guard(name: str, count: int, seed: int, restarts: int) -> dict[str, Any]:
    """The value of a suggestion against the best of many restarts run to convergence."""
    from acquisition import ours

    return ours(name, 2 * count, seed, 1, restarts, 2)


# Starting up


def imports(_: str) -> dict[str, Any]:
    """Seconds of CPU of fresh interpreters, alternating."""
    commands = {
        "torch": [sys.executable, "-c", "import torch"],
        "takg": [sys.executable, "-c", "import takg, torch"],
        "takg alone": [sys.executable, "-c", "import takg"],
        "takg --help": [sys.executable, "-m", "takg", "--help"],
    }
    seconds: dict[str, list[float]] = {label: [] for label in commands}
    for _round in range(5):
        for label, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[label].append(time.perf_counter() - began)
    return {label: statistics.median(values) for label, values in seconds.items()}


# Storage


def storage(_: str, evaluations: int, points: int) -> dict[str, Any]:
    """Durable writes of single points, ours and Optuna's in turns, and reading a study back."""
    import optuna

    import takg
    from takg.records import Asked, Finished, Observed
    from takg.storage import SqlStorage
    from takg.study import Log

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    mine, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        study = takg.create_study(
            {"x": takg.Float(0, 1)}, {"epochs": takg.Fidelity(1, 100, trace=True)}, storage=Path(folder) / "a.db"
        )
        log = Log(SqlStorage(Path(folder) / "a.db"), study.name)
        peer = optuna.create_study(storage=f"sqlite:///{folder}/b.db")
        blocks = 10

        def write_ours(begin: int, end: int) -> None:
            for i in range(begin, end):
                log.append(Asked(evaluation=i, trial=i, target=(points,), worker="w", time=0.0, config={"x": 0.5}))
                for step in range(1, points + 1):
                    log.append(Observed(evaluation=i, attempt=1, fidelity=(step,), value=0.3, time=0.0))
                log.append(Finished(evaluation=i, attempt=1, cost=1.0, seconds=1.0, time=0.0))

        def write_theirs(count: int) -> None:
            for _ in range(count):
                trial = peer.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
                for step in range(1, points + 1):
                    trial.report(0.3, step)
                peer.tell(trial, 0.3)

        per_block = evaluations // blocks
        fewer = max(1, per_block // 20)  # theirs takes much longer
        for block in range(blocks):
            timing, _ = timed(lambda block=block: write_ours(block * per_block, (block + 1) * per_block))
            mine.append(timing.wall / (per_block * points))
            timing, _ = timed(lambda: write_theirs(fewer))
            theirs.append(timing.wall / (fewer * points))
        with_fifty = takg.create_study(
            {"x": takg.Float(0, 1)}, {"epochs": takg.Fidelity(1, 100, trace=True)}, storage=Path(folder) / "c.db"
        )
        events: list[Any] = []
        for i in range(1000):
            events.append(Asked(evaluation=i, trial=i, target=(50,), worker="w", time=0.0, config={"x": 0.5}))
            events += [
                Observed(evaluation=i, attempt=1, fidelity=(step,), value=0.3, time=0.0) for step in range(1, 51)
            ]
            events.append(Finished(evaluation=i, attempt=1, cost=1.0, seconds=1.0, time=0.0))
        with_fifty.log.storage.append(with_fifty.name, events, after=0)

        def load() -> Timing:
            takg._api._stores.clear()
            return timed(lambda: takg.load_study(storage=Path(folder) / "c.db"))[0]

        middle = quiet_median((load() for _ in itertools.count()), 9)
    return {
        "ours_us": 1e6 * statistics.median(mine),
        "optuna_us": 1e6 * statistics.median(theirs),
        "load_wall": middle.wall,
        "load_cpu": middle.cpu,
    }


# Many workers


def workers(_: str, count: int, seconds: float, evaluations: int) -> dict[str, Any]:
    """The share of their time that workers wait, when an evaluation takes some seconds; time is simulated.

    A suggestion takes as long as it does; evaluations sleep on a simulated clock that the suggestions push on.
    """
    import heapq

    import torch

    import takg
    from takg import problems
    from takg.storage import MemoryStorage

    problem = problems.PROBLEMS["hartmann6"]
    space = {f"x{k}": takg.Float(0.0, 1.0) for k in range(problem.d)}
    with tempfile.TemporaryDirectory() as folder:
        study = takg.create_study(
            space,
            {"s": takg.Fidelity(1, STEPS, trace=True)},
            storage=MemoryStorage(),
            checkpoints=folder,
            cost="reported",
        )
        now, busy = 0.0, 0.0
        free_since = [0.0] * count
        running: list[tuple[float, int, Any]] = []  # end, worker, evaluation
        waiting = list(range(count))
        asked = 0
        while asked < evaluations:
            if not waiting:
                end, worker, evaluation = heapq.heappop(running)
                now = max(now, end)
                x = torch.tensor([study.plan.space.to_unit(evaluation.config)], dtype=torch.float64)
                at = torch.tensor([[evaluation.fidelity["s"] / STEPS]], dtype=torch.float64)
                study.tell(evaluation, float(problem.evaluate(x, at)), cost=seconds)
                free_since[worker] = end
                waiting.append(worker)
                while running and running[0][0] <= now:
                    end, worker, evaluation = heapq.heappop(running)
                    x = torch.tensor([study.plan.space.to_unit(evaluation.config)], dtype=torch.float64)
                    at = torch.tensor([[evaluation.fidelity["s"] / STEPS]], dtype=torch.float64)
                    study.tell(evaluation, float(problem.evaluate(x, at)), cost=seconds)
                    free_since[worker] = end
                    waiting.append(worker)
            batch = len(waiting)
            timing, evaluations_now = timed(lambda batch=batch: study.ask(batch))
            now += timing.wall
            for evaluation in evaluations_now:
                heapq.heappush(running, (now + seconds, waiting.pop(0), evaluation))
                busy += seconds
                asked += 1
    now = max([now, *(end for end, _, _ in running)])  # until the last is done
    total = now * count
    return {"workers": count, "seconds": seconds, "idle_share": max(0.0, 1 - busy / max(total, 1e-9)), "elapsed": now}


# All of it


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_own_process(side: str, *given: Any, patience: float | None = None) -> dict[str, Any]:
    """What a side measured; CPU seconds up to then, and that it is unfinished, where it took longer than patience."""
    command = [sys.executable, __file__, "--side", side, *map(str, given)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False, timeout=patience)
    except subprocess.TimeoutExpired:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {"is_unfinished": True, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return float(text) if text.replace(".", "", 1).isdigit() else text


SIDES = {
    "ask": ask,
    "optuna": beside_optuna,
    "botorch": botorch,
    "guard": guard,
    "imports": imports,
    "storage": storage,
    "workers": workers,
}


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts out of {','.join(PARTS)}")
    parser.add_argument("--restarts", type=int, default=200, help="of the quality guard's reference")
    parser.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side, *given = args.side
        print(json.dumps(SIDES[side](*map(_number, given))))
        return 0
    parts = set(args.only.split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: expected parts out of {','.join(PARTS)}")
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for part, measure in (
        ("ask", measure_asks),
        ("guard", measure_guard),
        ("imports", measure_imports),
        ("storage", measure_storage),
        ("workers", measure_workers),
    ):
        if part in parts and not (args.quick and part in ("guard", "workers")):
            figures[part], more = measure(args, "peers" in parts and not args.quick)
            bars += more
    return finish(args, figures, bars, ["torch", "botorch", "optuna", "sqlalchemy"])


def measure_asks(args: argparse.Namespace, has_peers: bool) -> tuple[Any, list[Bar]]:
    bars: list[Bar] = []
    rows = []
    print(f"{'ask':>12} {'evaluations':>12} {'wall s':>8} {'CPU s':>8} {'others':>8} {'MB':>6}")
    for name in PROBLEMS[1:] if args.quick else PROBLEMS:
        seconds = {}
        for count in QUICK_SIZES if args.quick else SIZES:
            found = in_own_process("ask", name, count, 3 if count > 200 else 7)
            rows.append({"problem": name, "evaluations": count, **found})
            if "error" in found:
                print(f"{name:>12} {count:>12} {found['error']}", flush=True)
                continue
            seconds[count] = found
            print(
                f"{name:>12} {count:>12} {found['wall']:8.2f} {found['cpu']:8.2f} {found['others']:8.2f} "
                f"{found['peak_mb']:6.0f}",
                flush=True,
            )
        if args.quick:
            continue
        hundred, thousand = seconds.get(100), seconds.get(1000)
        bars.append(at_most(f"ask at 100 evaluations, wall s, {name}", hundred and hundred["wall"], 1.0))
        bars.append(at_most(f"ask at 1,000 evaluations, wall s, {name}", thousand and thousand["wall"], 12.0))
        bars.append(at_most(f"peak memory at 1,000 evaluations, MB, {name}", thousand and thousand["peak_mb"], 1500))
        growth = math.log10(thousand["wall"] / hundred["wall"]) if hundred and thousand else None
        bars.append(at_most(f"exponent of growth, 100 to 1,000 evaluations, {name}", growth, 1.6))
        if has_peers:
            bars += _peers(name, hundred, thousand, rows)
    return rows, bars


def _peers(name: str, hundred: Any, thousand: Any, rows: list[Any]) -> list[Bar]:
    bars = []
    for label, side, count, mine, limit in (
        ("BoTorch's qMFKG", "botorch", 100, hundred, 1 / 50),
        ("Optuna's GPSampler", "optuna", 1000, thousand, 1.0),
    ):
        theirs = in_own_process(side, name, count, 5, patience=PATIENCE)
        mine = theirs.get("ours", mine)
        rows.append({"problem": name, "evaluations": count, "peer": label, **theirs})
        print(f"{name:>12} {count:>12} {label}: {theirs}", flush=True)
        ratio = mine["cpu"] / theirs["cpu"] if mine and "cpu" in theirs else None
        if ratio is not None or side != "botorch":  # it may not finish in the memory there is
            so_far = " (which was stopped before it ended)" if theirs.get("is_unfinished") else ""
            bars.append(at_most(f"ask / {label}{so_far} at {count} evaluations, CPU, {name}", ratio, limit))
    return bars


def measure_guard(args: argparse.Namespace, _: bool) -> tuple[Any, list[Bar]]:
    rows = []
    for name in PROBLEMS:
        for count in (25, 50, 100, 150, 200):
            found = in_own_process("guard", name, count, count, args.restarts)  # two noise levels: 20 posteriors
            for value in found.get("values", [{"error": found.get("error")}]):
                rows.append({"problem": name, "evaluations": count, **value})
                print(f"guard {rows[-1]}", flush=True)
    ratios = [row["median"] for row in rows if "median" in row] or None
    return rows, [
        at_least("value / best of restarts run to convergence, median", ratios and statistics.median(ratios), 0.95),
        at_least("value / best of restarts run to convergence, worst", ratios and min(ratios), 0.8),
    ]


def measure_imports(_: argparse.Namespace, __: bool) -> tuple[Any, list[Bar]]:
    found = in_own_process("imports", "-")
    print(f"imports, wall s: {found}", flush=True)
    return found, [
        at_most("import takg and torch / import torch", found["takg"] / found["torch"], 1.3),
        at_most("takg --help, wall s", found["takg --help"], 0.5),
    ]


def measure_storage(args: argparse.Namespace, _: bool) -> tuple[Any, list[Bar]]:
    found = in_own_process("storage", "-", 100 if args.quick else 1000, 27)
    print(f"storage: {found}", flush=True)
    ratio = found["optuna_us"] / found["ours_us"] if "ours_us" in found else None
    return found, [
        at_least("durable points written, throughput / Optuna's", ratio, 50),
        at_most("load_study of 1,000 evaluations x 50 points, wall s", found.get("load_wall"), 0.3),
    ]


def measure_workers(_: argparse.Namespace, __: bool) -> tuple[Any, list[Bar]]:
    rows = []
    for seconds in (1, 10, 60):
        rows.append(in_own_process("workers", "-", 64, seconds, 192))
        print(f"64 workers: {rows[-1]}", flush=True)
    return rows, []


if __name__ == "__main__":
    sys.exit(main())
