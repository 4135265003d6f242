"""What an evaluation costs: a Gaussian process on log cost, or a function that the user gives; docs/paper.md#cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError
from takg.fidelity import check_fidelities
from takg.gp._fit import Chains, Diagnostics, fit
from takg.gp._folded import FoldedMean, folded_target_mean
from takg.gp._model import Model
from takg.gp._rows import value_rows

Cost = Callable[[Tensor, Tensor], Tensor]
"""Cost of an evaluation from a cold start: x (..., d) and s (..., m) to (...,), positive."""

_TELLING = 150  # rows that the hyperparameters of a smooth cost are learned from
# Cost is expected to be proportional to the fidelity plus an overhead. Few evaluations, all of them short, say little
# of what long ones cost: the slope of log cost may differ from 1 by so much, and an overhead is one of these.
_SLOPE_SD = 0.15
_OVERHEADS = 10 ** torch.linspace(-3, 0.5, 15, dtype=torch.float64)
_USUAL_OVERHEAD, _LOG_OVERHEAD_SD = 0.03, 1.5
_USUAL_NOISE = 0.1  # sd of log cost beyond what is linear in x, to begin with
_LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCost:
    """exp of the posterior mean of log cost, averaged over the hyperparameter samples: a median, not a mean.

    The median is used because a mean of log-normals grows with uncertainty, which would keep the search away
    from where nothing is known of the cost.
    """

    mean: FoldedMean  # over (x, centred log-scaled s), of standardised log cost less its expected slope
    overhead: float  # paid at s = 0, in units of what s from 0 to 1 adds: cost goes with s + overhead
    ramp_centre: Tensor  # (m,), mean of the log-scaled s observed
    centre: float
    scale: float

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Predicted cold-start cost, (..., d) and (..., m) -> (...,); differentiable in both."""
        batch = np.broadcast_shapes(x.shape[:-1], s.shape[:-1])
        ramp = _log_ramp(s, self.overhead).expand(*batch, -1)
        z = torch.cat([x.expand(*batch, -1), ramp - self.ramp_centre], dim=-1)  # (..., d + m)
        residual = self.mean(z[..., None, :]).mean(0)[..., 0]  # (...,)
        return (self.centre + self.scale * residual + _expected_slope(ramp, self.overhead)).exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFit:
    """A learned cost and what it takes to continue its chains."""

    cost: LearnedCost
    chains: Chains
    diagnostics: Diagnostics


def fit_cost(
    x: Tensor,
    s: Tensor,
    cost: Tensor,
    *,
    seed: int,
    draws: int = 4,
    chains: Chains | None = None,
    steps: int | None = None,
) -> CostFit:
    """Learn the cold-start cost from n evaluations.

    Args:
        x: (n, d), in the unit cube.
        s: (n, m), the fidelity each evaluation reached.
        cost: (n,), positive, what it took from a cold start (see `cold_start_costs`).
        seed, draws, chains, steps: as for `fit`.
    """
    if x.ndim != 2 or len(x) == 0:
        raise InputError(f"x has shape {tuple(x.shape)}; expected (n, d) with n >= 1")
    check_fidelities("s", s)
    if s.ndim != 2 or len(s) != len(x):
        raise InputError(f"s has shape {tuple(s.shape)}; expected ({len(x)}, m), one row for each row of x")
    if cost.shape != (len(x),):
        raise InputError(f"cost has shape {tuple(cost.shape)}; expected ({len(x)},)")
    for name, tensor in (("x", x), ("s", s), ("cost", cost)):
        if tensor.dtype != torch.float64:
            raise InputError(f"{name} has dtype {tensor.dtype}; expected torch.float64, try .double()")
    if (bad := _not_a_cost(cost)) is not None:
        raise InputError(f"cost has a value of {bad:g}; expected finite costs > 0")

    overhead = _likeliest_overhead(x, s, cost)
    ramp = _log_ramp(s, overhead)
    # About its mean, so that the slope of a fidelity that was never varied cannot stand in for the constant.
    ramp_centre = ramp.mean(0)
    residual = cost.log() - _expected_slope(ramp, overhead)
    centre = float(residual.mean())
    spread = float(residual.std()) if len(residual) > 1 else 0.0
    scale = max(spread, 0.05)  # costs that follow the expected slope to 5 % have no structure worth magnifying
    d, m = x.shape[-1], s.shape[-1]
    model = Model(
        d=d + m,
        trend_dims=tuple(range(d, d + m)),
        slope_var=(_SLOPE_SD * _log_range(overhead) / scale) ** 2,
    )
    rows = value_rows(torch.cat([x, ramp - ramp_centre], dim=-1), x.new_empty(len(x), 0))
    result = fit(
        model, rows, (residual - centre) / scale, seed=seed, draws=draws, chains=chains, steps=steps, most_rows=_TELLING
    )
    learned = LearnedCost(
        mean=folded_target_mean(result.posterior),
        overhead=overhead,
        ramp_centre=ramp_centre,
        centre=centre,
        scale=scale,
    )
    return CostFit(cost=learned, chains=result.chains, diagnostics=result.diagnostics)


