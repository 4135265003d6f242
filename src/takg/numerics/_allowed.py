"""Steps that must not leave a set of which only membership is known."""

from collections.abc import Callable

import torch
from torch import Tensor

Allowed = Callable[[Tensor], Tensor]
"""(..., d) -> (...,), bool."""

_HALVINGS = 4


def allowed_part(allowed: Allowed | None, points: Tensor) -> Tensor:
    """Those of the points (k, d) that are allowed; all of them if none is, or if there is nothing to keep from."""
    if allowed is None:
        return points
    is_allowed = allowed(points)
    return points[is_allowed] if is_allowed.any() else points


def furthest_allowed(allowed: Allowed, start: Tensor, end: Tensor) -> Tensor:
    """The ends (..., d) that are allowed; of the others a point on the way from the start, as far as halving finds."""
    is_out = ~allowed(end)
    if not is_out.any():
        return end
    start, way = start.expand_as(end)[is_out], (end - start)[is_out]  # (k, d)
    share, step = torch.zeros_like(way[:, :1]), 1.0
    for _ in range(_HALVINGS):
        step /= 2
        further = share + step
        share = torch.where(allowed(start + further * way)[:, None], further, share)
    found = end.clone()
    found[is_out] = start + share * way
    return found
