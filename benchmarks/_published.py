"""Runs as the tables and figures need them: regrets at the costs of a grid, a file for each problem.

The runs themselves are large and stay where they were made. What was published of them is kept, so that a further
method or more seeds need not run everything again.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _bars import COSTS, FULL_BUDGET, SHARES, regret_at

Result = dict[str, Any]
Results = Mapping[str, Mapping[str, Sequence[Result]]]  # problem -> method -> runs by seed

TABLE_COSTS = (2.0, 5.0, 10.0, 20.0)
_BETWEEN = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 3.0, 4.0, 8.0, 13.0, 16.0)  # for the figures
GRID = tuple(sorted({*TABLE_COSTS, *COSTS, *(share * FULL_BUDGET for share in SHARES), *_BETWEEN}))
_KEPT = ("budget", "cost", "suggestions", "is_exhausted", "low_share", "cpu_per_suggestion", "engine")


def load(results: Path, published: Path | None = None) -> Results:
    """All finished runs below a directory, and what was published of others; a run counts as it was made last."""
    runs: dict[tuple[str, str, int], Result] = {}
    if published is not None:
        for path in sorted(published.glob("*.json")):
            runs |= {_key(one): one for one in _read(path)}
    for path in sorted(results.glob("*/*.json")):
        if not path.name.endswith(".state.json"):
            one = json.loads(path.read_text())
            runs[_key(one)] = one
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for (problem, method, _), one in sorted(runs.items()):
        found[problem][method].append(one)
    return {problem: dict(methods) for problem, methods in found.items()}


def publish(results: Results, directory: Path) -> None:
    """One line for each run, so that a change of one is a change of a line."""
    directory.mkdir(parents=True, exist_ok=True)
    for problem, methods in results.items():
        lines = [json.dumps(_thinned(run)) for _, runs in sorted(methods.items()) for run in runs]
        text = ",\n".join(lines)
        (directory / f"{problem}.json").write_text(f'{{"costs": {json.dumps(GRID)}, "runs": [\n{text}\n]}}\n')


def _key(run: Result) -> tuple[str, str, int]:
    return run["problem"], run["method"], run["seed"]


def _thinned(run: Result) -> Result:
    found = [regret_at(run, cost) for cost in GRID]
    regrets = [None if regret == math.inf else _short(regret) for regret in found]
    kept = {name: _short(run[name]) for name in _KEPT if name in run}
    return {"method": run["method"], "seed": run["seed"], **kept, "regrets": regrets}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _read(path: Path) -> Iterable[Result]:
    table = json.loads(path.read_text())
    for run in table["runs"]:
        regrets = zip(table["costs"], run.pop("regrets"), strict=True)
        curve = [{"cost": cost, "regret": regret} for cost, regret in regrets if regret is not None]
        yield {"problem": path.stem, "curve": curve, **run}
