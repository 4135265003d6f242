"""Maximise an acquisition function over x, s and the kept fractions, for new runs and runs to be continued.

The problems of all restarts, of the basket and of the cold start are one batch. Two methods with one interface:
`sample_average` fixes the draws and uses a batched quasi-Newton method on log VOI - log cost; `stochastic` is the
paper's projected stochastic gradient ascent with fresh draws and Robbins-Monro steps (Theorem 2).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from takg.acquisition import Acquisition, Valuation
from takg.errors import InputError
from takg.numerics import minimise, sobol_points, threads_for
from takg.optim._region import Choice, Region, Runs, runs_of
from takg.optim._screen import basket_starts, best_shares, cold_starts, log_value, reach, scores, spread_out

METHODS = ("sample_average", "stochastic")
_GLANCE_SAMPLES, _ROUGH_OUTCOMES = 5, 20  # hyperparameter samples of a glance, and outcomes over all of them
# From so many rows on a look takes its time, places to look at get fewer, and the samples of the hyperparameters differ
# so little that a few serve a first look, and a few more an ascent.
_MANY_ROWS, _FEWEST_SAMPLES, _SOME_SAMPLES, _FEWEST_PASSES = 500, 3, 4, 12
_SHARE_ROUGH, _SHARE_FINE = 0.3, 0.25  # of the passes of an ascent in stages
_WARM = 4  # of the runs that can be continued, the best at a glance climb
_HILLS, _CLIMBERS, _LAST = 8, 4, 3  # starts that are looked at again after the first stage, go on, reach the last
_FINER = 4  # as many draws tell which of them do
_TOLERANCE, _FIRST_MOVE = 1e-4, 0.3  # on the slope of log value, and of the first step, in units of reach
_FLAT = 1e-2  # slope from which the first stages of an ascent do not go on
_FINAL_POLISH = 5  # Newton passes of the inner problems in the last valuation
_FINALISTS = 3  # ends that are valued with more draws
_SNAPPED = 8  # ends at most that are compared by what can be run next to them
_KEPT = 0.5  # share of the highest value that what can be run should have
_ROUNDING = 1e-9  # by which what can be run may miss where a run stands
_TINY = 1e-300  # keeps quotients of gradients that vanish finite
_SCALING, _FIRST_STEP, _LEAST_SIZE = 8, 0.1, 1e-3  # estimates that set the stochastic steps, and their limits

Basket = tuple[tuple[Tensor, Tensor], ...]
Source = tuple[int | None, ...]
Snap = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""x (q, d), S (q, l, m) and where runs stand (q, m), NaN for new ones, to what can really be run next to it:
(k, q, d), (k, q, l, m)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What to evaluate next, and why."""

    x: Tensor  # (q, d)
    S: Tensor  # (q, l, m), fidelities to keep; the last is the one to run to
    source: tuple[int | None, ...]  # for each evaluation, the basket entry that it continues, or None
    value: float
    standard_error: float
    voi: float
    cost: float
    is_converged: bool  # the ascent that led here ended at a stationary point
    unconverged: int  # inner problems of the last valuation that were not solved to tolerance
    problem_values: tuple[float, ...]  # the best value of each basket entry, then that of the cold start
    history: Tensor  # of the best restart, value after each pass (stochastic: gradient norm)
    winners: Tensor  # (k, p), good points to start from next time
    runners_up: tuple["Suggestion", ...] = ()  # other hills, the highest first

    @property
    def s(self) -> Tensor:
        """max S, (q, m)."""
        return self.S[:, -1]


class _Starts(NamedTuple):
    z: Tensor  # (B, q p)
    runs: Runs
    looker: Tensor  # (B,), through which of the glances each climbs at first; -1 if it does not
    score: Tensor  # (B,), of those that do not


