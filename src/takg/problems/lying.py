"""Problems whose low fidelity says little, or the wrong thing, about the target; docs/benchmarks.md."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from takg.fidelity import FidelitySpace
from takg.problems._synthetic import Problem, branin, hartmann3

__all__ = ["LYING", "crossing", "diverging", "misleading", "misleading_data", "mute", "static"]

Formula = Callable[[Tensor, Tensor], Tensor]

_TRACE = FidelitySpace(names=("iterations",), trace_dims=(0,))
_DATA_AND_TRACE = FidelitySpace(names=("data", "iterations"), trace_dims=(1,))


def mute() -> Problem:
    """Branin that fades into a constant: up to s = 0.1 all designs look the same, as networks that learn nothing yet.

    Were it so at s = 0 only, a look at the least s without noise would still show all there is.
    """
    truth, level, silent = branin(), 55.0, 0.1  # the level is near its mean

    def formula(x: Tensor, s: Tensor) -> Tensor:
        share = (s[..., 0] - silent).clamp_min(0) / (1 - silent)
        return share * truth.formula(x, torch.ones_like(s)) + (1 - share) * level

    return replace(truth, name="mute", fidelities=_TRACE, formula=formula)


def static() -> Problem:
    """Hartmann-3 that fades into a fixed picture of pure noise: at s = 0 neighbours have nothing in common."""
    truth = hartmann3()

    def formula(x: Tensor, s: Tensor) -> Tensor:
        # Digits of a fast sine, as good as random; uniform on [-3, 0], the range of the function.
        digits = 43758.5453 * torch.sin(x @ x.new_tensor((1271.9, 3117.7, 2693.3)))
        noise = 3 * (digits - torch.floor(digits)) - 3
        return s[..., 0] * truth.formula(x, torch.ones_like(s)) + (1 - s[..., 0]) * noise

    return replace(truth, name="static", fidelities=_TRACE, formula=formula)


def misleading() -> Problem:
    """A wide well that is the deeper one until s = 0.5 and gone at 1, and the narrow one that stays."""
    return _in_the_cube("misleading", _TRACE, _TRUE_WELL, lambda x, s: _wells(x, s[..., 0]))


def misleading_data() -> Problem:
    """`misleading` with two fidelities: few data mislead as a low s does there, and iterations have yet to converge."""

    def formula(x: Tensor, s: Tensor) -> Tensor:
        data, iterations = s.unbind(dim=-1)
        rate = 3 + 5 * x[..., 0]
        return _wells(x, data) + _left(iterations, rate)

    return _in_the_cube("misleading-data", _DATA_AND_TRACE, _TRUE_WELL, formula)


def crossing() -> Problem:
    """Learning curves that cross: the larger x_1, the faster the start and the worse the end."""
    best = (0.15, 0.6, 0.35)

    def formula(x: Tensor, s: Tensor) -> Tensor:
        end = ((x - x.new_tensor(best)) ** 2).sum(dim=-1)
        return end + (2 - end) * _left(s[..., 0], 1 + 12 * x[..., 0])

    return _in_the_cube("crossing", _TRACE, best, formula)


def diverging() -> Problem:
    """The larger x_1, a learning rate, the better, until trainings diverge: first late, then at once."""
    best = (0.69, 0.4, 0.7)

    def formula(x: Tensor, s: Tensor) -> Tensor:
        end = ((x - x.new_tensor(best)) ** 2).sum(dim=-1)
        loss = end + (2 - end) * _left(s[..., 0], 2 + 4 * x[..., 0])
        lasts = (1 - x[..., 0]) / 0.3  # 1 and more below x_1 = 0.7
        return torch.where(s[..., 0] > lasts, torch.nan, loss)

    return _in_the_cube("diverging", _TRACE, best, formula)


def _in_the_cube(name: str, fidelities: FidelitySpace, minimiser: tuple[float, ...], formula: Formula) -> Problem:
    """On the unit cube, with a minimum of 0."""
    d = len(minimiser)
    return Problem(
        name=name,
        lower=(0.0,) * d,
        upper=(1.0,) * d,
        fidelities=fidelities,
        minimum=0.0,
        minimisers=(minimiser,),
        formula=formula,
    )


_TRUE_WELL = (0.8, 0.75, 0.3)
_FALSE_WELL = (0.25, 0.3, 0.65)


def _wells(x: Tensor, s: Tensor) -> Tensor:
    """1 minus a narrow well of depth s and a wide one of depth 1 - s, far from each other; s is (...,)."""
    near_true = ((x - x.new_tensor(_TRUE_WELL)) ** 2).sum(dim=-1)
    near_false = ((x - x.new_tensor(_FALSE_WELL)) ** 2).sum(dim=-1)
    return 1 - s * torch.exp(-near_true / (2 * 0.15**2)) - (1 - s) * torch.exp(-near_false / (2 * 0.25**2))


def _left(s: Tensor, rate: Tensor) -> Tensor:
    """The share of the way from start to end that is left at s: exponential, 1 at 0 and exactly 0 at 1."""
    return (torch.exp(-rate * s) - torch.exp(-rate)) / (1 - torch.exp(-rate))


LYING: Mapping[str, Problem] = MappingProxyType(
    {problem.name: problem for problem in (mute(), static(), misleading(), misleading_data(), crossing(), diverging())}
)
