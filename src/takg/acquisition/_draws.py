"""Outcomes W of what is still to be observed, drawn widely where that matters and weighted for it."""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from takg.numerics import normal_draws

_WIDER = 2.0  # sd of the first simulated outcome of C(S)


class Draws(NamedTuple):
    lead: Tensor  # (H, M, k)
    tail: Tensor  # (H, M, r - k), used with either sign
    weight: Tensor  # (H, M), 1 on average
    is_widened: bool  # the first component of the lead is


@functools.lru_cache(maxsize=16)
def drawn(H: int, M: int, lead: int, tail: int, is_widened: bool, seed: int, method: str) -> Draws:
    """Outcomes of the lead and directions of the tail; the same ones for every pass of an ascent, and only made once.

    The tail is drawn with a wider radius; so is the first component of the lead, which is later turned into what
    the lead says about the highest fidelity.
    """
    normal = normal_draws(H, M, lead + tail, seed=seed, method=method)
    first, rest, around = normal.split([int(is_widened), lead - int(is_widened), tail], dim=-1)
    wide_first, log_first = _widened(first, _WIDER)
    wide_around, log_around = _widened(around, 1 + 0.7 * tail**-0.5)
    weight = (log_first + log_around).exp()
    return Draws(torch.cat([wide_first, rest], dim=-1), wide_around, weight, is_widened)


def turned(w: Tensor, axis: Tensor) -> Tensor:
    """Reflect draws (..., M, k) so that their first component lies along axis (..., k); normal draws stay normal."""
    length = axis.norm(dim=-1, keepdim=True)
    u = torch.where(length > 0, -axis.sign()[..., :1] * axis / length.clamp_min(1e-300), 0.0)  # u_1 <= 0
    mirror = torch.cat([1 - u[..., :1], -u[..., 1:]], dim=-1)[..., None, :]  # e_1 - u, at least 1 long
    along = (w * mirror).sum(-1, keepdim=True) / mirror.square().sum(-1, keepdim=True)
    return w - 2 * along * mirror


def _widened(normal: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Draws of `factor` times the sd, (..., k), and the log of the weight that each carries for it, (...,)."""
    wide = factor * normal
    log_weight = normal.shape[-1] * math.log(factor) - 0.5 * (1 - factor**-2) * wide.square().sum(-1)
    return wide, log_weight