class _Ascent(NamedTuple):
    z: Tensor  # (B, q p)
    value: Tensor  # (B,), as the ascent saw it
    is_converged: Tensor  # (B,)
    history: Tensor  # (B, passes)


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
        effort = min(1.0, _MANY_ROWS / n)
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
    ends = _ascend(acquisition, region, starts, settings, seed, glances)
    sources: list[Source] = [(j,) for j in range(len(basket))]
    sources += [(None,)] * (len(starts.z) - len(basket))
    return _best(acquisition, region, ends, starts.runs, sources, snap, settings, seed)


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
    starts = _Starts(
        (start + nudge).clamp(lower, upper), runs, torch.zeros(B, dtype=torch.long), torch.zeros(B, dtype=torch.float64)
    )
    ends = _ascend(acquisition, region, starts, settings, seed, _glances(acquisition)[:1])
    best = _best(acquisition, region, ends, runs, [tuple(source)] * B, snap, settings, seed)
    return dataclasses.replace(best, problem_values=chosen[0].problem_values, winners=chosen[0].winners)


def _starts(
    acquisition: Acquisition,
    region: Region,
    seed: int,
    basket: Basket,
    settings: _Settings,
    winners: Tensor | None,
    glances: Sequence[Acquisition],
) -> _Starts:
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
    return _Starts(
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
    H, has_many = acquisition.post.theta.H, acquisition.post.n > _MANY_ROWS
    few = min(_FEWEST_SAMPLES if has_many else _GLANCE_SAMPLES, H)
    fresh = acquisition.redrawn((acquisition.simulator.seed + 15_485_863) % 2**31)
    parts = [slice(first, first + few) for first in ((0,) if has_many else (0, few)) if first + few <= H]
    return tuple(fresh.thinned(part, draws=math.ceil(_ROUGH_OUTCOMES / few), polish=1) for part in parts)


def _ascend(
    acquisition: Acquisition,
    region: Region,
    starts: _Starts,
    settings: _Settings,
    seed: int,
    glances: Sequence[Acquisition],
) -> _Ascent:
    if settings.method == "stochastic":
        return _stochastic(acquisition, region, starts.z, starts.runs, settings.passes, seed)
    if settings.in_stages:
        return _in_stages(acquisition, region, starts, settings.passes, glances)
    return _sample_average(acquisition, region, starts.z, starts.runs, settings.passes)


def _in_stages(
    acquisition: Acquisition,
    region: Region,
    starts: _Starts,
    passes: int,
    glances: Sequence[Acquisition],
) -> _Ascent:
    """Climb roughly from most starts, as seen by whom each was found, then properly from the best few, then finely.

    Many starts are needed to find the right hill, and few to climb it; where its top is takes more draws to say.
    """
    rough, fine = int(_SHARE_ROUGH * passes), int(_SHARE_FINE * passes)
    if acquisition.post.n > _MANY_ROWS:
        simulator = acquisition.simulator
        acquisition = acquisition.thinned(slice(_SOME_SAMPLES), draws=simulator.draws, polish=simulator.polish)
    z, runs, value = starts.z.clone(), starts.runs, starts.score.clone()
    is_converged = torch.zeros(len(z), dtype=torch.bool)
    history = torch.zeros(len(z), passes, dtype=torch.float64)

    def climb(kind: Acquisition, who: Tensor, begin: int, length: int, tolerance: float = _FLAT) -> None:
        part = _sample_average(kind, region, z[who], _members(runs, who), length, tolerance=tolerance)
        z[who], value[who], is_converged[who] = part.z, part.value, part.is_converged
        history[who, begin : begin + length] = part.history

    if rough:
        for i, glance in enumerate(glances):
            if (who := (starts.looker == i).nonzero()[:, 0]).numel():
                climb(glance, who, 0, rough)
    else:
        value = scores(acquisition, region, z, runs)
    simulator = acquisition.simulator
    finely = acquisition.redrawn(simulator.seed, draws=_FINER * simulator.draws)
    hills = spread_out(acquisition, region, value, z, _HILLS)
    score = scores(finely, region, z[hills], _members(runs, hills))  # few draws would pick the wrong ones
    value = torch.minimum(value, score.amin())  # the others were lower, if more draws did not say how much
    value[hills] = score
    climbers = hills[spread_out(acquisition, region, score, z[hills], _CLIMBERS)]
    z[climbers] = best_shares(acquisition, region, z[climbers], _members(runs, climbers))
    climb(acquisition, climbers, rough, passes - rough - fine)
    if fine:
        highest = climbers[value[climbers].topk(min(_LAST, len(climbers))).indices]
        climb(finely, highest, passes - fine, fine, _TOLERANCE)
    return _Ascent(z, value, is_converged, history.cummax(1).values)


def _members(runs: Runs, who: Tensor) -> Runs:
    return Runs(runs.x[who], runs.s[who])


def _sample_average(
    acquisition: Acquisition,
    region: Region,
    starts: Tensor,
    runs: Runs,
    passes: int,
    *,
    tolerance: float = _TOLERANCE,
) -> _Ascent:
    """Fixed draws, all problems in one batched quasi-Newton ascent of log VOI - log cost.

    Each variable of each problem is measured in units of its reach: a step of 1 then means as much next to a known
    x as far away, and curvature is learnt in a few passes. Inner minima are looked for at the start and then followed
    from the best point of each problem so far.
    """
    lower, upper = region.bounds(runs)
    z = starts.clamp(lower, upper)
    unit = reach(acquisition, region, z)
    history = torch.full((len(z), passes), -math.inf, dtype=torch.float64)
    best = torch.full((len(z),), -math.inf, dtype=torch.float64)
    minimisers: Tensor | None = None  # (H, B, M, J, d), at the best
    spent = 0

    def objective(points: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal spent, minimisers
        at = (points * unit[index]).clamp(lower[index], upper[index]).requires_grad_()
        near = None if minimisers is None else minimisers[:, index]
        found = log_value(acquisition, region, at, _members(runs, index), near)
        (gradient,) = torch.autograd.grad(found.value.sum(), at)
        value = found.value.detach()
        if minimisers is None:
            minimisers = found.minimisers
        else:
            is_better = value > best[index]
            minimisers[:, index[is_better]] = found.minimisers[:, is_better]
        best[index] = torch.maximum(best[index], value)
        history[index, spent] = value
        spent += 1
        return -value, -gradient * unit[index]

    low, high = lower / unit, upper / unit
    result = minimise(objective, z / unit, low, high, max_passes=passes, tolerance=tolerance, first_step=_FIRST_MOVE)
    z = (result.x * unit).clamp(lower, upper)
    z = torch.where(result.x >= high, upper, torch.where(result.x <= low, lower, z))  # free of rounding
    return _Ascent(z, -result.value, result.converged, history.cummax(1).values.exp())


def _stochastic(
    acquisition: Acquisition, region: Region, starts: Tensor, runs: Runs, passes: int, seed: int
) -> _Ascent:
    """z <- projection(z + a_t G), G an unbiased estimate of the gradient of VOI / cost, a_t = a / (t + 1)^0.7.

    The first estimates set the scale a of each variable's steps, which is a constant from then on: the steps sum to
    infinity, their squares do not. A scale for each, since kept fractions matter far less than x: with a common one
    they would hardly move.
    """
    lower, upper = region.bounds(runs)
    z = starts.clamp(lower, upper)
    norms = torch.zeros(len(z), passes, dtype=torch.float64)
    scale, squares = torch.ones_like(z), torch.zeros_like(z)
    average, value, weight = z.clone(), torch.zeros(len(z), dtype=torch.float64), 0.0
    for t in range(passes):
        fresh = acquisition.redrawn((seed + 7919 * (t + 1)) % 2**31)
        z = z.detach().requires_grad_()
        choice = region.decode(z, runs)
        ratio = fresh.gain(choice.x, choice.S).value / fresh.batch_cost(choice.x, choice.S, runs.s)
        (gradient,) = torch.autograd.grad(ratio.sum(), z)
        z = z.detach()
        if t < _SCALING:
            squares = squares + gradient**2
            size = (squares / (t + 1)).sqrt()
            least = _LEAST_SIZE * size.amax(-1, keepdim=True)
            scale = _FIRST_STEP / torch.maximum(size, least).clamp_min(_TINY)
        norms[:, t] = ((z + gradient * scale).clamp(lower, upper) - z).norm(dim=-1)
        z = (z + scale * gradient / (t + 1) ** 0.7).clamp(lower, upper)
        if t >= passes // 2:  # the mean of the late iterates has less noise than the last
            weight += 1.0
            average = average + (z - average) / weight
            value = value + (ratio.detach() - value) / weight
    return _Ascent(average, value, norms[:, -1] < 0.1 * norms[:, 0].clamp_min(_TINY), norms)


def _best(
    acquisition: Acquisition,
    region: Region,
    ends: _Ascent,
    runs: Runs,
    sources: Sequence[Source],
    snap: Snap | None,
    settings: _Settings,
    seed: int,
) -> Suggestion:
    """Value the highest ends with more draws, snap the best, and say what each problem was worth."""
    exact = acquisition.redrawn((seed + 104_729) % 2**31, draws=settings.final_draws, polish=_FINAL_POLISH)
    values = ends.value.exp() if settings.method == "sample_average" else ends.value.clone()
    high = values.topk(min(_FINALISTS, len(values))).indices
    choice = region.decode(ends.z[high], _members(runs, high))
    with torch.no_grad():
        valuation = exact.evaluate_joint(choice.x, choice.S.clamp(0, 1), s_from=runs.s[high])
    values[high] = valuation.value
    place = int(valuation.value.argmax())
    winner = int(high[place])
    x, S, one = choice.x[place], choice.S[place], _member(valuation, place)
    if snap is not None:
        winner, x, S, one = _best_snapped(exact, region, snap, ends.z, runs, values)
    is_cold = torch.tensor([all(j is None for j in source) for source in sources])
    in_basket = {
        source[0]: float(value) for source, value in zip(sources, values, strict=True) if source[0] is not None
    }
    valued = torch.zeros_like(is_cold)
    valued[high] = True
    told = is_cold & valued if (is_cold & valued).any() else is_cold  # few draws flatter some of many
    best_cold = float(values[told].max()) if told.any() else -math.inf
    best = Suggestion(
        x=x,
        S=S,
        source=sources[winner],
        value=float(one.value),
        standard_error=float(one.standard_error),
        voi=float(one.voi),
        cost=float(one.cost),
        is_converged=bool(ends.is_converged[winner]),
        unconverged=one.unconverged,
        problem_values=(*(in_basket[j] for j in sorted(in_basket)), best_cold),
        history=ends.history[winner],
        winners=ends.z[is_cold][values[is_cold].argsort(descending=True)[:4]],
    )
    if not settings.spares:
        return best
    values[winner] = math.inf  # the first to be chosen
    hills = spread_out(acquisition, region, values, ends.z, 1 + settings.spares, is_strict=True)[1:]
    others = [_runner_up(acquisition, region, ends, runs, sources, snap, best, int(i), float(values[i])) for i in hills]
    return dataclasses.replace(best, runners_up=tuple(sorted(others, key=lambda one: -one.value)))


def _runner_up(
    acquisition: Acquisition,
    region: Region,
    ends: _Ascent,
    runs: Runs,
    sources: Sequence[Source],
    snap: Snap | None,
    best: Suggestion,
    i: int,
    value: float,
) -> Suggestion:
    """The end of another ascent, by the value that the ascent saw; snapped to what is nearest."""
    run = Runs(runs.x[i], runs.s[i])
    choice = region.decode(ends.z[i : i + 1], _members(runs, torch.tensor([i])))
    x, S = choice.x[0], choice.S[0].clamp(0, 1)
    if snap is not None:
        xs, Ss = _possible(acquisition, snap, x, S, run)
        x, S = xs[0], Ss[0]
    with torch.no_grad():
        cost = float(acquisition.batch_cost(x[None], S[None], run.s[None]))
    return dataclasses.replace(
        best,
        x=x,
        S=S,
        source=sources[i],
        value=value,
        standard_error=math.inf,
        voi=value * cost,
        cost=cost,
        is_converged=bool(ends.is_converged[i]),
        history=ends.history[i],
    )


def _best_snapped(
    acquisition: Acquisition, region: Region, snap: Snap, z: Tensor, runs: Runs, values: Tensor
) -> tuple[int, Tensor, Tensor, Valuation]:
    """Which end (B, q p) is worth the most as what can be run next to it, and that: x, S and its value.

    What can be run may be worth nothing, where a whole epoch more or less is what was seen already. Then the other ends
    are tried, from the highest value on, until one keeps what was promised or none promises more.
    """

    def run_next_to(i: int) -> tuple[int, Tensor, Tensor, Valuation]:
        choice = region.decode(z[i : i + 1], _members(runs, torch.tensor([i])))
        return i, *_snapped(acquisition, snap, choice.x[0], choice.S[0], Runs(runs.x[i], runs.s[i]))

    first, *others = values.topk(min(_SNAPPED, len(values))).indices.tolist()
    best = run_next_to(first)
    for i in others:
        if best[3].value >= min(values[i], _KEPT * values[first]):
            break
        best = max(best, run_next_to(i), key=lambda one: one[3].value)
    return best


def _snapped(
    acquisition: Acquisition, snap: Snap, x: Tensor, S: Tensor, runs: Runs
) -> tuple[Tensor, Tensor, Valuation]:
    """The best of what can be run next to (x, S), by value."""
    xs, Ss = _possible(acquisition, snap, x, S, runs)
    with torch.no_grad():
        valuation = acquisition.evaluate_joint(xs, Ss, s_from=runs.s.expand(len(xs), *runs.s.shape))
    best = int(valuation.value.argmax())
    return xs[best], Ss[best], _member(valuation, best)


def _possible(acquisition: Acquisition, snap: Snap, x: Tensor, S: Tensor, runs: Runs) -> tuple[Tensor, Tensor]:
    """What can be run next to (x, S), the nearest first; runs to be continued keep their x and do go on."""
    xs, Ss = snap(x, S, runs.s)
    if xs.ndim != 3 or Ss.ndim != 4 or len(xs) == 0 or xs.shape[1:] != x.shape or Ss.shape != (len(xs), *S.shape):
        raise InputError(
            f"snap returned shapes {tuple(xs.shape)} and {tuple(Ss.shape)}; expected k >= 1 neighbours, "
            f"(k, {', '.join(map(str, x.shape))}) and (k, {', '.join(map(str, S.shape))})"
        )
    is_new = runs.is_new  # (q,)
    gap = Ss - runs.s[:, None, :]  # (k, q, l, m), NaN for new runs
    is_there = (xs - runs.x).abs().amax(-1) <= _ROUNDING
    is_fixed = torch.ones(gap.shape[-1], dtype=torch.bool)
    is_fixed[list(acquisition.trace_dims)] = False  # a run cannot change what it has no trace of
    is_there &= (gap[..., is_fixed].abs() <= _ROUNDING).all((-2, -1))
    goes_on = is_there & (gap >= -_ROUNDING).all((-2, -1)) & (gap > _ROUNDING).any((-2, -1))
    is_possible = (is_new | goes_on).all(-1)
    if not is_possible.any():
        raise InputError(f"snap returned {len(xs)} neighbours, none of which goes on from s={runs.s[~is_new].tolist()}")
    return xs[is_possible], Ss[is_possible]


def _member(valuation: Valuation, i: int) -> Valuation:
    """One entry of a batch."""
    return valuation._replace(
        value=valuation.value[i],
        standard_error=valuation.standard_error[i],
        voi=valuation.voi[i],
        cost=valuation.cost[i],
    )
