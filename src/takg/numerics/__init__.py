"""Linear algebra, draws and optimisation on batches of small problems; tensors and callables only."""

from takg.numerics._allowed import Allowed, allowed_part, furthest_allowed
from takg.numerics._draws import DRAW_METHODS, normal_draws, sobol_points
from takg.numerics._linalg import Factor, extended_factor, jittered_cholesky
from takg.numerics._minimise import Minimum, minimise
from takg.numerics._newton import NewtonStep, newton_step
from takg.numerics._threads import side_by_side, threads_for

__all__ = [
    "DRAW_METHODS",
    "Allowed",
    "Factor",
    "Minimum",
    "NewtonStep",
    "allowed_part",
    "extended_factor",
    "furthest_allowed",
    "jittered_cholesky",
    "minimise",
    "newton_step",
    "normal_draws",
    "side_by_side",
    "sobol_points",
    "threads_for",
]
