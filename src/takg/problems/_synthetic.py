"""The paper's four synthetic functions, each with one or two fidelities; docs/paper.md#synthetic-problems."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError
from takg.fidelity import FidelitySpace, check_fidelities

__all__ = ["PROBLEMS", "Problem", "branin", "hartmann3", "hartmann6", "rosenbrock3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A function to minimise over x at s = 1, where its minimum is known; d = len(lower) design variables.

    `minimum` is the exact value of the global minimum at s = 1, rounded to double precision, and
    `minimisers` are all the points, in user units, that attain it. `formula(x, s)` is the function itself in
    user units, (..., d), (..., m) -> (...,), unchecked and differentiable; `evaluate` is its checked form on
    the unit cube. Neither has noise: `noise_sd` is for whoever simulates observations to add. A run of which the
    formula is NaN has diverged. `price(x, s)` is the cost in the same terms as `formula`, in full trainings; without
    it, it is the paper's. Where the cost is not known, methods only see what they have paid. If only some designs
    can be run, `pool` has them, in the unit cube, and the formula means the nearest.
    """

    name: str
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    fidelities: FidelitySpace
    minimum: float
    minimisers: tuple[tuple[float, ...], ...]
    formula: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    price: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, repr=False)
    cost_is_known: bool = True
    noise_sd: float = 0.0
    pool: tuple[tuple[float, ...], ...] | None = field(default=None, repr=False)

    @property
    def d(self) -> int:
        """How many design variables there are."""
        return len(self.lower)

    def from_unit(self, x_unit: Tensor) -> Tensor:
        """Unit cube to user units.  (..., d) -> (..., d)"""
        lower, upper = x_unit.new_tensor(self.lower), x_unit.new_tensor(self.upper)
        return lower + (upper - lower) * x_unit

    def to_unit(self, x: Tensor) -> Tensor:
        """User units to the unit cube.  (..., d) -> (..., d)"""
        lower, upper = x.new_tensor(self.lower), x.new_tensor(self.upper)
        return (x - lower) / (upper - lower)

    def evaluate(self, x_unit: Tensor, s: Tensor) -> Tensor:
        """g(x, s), without noise.

        Args:
            x_unit: (..., d), in the unit cube.
            s: (..., m), in [0, 1]; batch dims broadcast with those of `x_unit`.
        Returns:
            (...,).
        """
        self._check(x_unit, s)
        return self.formula(self.from_unit(x_unit), s)

    def cost(self, x_unit: Tensor, s: Tensor) -> Tensor:
        """0.01 + prod_i s_i, a fixed price of validation plus data points visited in training; or the problem's own.

        Args:
            x_unit: (..., d), in the unit cube.
            s: (..., m), in [0, 1]; batch dims broadcast with those of `x_unit`.
        Returns:
            (...,).
        """
        batch = self._check(x_unit, s)
        if self.price is not None:
            return self.price(self.from_unit(x_unit), s).expand(batch)
        return (0.01 + s.prod(dim=-1)).expand(batch)

    def _check(self, x_unit: Tensor, s: Tensor) -> tuple[int, ...]:
        if not isinstance(x_unit, Tensor) or x_unit.shape[-1:] != (self.d,) or not x_unit.is_floating_point():
            came = f"{x_unit.dtype} {tuple(x_unit.shape)}" if isinstance(x_unit, Tensor) else type(x_unit).__name__
            raise InputError(
                f"x_unit is {came}; expected a float tensor (..., {self.d}), the variables of {self.name!r} "
                "scaled to the unit cube"
            )
        bad = x_unit[~((x_unit >= 0) & (x_unit <= 1))]  # NaN fails both comparisons
        if bad.numel():
            raise InputError(
                f"x_unit holds {bad[0].item()!r}; expected finite values in [0, 1]: convert user units with to_unit"
            )
        check_fidelities("s", s, self.fidelities.m)
        try:
            return np.broadcast_shapes(x_unit.shape[:-1], s.shape[:-1])
        except ValueError:
            raise InputError(
                f"x_unit has shape {tuple(x_unit.shape)} and s has {tuple(s.shape)}; expected batch dims "
                "that broadcast: reshape one of them"
            ) from None


