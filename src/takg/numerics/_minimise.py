"""Minimise many smooth functions over boxes at once: BFGS with projection, one evaluation a pass.

Every problem of the batch keeps its own curvature and step length. In each pass all unfinished ones
are evaluated together; one whose trial point is no better shortens its step and waits for the next
pass, so a hard problem never makes the others search along a line again.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_ARMIJO = 1e-4
_ROUNDING = 1e-14  # relative error of a value, a few times that of one operation
_SHORTEST_STEP = 1e-10
_GROWTH = 4.0
_LEAST_EXTENT = 1e-8  # of the inverse Hessian along a step, as a share of what the step shows


class Minimum(NamedTuple):
    """Where each problem ended, and whether its projected gradient fell below the tolerance there."""

    x: Tensor  # (B, p)
    value: Tensor  # (B,)
    gradient_norm: Tensor  # (B,), largest component of the projected gradient
    converged: Tensor  # (B,), bool
    passes: int  # batched evaluations of the objective


def minimise(
    objective: Objective,
    start: Tensor,
    lower: Tensor | float,
    upper: Tensor | float,
    *,
    max_passes: int = 200,
    tolerance: float = 1e-8,
    first_step: float = 0.1,
) -> Minimum:
    """Find a local minimum in the box from each start.

    Args:
        objective: takes points (b, p) and the indices (b,) of the problems they belong to; returns
            values (b,) and gradients (b, p). A value that is not finite counts as too high.
        start: (B, p), projected to the box first.
        lower, upper: the box, broadcastable to (B, p).
        tolerance: on the largest component of the projected gradient.
        first_step: length of the first trial step, before any curvature is known.
    """
    lower = torch.as_tensor(lower, dtype=start.dtype).expand_as(start)
    upper = torch.as_tensor(upper, dtype=start.dtype).expand_as(start)
    x = start.detach().clamp(lower, upper)
    B, p = x.shape
    everyone = torch.arange(B)
    f, g = objective(x, everyone)
    f, g = f.detach().clone(), g.detach().clone()
    passes = 1

    eye = torch.eye(p, dtype=x.dtype)
    inverse_hessian = eye.repeat(B, 1, 1) * (first_step / g.norm(dim=-1).clamp_min(1e-12))[:, None, None]
    is_fresh = torch.ones(B, dtype=torch.bool)  # no curvature seen since the last reset
    step = torch.ones(B, dtype=x.dtype)
    reach = torch.full((B,), first_step, dtype=x.dtype)
    is_straight = torch.zeros(B, dtype=torch.bool)  # no positive curvature along the last good step
    norm = _projected_norm(x, g, lower, upper)
    stuck = ~f.isfinite()

    while passes < max_passes:
        live = everyone[(norm > tolerance) & ~stuck]
        if live.numel() == 0:
            break
        x_l, f_l, g_l, low, high = x[live], f[live], g[live], lower[live], upper[live]
        is_free = ~(((x_l <= low) & (g_l > 0)) | ((x_l >= high) & (g_l < 0)))  # (b, p)
        free_gradient = g_l * is_free
        direction = -(inverse_hessian[live] @ free_gradient[..., None])[..., 0] * is_free
        length = direction.norm(dim=-1).clamp_min(torch.finfo(x.dtype).tiny)
        # A step may be _GROWTH times the last good one, and is that long where no curvature held it back.
        fitted = torch.where(is_straight[live], reach[live] / length, (reach[live] / length).clamp_max(1.0))
        trial = (x_l + (step[live] * fitted)[:, None] * direction).clamp(low, high)
        f_t, g_t = objective(trial, live)
        f_t, g_t = f_t.detach(), g_t.detach()
        passes += 1

        moved = trial - x_l
        expected = (g_l * moved).sum(-1)
        is_lower = f_t <= f_l + _ARMIJO * expected
        # Near a minimum the decrease drowns in the rounding of f, where slopes still tell; Hager and Zhang (2005).
        is_level = f_t <= f_l + _ROUNDING * f_l.abs()
        is_flatter = (g_t * moved).sum(-1) <= (2 * _ARMIJO - 1) * expected
        is_better = f_t.isfinite() & g_t.isfinite().all(-1) & (is_lower | is_level & is_flatter) & (expected < 0)

        won = live[is_better]
        if won.numel():
            # What did not move lies on a face; its gradient would teach the others the curvature off the face.
            change = ((g_t - g_l) * (moved != 0))[is_better]
            inverse_hessian[won] = _bfgs_update(inverse_hessian[won], moved[is_better], change, is_fresh[won])
            x[won], f[won], g[won] = trial[is_better], f_t[is_better], g_t[is_better]
            norm[won] = _projected_norm(x[won], g[won], lower[won], upper[won])
            is_straight[won] = (moved[is_better] * change).sum(-1) <= 0
            reach[won] = _GROWTH * moved[is_better].norm(dim=-1)
            step[won] = 1.0
            is_fresh[won] &= is_straight[won]

        lost = live[~is_better]
        if lost.numel():
            step[lost] *= _shrinkage(f_t[~is_better], f_l[~is_better], expected[~is_better])
            too_short = lost[(step[lost] < _SHORTEST_STEP) | (moved[~is_better].abs().amax(-1) == 0)]
            # Bad curvature gets one reset to steepest descent; if that fails too, rounding error rules here.
            stuck[too_short[is_fresh[too_short]]] = True
            again = too_short[~is_fresh[too_short]]
            scale = first_step / g[again].norm(dim=-1).clamp_min(1e-12)
            inverse_hessian[again] = eye * scale[:, None, None]
            step[again] = 1.0
            is_fresh[again] = True
            is_straight[again] = False

    return Minimum(x=x, value=f, gradient_norm=norm, converged=(norm <= tolerance) & f.isfinite(), passes=passes)


def _projected_norm(x: Tensor, g: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return ((x - g).clamp(lower, upper) - x).abs().amax(-1)


def _shrinkage(f_trial: Tensor, f: Tensor, expected: Tensor) -> Tensor:
    """Where the parabola through f, its slope and the trial value has its minimum, within [0.1, 0.5]."""
    best = -expected / (2 * (f_trial - f - expected))
    return torch.nan_to_num(best, nan=0.1).clamp(0.1, 0.5)


def _bfgs_update(H: Tensor, moved: Tensor, change: Tensor, is_fresh: Tensor) -> Tensor:
    """The inverse-Hessian update; skipped where the curvature along the step is not positive."""
    curvature = (moved * change).sum(-1)  # (b,)
    is_convex = curvature > 1e-10 * moved.norm(dim=-1) * change.norm(dim=-1)
    safe = torch.where(is_convex, curvature, torch.ones_like(curvature))
    scale = safe / (change * change).sum(-1).clamp_min(torch.finfo(H.dtype).tiny)
    eye = torch.eye(H.shape[-1], dtype=H.dtype)
    Hy = (H @ change[..., None])[..., 0]  # (b, p)
    # Rounding can leave H without any extent along the change, or with a negative one: then it starts anew.
    is_worn = (change * Hy).sum(-1) <= _LEAST_EXTENT * safe
    H = torch.where(((is_fresh | is_worn) & is_convex)[:, None, None], scale[:, None, None] * eye, H)
    Hy = (H @ change[..., None])[..., 0]
    # Steep early steps leave H far too small in directions not seen since; scaled up, it forgets them.
    growth = (safe / (change * Hy).sum(-1).clamp_min(torch.finfo(H.dtype).tiny)).clamp_min(1.0)
    growth = torch.where(is_convex, growth, 1.0)
    H, Hy = growth[:, None, None] * H, growth[:, None] * Hy
    rho = 1 / safe
    bend = rho * (1 + rho * (change * Hy).sum(-1))
    outer = moved[:, :, None] * Hy[:, None, :]
    updated = H - rho[:, None, None] * (outer + outer.mT) + bend[:, None, None] * moved[:, :, None] * moved[:, None, :]
    return torch.where(is_convex[:, None, None], updated, H)
