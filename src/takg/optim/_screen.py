"""Where to start climbing: points of the cube that look valuable at a glance, on different hills.

With little noise an acquisition function is high in narrow places: within a thousandth of a length scale of a known x,
where a second look shows the slope, or at fidelities next to 0. So candidates are laid out on logarithmic scales around
what is known, and steps are measured in units that shrink with the place (`reach`). Few draws see few of the hills; the
lower confidence bound of the target, which needs none, says where else to look.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from takg.acquisition import Acquisition
from takg.gp import FoldedMean, Posterior, folded_target_mean
from takg.numerics import sobol_points
from takg.optim._region import Region, Runs
from takg.optim._spread import FAR, MIDDLE, NEAR, apart, typical_lengthscale

_BESIDE_KNOWN, _BESIDE_LOW = (1e-3, 0.5), (1e-2, 1.0)  # steps from known x and from promising places, in length scales
_SHARE_KNOWN, _SHARE_LOW = 0.6, 0.3  # of the raw points that are beside known x and beside promising places
_LOWEST = 48  # known x that are worth a look beside them, by their mean
_PLACES, _POOL = 12, 128  # promising places, out of at most how many points of either kind
_MOST_OF_POOL = 1024  # designs, where only some can be run, that are looked at for promising ones
_SDS = 2.0  # a place is as promising as its mean less this many sds is low
_ROUNDS, _PARENTS, _MODELS = 2, 32, 8  # of mutants and of transplants
_MOVING = 0.7  # share of the variables in which a mutant differs
_SLOW = 4.0  # what a fidelity or a kept fraction counts for as a distance, in edges of the cube
_NEAREST, _WIDEST = 1e-3, 0.3  # reach along x, in length scales
_LEAST_RAMP, _ALONG = 0.1, 0.3  # reach along a fidelity is a share of it, until it is small
_BASKET_RUNGS, _BASKET_SHARE = (0.1, 0.2, 0.3, 0.4, 0.55, 0.7, 0.85, 1.0), 0.4
_SHARES = (0.05, 0.5, 0.95)  # of the way, that are tried for every fidelity that is kept
_AT_ONCE = 64  # points whose mean or variance is read together
_TINY = 1e-300  # a value of information of 0 has no logarithm


class LogValue(NamedTuple):
    value: Tensor  # (B,), log VOI - log cost
    minimisers: Tensor  # of the inner problems, see `Gain`


def log_value(acquisition: Acquisition, region: Region, z: Tensor, runs: Runs, near: Tensor | None = None) -> LogValue:
    """What is climbed; `near` has the inner minimisers of points next to these."""
    choice = region.decode(z, runs)
    gain = acquisition.gain(choice.x, choice.S, near=near)
    cost = acquisition.batch_cost(choice.x, choice.S, runs.s)
    return LogValue(gain.value.clamp_min(_TINY).log() - cost.log(), gain.minimisers)


def scores(acquisition: Acquisition, region: Region, z: Tensor, runs: Runs) -> Tensor:
    with torch.no_grad():
        return log_value(acquisition, region, z, runs).value


def cold_starts(
    acquisition: Acquisition,
    region: Region,
    *,
    glances: Sequence[Acquisition],
    count: int,
    raw: int,
    winners: Tensor | None,
    among: Tensor | None,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """The best of raw points and, in a few rounds, of mutants of the best of them, spread out: (count, p).

    With them, which of the glances saw each, (count,).

    Args:
        glances: cheap forms of the acquisition function; a point is looked at by one of them, and so are its children.
            They polish inner minima, if only by one pass: without it, hills that are about a better answer next to the
            present one look flat.
        among: (k, d), the designs that a new run can have, where not all of the cube can be run.
    """
    generator = torch.Generator().manual_seed(seed)
    post = glances[0].post
    mean = folded_target_mean(post)
    if among is None:
        known = acquisition.simulator.known
        known = known[torch.cat([mean(part).mean(0) for part in known.split(_AT_ONCE)]).argsort()]
    else:
        known = among[torch.randperm(len(among), generator=generator)[:_MOST_OF_POOL]]
        known = known[torch.cat([_lower_bound(post, mean, part) for part in known.split(_AT_ONCE)]).argsort()]
    z = _raw(acquisition, region, post, mean, known, raw, seed)
    if winners is not None:
        z = torch.cat([z, winners])
    z = _that_exist(acquisition, region, z, among)
    looker = torch.randint(len(glances), (len(z),), generator=generator)
    score = _glanced(glances, looker, region, z)
    shape = (max(1, raw // 2), region.p)
    for _ in range(_ROUNDS):
        best = apart(score, _comparable(acquisition, region, z), _PARENTS, (NEAR,))
        origin = best[torch.arange(shape[0]) % len(best)]
        origin[::2] = _models_of_transplants(best, known, len(origin[::2]))
        parents = z[origin]
        size = torch.rand(shape[0], 1, generator=generator, dtype=torch.float64)
        moves = torch.rand(shape, generator=generator, dtype=torch.float64) < _MOVING
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        children = (parents + reach(acquisition, region, parents) * size * moves * noise).clamp(0, 1)
        children[::2] = _transplants(acquisition, region, parents[::2], known, noise[::2])
        children = _that_exist(acquisition, region, children, among)
        z, looker = torch.cat([z, children]), torch.cat([looker, looker[origin]])
        score = torch.cat([score, _glanced(glances, looker[origin], region, children)])
    found = spread_out(acquisition, region, score, z, count)
    return z[found], looker[found]


def best_shares(acquisition: Acquisition, region: Region, z: Tensor, runs: Runs) -> Tensor:
    """Points (B, q p) with the best of a few choices of what to keep of the trace: their values have several hills."""
    free = region.d + region.m
    if region.p == free:
        return z
    ways = [z]
    for share in _SHARES:
        way = z.reshape(len(z), -1, region.p).clone()
        way[..., free:] = share
        ways.append(way.flatten(1))
    every = Runs(runs.x.repeat(len(ways), 1, 1), runs.s.repeat(len(ways), 1, 1))
    best = scores(acquisition, region, torch.cat(ways), every).reshape(len(ways), -1).argmax(0)
    return torch.stack(ways)[best, torch.arange(len(z))]


def basket_starts(acquisition: Acquisition, region: Region, old: Runs) -> tuple[Tensor, Tensor]:
    """The best of many steps up from where each run stands, (basket, p), and its score: a run has this start only."""
    count, free = len(old.x), region.d + region.m
    rungs = [[rung] * free + [_BASKET_SHARE] * (region.p - free) for rung in _BASKET_RUNGS]
    ladder = torch.tensor(rungs, dtype=torch.float64)  # (rungs, p); the bounds replace x
    runs = Runs(old.x.repeat_interleave(len(ladder), 0), old.s.repeat_interleave(len(ladder), 0))
    z = ladder.repeat(count, 1).clamp(*region.bounds(runs))
    if count == 0:
        return z, z.new_empty(0)
    best = scores(acquisition, region, z, runs).reshape(count, -1).max(-1)
    return z.reshape(count, -1, region.p)[torch.arange(count), best.indices], best.values


def _glanced(glances: Sequence[Acquisition], looker: Tensor, region: Region, z: Tensor) -> Tensor:
    score = z.new_empty(len(z))
    for i, glance in enumerate(glances):
        mine = z[looker == i]
        if len(mine):
            score[looker == i] = scores(glance, region, mine, region.new_runs(len(mine), 1))
    return score


def _that_exist(acquisition: Acquisition, region: Region, z: Tensor, among: Tensor | None) -> Tensor:
    """Points (B, p) at the designs next to them, where not all of the cube can be run."""
    if among is None:
        return z
    unit = typical_lengthscale(acquisition.post)
    nearest = torch.cdist(z[:, : region.d] / unit, among / unit).argmin(-1)
    return torch.cat([among[nearest], z[:, region.d :]], dim=-1)


def _models_of_transplants(best: Tensor, known: Tensor, count: int) -> Tensor:
    """Which points to transplant, another one in every round through the known x: indices out of the best, (count,)."""
    k = torch.arange(count)
    return best[(k + k // min(_LOWEST, len(known))) % min(_MODELS, len(best))]


def _transplants(acquisition: Acquisition, region: Region, models: Tensor, known: Tensor, noise: Tensor) -> Tensor:
    """What was good beside one known x, beside others: as far away, in any direction, at the same fidelities, (k, p).

    Where a step away from a known x shows its slope, the best length of the step is much the same for all of them.
    """
    unit, low = typical_lengthscale(acquisition.post), known[:_LOWEST]
    length = torch.cdist(models[:, : region.d] / unit, known / unit).amin(-1, keepdim=True)
    way = noise[:, : region.d] / noise[:, : region.d].norm(dim=-1, keepdim=True).clamp_min(_TINY)
    x = low[torch.arange(len(noise)) % len(low)] + length * way * unit
    return torch.cat([x, models[:, region.d :]], dim=-1).clamp(0, 1)


def _raw(
    acquisition: Acquisition, region: Region, post: Posterior, mean: FoldedMean, known: Tensor, count: int, seed: int
) -> Tensor:
    """Beside known x, those of the lowest mean first, beside promising places, and all over."""
    places = _promising(acquisition, post, mean, known, min(_POOL, 2 * count), seed)
    known = known[:_LOWEST]
    by_known, by_places = int(_SHARE_KNOWN * count), int(_SHARE_LOW * count)
    return torch.cat(
        [
            sobol_points(count - by_known - by_places, region.p, seed=seed),
            _beside(acquisition, region, known, by_known, _BESIDE_KNOWN, seed + 1),
            _beside(acquisition, region, places, by_places, _BESIDE_LOW, seed + 2),
        ]
    )


def _promising(
    acquisition: Acquisition, post: Posterior, mean: FoldedMean, known: Tensor, count: int, seed: int
) -> Tensor:
    """Places apart from each other where the target may well be low, (k, d)."""
    low = acquisition.simulator.minimisers[:, 0].unique(dim=0)
    pool = torch.cat([low, known[:count], sobol_points(count, post.model.d, seed=seed + 3)])
    bound = torch.cat([_lower_bound(post, mean, part) for part in pool.split(_AT_ONCE)])
    return pool[apart(-bound, pool / typical_lengthscale(acquisition.post), _PLACES, (FAR, 0.0))]


def _lower_bound(post: Posterior, mean: FoldedMean, x: Tensor) -> Tensor:
    return (mean(x) - _SDS * post.variance(post.target_rows(x)).sqrt()).mean(0)


def _beside(
    acquisition: Acquisition, region: Region, places: Tensor, count: int, span: tuple[float, float], seed: int
) -> Tensor:
    """Steps from the places in all directions, their lengths spread over orders of magnitude."""
    if count == 0:
        return torch.empty(0, region.p, dtype=torch.float64)
    least, most = span
    z = sobol_points(count, region.p + 1, seed=seed)
    length = least * (most / least) ** z[:, -1:]
    way = torch.special.ndtri(z[:, : region.d].clamp(1e-6, 1 - 1e-6))
    way = length * way / way.norm(dim=-1, keepdim=True)
    x = places[torch.arange(count) % len(places)] + way * typical_lengthscale(acquisition.post)
    return torch.cat([x, z[:, region.d : -1]], dim=-1).clamp(0, 1)


def spread_out(
    acquisition: Acquisition, region: Region, score: Tensor, z: Tensor, count: int, *, is_strict: bool = False
) -> Tensor:
    """Indices of the best points (B, q p) that are not next to a better one already chosen.

    Half of them keep well apart: the scores are rough, and the highest places they show may all be on one hill. Where
    there are too few such points others fill up, unless `is_strict`.
    """
    points = _comparable(acquisition, region, z)
    first = apart(score, points, count // 2, (MIDDLE,))
    return apart(score, points, count, (NEAR,) if is_strict else (NEAR, -1.0), first.tolist())  # -1 takes anything


def _comparable(acquisition: Acquisition, region: Region, z: Tensor) -> Tensor:
    """Points (B, q p) in units in which a distance of 1 is far."""
    units = z.new_full((region.p,), _SLOW)
    units[: region.d] = typical_lengthscale(acquisition.post)
    return (z.reshape(len(z), -1, region.p) / units).flatten(1)


def reach(acquisition: Acquisition, region: Region, z: Tensor) -> Tensor:
    """How far each variable of points (B, q p) can go until the value is likely to be another, (B, q p).

    Along x no farther than the nearest known x: there the value changes with the ratio of the distances.
    """
    unit = typical_lengthscale(acquisition.post)
    widths = [region.d, region.m, region.p - region.d - region.m]
    x, ramp, shares = z.reshape(len(z), -1, region.p).split(widths, dim=-1)  # (B, q, ...)
    gap = torch.cdist(x / unit, acquisition.simulator.known / unit).amin(-1, keepdim=True).clamp(_NEAREST, _WIDEST)
    parts = torch.cat([gap * unit, _ALONG * ramp.clamp_min(_LEAST_RAMP), torch.full_like(shares, _ALONG)], dim=-1)
    return parts.flatten(1)
