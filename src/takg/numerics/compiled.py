"""What loops compiled by Numba share. Not imported with the package: Numba takes its time."""

import math
from typing import Any

import numpy as np
from numba import njit

__all__ = ["compiled", "decay"]

compiled: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"})

_LOG2_E, _LN_2 = 1 / math.log(2), math.log(2)
_HALVES = 2.0 ** -np.arange(1075.0)
_LARGEST = 740.0  # exp(-x) is 0 beyond


@compiled
def decay(t, k):  # type: ignore[no-untyped-def]
    """Fill k with exp(-t) for t >= 0 to the last digit, in steps that a vector unit can take several of at once."""
    for j in range(len(t)):
        x = t[j] if t[j] < _LARGEST else _LARGEST  # also for NaN, which would be an index to nowhere below
        n = math.floor(x * _LOG2_E + 0.5)
        r = n * _LN_2 - x  # at most log(2) / 2 in size, where 13 terms of the series are exact
        p = 1.0 + r / 13
        p = 1.0 + p * r / 12
        p = 1.0 + p * r / 11
        p = 1.0 + p * r / 10
        p = 1.0 + p * r / 9
        p = 1.0 + p * r / 8
        p = 1.0 + p * r / 7
        p = 1.0 + p * r / 6
        p = 1.0 + p * r / 5
        p = 1.0 + p * r / 4
        p = 1.0 + p * r / 3
        p = 1.0 + p * r / 2
        k[j] = (1.0 + p * r) * _HALVES[int(n)]
