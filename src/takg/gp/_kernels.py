"""Covariances of values and derivatives of g: a design factor times one factor for each fidelity.

Each factor is positive semi-definite for all parameters > 0, and so are their products:
- squared exponential and Matern-5/2 on x are;
- freeze_thaw, w + (1 + (s + s') / beta)^-alpha, is a constant plus the Laplace transform of a gamma
  density, an average of the rank-one kernels exp(-lambda s) exp(-lambda s');
- data_size, c + ((1 - s) (1 - s'))^(1 + delta), is a constant plus one rank-one kernel;
- smooth is squared exponential in s;
- curve and size are freeze_thaw and data_size plus a smooth factor: what these two cannot express is not taken to be
  impossible. Without it, losses at small s were extrapolated to s = 1 with errors of ten sds. Both are multiplied by a
  rank-one kernel, the onset, which is 1 at the target: a network that was not trained yet does not depend on x.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from takg.gp._model import Hyperparameters, Model
from takg.gp._rows import Rows

_SQRT5 = 5.0**0.5
_START = 1e-3  # added to s in the onset: one much smaller than this is none, at s = 0 as well


def covariance(model: Model, theta: Hyperparameters, a: Rows, b: Rows) -> Tensor:
    """Prior covariance of two sets of rows, without noise.

    Args:
        a, b: rows with batch dimensions that broadcast.
    Returns:
        (H, ..., a, b).
    """
    K = design_covariance(model, theta, a, b)
    K = K * _lift(theta.signal_var, K)
    if model.m:
        K = K * fidelity_covariance(model, theta, a.s, b.s)
    if model.mean_var or model.trend_dims:
        K = K + trend_covariance(model, a, b)
    # At the target there is nothing of them, but a slope.
    is_constant = not (a.s.requires_grad or b.s.requires_grad)
    if theta.quirk_var is not None and not (is_constant and ((a.s == 1).all() or (b.s == 1).all())):
        is_same = (a.x[..., :, None, :] == b.x[..., None, :, :]).all(-1) & a.has_quirk[:, None] & b.has_quirk
        both = distance_to_target(a.s)[..., :, None] * distance_to_target(b.s)[..., None, :]
        K = K + _lift(theta.quirk_var, K) * (is_same * both)
    return K


def distance_to_target(s: Tensor) -> Tensor:
    """What a design's quirk is multiplied by, 1 - prod s: (..., m) -> (...,)."""
    return 1 - s.prod(-1)


def prior_variance(model: Model, theta: Hyperparameters, rows: Rows) -> Tensor:
    """Diagonal of `covariance(rows, rows)`, (H, ..., r)."""
    ones = torch.ones(rows.x.shape[:-1], dtype=rows.x.dtype)
    slope_at_0 = 1.0 if model.design_kernel == "squared_exponential" else 5.0 / 3.0  # -2 phi'(0)
    which = (rows.part - 1).clamp_min(0)
    per_part = torch.where(rows.part > 0, slope_at_0 / theta.lengthscale[:, which] ** 2, 1.0)  # (H, r)
    variance = _lift(theta.signal_var, ones[None]) * ones
    variance = variance * per_part.reshape(theta.H, *[1] * (ones.ndim - 1), -1)
    for j, kind in enumerate(model.fidelity_kernels):
        s = rows.s[..., j]
        variance = variance * _FIDELITY_FACTORS[kind](s, s, *(_lift(p, variance) for p in theta.fidelity[j]))
    for k in model.trend_dims:
        variance = variance + model.slope_var * trend_basis(rows, k) ** 2
    is_value = (rows.part == 0).to(variance.dtype)
    if theta.quirk_var is not None:
        variance = variance + _lift(theta.quirk_var, variance) * distance_to_target(rows.s) ** 2 * rows.has_quirk
    return variance + model.mean_var * is_value


def noise_variance(theta: Hyperparameters, rows: Rows) -> Tensor:
    """Noise of each row, (H, r), or (H, ..., r) where it depends on the fidelity."""
    is_value = (rows.part == 0)[None]
    noise = torch.where(is_value, theta.noise_var[:, None], theta.gradient_noise_var[:, None])  # (H, r)
    if theta.low_noise_var is not None:
        low = distance_to_target(rows.s) * (rows.part == 0)  # (..., r)
        noise = noise.reshape(theta.H, *[1] * (low.ndim - 1), -1) + _lift(theta.low_noise_var, low[None]) * low
    return noise * rows.noise_scale


