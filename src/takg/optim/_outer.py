"""Maximise an acquisition function over x, s and the kept fractions, for new runs and runs to be continued.

The problems of all restarts, of the basket and of the cold start are one batch: screened for starts (`_screen.py`),
climbed (`_ascend.py`), and their ends compared as what can be run (`_ends.py`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from takg.acquisition import Acquisition
from takg.errors import InputError
from takg.numerics import sobol_points, threads_for
from takg.optim._ascend import MANY_ROWS, METHODS, Starts, ascend
from takg.optim._ends import Snap, Source, Suggestion, best_end
from takg.optim._region import Choice, Region, Runs, runs_of
from takg.optim._screen import basket_starts, cold_starts, reach

_GLANCE_SAMPLES, _ROUGH_OUTCOMES = 5, 20  # hyperparameter samples of a glance, and outcomes over all of them
_FEWEST_SAMPLES, _FEWEST_PASSES = 3, 12  # likewise, and passes of an ascent, where there are many rows
_WARM = 4  # of the runs that can be continued, the best at a glance climb

Basket = tuple[tuple[Tensor, Tensor], ...]


def maximise(
    acquisition: Acquisition,
    region: Region,
    *,
    seed: int,
    basket: Sequence[tuple[Tensor, Tensor]] = (),
    q: int = 1,
    method: str = "sample_average",
    restarts: int = 18,
    raw: int = 432,
    passes: int = 24,
    winners: Tensor | None = None,
    snap: Snap | None = None,
    final_draws: int = 32,
    in_stages: bool = True,
    spares: int = 0,
) -> Suggestion:
    """The most valuable evaluation (or q of them, chosen jointly) per unit of cost.

    Where `acquisition` is about some designs only (`among`), x is one of them.

    Args:
        basket: (x, s) of runs that can be continued; each is one more problem, with x fixed and s growing.
        q: how many evaluations to choose together; their cost is that of the dearest.
        restarts: ascents of the cold-start problem; a basket entry has one at most.
        raw: points at which the cold-start problem is screened for restarts.
        passes: evaluations of the batch that an ascent may take.
        in_stages: give up the lower ascents of `sample_average` on the way, and take fewer restarts, points and passes
            beyond 500 rows; without it all run to the end.
        winners: `Suggestion.winners` of the last call.
        snap: gives what can be run next to a point; the best of these by value is suggested.
        final_draws: simulated outcomes for the valuation that decides between the ends of the ascents.
        spares: runners-up to name at most, where many are to be evaluated at a time. Each by itself is worth what it
            says, but they were not chosen for each other. Only with q=1.
    """
    if method not in METHODS:
        raise InputError(f"method={method!r}: expected one of {METHODS}")
    if q < 1:
        raise InputError(f"q={q}: expected at least one evaluation")
    if spares < 0 or (spares and q > 1):
        raise InputError(f"spares={spares}, q={q}: expected at least 0, and 0 where q is more than 1")
    if restarts < 1 or raw < 1 or passes < 1:
        raise InputError(f"restarts={restarts}, raw={raw}, passes={passes}: expected at least 1 of each")
    if region.d != acquisition.post.model.d or region.m != acquisition.post.model.m:
        model = acquisition.post.model
        raise InputError(f"region has d={region.d}, m={region.m}; expected d={model.d}, m={model.m} as the model")
    if set(region.trace_dims) != set(acquisition.trace_dims):
        raise InputError(f"region.trace_dims={region.trace_dims}: expected {acquisition.trace_dims} as acquisition")
    if winners is not None and (winners.ndim != 2 or winners.shape[1] != region.p or winners.dtype != torch.float64):
        raise InputError(f"winners has shape {tuple(winners.shape)}, {winners.dtype}; expected (k, {region.p})")
    settings = _Settings(method, restarts, raw, passes, final_draws, in_stages, spares)
    if in_stages and method == "sample_average":
        settings = settings.for_rows(acquisition.post.n)
    with threads_for(acquisition.post.n):
        if q == 1:
            return _maximise_alone(acquisition, region, settings, seed, tuple(basket), winners, snap)
        return _maximise_jointly(acquisition, region, settings, seed, tuple(basket), q, winners, snap)


class _Settings(NamedTuple):
    method: str
    restarts: int
    raw: int
    passes: int
    final_draws: int
    in_stages: bool
    spares: int

    def for_rows(self, n: int) -> "_Settings":
        """Less effort where each look takes long."""
        effort = min(1.0, MANY_ROWS / n)
        return self._replace(
            restarts=math.ceil(effort * self.restarts),
            raw=math.ceil(effort * self.raw),
            passes=min(self.passes, max(_FEWEST_PASSES, math.ceil(effort * self.passes))),
        )


def _maximise_alone(
    acquisition: Acquisition,
    region: Region,
    settings: _Settings,
    seed: int,
    basket: Basket,
    winners: Tensor | None,
    snap: Snap | None,
) -> Suggestion:
    glances = _glances(acquisition)
    starts = _starts(acquisition, region, seed, basket, settings, winners, glances)
    sources: list[Source] = [(j,) for j in range(len(basket))]
    sources += [(None,)] * (len(starts.z) - len(basket))
    return _climbed(acquisition, region, starts, sources, snap, settings, glances, seed)


def _maximise_jointly(
    acquisition: Acquisition,
    region: Region,
    settings: _Settings,
    seed: int,
    basket: Basket,
    q: int,
    winners: Tensor | None,
    snap: Snap | None,
) -> Suggestion:
    """Choose one after the other, each with those before it pending; then improve all of them together.

    The first stage decides which runs are continued, the second moves every x and S of the batch at once.
    """
    growing, left = acquisition, dict(enumerate(basket))
    chosen: list[Suggestion] = []
    source: list[int | None] = []
    for i in range(q):
        entries = list(left)
        entry_runs = tuple(left.values())
        one = _maximise_alone(growing, region, settings, seed + i, entry_runs, winners, None)
        index = one.source[0]
        source.append(None if index is None else entries[index])
        if index is not None:
            del left[entries[index]]
        chosen.append(one)
        growing = growing.with_pending(one.x, one.S)
    x = torch.stack([one.x[0] for one in chosen])[None]  # (1, q, d)
    S = torch.stack([one.S[0] for one in chosen])[None]
    B = math.ceil(settings.restarts / 2)  # all on one hill
    runs = region.new_runs(B, q)
    for i, j in enumerate(source):
        if j is not None:
            runs.x[:, i], runs.s[:, i] = basket[j]
        elif acquisition.simulator.among is not None:
            runs.x[:, i] = x[:, i]
    start = region.encode(Choice(x.expand(B, -1, -1), S.expand(B, -1, -1, -1)), runs)
    nudge = 2 * reach(acquisition, region, start) * (sobol_points(B, q * region.p, seed=seed) - 0.5)
    nudge[0] = 0.0
    lower, upper = region.bounds(runs)
    starts = Starts(
        (start + nudge).clamp(lower, upper), runs, torch.zeros(B, dtype=torch.long), torch.zeros(B, dtype=torch.float64)
    )
    sources: list[Source] = [tuple(source)] * B
    best = _climbed(acquisition, region, starts, sources, snap, settings, _glances(acquisition)[:1], seed)
    return dataclasses.replace(best, problem_values=chosen[0].problem_values, winners=chosen[0].winners)


def _climbed(
    acquisition: Acquisition,
    region: Region,
    starts: Starts,
    sources: Sequence[Source],
    snap: Snap | None,
    settings: _Settings,
    glances: Sequence[Acquisition],
    seed: int,
) -> Suggestion:
    """The best of where all starts lead."""
    ends = ascend(
        acquisition,
        region,
        starts,
        method=settings.method,
        passes=settings.passes,
        in_stages=settings.in_stages,
        glances=glances,
        seed=seed,
    )
    return best_end(
        acquisition,
        region,
        ends,
        starts.runs,
        sources,
        snap,
        final_draws=settings.final_draws,
        spares=settings.spares,
        seed=seed,
    )


def _starts(
    acquisition: Acquisition,
    region: Region,
    seed: int,
    basket: Basket,
    settings: _Settings,
    winners: Tensor | None,
    glances: Sequence[Acquisition],
) -> Starts:
    """Screened starts, the best one of each basket entry, then `restarts` of the cold start."""
    cold, looker = cold_starts(
        acquisition,
        region,
        glances=glances,
        count=settings.restarts,
        raw=settings.raw,
        winners=winners,
        among=_not_in(basket, acquisition.simulator.among),
        seed=seed,
    )
    new = region.new_runs(len(cold), 1)
    if acquisition.simulator.among is not None:  # x is one of them, and does not move
        new = Runs(cold[:, None, : region.d], new.s)
    old = runs_of(basket, region)
    warm, score = basket_starts(glances[0], region, old)
    climbs = torch.zeros(len(warm), dtype=torch.bool)
    climbs[score.topk(min(_WARM, len(warm))).indices] = True
    return Starts(
        z=torch.cat([warm, cold]),
        runs=Runs(torch.cat([old.x, new.x]), torch.cat([old.s, new.s])),
        looker=torch.cat([climbs.long() - 1, looker]),
        score=torch.cat([score, score.new_zeros(len(cold))]),
    )


def _not_in(basket: Basket, among: Tensor | None) -> Tensor | None:
    """The designs (k, d) that no run in the basket has, if any: to go on with one costs less than to begin."""
    if among is None or not basket:
        return among
    held = torch.stack([x for x, _ in basket])
    others = among[~(among[:, None] == held).all(-1).any(-1)]
    return others if len(others) else among


def _glances(acquisition: Acquisition) -> tuple[Acquisition, ...]:
    """Few samples, few outcomes; two of different samples, since now and then a single sample of ten makes a hill.

    The draws are others: a start that they flatter is found out by the next stage. With many rows, one has to do.
    """
    H, has_many = acquisition.post.theta.H, acquisition.post.n > MANY_ROWS
    few = min(_FEWEST_SAMPLES if has_many else _GLANCE_SAMPLES, H)
    fresh = acquisition.redrawn((acquisition.simulator.seed + 15_485_863) % 2**31)
    parts = [slice(first, first + few) for first in ((0,) if has_many else (0, few)) if first + few <= H]
    return tuple(fresh.thinned(part, draws=math.ceil(_ROUGH_OUTCOMES / few), polish=1) for part in parts)