def branin(*, bias: float = 0.1) -> Problem:
    """Branin on [-5, 10] x [0, 15]; a low fidelity bends the valley by `bias` (1 - s) x_1^2.

    Args:
        bias: 0.1 as the paper prints it; other code has 0.01. The minimum at s = 1 does not depend on it.
    """
    if not math.isfinite(bias):
        raise InputError(f"bias={bias}; expected a finite number, such as the paper's 0.1")

    def formula(x: Tensor, s: Tensor) -> Tensor:
        x_1, x_2 = x.unbind(dim=-1)
        b = 5.1 / (4 * math.pi**2) - bias * (1 - s[..., 0])
        valley = x_2 - b * x_1**2 + 5 / math.pi * x_1 - 6
        return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * torch.cos(x_1) + 10

    return Problem(
        name="branin" if bias == 0.1 else f"branin-bias-{bias:g}",
        lower=(-5.0, 0.0),
        upper=(10.0, 15.0),
        fidelities=FidelitySpace(names=("iterations",), trace_dims=(0,)),
        minimum=1.25 / math.pi,  # valley = 0 and cos(x_1) = -1
        minimisers=((-math.pi, 12.275), (math.pi, 2.275), (3 * math.pi, 2.475)),
        formula=formula,
    )


def rosenbrock3() -> Problem:
    """Rosenbrock on [-2, 2]^3 with two fidelities: s_1 data, fixed for a run, and s_2 iterations, a trace."""

    def formula(x: Tensor, s: Tensor) -> Tensor:
        here, ahead = x[..., :-1], x[..., 1:]  # (..., 2)
        data, iterations = s[..., :1], s[..., 1:]  # (..., 1)
        valley = ahead - here**2 + 0.1 * (1 - data)
        slope = here - 1 + 0.1 * (1 - iterations) ** 2
        return (100 * valley**2 + slope**2).sum(dim=-1)

    return Problem(
        name="rosenbrock3",
        lower=(-2.0,) * 3,
        upper=(2.0,) * 3,
        fidelities=FidelitySpace(names=("data", "iterations"), trace_dims=(1,)),
        minimum=0.0,
        minimisers=((1.0,) * 3,),
        formula=formula,
    )


def hartmann3() -> Problem:
    """Hartmann on the unit cube of dimension 3; a low fidelity lowers the weight of its first well."""
    return _hartmann(
        name="hartmann3",
        A=((3.0, 10.0, 30.0), (0.1, 10.0, 35.0), (3.0, 10.0, 30.0), (0.1, 10.0, 35.0)),
        P=(
            (0.3689, 0.1170, 0.2673),
            (0.4699, 0.4387, 0.7470),
            (0.1091, 0.8732, 0.5547),
            (0.0381, 0.5743, 0.8828),
        ),
        minimum=-3.8627797873326624,
        minimiser=(0.11458887665506896, 0.55564889461693, 0.8525469846866774),
    )


def hartmann6() -> Problem:
    """Hartmann on the unit cube of dimension 6; a low fidelity lowers the weight of its first well."""
    return _hartmann(
        name="hartmann6",
        A=(
            (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
            (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
            (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
            (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
        ),
        P=(
            (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
            (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
            (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
            (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
        ),
        minimum=-3.3223680114155147,
        minimiser=(
            0.20168951100670543,
            0.15001069182345797,
            0.476873974221897,
            0.2753324304940561,
            0.31165161660011326,
            0.6573005340656203,
        ),
    )


def _hartmann(
    *,
    name: str,
    A: tuple[tuple[float, ...], ...],
    P: tuple[tuple[float, ...], ...],
    minimum: float,
    minimiser: tuple[float, ...],
) -> Problem:
    def formula(x: Tensor, s: Tensor) -> Tensor:
        drop = 0.1 * (1 - s) * x.new_tensor((1.0, 0.0, 0.0, 0.0))  # (..., 4), of the first well only
        alpha = x.new_tensor((1.0, 1.2, 3.0, 3.2)) - drop
        distance = (x.new_tensor(A) * (x.unsqueeze(-2) - x.new_tensor(P)) ** 2).sum(dim=-1)  # (..., 4)
        # The paper prints it without the minus, but it is minimised.
        return -(alpha * torch.exp(-distance)).sum(dim=-1)

    d = len(minimiser)
    return Problem(
        name=name,
        lower=(0.0,) * d,
        upper=(1.0,) * d,
        fidelities=FidelitySpace(names=("iterations",), trace_dims=(0,)),
        minimum=minimum,
        minimisers=(minimiser,),
        formula=formula,
    )


PROBLEMS: Mapping[str, Problem] = MappingProxyType(
    {problem.name: problem for problem in (branin(), rosenbrock3(), hartmann3(), hartmann6())}
)
