"""The same problem, observed with noise."""

import math
from dataclasses import replace

import torch

from takg.errors import InputError
from takg.problems._synthetic import Problem

__all__ = ["function_sd", "noisy"]

_POINTS = 2**12


def noisy(problem: Problem, share: float) -> Problem:
    """`problem` with observation noise whose sd is a share of the function's, named as in "branin-noise-0.01"."""
    if not (math.isfinite(share) and share > 0):
        raise InputError(f"share={share}; expected a number > 0, such as 0.01 for 1 % of the function's sd")
    return replace(problem, name=f"{problem.name}-noise-{share:g}", noise_sd=share * function_sd(problem))


def function_sd(problem: Problem) -> float:
    """How much the function varies over the unit cube at s = 1, where it is finite."""
    points = torch.quasirandom.SobolEngine(problem.d, scramble=True, seed=0).draw(_POINTS, dtype=torch.float64)
    values = problem.evaluate(points, torch.ones(problem.fidelities.m, dtype=torch.float64))
    return float(values[values.isfinite()].std())