def design_covariance(model: Model, theta: Hyperparameters, a: Rows, b: Rows, *, is_aligned: bool = False) -> Tensor:
    """k_x and its derivatives by either argument, (H, ..., a, b), with unit variance.

    With `is_aligned` the points differ between hyperparameter samples: the first batch dimension of x is H.
    """
    diff = a.x[..., :, None, :] - b.x[..., None, :, :]  # (..., a, b, d)
    precision = theta.lengthscale**-2  # (H, d)
    if is_aligned:
        u = (diff * diff * precision.reshape(theta.H, *[1] * (diff.ndim - 2), -1)).sum(-1)
    else:
        u = (precision @ (diff * diff).reshape(-1, a.d).mT).reshape(-1, *diff.shape[:-1])  # (H, ..., a, b)
    phi = profile(model.design_kernel, u)
    if not (a.has_gradients or b.has_gradients):
        return phi

    # With phi(u) and u = sum_k (diff_k / l_k)^2, du/dx_k = 2 diff_k / l_k^2 and du/dx'_k = minus that.
    slope, bend = profile_slope(model.design_kernel, u), profile_curvature(model.design_kernel, u)
    is_a, is_b = (a.part > 0)[:, None], (b.part > 0)[None, :]  # (a, 1), (1, b)
    k_a, k_b = (a.part - 1).clamp_min(0), (b.part - 1).clamp_min(0)
    lead = (1,) * (u.ndim - 3)
    du_a = 2 * _pick(diff, k_a[:, None]) * precision[:, k_a].reshape(theta.H, *lead, -1, 1)
    du_b = -2 * _pick(diff, k_b[None, :]) * precision[:, k_b].reshape(theta.H, *lead, 1, -1)
    twice = torch.where(k_a[:, None] == k_b[None, :], -2 * precision[:, k_a].reshape(theta.H, *lead, -1, 1), 0.0)
    by_both = bend * du_a * du_b + slope * twice
    by_one = slope * torch.where(is_a, du_a, du_b)
    return torch.where(is_a & is_b, by_both, torch.where(is_a | is_b, by_one, phi))


def fidelity_covariance(model: Model, theta: Hyperparameters, s_a: Tensor, s_b: Tensor) -> Tensor:
    """prod_j k_j(s_j, s'_j): (..., a, m) and (..., b, m) -> (H, ..., a, b)."""
    product = torch.ones((1,) * (max(s_a.ndim, s_b.ndim) + 1), dtype=s_a.dtype)
    for j, kind in enumerate(model.fidelity_kernels):
        parameters = (_lift(p, product) for p in theta.fidelity[j])
        product = product * _FIDELITY_FACTORS[kind](s_a[..., :, None, j], s_b[..., None, :, j], *parameters)
    return product


def fidelity_factor(model: Model, theta: Hyperparameters, j: int, s_a: Tensor, s_b: Tensor) -> Tensor:
    """k_j(s_j, s'_j) of values that broadcast, (H, ...)."""
    shape = [theta.H] + [1] * max(s_a.ndim, s_b.ndim)
    return _FIDELITY_FACTORS[model.fidelity_kernels[j]](s_a, s_b, *(p.reshape(shape) for p in theta.fidelity[j]))


def squared_distances(y: Tensor, c: Tensor) -> Tensor:
    """Between scaled points (H, p, d) and (H, u, d), multiplied out: (H, p, u)."""
    squared = torch.baddbmm((c * c).sum(-1)[:, None, :], y, c.mT, alpha=-2)
    return squared.add_((y * y).sum(-1, keepdim=True)).clamp_min_(0)


def profile(design_kernel: str, u: Tensor) -> Tensor:
    """phi(u), the design kernel as a function of the squared scaled distance."""
    if design_kernel == "squared_exponential":
        return (-0.5 * u).exp()
    return _Matern52.apply(u)  # type: ignore[no-untyped-call, no-any-return]


def profile_slope(design_kernel: str, u: Tensor) -> Tensor:
    """phi'(u)."""
    if design_kernel == "squared_exponential":
        return -0.5 * (-0.5 * u).exp()
    return _Matern52Slope.apply(u)  # type: ignore[no-untyped-call, no-any-return]


def profile_curvature(design_kernel: str, u: Tensor) -> Tensor:
    """phi''(u)."""
    if design_kernel == "squared_exponential":
        return 0.25 * (-0.5 * u).exp()
    # The clamp keeps the root's derivative finite; phi'' only ever meets it multiplied by a difference.
    return (25.0 / 12.0) * (-_SQRT5 * u.clamp_min(1e-30).sqrt()).exp()


