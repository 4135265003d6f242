"""Between the user's losses y and what the Gaussian process is fitted to, z with mean 0 and sd 1.

    y --(diverged -> worst)--> --(clamp to the fences)--> --(u = (y - origin) / scale)--> --(warp)--> w
    z = (w - mean) / sd

Warp "none" is w = u. Warp "log" has its origin at the best loss, and w = asinh(u) above it, w = u below:
linear around and below the best loss, logarithmic far above it, twice continuously differentiable. It is
not logarithmic downwards, or a wide posterior at a good point would promise losses of -1e10.

The fences stand ten spans away. Both are found from the distinct values: a loss that is reported many times
(chance level, a clipped loss) is one value, and says nothing about spread.

- Above, in warped units, a span is from the 5 % quantile to the median, and is counted from the median.
  Not from the upper quartile, because in a wide search half of all runs may diverge. For normal losses
  this is at 17 sd.
- Below, a loss is absurd only if it lies ten spans below the second-best value; here, a span is how far
  that value is from the median or from zero, whichever is more. So losses that are never negative are
  never touched, and a real discovery is released as soon as a second value confirms it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError

__all__ = ["OutcomeTransform", "fit_outcome"]

WARPS = ("none", "log")
FENCE_SPANS = 10.0
LARGEST = 1e300  # losses are clamped to +-LARGEST, so that no difference of two and no ten spans overflow
SMALLEST_GAP = 1e-290  # closer values count as equal: 1 / gap must be finite
ROUNDING = 64 * torch.finfo(torch.float64).eps  # values this close, relatively, count as equal
TIE, TIE_RANGE = 3e-4, 3e-3  # of the best loss, and of the range of all: losses that are closer to it count once
LARGEST_WARPED = 340.0  # sinh of it, 1e147, can still be squared; 147 orders of magnitude above the best loss
N_NODES = 64
N_HALVINGS = 80

_nodes, _weights = np.polynomial.hermite_e.hermegauss(N_NODES)
NODES = torch.from_numpy(_nodes)
WEIGHTS = torch.from_numpy(_weights / _weights.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTransform:
    """The map from losses y to standardised values z and back; made by `fit_outcome`.

    `floor`, `cap` and `worst` are losses: y is clamped to [floor, cap], and a diverged run (NaN, inf, -inf)
    counts as `worst`. Then u = (y - origin) / scale, w = warp(u), z = (w - mean) / sd.
    """

    warp: str
    floor: float
    cap: float
    worst: float
    origin: float
    scale: float
    mean: float
    sd: float

    def __post_init__(self) -> None:
        _check_warp(self.warp)
        for name in ("floor", "cap", "worst", "origin", "scale", "mean", "sd"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{name}={value!r}: expected a finite number, as fit_outcome makes it")
            object.__setattr__(self, name, float(value))
        for name in ("scale", "sd"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}={getattr(self, name)}: expected a positive number")
        if not self.floor <= self.worst <= self.cap:
            raise InputError(f"worst={self.worst}: expected a loss in [floor, cap] = [{self.floor}, {self.cap}]")

    def to_json(self) -> dict[str, object]:
        """The fields as plain values, none of them infinite."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> OutcomeTransform:
        """The transform that `to_json` wrote."""
        expected = {field.name for field in fields(cls)}
        if set(data) != expected:
            raise InputError(f"data has the keys {sorted(data)}; expected {sorted(expected)}, as to_json writes them")
        return cls(**data)  # type: ignore[arg-type]  # __post_init__ checks every value

    def forward(self, y: Tensor) -> Tensor:
        """z of losses, also of new, extreme and non-finite ones; always finite.  (...) -> (...)"""
        w = _warp((self._clamped(y) - self.origin) / self.scale, self.warp)
        return (w - self.mean) / self.sd

    def inverse(self, z: Tensor) -> Tensor:
        """The losses that map to z; beyond the fences the warp goes on, so that quantiles map to quantiles.

        Strictly increasing. The log warp goes on along its tangent where sinh would overflow.  (...) -> (...)
        """
        w = self.mean + self.sd * z.to(torch.float64)
        return self.origin + self.scale * _unwarp(w, self.warp, _largest_warped(self.scale))

    def slope(self, y: Tensor) -> Tensor:
        """dz/dy, the factor that takes dg/dx at an observed loss y to units of z.  (...) -> (...)

        Zero where y lies outside the fences or is not finite: there, the gradient says nothing about z.
        """
        y = y.to(torch.float64)
        u = (self._clamped(y) - self.origin) / self.scale
        slope = torch.ones_like(u) if self.warp == "none" else (1 + u.clamp_min(0.0) ** 2).rsqrt()
        inside = (y >= self.floor) & (y <= self.cap)  # false for NaN
        return torch.where(inside, slope / self.sd / self.scale, 0.0)

    def mean_and_sd(self, mu: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sd, in units of the loss, of Y = inverse(Z) with Z ~ N(mu, sd^2).

        Exact without a warp. With the log warp by Gauss-Hermite quadrature: to 1e-4 of the sd while
        self.sd * sd (the sd in warped units) is below 5. Beyond, Y spans so many orders of magnitude that
        its far tail, which no data support, decides both: use quantiles there.

        Args:
            mu, sd: (...), broadcast against each other.
        Returns:
            Two tensors (...).
        """
        mu, sd = _broadcast(mu, sd)
        if self.warp == "none":
            return self.inverse(mu), self.scale * self.sd * sd
        nodes, weights = NODES.to(mu.device), WEIGHTS.to(mu.device)
        Y = self.inverse(mu[..., None] + sd[..., None] * nodes)  # (..., N_NODES)
        centre = self.inverse(mu)  # Y = centre wherever sd is zero, without rounding
        mean = centre + ((Y - centre[..., None]) * weights).sum(-1)
        return mean, _root_of_weighted_squares(Y - mean[..., None], weights, dim=-1)

    def quantile(self, mu: Tensor, sd: Tensor, p: float) -> Tensor:
        """The p-quantile, in units of the loss, of Y = inverse(Z), Z ~ N(mu, sd^2).  2 x (...) -> (...)"""
        return self.inverse(mu.to(torch.float64) + sd * _normal_quantile(p))

    def mixture_mean_and_sd(self, mu: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sd, in units of the loss, under H equally likely Gaussians for z.

        Args:
            mu, sd: (H, ...), one Gaussian per hyperparameter sample, broadcast against each other.
        Returns:
            Two tensors (...).
        """
        mu, sd = _mixture(mu, sd)
        means, sds = self.mean_and_sd(mu, sd)  # (H, ...)
        centre = means[0]
        mean = centre + (means - centre).mean(0)
        both = torch.cat([sds, means - mean])  # (2 H, ...), within and between
        return mean, _root_of_weighted_squares(both, 1 / len(means), dim=0)

    @torch.no_grad()
    def mixture_quantile(self, mu: Tensor, sd: Tensor, p: float) -> Tensor:
        """The p-quantile, in units of the loss, under H equally likely Gaussians for z; not differentiable.

        Args:
            mu, sd: (H, ...), one Gaussian per hyperparameter sample, broadcast against each other.
        Returns:
            (...), by bisection between the smallest and the largest p-quantile of the H Gaussians.
        """
        mu, sd = _mixture(mu, sd)
        each = mu + sd * _normal_quantile(p)  # (H, ...)
        low, high = each.amin(0), each.amax(0)
        sd = sd.clamp_min(SMALLEST_GAP)  # a point mass is a very narrow Gaussian
        for _ in range(N_HALVINGS):
            middle = low + (high - low) / 2
            t = (middle - mu) / sd
            # The smaller tail is compared, because the larger one rounds to 1.
            is_below = _lower_tail(t).mean(0) < p if p <= 0.5 else _lower_tail(-t).mean(0) > 1 - p
            low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
        return self.inverse(low + (high - low) / 2)

    def _clamped(self, y: Tensor) -> Tensor:
        """y between the fences; `worst` where it is not finite.  (...) -> (...)"""
        y = y.to(torch.float64)
        return torch.where(y.isfinite(), y, self.worst).clamp(self.floor, self.cap)


def fit_outcome(y: Tensor, *, warp: str = "none", scale: float | None = None) -> OutcomeTransform:
    """The transform under which the losses y have mean 0 and sd 1 (divided by n, not n - 1).

    Diverged rows count, as the worst finite loss inside the fences. If all finite losses are equal, or
    there are none, nothing is known about the scale: sd falls back to 1, and all rows have z = 0.

    Args:
        y: (...), losses to be minimised in any shape; may hold NaN, inf and -inf, and may be empty.
        warp: "none", or "log" for losses over many orders of magnitude.
        scale: distance from the best loss at which the log warp turns from linear to logarithmic; by default
            a guess from the losses alone. The fences do not depend on it.
    """
    _check_warp(warp)
    if scale is not None and not (warp == "log" and math.isfinite(scale) and scale > 0):
        raise InputError(f"scale={scale}, warp={warp!r}: expected a number > 0, with warp='log' only")
    y = y.detach().to(torch.float64).flatten()
    finite = y[y.isfinite()].clamp(-LARGEST, LARGEST)
    values = _distinct(finite) if len(finite) else y.new_zeros(1)  # (v,) in increasing order
    floor = _lower_fence(values)
    values = values.clamp_min(floor)
    best = float(values[0])
    if len(values) == 1:
        cap = min(best + FENCE_SPANS, LARGEST)
        return OutcomeTransform(warp=warp, floor=floor, cap=cap, worst=best, origin=best, scale=1.0, mean=0.0, sd=1.0)

    values = _without_ties(values) if warp == "log" else values
    guess = _log_scale(values) if warp == "log" else 1.0
    largest = _largest_warped(guess)
    w = _warp((values - best) / guess, warp)
    w_cap = _upper_fence(w)
    if warp == "log":
        w_cap = min(w_cap, largest)
    cap = min(best + guess * float(_unwarp(w.new_tensor(w_cap), warp, largest)), LARGEST)
    worst = min(float(values[-1]), cap)
    scale = guess if scale is None else scale

    rows = torch.where(y.isfinite(), y, worst).clamp(floor, cap)
    w = _warp((rows - best) / scale, warp)
    top = float(w.abs().amax())  # > 0 for two distinct values; (w / top)^2 cannot overflow
    mean = top * float((w / top).mean())
    sd = top * float((w / top).std(correction=0))
    if warp == "none":  # one shift and one division instead of two, for the sake of rounding
        return OutcomeTransform(
            warp=warp, floor=floor, cap=cap, worst=worst, origin=best + mean, scale=sd, mean=0.0, sd=1.0
        )
    return OutcomeTransform(warp=warp, floor=floor, cap=cap, worst=worst, origin=best, scale=scale, mean=mean, sd=sd)


def _distinct(y: Tensor) -> Tensor:
    """The values in increasing order, those that only rounding separates once.  (n,) -> (v,)"""
    values = y.sort().values
    apart = values.diff() > (ROUNDING * values[1:].abs()).clamp_min(SMALLEST_GAP)
    return torch.cat([values[:1], values[1:][apart]])


def _without_ties(values: Tensor) -> Tensor:
    """The best of the distinct values, and those that are not next to it; at least two.

    A network that learns nothing has a loss of log 2, with another sixth digit every time. A scale for such digits
    would put all that is better out of sight, and a fence for them all that is worse.
    """
    distances = values - values[0]
    tie = min(TIE * float(values[0].abs()), TIE_RANGE * float(distances[-1]))
    return torch.cat([values[:1], values[distances > tie]])


def _lower_fence(values: Tensor) -> float:
    """Ten spans below the second-best of the distinct values; of one or two values, the best."""
    rest = values[1:] if len(values) > 2 else values
    good = float(rest[0])
    span = float(rest[len(rest) // 2]) - good if len(rest) > 1 else 1.0
    return max(good - FENCE_SPANS * max(span, abs(good)), -LARGEST)


def _upper_fence(w: Tensor) -> float:
    """Ten spans, 5 % quantile to median, above the median of the distinct warped values."""
    median, low = float(w[len(w) // 2]), float(w[int(0.05 * (len(w) - 1))])
    return median + FENCE_SPANS * (median - low)


def _log_scale(values: Tensor) -> float:
    """Distance from the best of the distinct values at which the log warp turns from linear to logarithmic.

    That is the size of the best loss itself, as losses that differ by less are of the same order of
    magnitude; but at most the median distance, so that a constant added to all losses does not undo the
    warp, and at least the 5 % quantile of the distances, so that a best loss of 0 or 1e-300 does not
    stand apart from all others. Never less than 1e-12 of the median distance.
    """
    best = float(values[0])
    distances = values[1:] - best
    near, median = float(distances[int(0.05 * (len(distances) - 1))]), float(distances[len(distances) // 2])
    return max(near, min(abs(best), median), 1e-12 * median)


def _largest_warped(scale: float) -> float:
    """Up to which w the loss scale * sinh(w) is finite, with a margin."""
    return min(LARGEST_WARPED, math.asinh(2 * LARGEST / scale))


def _warp(u: Tensor, warp: str) -> Tensor:
    return torch.where(u > 0, u.asinh(), u) if warp == "log" else u


def _unwarp(w: Tensor, warp: str, largest: float) -> Tensor:
    """The inverse of `_warp`, which from `largest` on continues along its tangent."""
    if warp == "none":
        return w
    inner = w.clamp(0.0, largest)  # the branches not taken must have finite gradients, too
    tangent = math.sinh(largest) + math.cosh(largest) * (w - largest)
    return torch.where(w > largest, tangent, torch.where(w > 0, inner.sinh(), w))


def _root_of_weighted_squares(t: Tensor, weights: Tensor | float, *, dim: int) -> Tensor:
    """sqrt(sum(weights * t^2)) along dim, without overflow; its gradient where t = 0 is zero, not NaN."""
    top = t.detach().abs().amax(dim, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    total = ((t / top) ** 2 * weights).sum(dim)
    root = torch.where(total > 0, total, 1.0).sqrt()
    return torch.where(total > 0, root, 0.0) * top.squeeze(dim)


def _normal_quantile(p: float) -> float:
    if not 0.0 < p < 1.0:
        raise InputError(f"p={p}: expected a probability strictly between 0 and 1")
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))


def _lower_tail(t: Tensor) -> Tensor:
    """The normal CDF; torch.special.ndtr has lost all digits of it at t = -9.  (...) -> (...)"""
    return (-t * math.sqrt(0.5)).erfc() / 2


def _broadcast(mu: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    mu, sd = mu.to(torch.float64), sd.to(torch.float64)
    return mu + torch.zeros_like(sd), sd + torch.zeros_like(mu)


def _mixture(mu: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    mu, sd = _broadcast(mu, sd)
    if mu.ndim == 0 or len(mu) == 0:
        raise InputError(
            f"mu and sd broadcast to the shape {tuple(mu.shape)}; expected (H, ...), H >= 1 Gaussians first"
        )
    return mu, sd


def _check_warp(warp: str) -> None:
    if warp not in WARPS:
        raise InputError(f"warp={warp!r}: expected one of {', '.join(map(repr, WARPS))}")
