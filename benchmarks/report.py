"""Results of benchmarks/regret.py as one table and the paper's figure.

    python benchmarks/report.py --published benchmarks/published --out docs/benchmarks.md --figures docs/figures

The table goes between the two marker lines of the page, and nothing else of it is touched; without --out it is printed.
With --published, what was published before stands beside the results, and what is in the table is published in turn.
Only the figures of problems with new results are drawn anew then: what is published is coarser.
"""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from _bars import FULL_BUDGET, REACHED, SHARES, bars_of, mean_ranks, regret_at
from _published import TABLE_COSTS, Results, load, publish
from regret import installed
from rivals import METHODS

from takg.problems.catalogue import GROUPS

BEGIN, END = "<!-- begin: benchmarks/report.py -->", "<!-- end: benchmarks/report.py -->"
FLOOR = 1e-8  # of the figure's logarithmic scale
ABLATIONS = {  # method: what it is compared with, and what it does otherwise
    "takg_l3": ("takg", "three points of a trace kept, not two"),
    "takg_zero": ("takg", "0-avoiding"),
    "takg_zero_noisy": ("takg_zero", "noise in C(S), as printed"),
    "takg_stochastic": ("takg", "the paper's stochastic ascent, not the sample average"),
    "takg_cold": ("takg", "no run is continued"),
}
ABLATION_COST = 5.0


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the order statistics, some of which may be infinite."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    if place == low or ordered[low] == ordered[low + 1]:
        return ordered[low]
    return ordered[low] + (place - low) * (ordered[low + 1] - ordered[low])


def sign_test(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, int, float]:
    """Paired: how often we are lower, out of how many without ties, and the two-sided p-value."""
    wins = sum(a < b for a, b in zip(ours, theirs, strict=True))
    n = sum(a != b for a, b in zip(ours, theirs, strict=True))
    tail = sum(math.comb(n, k) for k in range(min(wins, n - wins) + 1)) / 2**n
    return wins, n, min(1.0, 2 * tail)


def by_seed(runs: Sequence[dict[str, Any]], cost: float) -> dict[int, float]:
    """Regret at that cost, of the runs that got there; below 1e-5 all are alike."""
    found = {run["seed"]: regret_at(run, cost) for run in runs}
    return {seed: max(regret, REACHED) for seed, regret in found.items() if regret is not None}


