"""BOCA, Kandasamy et al. 2017: the design by a confidence bound, then the cheapest fidelity that still teaches."""

import math

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from torch import Tensor

from rivals._gp import RAW, RESTARTS, GPMethod
from rivals._protocol import LEAST, STEPS, Request


class Boca(GPMethod):
    """A squared exponential over (x, s), as in the paper; fidelities are chosen from a grid of 27 in each."""

    def suggest(self, model: Model) -> list[Request]:
        d, width, target = self.setting.d, self.bounds.shape[1], self.fidelity_dims
        beta = 0.5 * d * math.log(2 * len(self.x) + 1)
        bound = FixedFeatureAcquisitionFunction(
            UpperConfidenceBound(model, beta=beta), d=width, columns=list(target), values=list(target.values())
        )
        x, _ = optimize_acqf(bound, self.bounds[:, :d], q=1, num_restarts=RESTARTS, raw_samples=RAW)
        s = self._grid()
        with torch.no_grad():
            chosen = s[self._choose(model, x.expand(len(s), d), s, beta)]
        return self.requests(torch.cat([x, chosen[None]], dim=-1))

    def _grid(self) -> Tensor:
        steps = torch.arange(1, STEPS + 1).double() / STEPS
        axes = [steps if j in self.setting.trace_dims else steps.clamp_min(LEAST) for j in range(self.setting.m)]
        return torch.cartesian_prod(*axes).reshape(-1, self.setting.m)

    def _choose(self, model: Model, x: Tensor, s: Tensor, beta: float) -> int:
        """Which of the fidelities s (k, m): the cheapest that is uncertain enough and not too close to the target."""
        d, m = self.setting.d, self.setting.m
        lengthscale = model.covar_module.lengthscale[0, d:]
        correlation = torch.exp(-(((1 - s) / lengthscale) ** 2).sum(-1) / 2)  # with the target
        gap = (1 - correlation**2).clamp_min(0).sqrt()  # what is lost by not being there
        cost = self.cost(x, s)
        posterior = model.posterior(torch.cat([x, s], dim=-1))
        sd = posterior.variance[:, 0].sqrt() / model.outcome_transform.stdvs.squeeze()
        threshold = gap * (cost / cost[-1]) ** (1 / (d + m + 2))  # the signal variance is 1
        teaches = (sd > threshold) & (gap > gap.max() / math.sqrt(beta)) & (cost < cost[-1])
        return int(torch.where(teaches, cost, torch.inf).argmin()) if teaches.any() else len(s) - 1