def design_profile(design_kernel: str, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """phi(u) and its first three derivatives, for use without autograd."""
    if design_kernel == "squared_exponential":
        phi = (-0.5 * u).exp()
        return phi, -0.5 * phi, 0.25 * phi, -0.125 * phi
    r = (5 * u).clamp_min(1e-30).sqrt()  # the third has a pole at 0, where it only meets cubes of the distance
    decay = (-r).exp()
    return (
        (1 + r + r * r / 3) * decay,
        -(5.0 / 6.0) * (1 + r) * decay,
        (25.0 / 12.0) * decay,
        -(125.0 / 24.0) * decay / r,
    )


class _Matern52(torch.autograd.Function):
    """(1 + r + r^2 / 3) exp(-r), r = sqrt(5 u), with the derivative that autograd cannot find at u = 0."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        r = _SQRT5 * u.clamp_min(0).sqrt()
        return (1 + r + r * r / 3) * (-r).exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad * _Matern52Slope.apply(u)  # type: ignore[no-untyped-call, no-any-return]


class _Matern52Slope(torch.autograd.Function):
    """-(5 / 6) (1 + r) exp(-r)."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        r = _SQRT5 * u.clamp_min(0).sqrt()
        return -(5.0 / 6.0) * (1 + r) * (-r).exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return grad * profile_curvature("matern52", u)


# Without a derivative to remember, all but the first operation on a table are done in place: less than half the time.


def _freeze_thaw(s: Tensor, s_b: Tensor, w: Tensor, beta: Tensor, alpha: Tensor) -> Tensor:
    ratio = (s + s_b) / beta
    if torch.is_grad_enabled():
        return w + (-alpha * (1 + ratio).log()).exp()  # log1p is no better here, and takes twice the time
    return ratio.add_(1).log_().mul_(-alpha).exp_().add_(w)


def _data_size(s: Tensor, s_b: Tensor, c: Tensor, delta: Tensor) -> Tensor:
    # Clamped, since 1 - s can be -1e-17 after rounding and has no real power then.
    a, b = (1 - s).clamp_min(0), (1 - s_b).clamp_min(0)
    if torch.is_grad_enabled():
        return c + a ** (1 + delta) * b ** (1 + delta)
    # A quarter of the time of a power, but without a derivative at 0.
    return (((1 + delta) * a.log()).exp_() * ((1 + delta) * b.log()).exp_()).add_(c)


def _smooth(s: Tensor, s_b: Tensor, lengthscale: Tensor) -> Tensor:
    return (-0.5 * ((s - s_b) / lengthscale) ** 2).exp()


def _curve(
    s: Tensor, s_b: Tensor, w: Tensor, beta: Tensor, alpha: Tensor, doubt: Tensor, reach: Tensor, onset: Tensor
) -> Tensor:
    return _with_doubt_and_onset(_freeze_thaw(s, s_b, w, beta, alpha), s, s_b, doubt, reach, onset)


def _size(s: Tensor, s_b: Tensor, c: Tensor, delta: Tensor, doubt: Tensor, reach: Tensor, onset: Tensor) -> Tensor:
    return _with_doubt_and_onset(_data_size(s, s_b, c, delta), s, s_b, doubt, reach, onset)


def _with_doubt_and_onset(
    factor: Tensor, s: Tensor, s_b: Tensor, doubt: Tensor, reach: Tensor, onset: Tensor
) -> Tensor:
    exponent = (s - s_b).square() * (-0.5 / reach**2)
    a, b = _share(s, onset), _share(s_b, onset)
    if torch.is_grad_enabled():
        return (factor + doubt * exponent.exp()) * a * b
    return factor.add_(exponent.exp_().mul_(doubt)).mul_(a).mul_(b)


def _share(s: Tensor, onset: Tensor) -> Tensor:
    """Of what designs differ by at the target, what they differ by at s: half of it at about s = onset."""
    return (s + _START) / (s + _START + onset) * ((1 + _START + onset) / (1 + _START))


_FIDELITY_FACTORS: dict[str, Callable[..., Tensor]] = {
    "freeze_thaw": _freeze_thaw,
    "data_size": _data_size,
    "smooth": _smooth,
    "curve": _curve,
    "size": _size,
}


def trend_covariance(model: Model, a: Rows, b: Rows) -> Tensor:
    """Covariance that the integrated trend adds."""
    both_values = ((a.part == 0)[:, None] & (b.part == 0)[None, :]).to(a.x.dtype)
    K = model.mean_var * both_values
    for k in model.trend_dims:
        K = K + model.slope_var * trend_basis(a, k)[..., :, None] * trend_basis(b, k)[..., None, :]
    return K


def trend_basis(rows: Rows, k: int) -> Tensor:
    """What the slope in x_k is multiplied by in each row: x_k in values, 0 or 1 in derivatives.  (..., r)"""
    return torch.where(rows.part == 0, rows.x[..., k], (rows.part == k + 1).to(rows.x.dtype))


def _pick(diff: Tensor, component: Tensor) -> Tensor:
    """diff[..., i, j, component[i, j]] with broadcasting over i and j: (..., a, b, d) -> (..., a, b)."""
    index = component.expand(diff.shape[-3:-1]).expand(diff.shape[:-1])[..., None]
    return diff.gather(-1, index)[..., 0]


def _lift(parameter: Tensor, like: Tensor) -> Tensor:
    """(H,) with trailing ones, to broadcast against (H, ...)."""
    return parameter.reshape(-1, *[1] * (like.ndim - 1))
