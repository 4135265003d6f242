"""Climb the acquisition function from many starts at once; docs/paper.md#maximiser.

`sample_average` fixes the draws and uses a batched quasi-Newton method on log VOI - log cost, from most starts only as
far as it takes to see which hills are the highest; `stochastic` is the paper's projected stochastic gradient ascent
with fresh draws and Robbins-Monro steps (Theorem 2).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from takg.acquisition import Acquisition
from takg.numerics import minimise
from takg.optim._region import Region, Runs
from takg.optim._screen import best_shares, log_value, reach, scores, spread_out

METHODS = ("sample_average", "stochastic")
MANY_ROWS = 500  # from so many on a look takes its time
_SOME_SAMPLES = 4  # of the hyperparameters that serve an ascent then: with so many rows they differ little
_SHARE_ROUGH, _SHARE_FINE = 0.3, 0.25  # of the passes of an ascent in stages
_HILLS, _CLIMBERS, _LAST = 8, 4, 3  # starts that are looked at again after the first stage, go on, reach the last
_FINER = 4  # as many draws tell which of them do
_TOLERANCE, _FIRST_MOVE = 1e-4, 0.3  # on the slope of log value, and of the first step, in units of reach
_FLAT = 1e-2  # slope from which the first stages of an ascent do not go on
_TINY = 1e-300  # keeps quotients of gradients that vanish finite
_SCALING, _FIRST_STEP, _LEAST_SIZE = 8, 0.1, 1e-3  # estimates that set the stochastic steps, and their limits


class Starts(NamedTuple):
    """Where B ascents begin."""

    z: Tensor  # (B, q p)
    runs: Runs
    looker: Tensor  # (B,), through which of the glances each climbs at first; -1 if it does not
    score: Tensor  # (B,), of those that do not


class Ascent(NamedTuple):
    """Where B ascents ended."""

    z: Tensor  # (B, q p)
    value: Tensor  # (B,), as the ascent saw it; its logarithm inside `_sample_average`
    is_converged: Tensor  # (B,)
    history: Tensor  # (B, passes)


def ascend(
    acquisition: Acquisition,
    region: Region,
    starts: Starts,
    *,
    method: str,
    passes: int,
    in_stages: bool,
    glances: Sequence[Acquisition],
    seed: int,
) -> Ascent:
    """From the starts to where `passes` evaluations of the batch lead; the ends' values are those of VOI / cost."""
    if method == "stochastic":
        return stochastic(acquisition, region, starts.z, starts.runs, passes, seed)
    if in_stages:
        found = _in_stages(acquisition, region, starts, passes, glances)
    else:
        found = _sample_average(acquisition, region, starts.z, starts.runs, passes)
    return found._replace(value=found.value.exp())


def _in_stages(
    acquisition: Acquisition,
    region: Region,
    starts: Starts,
    passes: int,
    glances: Sequence[Acquisition],
) -> Ascent:
    """Climb roughly from most starts, as seen by whom each was found, then properly from the best few, then finely.

    Many starts are needed to find the right hill, and few to climb it; where its top is takes more draws to say.
    """
    rough, fine = int(_SHARE_ROUGH * passes), int(_SHARE_FINE * passes)
    if acquisition.post.n > MANY_ROWS:
        simulator = acquisition.simulator
        acquisition = acquisition.thinned(slice(_SOME_SAMPLES), draws=simulator.draws, polish=simulator.polish)
    z, runs, value = starts.z.clone(), starts.runs, starts.score.clone()
    is_converged = torch.zeros(len(z), dtype=torch.bool)
    history = torch.zeros(len(z), passes, dtype=torch.float64)

    def climb(kind: Acquisition, who: Tensor, begin: int, length: int, tolerance: float = _FLAT) -> None:
        part = _sample_average(kind, region, z[who], runs.of(who), length, tolerance=tolerance)
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
    score = scores(finely, region, z[hills], runs.of(hills))  # few draws would pick the wrong ones
    value = torch.minimum(value, score.amin())  # the others were lower, if more draws did not say how much
    value[hills] = score
    climbers = hills[spread_out(acquisition, region, score, z[hills], _CLIMBERS)]
    z[climbers] = best_shares(acquisition, region, z[climbers], runs.of(climbers))
    climb(acquisition, climbers, rough, passes - rough - fine)
    if fine:
        highest = climbers[value[climbers].topk(min(_LAST, len(climbers))).indices]
        climb(finely, highest, passes - fine, fine, _TOLERANCE)
    return Ascent(z, value, is_converged, history.cummax(1).values)


def _sample_average(
    acquisition: Acquisition,
    region: Region,
    starts: Tensor,
    runs: Runs,
    passes: int,
    *,
    tolerance: float = _TOLERANCE,
) -> Ascent:
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
        found = log_value(acquisition, region, at, runs.of(index), near)
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
    return Ascent(z, -result.value, result.converged, history.cummax(1).values.exp())


def stochastic(acquisition: Acquisition, region: Region, starts: Tensor, runs: Runs, passes: int, seed: int) -> Ascent:
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
    return Ascent(average, value, norms[:, -1] < 0.1 * norms[:, 0].clamp_min(_TINY), norms)
