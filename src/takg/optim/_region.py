"""What may be chosen: x, the fidelity s and the kept fractions of the trace, as points of a unit cube.

S in B(s) holds by construction: the last member of S is s itself and every other one is, in each trace component,
a fraction of the way up to s. d + l m1 + m2 variables describe one evaluation, as in the paper.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from takg.errors import InputError

# Cheap fidelities are where most evaluations happen: z^3 gives s in [0, 1/8] half of the cube's edge.
_POWER = 3.0
# Two points at one fidelity of one trace are one observation; next to each other the model takes them for two.
_MOST_KEPT = 0.95


class Choice(NamedTuple):
    """B candidates of q evaluations each."""

    x: Tensor  # (B, q, d)
    S: Tensor  # (B, q, l, m), the last member is max S


class Runs(NamedTuple):
    """What each evaluation of each candidate starts from."""

    x: Tensor  # (B, q, d), NaN where it is free
    s: Tensor  # (B, q, m), NaN for a new run

    @property
    def is_new(self) -> Tensor:
        """(B, q), bool."""
        return self.s.isnan().all(-1)

    def of(self, who: Tensor) -> "Runs":
        """Those of some candidates, by index."""
        return Runs(self.x[who], self.s[who])


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The unit cube of x, and fidelities from `s_min` to the target, of which l points are kept.

    Without a trace fidelity there is a single point to keep, whatever l says.
    """

    d: int
    m: int
    trace_dims: tuple[int, ...] = ()
    retained: int = 2
    s_min: tuple[float, ...] | None = None  # the least fidelity worth asking for; 0 if left out
    growth: float = 0.0  # the least share by which a run is continued, where it has a single trace

    def __post_init__(self) -> None:
        if self.d < 1 or self.m < 0:
            raise InputError(f"d={self.d}, m={self.m}: expected at least one design variable and no fidelity or more")
        if self.retained < 1:
            raise InputError(f"retained={self.retained}: expected at least one kept fidelity")
        if bad := [j for j in self.trace_dims if not 0 <= j < self.m]:
            raise InputError(f"trace_dims={self.trace_dims}: {bad} outside 0..{self.m - 1}")
        if len(set(self.trace_dims)) < len(self.trace_dims):
            raise InputError(f"trace_dims={self.trace_dims}: expected each fidelity once")
        if not 0 <= self.growth < math.inf:
            raise InputError(f"growth={self.growth}: expected a share >= 0")
        if self.s_min is not None and (len(self.s_min) != self.m or not all(0 <= low <= 1 for low in self.s_min)):
            raise InputError(f"s_min={self.s_min}: expected {self.m} values in [0, 1], below the target at 1")

    @property
    def kept(self) -> int:
        """l, how many fidelities are kept of a trace."""
        return self.retained if self.trace_dims else 1

    @property
    def p(self) -> int:
        """Variables of one evaluation."""
        return self.d + self.m + (self.kept - 1) * len(self.trace_dims)

    def new_runs(self, B: int, q: int) -> Runs:
        nan = torch.nan
        return Runs(
            torch.full((B, q, self.d), nan, dtype=torch.float64), torch.full((B, q, self.m), nan, dtype=torch.float64)
        )

    def bounds(self, runs: Runs) -> tuple[Tensor, Tensor]:
        """Box of z, (B, q p) each: a continued run keeps its x."""
        B, q, _ = runs.x.shape
        lower = torch.zeros(B, q, self.p, dtype=torch.float64)
        upper = torch.ones_like(lower)
        is_fixed = ~runs.x.isnan()
        lower[..., : self.d] = torch.where(is_fixed, runs.x, 0.0)
        upper[..., : self.d] = torch.where(is_fixed, runs.x, 1.0)
        return lower.reshape(B, q * self.p), upper.reshape(B, q * self.p)

    def decode(self, z: Tensor, runs: Runs) -> Choice:
        """Points of the cube (B, q p) to what would be evaluated."""
        B, q, _ = runs.x.shape
        z = z.reshape(B, q, self.p)
        x, ramp, shares = z.split([self.d, self.m, self.p - self.d - self.m], dim=-1)
        low, floor, ceiling = self._limits(runs)
        top = floor + (ceiling - floor) * ramp**_POWER  # (B, q, m)
        if self.kept == 1:
            return Choice(x, top[..., None, :])
        dims = list(self.trace_dims)
        shares = shares.reshape(B, q, self.kept - 1, len(dims))
        partial = low[..., None, dims] + (top - low)[..., None, dims] * (_MOST_KEPT * shares)  # (B, q, l - 1, m1)
        others = top[..., None, :].expand(B, q, self.kept - 1, self.m)
        is_trace = torch.zeros(self.m, dtype=torch.bool)
        is_trace[dims] = True
        spread = torch.zeros_like(others).index_add(-1, torch.tensor(dims), partial)
        return Choice(x, torch.cat([torch.where(is_trace, spread, others), top[..., None, :]], dim=-2))

    def encode(self, choice: Choice, runs: Runs) -> Tensor:
        """The point of the cube whose `decode` is nearest to a choice, (B, q p)."""
        low, floor, ceiling = self._limits(runs)
        top = choice.S[..., -1, :]
        room = (ceiling - floor).clamp_min(1e-12)
        ramp = ((top - floor) / room).clamp(0, 1) ** (1 / _POWER)
        parts = [choice.x, ramp]
        if self.kept > 1:
            dims = list(self.trace_dims)
            way = _MOST_KEPT * (top - low)[..., None, dims].clamp_min(1e-12)
            shares = ((choice.S[..., :-1, dims] - low[..., None, dims]) / way).clamp(0, 1)
            parts.append(shares.flatten(-2))
        return torch.cat(parts, dim=-1).flatten(-2)

    def _limits(self, runs: Runs) -> tuple[Tensor, Tensor, Tensor]:
        """Where the trace begins, and the least and largest s, (B, q, m) each."""
        is_old = ~runs.s.isnan()
        low = torch.where(is_old, runs.s, 0.0)
        least = torch.tensor(self.s_min or (0.0,) * self.m, dtype=torch.float64)
        is_trace = torch.zeros(self.m, dtype=torch.bool)
        is_trace[list(self.trace_dims)] = True
        ceiling = torch.where(is_old & ~is_trace, low, 1.0)
        onward = low
        if len(self.trace_dims) == 1:
            onward = torch.where(is_trace, (low * (1 + self.growth)).clamp_max(1.0), low)
        return low, torch.where(is_old, onward, torch.maximum(low, least)), ceiling


def runs_of(basket: Sequence[tuple[Tensor, Tensor]], region: Region) -> Runs:
    """One candidate of one evaluation for each (x, s) of a basket."""
    if not basket:
        return region.new_runs(0, 1)
    for j, (x, s) in enumerate(basket):
        for name, tensor, width in (("x", x, region.d), ("s", s, region.m)):
            if tensor.shape != (width,) or tensor.dtype != torch.float64:
                shape = tuple(tensor.shape)
                raise InputError(
                    f"basket[{j}] has {name} of shape {shape}, {tensor.dtype}; expected ({width},), float64"
                )
            if not ((tensor >= 0) & (tensor <= 1)).all():
                raise InputError(f"basket[{j}] has {name}={tensor.tolist()}; expected values in [0, 1]")
    return Runs(torch.stack([x for x, _ in basket])[:, None], torch.stack([s for _, s in basket])[:, None])
