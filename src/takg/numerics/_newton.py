"""Newton steps for a batch of smooth functions over boxes, few dimensions and many problems."""

from typing import NamedTuple

import torch
from torch import Tensor


class NewtonStep(NamedTuple):
    move: Tensor  # (..., d), stays within the box
    gain: Tensor  # (...,), decrease to first order along the move; 0 at a stationary point


def newton_step(
    x: Tensor, gradient: Tensor, hessian: Tensor, lower: Tensor, upper: Tensor, radius: float
) -> NewtonStep:
    """The Newton step on the components that are free to move, damped where the Hessian is not positive definite.

    Args:
        x, gradient: (..., d).
        hessian: (..., d, d).
        lower, upper: the box.
        radius: longest step in any component.
    """
    is_held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
    is_free = (~is_held).to(x.dtype)
    g = gradient * is_free
    A = hessian * (is_free[..., :, None] * is_free[..., None, :]) + torch.diag_embed(1 - is_free)
    L, info = torch.linalg.cholesky_ex(A)
    is_indefinite = info > 0
    if is_indefinite.any():
        # Shifted by Gershgorin's bound on the smallest eigenvalue, it is positive definite for sure.
        bad = A[is_indefinite]
        own = bad.diagonal(dim1=-2, dim2=-1)
        lowest = (own - (bad.abs().sum(-1) - own.abs())).amin(-1)
        size = bad.abs().amax((-1, -2)).clamp_min(torch.finfo(A.dtype).tiny)
        shift = 1e-3 * size - lowest.clamp_max(0)
        L[is_indefinite] = torch.linalg.cholesky_ex(
            bad + shift[:, None, None] * torch.eye(A.shape[-1], dtype=A.dtype)
        ).L
    move = -torch.cholesky_solve(g[..., None], L)[..., 0]
    longest = move.abs().amax(-1, keepdim=True).clamp_min(radius)
    move = (x + move * (radius / longest)).clamp(lower, upper) - x
    gain = -(g * move).sum(-1)
    # The box can cut a Newton step such that it leads uphill. A gradient step scaled by the rows of A never does.
    plain = -g / A.abs().sum(-1).clamp_min(torch.finfo(x.dtype).tiny)
    plain = (x + plain.clamp(-radius, radius)).clamp(lower, upper) - x
    plain_gain = -(g * plain).sum(-1)
    is_poor = gain < 0.1 * plain_gain
    move = torch.where(is_poor[..., None], plain, move)
    return NewtonStep(move, torch.where(is_poor, plain_gain, gain))
