"""Search spaces and fidelities in the user's units, and as unit cubes; standard library only."""

from takg.space._fidelities import FIDELITY_KERNELS, Fidelities, Fidelity, check_names
from takg.space._parameters import Categorical, Constant, Float, Int, Ordinal, Parameter
from takg.space._pool import Pool
from takg.space._space import Space, flat

__all__ = [
    "FIDELITY_KERNELS",
    "Categorical",
    "Constant",
    "Fidelities",
    "Fidelity",
    "Float",
    "Int",
    "Ordinal",
    "Parameter",
    "Pool",
    "Space",
    "check_names",
    "flat",
]
