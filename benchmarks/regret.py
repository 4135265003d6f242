"""Simple regret against cost: takg and its rivals on one problem or a group of them.

    python benchmarks/regret.py --problem branin --methods takg,ei --seeds 10 --budget 10 --jobs 2 --json regret.json

Every evaluation is written down in --results at once. The same command again takes up what was stopped, and one with
more seeds (`--seeds 10-19`), methods or budget adds to what is there. `benchmarks/report.py` makes tables and figures.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
os.environ.update(ONE_THREAD)  # before anything that starts threads is imported, here and in the workers

from _bars import bars_of  # noqa: E402
from _common import arguments, at_least, finish  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rivals import METHODS, MissingLibraryError, Run, play  # noqa: E402

from takg.errors import InputError  # noqa: E402
from takg.problems.catalogue import GROUPS, find_problem  # noqa: E402

QUICK = {"problem": "branin", "methods": "random,hyperband,takg", "seeds": range(1), "budget": 0.6}
DEFAULTS = {"problem": "paper", "methods": "takg,random", "seeds": range(10), "budget": 10.0}
PACKAGES = ("torch", "numpy", "botorch", "gpytorch", "optuna", "smac", "dehb", "onnxruntime")


def carry_out(run: Run, budget: float, data: str | None, engine: str | None) -> dict[str, Any]:
    """In a worker process."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        return play(run, find_problem(run.problem, data=data), budget=budget, engine=engine)
    except (MissingLibraryError, InputError) as error:
        return {"error": str(error)}
    except Exception:
        return {"error": traceback.format_exc()}


def die_with_parent() -> None:
    """A worker whose runner was killed ends at once: the next runner will take up its run."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def spent(run: Run) -> float:
    """What a run that is under way has paid, as its log says."""
    try:
        with run.log.open("rb") as file:
            file.seek(max(0, run.log.stat().st_size - 20_000))
            return float(json.loads(file.read().splitlines()[-1])["cost"])
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0  # not begun, or a line half-written


def run_all(runs: Sequence[Run], args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """All runs, one line for each that is finished; a method that fails on a problem is not tried there again."""
    results: list[dict[str, Any]] = []
    failed: set[tuple[str, str]] = set()
    waiting, going, engine = list(runs), {}, commit()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn"), initializer=die_with_parent) as pool,
    ):
        bar = progress.add_task("", total=args.budget * len(runs))
        try:
            while waiting or going:
                while waiting and len(going) < args.jobs:
                    run = waiting.pop(0)
                    if (run.problem, run.method) in failed:
                        continue
                    going[pool.submit(carry_out, run, args.budget, args.data, engine)] = (run, time.monotonic())
                done, _ = wait(going, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    run, began = going.pop(future)
                    result = _outcome(future)
                    console.print(_line(run, result, time.monotonic() - began), highlight=False, soft_wrap=True)
                    if "error" in result:
                        failed.add((run.problem, run.method))
                    else:
                        results.append(result)
                names = ", ".join(f"{run.problem} {run.method} {run.seed}" for run, _ in going.values())
                reached = sum(min(spent(run), args.budget) for run in runs)
                progress.update(bar, completed=reached, description=f"{len(results)}/{len(runs)} runs  {names}")
        except KeyboardInterrupt:
            for future in going:
                future.cancel()
            console.print("stopped; the same command goes on from here")
            raise
    return results


def _outcome(future: "Future[dict[str, Any]]") -> dict[str, Any]:
    try:
        return future.result()
    except Exception as error:  # the process is gone
        return {"error": f"the worker ended: {error!r}"}


def _line(run: Run, result: dict[str, Any], seconds: float) -> str:
    name = f"{run.problem:<22} {run.method:<17} seed {run.seed:<3}"
    if "error" in result:
        lines = result["error"].strip().splitlines()
        return f"{name} not run: {lines[-1]}" if len(lines) == 1 else f"{name} failed:\n{result['error']}"
    return (
        f"{name} regret {result['regret']:9.3g} at cost {result['cost']:6.2f}, {result['suggestions']:3d} suggestions,"
        f" {result['cpu_per_suggestion']:6.2f} CPU s each, {result['low_share']:4.0%} below s = 0.05, {seconds:.0f} s"
    )


def seeds(text: str) -> range:
    """ "3" is 0, 1 and 2; "5-9" is what it looks like."""
    parts = text.split("-")
    if not (1 <= len(parts) <= 2 and all(part.isdecimal() for part in parts)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, or the first and the last as in 5-9")
    chosen = range(int(parts[0]), int(parts[1]) + 1) if len(parts) == 2 else range(int(text))
    if not chosen:
        raise argparse.ArgumentTypeError(f"{text!r}: expected at least one seed")
    return chosen


def parse() -> argparse.Namespace:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--problem", help=f"names, or the groups {', '.join(GROUPS)}; several with commas")
    parser.add_argument("--methods", help=f"with commas, out of: {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=seeds, help="how many, from 0 on; or 5-9, the first and the last")
    parser.add_argument("--budget", type=float, help="in full trainings")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one thread")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where runs are kept")
    parser.add_argument("--data", default=os.environ.get("TAKG_DATA"), help="directory with taskset/ and yahpo/")
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else DEFAULTS).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.problems = [one for name in args.problem.split(",") for one in GROUPS.get(name, (name,))]
    args.methods = args.methods.split(",")
    known = {one for names in GROUPS.values() for one in names}
    if unknown := [name for name in args.problems if name not in known]:
        parser.error(f"--problem: {unknown[0]!r} is unknown; expected {', '.join([*GROUPS, *sorted(known)])}")
    if unknown := [name for name in args.methods if name not in METHODS]:
        parser.error(f"--methods: {unknown[0]!r} is unknown; expected {', '.join(METHODS)}")
    if args.jobs < 1 or not args.budget > 0:
        parser.error("--jobs: expected at least 1; --budget: expected a number > 0")
    return args


def main() -> int:
    args = parse()
    runs = [
        Run(problem=problem, method=method, seed=seed, directory=args.results)
        for problem in args.problems
        for seed in args.seeds  # all methods on one seed before the next: what is there is comparable
        for method in args.methods
    ]
    try:
        results = run_all(runs, args, Console())
    except KeyboardInterrupt:
        return 130
    bars = [at_least("runs that finished", len(results), len(runs)), *bars_of(results, args.problems, args.budget)]
    summary = [{key: value for key, value in one.items() if key != "curve"} for one in results]
    return finish(args, {"budget": args.budget, "seeds": list(args.seeds), "runs": summary}, bars, installed())


def commit() -> str | None:
    """Of the checkout, with a + if something in it was changed; None if it is none."""
    found = []
    for command in (["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", "--", "../src"]):
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None
        found.append(done.stdout.strip())
    name, changes = found
    return f"{name}+" if changes else name


def installed() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            version(name)
        except PackageNotFoundError:
            continue
        found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
