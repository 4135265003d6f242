"""What must hold of the regrets: against the best rival, where low fidelity lies, and by rank on measured curves."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from _common import Bar, at_most

from takg.problems import PROBLEMS
from takg.problems.catalogue import GROUPS

REACHED = 1e-5  # a regret below this counts as none
COSTS = (5.0, 10.0)  # on the paper's problems
FULL_BUDGET = 20.0
SHARES = (0.1, 1 / 3, 1.0)  # of it, at which methods are ranked
FULL_FIDELITY = ("random", "ei", "kg", "dkg", "optuna_tpe", "optuna_gp")
TO_BEAT = ("hyperband", "qmfkg", "logei_cheap")  # wherever low fidelity lies or values are noisy
UNINFORMATIVE = ("mute", "static")
MOST_WORSE, MOST_LOW = 1.2, 0.1

Result = dict[str, Any]


def regret_at(result: Result, cost: float) -> float | None:
    """Of the last recommendation that was paid for, infinite if the first was not yet.

    None if the run was to stop earlier, or was stopped, and not for want of suggestions.
    """
    if cost > min(result["cost"], result["budget"]) and not result["is_exhausted"]:
        return None
    regret = math.inf
    for point in result["curve"]:
        if point["cost"] > cost:
            break
        regret = point["regret"]
    return regret


def median_at(results: Iterable[Result], cost: float) -> float | None:
    found = [regret for one in results if (regret := regret_at(one, cost)) is not None]
    return statistics.median(found) if found else None


def bars_of(results: Sequence[Result], problems: Sequence[str], budget: float) -> list[Bar]:
    """All that can be told within the budget on these problems."""
    bars: list[Bar] = []
    for problem in problems:
        here = [one for one in results if one["problem"] == problem]
        if problem in PROBLEMS:
            bars += _against_the_best(problem, here, budget)
        if problem in (*GROUPS["lying"], *GROUPS["noisy"]) and budget >= FULL_BUDGET:
            bars += _where_values_mislead(problem, here)
        low = [one["low_share"] for one in here if one["method"] == "takg_zero"]
        if problem in UNINFORMATIVE and low:
            bars.append(at_most(f"{problem}: share of takg_zero below s = 0.05", statistics.mean(low), MOST_LOW))
    return bars + _by_rank(results, problems, budget)


def medians_at(results: Sequence[Result], cost: float, *, least: float = 0.0) -> dict[str, float]:
    """Of each method that got there, batches aside: their money buys eight times as much."""
    methods = dict.fromkeys(one["method"] for one in results if "batch" not in one["method"])
    found = {method: median_at((one for one in results if one["method"] == method), cost) for method in methods}
    return {method: max(value, least) for method, value in found.items() if value is not None}


def mean_ranks(results: Sequence[Result], problems: Sequence[str], cost: float) -> dict[str, float]:
    """Of takg and each rival that has run on all of the problems, by the median regret; ties count against takg."""
    medians = [
        _ours_and_rivals(medians_at([one for one in results if one["problem"] == problem], cost, least=REACHED))
        for problem in problems
    ]
    everywhere = [method for method in (medians[0] if medians else {}) if all(method in one for one in medians)]
    return {method: statistics.mean(_rank(method, one, everywhere) for one in medians) for method in everywhere}


def _rank(method: str, medians: Mapping[str, float], methods: Sequence[str]) -> int:
    rivals = [medians[other] for other in methods if other != method]
    ours = medians[method]
    return 1 + sum(value <= ours if method == "takg" else value < ours for value in rivals)


def _ours_and_rivals(medians: Mapping[str, float]) -> dict[str, float]:
    """Variants of takg would rank beside it."""
    return {method: value for method, value in medians.items() if method == "takg" or not method.startswith("takg")}


def _against_the_best(problem: str, here: Sequence[Result], budget: float) -> list[Bar]:
    """Our median regret against a tenth of the best rival's."""
    bars = []
    for cost in COSTS:
        medians = _ours_and_rivals(medians_at(here, cost))
        value = medians.pop("takg", None)
        if medians and cost <= budget:
            best = min(medians, key=lambda rival: medians[rival])
            name = f"{problem}: median regret at cost {cost:g} against a tenth of the best rival's ({best})"
            bars.append(at_most(name, value, max(REACHED, medians[best] / 10)))
    return bars


def _where_values_mislead(problem: str, here: Sequence[Result]) -> list[Bar]:
    medians = medians_at(here, FULL_BUDGET, least=REACHED)
    value, bars = medians.get("takg"), []
    if full := {method: medians[method] for method in FULL_FIDELITY if method in medians}:
        best = min(full, key=lambda method: full[method])
        name = f"{problem}: median regret at cost {FULL_BUDGET:g} against 1.2 times the best at full fidelity ({best})"
        bars.append(at_most(name, value, MOST_WORSE * full[best]))
    for rival in TO_BEAT:
        if rival in medians:
            name = f"{problem}: median regret at cost {FULL_BUDGET:g} against {rival}"
            bars.append(at_most(name, value, medians[rival]))
    return bars


def _by_rank(results: Sequence[Result], problems: Sequence[str], budget: float) -> list[Bar]:
    """On each group of measured curves, our mean rank against the lowest of the rivals'."""
    bars = []
    for group in ("taskset", "lcbench"):
        if not set(GROUPS[group]) <= set(problems) or budget < FULL_BUDGET:
            continue
        for share in SHARES:
            ranks = mean_ranks(results, GROUPS[group], share * FULL_BUDGET)
            ours = ranks.pop("takg", None)
            if ranks:
                best = min(ranks, key=lambda method: ranks[method])
                name = f"{group}: mean rank at cost {share * FULL_BUDGET:.3g} below the best rival's ({best})"
                bars.append(Bar(name, ours, ranks[best], ours is not None and ours < ranks[best]))
    return bars
