"""Points that are high and not next to each other, so that a few of them are on different hills."""

from collections.abc import Sequence

import torch
from torch import Tensor

from takg.gp import Posterior

FAR, MIDDLE, NEAR = 0.5, 0.25, 0.05  # in length scales


def apart(score: Tensor, points: Tensor, count: int, radii: Sequence[float], chosen: Sequence[int] = ()) -> Tensor:
    """Indices of the highest points, none within a radius of another; each radius in turn, until there are enough."""
    found = list(chosen)
    for radius in radii:
        is_free = torch.ones(len(points), dtype=torch.bool)
        is_free[found] = False
        for i in found:
            is_free &= (points - points[i]).abs().amax(-1) > radius
        while len(found) < count and is_free.any():
            i = int(score.masked_fill(~is_free, -torch.inf).argmax())
            found.append(i)
            is_free &= (points - points[i]).abs().amax(-1) > radius
            is_free[i] = False
    return torch.tensor(found, dtype=torch.long)


def typical_lengthscale(post: Posterior) -> Tensor:
    """Typical of the samples, at most the edge of the cube, (d,)."""
    return post.theta.lengthscale.log().mean(0).exp().clamp_max(1.0)
