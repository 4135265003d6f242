"""The answer so far: where the posterior mean at the target fidelity, averaged over the samples, is smallest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from takg.errors import InputError
from takg.gp import OutcomeTransform, Posterior, folded_target_mean
from takg.numerics import minimise, sobol_points, threads_for


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
) -> Recommendation:
    """Minimise the averaged target mean over the unit cube.

    Args:
        outcome: the transform that the outputs went through; without it, results are in the model's units.
        raw, restarts: points at which the mean is first looked at, beside the data's x, and how many are polished.
    """
    if raw < 1 or restarts < 1:
        raise InputError(f"raw={raw}, restarts={restarts}: expected at least 1 of each")
    outcome = outcome or _IDENTITY
    mean = folded_target_mean(post)
    with threads_for(post.n), torch.no_grad():
        points = torch.cat([sobol_points(raw, post.model.d, seed=seed), post.rows.x.unique(dim=0)])
        averaged = torch.cat([mean(chunk).mean(0) for chunk in points.split(256)])
        starts = points[averaged.topk(min(restarts, len(points)), largest=False).indices]

        def objective(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                value = mean(x).mean(0)
                (gradient,) = torch.autograd.grad(value.sum(), x)
            return value, gradient

        found = minimise(objective, starts, 0.0, 1.0, max_passes=100, tolerance=1e-8)
        best = int(found.value.argmin())
        x = found.x[best]
        rows = post.target_rows(x[None])
        mu, sd = post.mean(rows)[:, 0], post.variance(rows)[:, 0].sqrt()  # (H,)
        total_mean, total_sd = outcome.mixture_mean_and_sd(mu, sd)
        quantiles = {p: float(outcome.mixture_quantile(mu, sd, p)) for p in probabilities}
    return Recommendation(
        x=x,
        mean=float(total_mean),
        sd=float(total_sd),
        quantiles=quantiles,
        is_converged=bool(found.converged[best]),
    )


_IDENTITY = OutcomeTransform(warp="none", floor=-1e300, cap=1e300, worst=1e300, origin=0.0, scale=1.0, mean=0.0, sd=1.0)
