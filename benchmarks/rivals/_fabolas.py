"""FABOLAS, Klein et al. 2017, small: entropy search on p_min at s = 1, per unit of cost."""

import math

import torch
from botorch.models import SingleTaskMultiFidelityGP
from botorch.models.model import Model
from torch import Tensor

from rivals._gp import GPMethod
from rivals._protocol import Request, tensor
from takg.numerics import jittered_cholesky, normal_draws, sobol_points

REPRESENTERS, CANDIDATES, DRAWS, OUTCOMES = 50, 200, 256, 5


class Fabolas(GPMethod):
    """The data-size kernel on every fidelity; candidates are Sobol points, and the representers at cheap fidelities.

    Against the original: one set of hyperparameters instead of samples, and the best of 200 candidates instead of a
    search by DIRECT and CMA-ES.
    """

    def build(self, inputs: Tensor, targets: Tensor) -> SingleTaskMultiFidelityGP:
        return SingleTaskMultiFidelityGP(
            inputs, targets, data_fidelities=list(self.fidelity_dims), linear_truncated=False
        )

    def suggest(self, model: Model) -> list[Request]:
        d, m = self.setting.d, self.setting.m
        seed = self.setting.seed_of(len(self.x))
        with torch.no_grad():
            representers = self._representers(model, seed)
            candidates = sobol_points(CANDIDATES, d + m, seed=seed)
            candidates[:, d:] = candidates[:, d:] ** 3  # cheap ones are many
            half = CANDIDATES // 2
            candidates[:half, :d] = representers[torch.arange(half) % REPRESENTERS, :d]
            candidates[:, d:] = tensor([self.setting.runnable(s) for s in candidates[:, d:].tolist()])
            gain = information_gain(model, representers, candidates, seed)
            value = gain / self.cost(candidates[:, :d], candidates[:, d:])
        return self.requests(candidates[value.argmax()][None])

    def _representers(self, model: Model, seed: int) -> Tensor:
        """Designs that may be the best, at the target: those with the highest confidence bounds out of many."""
        d, m = self.setting.d, self.setting.m
        points = torch.cat([sobol_points(20 * REPRESENTERS, d, seed=seed + 1), tensor(self.x)])
        points = torch.cat([points, torch.ones(len(points), m)], dim=-1)
        posterior = model.posterior(points)
        bound = posterior.mean[:, 0] + 2 * posterior.variance[:, 0].sqrt()
        return points[bound.topk(REPRESENTERS).indices]


def information_gain(model: Model, representers: Tensor, candidates: Tensor, seed: int) -> Tensor:
    """Expected drop of the entropy of where the best representer is, by observing each candidate.

    Args:
        representers: (r, d + m).
        candidates: (c, d + m).
    Returns:
        (c,).
    """
    r = len(representers)
    posterior = model.posterior(torch.cat([representers, candidates]))
    covariance = posterior.distribution.covariance_matrix
    mean, K = posterior.distribution.mean[:r], covariance[:r, :r]
    noise = model.likelihood.noise.squeeze() * model.outcome_transform.stdvs.squeeze() ** 2
    sd = (covariance.diagonal()[r:] + noise).sqrt()  # (c,), of what would be seen
    shift = covariance[:r, r:] / sd  # (r, c), of the means per standard deviation of it
    W = normal_draws(1, DRAWS, r, seed=seed)[0]
    outcomes = math.sqrt(2) * torch.erfinv(2 * (torch.arange(OUTCOMES) + 0.5) / OUTCOMES - 1).double()
    before = _entropy(mean[None], jittered_cholesky(K).L, W)[0]
    gains = []
    for j in range(len(candidates)):
        L = jittered_cholesky(K - torch.outer(shift[:, j], shift[:, j])).L
        gains.append(before - _entropy(mean + outcomes[:, None] * shift[:, j], L, W).mean())
    return torch.stack(gains)


def _entropy(means: Tensor, L: Tensor, W: Tensor) -> Tensor:
    """Of p_max under normal distributions with means (k, r) and one factor L (r, r), by simulation -> (k,)."""
    winners = (means[:, None] + W @ L.mT).argmax(-1)  # (k, draws)
    share = torch.nn.functional.one_hot(winners, means.shape[-1]).double().mean(1)
    return -(share * share.clamp_min(1e-300).log()).sum(-1)
