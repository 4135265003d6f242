"""The answer so far: where the posterior mean at the target fidelity, averaged over the samples, is smallest.

A curve that falls fast may be extrapolated to far below all that was ever seen, and the model be too sure of it, until
the next evaluation there says otherwise. Such a promise is held to what was seen, and its doubts count twice.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from takg.errors import InputError
from takg.gp import FoldedMean, OutcomeTransform, Posterior, folded_target_mean
from takg.numerics import Allowed, Minimum, allowed_part, furthest_allowed, minimise, sobol_points, threads_for
from takg.optim._spread import FAR, MIDDLE, NEAR, apart, typical_lengthscale

BEYOND = 0.1  # as far below the lowest output, in sds of the outputs, a mean is taken at its word
_DOUBTS = 2.0  # sds that are added to one beyond
_AT_ONCE = 256  # points whose mean is read together, and that are compared in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A design and what is believed of its loss at the target fidelity, in the units of `outcome`."""

    x: Tensor  # (d,)
    mean: float
    sd: float
    quantiles: dict[float, float]  # probability: value
    is_converged: bool


def recommend(
    post: Posterior,
    *,
    seed: int,
    outcome: OutcomeTransform | None = None,
    probabilities: tuple[float, ...] = (0.05, 0.5, 0.95),
    raw: int = 512,
    restarts: int = 8,
    among: Tensor | None = None,
    allowed: Allowed | None = None,
    caution: float = 0.0,
) -> Recommendation:
    """Minimise the averaged target mean over the unit cube, within what can be believed.

    Args:
        outcome: the transform that the outputs went through; without it, results are in the model's units.
        raw, restarts: points at which the mean is first looked at, beside the data's x, and how many are polished.
        among: (k, d), the only designs there are, if not all of the cube.
        allowed: says which designs may be recommended, if not all; if none of those looked at is, all are.
        caution: sds of doubt that count as loss when the minima of the mean are compared with each other.
    """
    if raw < 1 or restarts < 1:
        raise InputError(f"raw={raw}, restarts={restarts}: expected at least 1 of each")
    if among is not None and (among.ndim != 2 or len(among) == 0 or among.shape[1] != post.model.d):
        raise InputError(f"among has shape {tuple(among.shape)}; expected (k, {post.model.d}) with k >= 1")
    if not 0 <= caution < math.inf:
        raise InputError(f"caution={caution}: expected a number >= 0")
    outcome = outcome or _IDENTITY
    mean = folded_target_mean(post)
    with threads_for(post.n), torch.no_grad():
        # A gradient that was observed is reason enough to believe in lower values.
        least = -math.inf if post.rows.has_gradients else float(post.y.min()) - BEYOND
        if among is None:
            found = _lowest(post, mean, least, seed, raw, restarts, allowed, caution > 0)
        else:
            found = _valued(mean, allowed_part(allowed, among))
        rows = post.target_rows(found.x)
        mus, sds = post.mean(rows), post.variance(rows).sqrt()  # (H, starts)
        doubt = (sds.square().mean(0) + mus.var(0, correction=0)).sqrt()
        promise = torch.where(found.value < least, least + _DOUBTS * doubt, found.value + caution * doubt)
        best = int(promise.argmin())
        x, mu, sd = found.x[best], mus[:, best], sds[:, best]
        total_mean, total_sd = outcome.mixture_mean_and_sd(mu, sd)
        quantiles = {p: float(outcome.mixture_quantile(mu, sd, p)) for p in probabilities}
    return Recommendation(
        x=x,
        mean=float(total_mean),
        sd=float(total_sd),
        quantiles=quantiles,
        is_converged=bool(found.converged[best]),
    )


def _lowest(
    post: Posterior,
    mean: FoldedMean,
    least: float,
    seed: int,
    raw: int,
    restarts: int,
    allowed: Allowed | None,
    is_cautious: bool,
) -> Minimum:
    """Local minima of the averaged mean, or as near to them as is allowed."""
    known = post.rows.x.unique(dim=0)
    points = torch.cat([sobol_points(raw, post.model.d, seed=seed), known])
    if allowed is not None and not allowed(points).any():
        allowed = None
    if allowed is not None:
        known, points = known[allowed(known)], points[allowed(points)]
    averaged = _averaged(mean, points)
    starts = points[_lowest_apart(post, averaged, points, restarts)]
    if len(known) and (averaged.min() < least or is_cautious):  # others may be more credible
        close = _lowest_apart(post, _averaged(mean, known).clamp_min(least), known, restarts)
        starts = torch.cat([starts, known[close]])

    def objective(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = mean(x).mean(0)
            (gradient,) = torch.autograd.grad(value.sum(), x)
        return value, gradient

    found = minimise(objective, starts, 0.0, 1.0, max_passes=100, tolerance=1e-8)
    if allowed is None:
        return found
    x = furthest_allowed(allowed, starts, found.x)
    return found._replace(x=x, value=_averaged(mean, x), converged=found.converged & (x == found.x).all(-1))


def _lowest_apart(post: Posterior, values: Tensor, points: Tensor, count: int) -> Tensor:
    """Indices of low points in different valleys: where most of the data are, all of the lowest may be in one."""
    return apart(-values, points / typical_lengthscale(post), count, (FAR, MIDDLE, NEAR))


def _valued(mean: FoldedMean, points: Tensor) -> Minimum:
    """The lowest of the points, as if each were a minimum."""
    value, order = _averaged(mean, points).topk(min(_AT_ONCE, len(points)), largest=False)
    nothing = torch.zeros_like(value)
    return Minimum(x=points[order], value=value, gradient_norm=nothing, converged=nothing == 0, passes=1)


def _averaged(mean: FoldedMean, points: Tensor) -> Tensor:
    return torch.cat([mean(chunk).mean(0) for chunk in points.split(_AT_ONCE)])


_IDENTITY = OutcomeTransform(warp="none", floor=-1e300, cap=1e300, worst=1e300, origin=0.0, scale=1.0, mean=0.0, sd=1.0)
