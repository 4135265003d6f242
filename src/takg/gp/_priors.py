"""Priors of the hyperparameters, all log-normal, on the scale of the unit cube and standardised outputs.

docs/paper.md#priors explains each choice. In the whitened coordinates z = (log value - log median) / sd
that the sampler works in, the prior of every hyperparameter is a standard normal.
"""

from typing import NamedTuple


class LogNormal(NamedTuple):
    """log value ~ N(log median, sd^2)."""

    median: float
    sd: float


SIGNAL_VAR = LogNormal(1.0, 1.0)
# Added to both noise variances. Hyperparameters are learned from outputs that are trusted to a thousandth of their sd;
# `_sharpen.py` says why, and trusts them further where that is right.
NOISE_FLOOR = 1e-6
NOISE_VAR = LogNormal(1e-4, 2.5)
GRADIENT_NOISE_VAR = LogNormal(1e-3, 2.5)
QUIRK_VAR = LogNormal(1e-6, 3.5)

_FREEZE_THAW = {"w": LogNormal(1.0, 1.0), "beta": LogNormal(1.0, 1.0), "alpha": LogNormal(1.0, 0.7)}
_DATA_SIZE = {"c": LogNormal(1.0, 1.0), "delta": LogNormal(1.0, 0.7)}
_DOUBT = {"doubt": LogNormal(0.3, 0.7), "reach": LogNormal(0.7, 0.7)}
_ONSET = {"onset": LogNormal(0.003, 2.0)}
FIDELITY_PRIORS: dict[str, dict[str, LogNormal]] = {
    "freeze_thaw": _FREEZE_THAW,
    "data_size": _DATA_SIZE,
    "smooth": {"lengthscale": LogNormal(1.0, 1.0)},
    "curve": _FREEZE_THAW | _DOUBT | _ONSET,
    "size": _DATA_SIZE | _DOUBT | _ONSET,
}


def lengthscale_prior(d: int) -> LogNormal:
    """Distances in the unit cube grow with the root of its dimension, and so does the median."""
    return LogNormal(0.5 * d**0.5, 1.0)
