"""The target-fidelity mean as a short sum over the distinct x of the data; docs/paper.md#folded.

All rows at one x differ only in the factor k_s(1, s_i), which does not depend on x': they fold into one
weight (and, with derivative rows, one d-vector) for each distinct x, whatever the length of the traces.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from takg.gp._kernels import fidelity_covariance, profile, profile_slope, trend_basis
from takg.gp._model import Hyperparameters, Model
from takg.gp._posterior import Posterior
from takg.gp._rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedMean:
    """mu(x', 1) = offset + sum_j weights_j k_x(x', c_j) + sum_jk gradient_weights_jk d k_x(x', c_j) / d c_jk.

    With a trend, + sum_k slopes_k x'_k.
    """

    model: Model
    theta: Hyperparameters
    centres: Tensor  # (u, d), the distinct x
    weights: Tensor  # (H, u)
    gradient_weights: Tensor | None  # (H, u, d); None without derivative rows
    offset: Tensor  # (H,)
    slopes: Tensor | None  # (H, d); None without a trend that varies with x

    def __call__(self, x_new: Tensor) -> Tensor:
        """(..., c, d) -> (H, ..., c)."""
        flat = x_new.reshape(-1, self.model.d)
        if self.gradient_weights is None and not torch.is_grad_enabled():
            mean = self.offset[:, None] + self._sums(flat)
        else:
            mean = self.offset[:, None] + self._differentiable_sums(flat)
        if self.slopes is not None:
            mean = mean + self.slopes @ flat.mT
        return mean.reshape(-1, *x_new.shape[:-1])

    def _sums(self, points: Tensor) -> Tensor:
        """(P, d) -> (H, P)."""
        from takg.gp._sums import fill_sums  # on first use: Numba takes its time

        found = torch.empty(len(self.weights), len(points), dtype=torch.float64)
        given = (points, self.centres, self.theta.lengthscale, self.weights)
        is_matern = self.model.design_kernel == "matern52"
        fill_sums(is_matern, *(one.detach().contiguous().numpy() for one in given), found.numpy())
        return found

    def _differentiable_sums(self, points: Tensor) -> Tensor:
        """(P, d) -> (H, P), with what derivatives were observed."""
        H, u = self.weights.shape
        diff = points[:, None, :] - self.centres  # (P, u, d)
        precision = self.theta.lengthscale**-2  # (H, d)
        distance = (precision @ diff.square().reshape(-1, self.model.d).mT).reshape(H, -1, u)  # (H, P, u)
        found = (profile(self.model.design_kernel, distance) @ self.weights[..., None])[..., 0]
        if self.gradient_weights is not None:
            scaled = -2 * precision[:, None, :] * self.gradient_weights  # (H, u, d): du/dc_k = -2 diff_k / l_k^2
            along = torch.einsum("pud,hud->hpu", diff, scaled)
            found = found + (profile_slope(self.model.design_kernel, distance) * along).sum(-1)
        return found


def folded_target_mean(post: Posterior) -> FoldedMean:
    """The posterior mean at the target fidelity in its folded form."""
    centres, group = post.rows.x.unique(dim=0, return_inverse=True)  # (u, d), (n,)
    pull = post.weights * target_factor(post.model, post.theta, post.rows)  # (H, n)
    H, u, d = post.theta.H, centres.shape[0], post.model.d
    is_value = post.rows.part == 0
    weights = pull.new_zeros(H, u).index_add_(1, group, pull * is_value)
    gradient_weights = None
    if post.rows.has_gradients:
        slot = group * d + (post.rows.part - 1).clamp_min(0)
        gradient_weights = pull.new_zeros(H, u * d).index_add_(1, slot, pull * ~is_value).reshape(H, u, d)
    return FoldedMean(
        model=post.model,
        theta=post.theta,
        centres=centres,
        weights=weights,
        gradient_weights=gradient_weights,
        offset=post.model.mean_var * (post.weights * is_value).sum(-1),
        slopes=_slopes(post) if post.model.trend_dims else None,
    )


def _slopes(post: Posterior) -> Tensor:
    """Posterior mean of the trend's slope along each component of x, (H, d); 0 where it has none."""
    slopes = post.weights.new_zeros(post.theta.H, post.model.d)
    for k in post.model.trend_dims:
        slopes[:, k] = post.model.slope_var * (post.weights * trend_basis(post.rows, k)).sum(-1)
    return slopes


def target_factor(model: Model, theta: Hyperparameters, rows: Rows) -> Tensor:
    """signal_var * prod_j k_j(1, s_j): what a row's weight is multiplied by at the target, (H, ..., r)."""
    signal = theta.signal_var.reshape(-1, *[1] * (rows.s.ndim - 1))
    if not model.m:
        return signal.expand(-1, *rows.s.shape[:-1])
    target = torch.ones(1, model.m, dtype=rows.s.dtype)
    return signal * fidelity_covariance(model, theta, target, rows.s)[..., 0, :]
