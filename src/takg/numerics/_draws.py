"""Standard normal draws for simulations: scrambled Sobol points by default, plain Monte Carlo by choice."""

import torch
from torch import Tensor

from takg.errors import InputError

DRAW_METHODS = ("monte_carlo", "sobol")


def normal_draws(batch: int, n: int, dims: int, *, seed: int, method: str = "sobol") -> Tensor:
    """`batch` sets of n draws from N(0, I), (batch, n, dims).

    With "sobol" every set is the same scrambled sequence under its own random shift: balanced in itself,
    and independent enough of the others to average with them.
    """
    if method not in DRAW_METHODS:
        raise InputError(f"method={method!r}: expected one of {DRAW_METHODS}")
    generator = torch.Generator().manual_seed(seed)
    if dims == 0:
        return torch.empty(batch, n, 0, dtype=torch.float64)
    if method == "monte_carlo":
        return torch.randn(batch, n, dims, generator=generator, dtype=torch.float64)
    points = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed).draw(n, dtype=torch.float64)
    shift = torch.rand(batch, 1, dims, generator=generator, dtype=torch.float64)
    uniform = (points + shift) % 1.0
    tiny = 2.0**-40  # keeps the quantile finite
    draws: Tensor = torch.special.ndtri(uniform.clamp(tiny, 1 - tiny))
    return draws


def sobol_points(n: int, dims: int, *, seed: int) -> Tensor:
    """n scrambled Sobol points of the unit cube, (n, dims)."""
    if dims == 0:
        return torch.empty(n, 0, dtype=torch.float64)
    return torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed).draw(n, dtype=torch.float64)