def table(problem: str, methods: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """One problem as Markdown: median (25 %, 75 % quantile; mean) at each cost, the best first.

    Batches, whose cost is that of a single member, stand below, ranked among themselves.
    """
    at = {cost: {method: by_seed(runs, cost) for method, runs in methods.items()} for cost in TABLE_COSTS}
    costs = [cost for cost in TABLE_COSTS if any(at[cost].values())]
    if not costs:
        return f"### {problem}\n\nNo run has got to cost {TABLE_COSTS[0]:g} yet.\n"
    last = max((cost for cost in costs if at[cost].get("takg")), default=costs[-1])
    lines = [
        f"### {problem}",
        "",
        f"| method | seeds | {' | '.join(f'cost {cost:g}' for cost in costs)} | rank at {last:g} |"
        f" takg lower at {last:g} | below s = 0.05 | CPU s |",
        "|---|---|" + "---|" * (len(costs) + 4),
    ]
    for ours, is_batch in (("takg", False), ("takg_batch8", True)):
        medians = {
            method: statistics.median(regrets.values()) if (regrets := at[last][method]) else math.inf
            for method in methods
            if ("batch" in method) is is_batch
        }
        for rank, method in enumerate(sorted(medians, key=lambda m: (medians[m], m)), start=1):
            runs = methods[method]
            cells = [
                method,
                _seeds(runs),
                *(_cell(at[cost][method]) for cost in costs),
                str(rank) if medians[method] < math.inf else "",
                "" if method == ours else _signs(at[last].get(ours, {}), at[last][method]),
                f"{statistics.mean(run['low_share'] for run in longest(runs)):.0%}",
                f"{statistics.median(run['cpu_per_suggestion'] for run in longest(runs)):.2g}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    ours = [run for method, runs in methods.items() if method.startswith("takg") for run in runs]
    if engines := sorted({run["engine"] for run in ours if "engine" in run}):
        lines += ["", f"takg as of {', '.join(engines)}."]
    return "\n".join(lines) + "\n"


def longest(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those that were to stop earlier, which count for medians only, and at the costs that they got to."""
    most = max(run["budget"] for run in runs)
    return [run for run in runs if run["budget"] == most]


def _seeds(runs: Sequence[dict[str, Any]]) -> str:
    """With those that were to stop earlier in brackets: 10 (20)."""
    whole = len(longest(runs))
    return str(whole) if whole == len(runs) else f"{whole} ({len(runs)})"


def _signs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    if not (shared := sorted(ours.keys() & theirs.keys())):
        return ""
    wins, n, p = sign_test([ours[i] for i in shared], [theirs[i] for i in shared])
    return f"{wins} of {n}, p = {p:.2g}"


def _cell(regrets: Mapping[int, float]) -> str:
    if not regrets:
        return ""
    values = list(regrets.values())
    return (
        f"{statistics.median(values):.2g} ({quantile(values, 0.25):.2g}, {quantile(values, 0.75):.2g};"
        f" {statistics.mean(values):.2g})"
    )


def figure(problem: str, methods: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Median regret against cost with its quartiles, both axes logarithmic; ablations have a table of their own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    most = max(run["budget"] for runs in methods.values() for run in runs)
    first = min(run["curve"][0]["cost"] for runs in methods.values() for run in runs if run["curve"])
    grid = [first * (most / first) ** (i / 199) for i in range(200)]
    picture, axes = pyplot.subplots(figsize=(8.5, 5), layout="constrained")
    colours = pyplot.get_cmap("tab20").colors
    rivals = [method for method in METHODS if not method.startswith("takg") and "batch" not in method]
    ends = {method: _band(longest(runs), grid) for method, runs in methods.items() if method not in ABLATIONS}
    for method, band in sorted(ends.items(), key=lambda end: (not end[0].startswith("takg"), end[0])):
        if not band:
            continue
        is_ours = method.startswith("takg")
        xs, low, middle, high = zip(*band, strict=True)
        alone = method.removesuffix("_batch8")
        colour = "black" if is_ours else colours[rivals.index(alone) % 20]  # the same in every figure
        style = {"color": colour, "linewidth": 2.4 if is_ours else 1.2, "zorder": 3 if is_ours else 2}
        axes.plot(xs, middle, label=method, linestyle="--" if "batch" in method else "-", **style)
        axes.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="cost, in full trainings", ylabel="simple regret", title=problem)
    drawn = [value for band in ends.values() for _, *values in band for value in values if value > FLOOR]
    axes.set_ylim(bottom=min(drawn, default=FLOOR) / 2)  # the best design of a pool has no regret, and lies below
    axes.grid(alpha=0.3)
    picture.legend(loc="outside right upper", fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def _band(runs: Sequence[dict[str, Any]], grid: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """(cost, 25 % quantile, median, 75 % quantile) where all runs have a recommendation."""
    band = []
    for cost in grid:
        values = [max(regret, FLOOR) for run in runs if (regret := regret_at(run, cost)) is not None]
        if len(values) == len(runs) and max(values) < math.inf:
            band.append((cost, quantile(values, 0.25), statistics.median(values), quantile(values, 0.75)))
    return band


def report(results: Results, figures: Path | None, page: Path | None, new: Collection[str] = ()) -> str:
    """All tables; the figures that are not there yet are drawn, and those of the new problems anew."""
    from importlib.metadata import version

    parts = [f"Versions: {', '.join(f'{name} {version(name)}' for name in installed())}.", ""]
    parts += ["Median regret (25 % and 75 % quantiles; mean). Regrets below 1e-5 count as 1e-5.", ""]
    parts.append(summary(results))
    parts += [text for group in ("taskset", "lcbench") if (text := rank_table(group, results))]
    parts += [text] if (text := ablation_table(results)) else []
    for problem, methods in results.items():
        parts.append(table(problem, methods))
        if figures is not None:
            path = figures / f"regret-{problem}.png"
            if problem in new or not path.exists():
                figure(problem, methods, path)
            shown = Path(os.path.relpath(path, page.parent)) if page else path
            parts.append(f"![Regret against cost on {problem}]({shown.as_posix()})\n")
    return "\n".join(parts)


def summary(results: Results) -> str:
    """The bars of benchmarks/regret.py as Markdown."""
    runs = _all_runs(results)
    lines = ["| what must hold | takg | limit | |", "|---|---|---|---|"]
    for bar in bars_of(runs, sorted(results), math.inf):
        if bar.value is not None:
            lines.append(f"| {bar.name} | {bar.value:.2g} | {bar.limit:.2g} | {'holds' if bar.holds else 'missed'} |")
    return "\n".join(lines) + "\n"


def rank_table(group: str, results: Results) -> str:
    """Mean ranks over the tasks of a group at a tenth, a third and all of the budget, as Markdown."""
    tasks = GROUPS[group]
    if not set(tasks) <= set(results):
        return ""
    costs = [share * FULL_BUDGET for share in SHARES]
    ranks = [mean_ranks(_all_runs(results), tasks, cost) for cost in costs]
    methods = sorted({method for one in ranks for method in one}, key=lambda m: (ranks[-1].get(m, math.inf), m))
    seeds = {method: _seeds(min((results[task][method] for task in tasks), key=len)) for method in methods}
    lines = [f"### {group}: mean ranks over {len(tasks)} tasks", ""]
    lines.append(f"| method | seeds | {' | '.join(f'cost {cost:.3g}' for cost in costs)} |")
    lines.append("|---|---|" + "---|" * len(costs))
    for method in methods:
        cells = [f"{one[method]:.2f}" if method in one else "" for one in ranks]
        lines.append(f"| {method} | {seeds[method]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ablation_table(results: Results) -> str:
    """What becomes of the median regret if one thing is done otherwise, on the seeds that both have run."""
    lines = []
    for method, (base, change) in ABLATIONS.items():
        for problem, methods in results.items():
            before, after = (by_seed(methods.get(name, ()), ABLATION_COST) for name in (base, method))
            if seeds := sorted(before.keys() & after.keys()):
                wins, n, p = sign_test([after[i] for i in seeds], [before[i] for i in seeds])
                medians = (f"{statistics.median(one[i] for i in seeds):.2g}" for one in (before, after))
                cells = [f"{method}: {change}", base, problem, str(len(seeds)), *medians, f"{wins} of {n}, p = {p:.2g}"]
                lines.append(f"| {' | '.join([*cells, _low_shares(methods[base], methods[method], seeds)])} |")
    if not lines:
        return ""
    head = [
        f"### Ablations: median regret at cost {ABLATION_COST:g}",
        "",
        "| method | against | problem | seeds | without | with | lower with | below s = 0.05, without and with |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(head + lines) + "\n"


def _low_shares(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    """Mean shares of what was spent, where both have spent as much."""
    groups = [[run for run in runs if run["seed"] in seeds] for runs in (before, after)]
    if len({run["budget"] for group in groups for run in group}) > 1:
        return ""
    return ", ".join(f"{statistics.mean(run['low_share'] for run in group):.0%}" for group in groups)


def _all_runs(results: Results) -> list[dict[str, Any]]:
    return [run for methods in results.values() for group in methods.values() for run in group]


def put(page: Path, text: str) -> None:
    """Replace what stands between the markers."""
    old = page.read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{page}: expected the lines {BEGIN} and {END}")
    before, after = old[: old.index(BEGIN) + len(BEGIN)], old[old.index(END) :]
    page.write_text(f"{before}\n\n{text}\n{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--published", type=Path, metavar="DIR", help="where the regrets in the tables are kept")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="put the tables between the markers of this page")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw a figure for each problem with new results")
    args = parser.parse_args()
    results = load(args.results, args.published)
    if not results:
        raise SystemExit(f"{args.results}: no finished runs; run benchmarks/regret.py first")
    text = report(results, args.figures, args.out, load(args.results, None))
    if args.published:
        publish(results, args.published)
    if args.out:
        put(args.out, text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
