"""The inner problem: minimise over x' a posterior mean at the target fidelity, for many simulated outcomes at once.

Such a mean is a short sum of kernels (gp/_folded.py): over the distinct x of the data, whose centres all problems
share, and over the few x under consideration, which are a problem's own. Lengths are measured in length scales.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from takg.gp import design_profile, squared_distances
from takg.numerics import newton_step, side_by_side

_RADIUS = 0.5  # longest Newton step, in length scales: beyond it the quadratic model means little
_TOLERANCE = 1e-9  # decrease that is not worth another step; its unit is the sd of the outputs
_CONVERGED = 1e-6  # a Newton step from here ends much closer than that
_WORTH_SIDES = 50_000  # kernels for which a second thread pays


class InnerMinimum(NamedTuple):
    x: Tensor  # (H, P, d)
    value: Tensor  # (H, P)
    converged: Tensor  # (H, P), bool
    features: Tensor  # (H, P, u), k(x, shared centres)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSums:
    """P functions of x' under each of H hyperparameter samples.

    f(x') = offset + sum_j weights_j k(x', c_j) + sum_jk gradient_weights_jk d k(x', c_j) / d c_jk, over shared and own.
    """

    kernel: str
    lengthscale: Tensor  # (H, d)
    shared: Tensor  # (u, d)
    shared_weights: Tensor  # (H, P, u)
    shared_gradients: Tensor | None  # (H, P, u, d)
    own: Tensor  # (P, q, d)
    own_weights: Tensor  # (H, P, q)
    own_gradients: Tensor | None  # (H, P, q, d)
    offset: Tensor  # (H, P)

    def minimise(self, start: Tensor, *, passes: int) -> InnerMinimum:
        """Polish starts (H, P, d) in the unit cube by Newton's method; a pass that does not lower f halves its step."""
        if self.has_gradients:
            return self._minimise_with_gradients(start, passes)
        from takg.acquisition._polish import polished  # on first use: Numba takes its time

        H, P, _ = start.shape
        found = InnerMinimum(
            torch.empty_like(start, memory_format=torch.contiguous_format),
            start.new_empty(H, P),
            torch.empty(H, P, dtype=torch.bool),
            start.new_empty(H, P, len(self.shared)),
        )
        by_sample = (self.lengthscale, self.shared_weights, self.own_weights, self.offset, start)
        arrays = [tensor.contiguous().numpy() for tensor in by_sample]
        centres = [tensor.contiguous().numpy() for tensor in (self.shared, self.own)]
        results = [tensor.numpy() for tensor in found]
        limits = passes, _RADIUS, _TOLERANCE, _CONVERGED

        def work(some: slice) -> None:
            given, wanted = ([array[some] for array in one] for one in (arrays, results))
            polished(self.kernel == "matern52", *centres, *given, *limits, *wanted)

        if H * P * len(self.shared) * passes < _WORTH_SIDES:
            work(slice(None))
        else:
            side_by_side(work, H)
        return found

    def _minimise_with_gradients(self, start: Tensor, passes: int) -> InnerMinimum:
        scale = self.lengthscale[:, None, :]  # (H, 1, d)
        lower, upper = torch.zeros_like(scale), 1 / scale
        y = (start / scale).clamp(lower, upper)
        value, gradient, hessian, features = self.second_order(y)
        step = newton_step(y, gradient, hessian, lower, upper, _RADIUS)
        length = torch.ones_like(value)
        for _ in range(passes):
            if bool((step.gain <= _TOLERANCE).all()):
                break
            trial = y + length[..., None] * step.move
            f, g, h, k = self.second_order(trial)
            is_better = f < value
            keep = is_better[..., None]
            y, value = torch.where(keep, trial, y), torch.where(is_better, f, value)
            gradient, hessian = torch.where(keep, g, gradient), torch.where(keep[..., None], h, hessian)
            features = torch.where(keep, k, features)
            step = newton_step(y, gradient, hessian, lower, upper, _RADIUS)
            length = torch.where(is_better, 1.0, 0.5 * length)
        return InnerMinimum((y * scale).clamp(0.0, 1.0), value, step.gain <= _CONVERGED, features)

    def second_order(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """f, its gradient and Hessian in scaled coordinates y = x' / lengthscale (H, P, d), and k(x', shared)."""
        centres = self.own / self.lengthscale[:, None, None, :]  # (H, P, q, d)
        f, g, h, _ = self._explicit(y, centres, self.own_weights, self.own_gradients)
        centres = (self.shared / self.lengthscale[:, None, :])[:, None]  # (H, 1, u, d)
        f_s, g_s, h_s, features = self._explicit(y, centres, self.shared_weights, self.shared_gradients)
        return f + f_s + self.offset, g + g_s, h + h_s, features

    @property
    def has_gradients(self) -> bool:
        return self.shared_gradients is not None or self.own_gradients is not None

    def _explicit(
        self, y: Tensor, centres: Tensor, weights: Tensor, gradients: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of that for some centres (H, P or 1, k, d), with weights of derivatives if there are any."""
        diff = y[..., None, :] - centres  # (H, P, k, d)
        features, slope, bend, third = design_profile(self.kernel, (diff * diff).sum(-1))
        a, b = weights * slope, weights * bend
        value = (weights * features).sum(-1)
        toward = torch.zeros_like(diff)  # what multiplies diff + diff^T in the Hessian
        gradient = 2 * (a[..., None] * diff).sum(-2)
        if gradients is not None:
            along = gradients / self.lengthscale[:, None, None, :]  # (H, P, k, d)
            h = (diff * along).sum(-1)
            value = value - 2 * (slope * h).sum(-1)
            gradient = gradient - 2 * (2 * (bend * h)[..., None] * diff + slope[..., None] * along).sum(-2)
            toward = -4 * bend[..., None] * along
            a, b = a - 2 * bend * h, b - 2 * third * h
        hessian = torch.einsum("hpk,hpki,hpkj->hpij", 4 * b, diff, diff)
        mixed = torch.einsum("hpki,hpkj->hpij", diff, toward)
        hessian = hessian + mixed + mixed.mT + 2 * torch.diag_embed(a.sum(-1, keepdim=True).expand(y.shape))
        return value, gradient, hessian, features


def scaled_features(kernel: str, y: Tensor, c: Tensor) -> Tensor:
    """k between scaled points, (H, p, u)."""
    squared = squared_distances(y, c)
    return squared.mul_(-0.5).exp_() if kernel == "squared_exponential" else design_profile(kernel, squared)[0]
