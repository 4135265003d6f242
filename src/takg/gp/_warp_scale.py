"""Where the log warp turns from linear to logarithmic, learned from the losses.

A small scale tells losses near the best apart, but turns the round bottom of a valley into a funnel: length scales get
short, and nothing is learned from afar. A large one keeps the bottom round and leaves all losses above to a few sds.
Which of them makes the losses look most like a Gaussian process says its evidence, the density of the losses: that of
the warped ones times the slope of the warp. It speaks of all losses, most of which are far from good, and would on some
data have no warp at all: scales are learned within an order of magnitude above the usual one.
"""

import math

import torch
from torch import Tensor

from takg.gp._evidence import Z_MAX, LogDensity, with_large_quirks
from takg.gp._fit import Chains
from takg.gp._model import Model
from takg.gp._outcome import OutcomeTransform, fit_outcome
from takg.gp._rows import Rows
from takg.numerics import minimise, threads_for

_FACTOR, _SCALES = 3.0, 3  # between scales that are compared, and how many, from the usual one on
_CLEARLY = 3.0  # by which the evidence for another scale has to be higher, a factor of 20
_ROUNDING = 1 + 1e-9
_TELLING = 150  # rows that are looked at
_PASSES, _TOLERANCE = 40, 0.1  # to find the mode of the hyperparameters; the evidence is compared by whole units


def learn_warp_scale(
    model: Model, rows: Rows, y: Tensor, *, scale: float | None = None, chains: Chains | None = None
) -> float:
    """The scale of the log warp with the highest evidence, for `fit_outcome`.

    Args:
        rows, y: n observations, losses as the user gave them.
        scale: what was found before; only its neighbours are compared with it, and it stays unless one is clearly
            better. One beyond an order of magnitude has to be clearly better than the nearest that is.
        chains: of the hyperparameters, where their mode is first looked for.
    """
    guess = fit_outcome(y, warp="log").scale
    if len(rows) > _TELLING:
        chosen = torch.linspace(0, len(rows) - 1, _TELLING).round().long()
        rows, y = rows[chosen], y[chosen]
    centre = torch.zeros(1, len(model.priors), dtype=torch.float64)
    start = torch.cat([centre, with_large_quirks(centre, model.priors)]).unique(dim=0)  # one where there are no quirks
    if chains is not None:
        start = torch.cat([start, torch.tensor(chains.walkers, dtype=torch.float64).median(0).values[None]])

    def evidence(candidate: float) -> float:
        return _evidence(model, rows, y, fit_outcome(y, warp="log", scale=candidate), start)

    with threads_for(len(rows)):
        if scale is not None:
            lowest, highest = guess / _FACTOR, guess * _FACTOR ** (_SCALES - 1)
            # The best loss, and the guess with it, may have moved: beyond its range a scale has to be clearly better.
            within = min(max(scale, lowest), highest)
            if within != scale and evidence(scale) > evidence(within) + _CLEARLY:
                return scale
            scale = within
            around = (scale / _FACTOR, scale * _FACTOR)
            neighbours = [one for one in around if lowest / _ROUNDING < one < highest * _ROUNDING]
            found = {one: evidence(one) for one in (scale, *neighbours)}
            best = max(found, key=lambda one: found[one])
            return best if found[best] > found[scale] + _CLEARLY else scale
        return max((guess * _FACTOR**i for i in range(_SCALES)), key=evidence)


def _evidence(model: Model, rows: Rows, y: Tensor, outcome: OutcomeTransform, start: Tensor) -> float:
    density = LogDensity(model=model, rows=rows, y=outcome.forward(y))
    mode = minimise(
        lambda z, _: density.negative_with_gradient(z),
        start,
        -Z_MAX,
        Z_MAX,
        max_passes=_PASSES,
        tolerance=_TOLERANCE,
        first_step=1.0,
    )
    slope = outcome.slope(y)
    return float(slope[slope > 0].log().sum() - mode.value.nan_to_num(nan=math.inf).amin())