def given_cost(function: Cost) -> Cost:
    """A user's own cost function, checked at every call to be positive and of the right shape."""

    def checked(x: Tensor, s: Tensor) -> Tensor:
        cost = function(x, s)
        expected = np.broadcast_shapes(x.shape[:-1], s.shape[:-1])
        if cost.shape != expected:
            raise InputError(f"cost returned shape {tuple(cost.shape)}; expected {tuple(expected)}, that of the batch")
        if (bad := _not_a_cost(cost)) is not None:
            raise InputError(f"cost returned {bad:g}; expected finite values > 0 everywhere")
        return cost

    return checked


def continuation_cost(
    cost: Cost,
    x: Tensor,
    s: Tensor,
    s_from: Tensor,
    *,
    whole: Tensor | None = None,
    least_share: float = _LEAST_SHARE,
) -> Tensor:
    """Cost of going on from s_from to s: the difference of two cold starts, at least a share of the whole.

    Args:
        x, s, s_from: (..., d), (..., m), (..., m).
        whole: cost(x, s), if it is known already.
        least_share: of the cold-start cost at s; keeps the result positive where the difference is not.
    """
    whole = cost(x, s) if whole is None else whole
    return torch.maximum(whole - cost(x, s_from), least_share * whole)


def cold_start_costs(leg_costs: Sequence[float], continues: Sequence[int | None]) -> list[float]:
    """What each leg would have cost from a cold start: its own cost and that of all it continues.

    Args:
        leg_costs: paid for each leg, in the order in which legs were run.
        continues: for each leg the index of the leg whose checkpoint it started from, or None.
    """
    if len(leg_costs) != len(continues):
        raise InputError(f"continues has {len(continues)} entries; expected {len(leg_costs)}, one for each leg")
    totals: list[float] = []
    for i, (paid, parent) in enumerate(zip(leg_costs, continues, strict=True)):
        if not (math.isfinite(paid) and paid > 0):
            raise InputError(f"leg_costs[{i}] is {paid}; expected a finite cost > 0")
        if parent is not None and not 0 <= parent < i:
            raise InputError(f"continues[{i}] is {parent}; expected None or the index of an earlier leg")
        totals.append(paid + (totals[parent] if parent is not None else 0.0))
    return totals


def _not_a_cost(cost: Tensor) -> float | None:
    """The first value that no cost can have, if there is one."""
    bad = cost[~(cost.isfinite() & (cost > 0))]
    return float(bad[0].detach()) if bad.numel() else None


def _likeliest_overhead(x: Tensor, s: Tensor, cost: Tensor) -> float:
    """The overhead at which log cost less log(s + overhead) is most nearly linear in x, in doubt the usual one."""
    X = torch.cat([torch.ones_like(x[:, :1]), x - 0.5], dim=-1)  # (n, 1 + d)
    shrinkage = torch.ones(X.shape[-1], dtype=X.dtype)
    shrinkage[0] = 0.0  # the constant is free
    A = X.T @ X + shrinkage.diag()
    y = cost.log() - (s + _OVERHEADS[:, None, None]).log().sum(-1)  # (overheads, n)
    b = X.T @ y.T  # (1 + d, overheads)
    misfit = (y.square().sum(-1) - (b * torch.linalg.solve(A, b)).sum(0)).clamp_min(0)
    # Student's t: the noise variance is inverse gamma with shape 1, and integrated out.
    evidence = -(1 + len(x) / 2) * (2 * _USUAL_NOISE**2 + misfit / 2).log()
    prior = -0.5 * ((_OVERHEADS / _USUAL_OVERHEAD).log() / _LOG_OVERHEAD_SD).square()
    return float(_OVERHEADS[(evidence + prior).argmax()])


def _log_range(overhead: float) -> float:
    return math.log1p(overhead) - math.log(overhead)


def _log_ramp(s: Tensor, overhead: float) -> Tensor:
    """log(s + overhead), scaled to run from 0 at s = 0 to 1 at the target."""
    return ((s + overhead).log() - math.log(overhead)) / _log_range(overhead)


def _expected_slope(ramp: Tensor, overhead: float) -> Tensor:
    """log of a cost proportional to every fidelity: (..., m) -> (...,)."""
    return _log_range(overhead) * ramp.sum(-1)
