"""The inner problem: minimise over x' a posterior mean at the target fidelity, for many simulated outcomes at once.

Such a mean is a short sum of kernels (gp/_folded.py): over the distinct x of the data, whose centres all problems
share, and over the few x under consideration, which are a problem's own. Lengths are measured in length scales.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from takg.gp import design_profile, profile
from takg.numerics import newton_step

_RADIUS = 0.5  # longest Newton step, in length scales: beyond it the quadratic model means little
_TOLERANCE = 1e-9  # decrease that is not worth another step; its unit is the sd of the outputs
_CONVERGED = 1e-6  # a Newton step from here ends much closer than that


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
        scale = self.lengthscale[:, None, :]  # (H, 1, d)
        lower, upper = torch.zeros_like(scale), 1 / scale
        y = (start / scale).clamp(lower, upper)
        value, gradient, hessian, features = self.second_order(y)
        step = newton_step(y, gradient, hessian, lower, upper, _RADIUS)
        length = torch.ones_like(value)
        for left in reversed(range(passes)):
            if bool((step.gain <= _TOLERANCE).all()):
                break
            trial = y + length[..., None] * step.move
            if left:
                f, g, h, k = self.second_order(trial)
            else:  # derivatives at the last point would serve no further step
                f, k = self.value(trial)
            worse = (~(f < value)).nonzero(as_tuple=True)  # few: the rest is not copied
            old = [(trial, y), (f, value), (k, features)] + ([(g, gradient), (h, hessian)] if left else [])
            for new, kept in old:
                new[worse] = kept[worse]
            y, value, features = trial, f, k
            if left:
                gradient, hessian = g, h
                step = newton_step(y, gradient, hessian, lower, upper, _RADIUS)
                shorter = 0.5 * length[worse]
                length = torch.ones_like(length)
                length[worse] = shorter
        return InnerMinimum((y * scale).clamp(0.0, 1.0), value, step.gain <= _CONVERGED, features)

    def value(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """f and k(x', shared centres), (H, P) and (H, P, u), in scaled coordinates."""
        if self.has_gradients:
            f, _, _, features = self.second_order(y)
            return f, features
        features = scaled_features(self.kernel, y, self._scaled_shared)
        f = torch.einsum("hpu,hpu->hp", self.shared_weights, features).add_(self.offset)
        for own, weight in self._each_own():
            f += weight * profile(self.kernel, (y - own).square().sum(-1))
        return f, features

    def second_order(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """f, its gradient and Hessian in scaled coordinates y = x' / lengthscale (H, P, d), and k(x', shared)."""
        if not self.has_gradients:
            return self._through_products(y)
        centres = self.own / self.lengthscale[:, None, None, :]  # (H, P, q, d)
        f, g, h, _ = self._explicit(y, centres, self.own_weights, self.own_gradients)
        centres = self._scaled_shared[:, None]  # (H, 1, u, d)
        f_s, g_s, h_s, features = self._explicit(y, centres, self.shared_weights, self.shared_gradients)
        return f + f_s + self.offset, g + g_s, h + h_s, features

    @property
    def has_gradients(self) -> bool:
        return self.shared_gradients is not None or self.own_gradients is not None

    @property
    def _scaled_shared(self) -> Tensor:
        return self.shared / self.lengthscale[:, None, :]  # (H, u, d)

    def _each_own(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The problems' own centres, scaled (H, P, d), and their weights (H, P), one after the other."""
        for i in range(self.own.shape[1]):
            yield self.own[:, i] / self.lengthscale[:, None, :], self.own_weights[..., i]

    def _through_products(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All differences from the shared centres are multiplied out, so that these enter as matrices.

        Large results are made in place: new memory costs more than the arithmetic.
        """
        c = self._scaled_shared
        H, u, d = c.shape
        squares = (c[..., :, None] * c[..., None, :]).reshape(H, u, d * d)
        powers = torch.cat([c.new_ones(H, u, 1), c, squares], dim=-1)  # (H, u, 1 + d + d d)
        squared = squared_distances(y, c)
        if self.kernel == "squared_exponential":  # all derivatives are multiples of the kernel: one product serves all
            features = squared.mul_(-0.5).exp_()
            bends = (self.shared_weights * features) @ powers  # four times the second derivative's
            value, slopes = bends[..., 0].clone(), -bends[..., : d + 1]
        else:
            features, slope, bend, _ = design_profile(self.kernel, squared)
            value = (self.shared_weights * features).sum(-1)
            slopes = (self.shared_weights * slope) @ powers[..., : d + 1] * 2
            bends = (self.shared_weights * bend) @ powers * 4
        value += self.offset
        # sum_j b_j (y - c_j)(y - c_j)^T, and on the diagonal the sum of slopes
        b_sum, b_centre = bends[..., :1], bends[..., 1 : d + 1]
        hessian = bends[..., d + 1 :].reshape(*y.shape, d).clone()
        hessian.addcmul_((b_sum * y - b_centre)[..., :, None], y[..., None, :])
        hessian.addcmul_(y[..., :, None], b_centre[..., None, :], value=-1)
        diagonal = slopes[..., 0].clone()
        gradient = y * slopes[..., :1] - slopes[..., 1:]
        for own, weight in self._each_own():
            diff = y - own
            phi, slope, bend, _ = design_profile(self.kernel, diff.square().sum(-1))
            value += weight * phi
            slope, bend = 2 * weight * slope, 4 * weight * bend
            gradient.addcmul_(slope[..., None], diff)
            hessian.addcmul_((bend[..., None] * diff)[..., :, None], diff[..., None, :])
            diagonal += slope
        hessian.diagonal(dim1=-2, dim2=-1).add_(diagonal[..., None])
        return value, gradient, hessian, features

    def _explicit(
        self, y: Tensor, centres: Tensor, weights: Tensor, gradients: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same from differences, with derivative weights if there are any; centres (H, P or 1, k, d)."""
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


def squared_distances(y: Tensor, c: Tensor) -> Tensor:
    """Between scaled points (H, p, d) and (H, u, d), multiplied out: (H, p, u)."""
    squared = torch.baddbmm((c * c).sum(-1)[:, None, :], y, c.mT, alpha=-2)
    return squared.add_((y * y).sum(-1, keepdim=True)).clamp_min_(0)


def scaled_features(kernel: str, y: Tensor, c: Tensor) -> Tensor:
    """k between scaled points, (H, p, u)."""
    squared = squared_distances(y, c)
    return squared.mul_(-0.5).exp_() if kernel == "squared_exponential" else design_profile(kernel, squared)[0]
