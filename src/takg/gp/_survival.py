"""How likely a training is to have a loss at all: where trainings diverge there is none to be modelled.

A made-up loss would be a cliff, next to the best configurations as a rule: the largest learning rate that still works
is often the best. A smooth process that has to bend around it predicts nothing well beside it. So losses are learned
from those that have one, and whether there is one by itself.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError
from takg.fidelity import check_fidelities
from takg.gp._fit import Chains, fit
from takg.gp._folded import FoldedMean, folded_target_mean
from takg.gp._model import Model
from takg.gp._posterior import Posterior
from takg.gp._rows import value_rows

_TELLING = 150  # rows that the hyperparameters are learned from
# Of the labels. The edge is sharp, and trainings are seen on both sides of it, a step apart: without noise, length
# scales would be as short as that step, and nothing would be learned of other designs.
_NOISE = 0.1
# At full fidelity all that is known at first are trainings that diverged, since these end early and what survives is
# seldom trained to the end. So one that has survived so far counts as one that will, with as many times the noise.
_GUESS_NOISE = 30.0
_LEAST = 0.01  # no probability is taken for nearer to 0 or 1
_TINY = 1e-12
_SAFE = 0.9  # from which on a design can be the answer: one that diverges is none, and its neighbours are hardly worse


@dataclass(frozen=True, kw_only=True)
class Survival:
    """A process on labels, 1 (survived) and -1 (diverged): the probability of one above 0, given its mean and noise."""

    posterior: Posterior  # over (x, s)

    @cached_property
    def mean(self) -> FoldedMean:
        return folded_target_mean(self.posterior)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Of having a loss at s, (..., d) and (..., m) -> (...,); differentiable in both."""
        batch = np.broadcast_shapes(x.shape[:-1], s.shape[:-1])
        z = torch.cat([x.expand(*batch, -1), s.expand(*batch, -1)], dim=-1)
        label = self.mean(z[..., None, :])[..., 0]  # (H, ...)
        noise_sd = self.mean.theta.noise_var.sqrt().reshape(-1, *[1] * len(batch))
        chance: Tensor = torch.special.ndtr(label / noise_sd)
        return chance.mean(0).clamp(_LEAST, 1 - _LEAST)

    def is_safe(self, x: Tensor, *, least: float = _SAFE) -> Tensor:
        """Whether designs (..., d) survive a full training with at least some probability, (...,)."""
        with torch.no_grad():
            return self(x, self._target(x)) >= least

    def certainty(self, x: Tensor) -> Tensor:
        """How sure it is that designs (..., d) survive a full training, (...,): little where nothing was seen."""
        with torch.no_grad():
            z = torch.cat([x, self._target(x)], dim=-1)
            rows = value_rows(z, z[..., :0])
            label, variance = self.posterior.mean(rows), self.posterior.variance(rows)  # (H, ...)
            sure: Tensor = torch.special.ndtr(label / variance.clamp_min(_TINY).sqrt())
            return sure.mean(0)

    def _target(self, x: Tensor) -> Tensor:
        return x.new_ones(*x.shape[:-1], self.posterior.model.d - x.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalFit:
    """What was learned, and what it takes to continue its chains."""

    survival: Survival
    chains: Chains


def fit_survival(
    x: Tensor,
    s: Tensor,
    survived: Tensor,
    *,
    seed: int,
    draws: int = 2,
    chains: Chains | None = None,
    steps: int | None = None,
) -> SurvivalFit:
    """Learn where trainings diverge.

    Args:
        x, s: (n, d) and (n, m), in the unit cube.
        survived: (n,), bool, whether there was a loss.
        seed, draws, chains, steps: as for `fit`.
    """
    if x.ndim != 2 or len(x) == 0 or x.dtype != torch.float64:
        raise InputError(f"x has shape {tuple(x.shape)}, {x.dtype}; expected (n, d) with n >= 1, torch.float64")
    check_fidelities("s", s)
    if s.ndim != 2 or len(s) != len(x) or s.dtype != torch.float64:
        raise InputError(f"s has shape {tuple(s.shape)}, {s.dtype}; expected ({len(x)}, m), torch.float64")
    if survived.shape != (len(x),) or survived.dtype != torch.bool:
        raise InputError(f"survived has shape {tuple(survived.shape)}, {survived.dtype}; expected ({len(x)},), bool")
    model = Model(d=x.shape[-1] + s.shape[-1], design_kernel="matern52", least_noise=_NOISE)
    going = _going(x, s, survived)
    x, s = torch.cat([x, going]), torch.cat([s, s.new_ones(len(going), s.shape[-1])])
    rows = value_rows(torch.cat([x, s], dim=-1), x.new_empty(len(x), 0))
    is_guess = torch.arange(len(x)) >= len(survived)
    result = fit(
        model,
        dataclasses.replace(rows, noise_scale=1.0 + (_GUESS_NOISE - 1.0) * is_guess),
        torch.cat([2.0 * survived.to(torch.float64) - 1.0, x.new_ones(len(going))]),
        seed=seed,
        draws=draws,
        chains=chains,
        steps=steps,
        most_rows=_TELLING,
    )
    return SurvivalFit(survival=Survival(posterior=result.posterior), chains=result.chains)


def _going(x: Tensor, s: Tensor, survived: Tensor) -> Tensor:
    """Designs that have survived so far and were not trained to the end, (k, d)."""
    designs, which = x.unique(dim=0, return_inverse=True)
    is_settled = torch.zeros(len(designs), dtype=torch.bool)
    is_settled[which[~survived | (s == 1).all(-1)]] = True
    going: Tensor = designs[~is_settled]
    return going
