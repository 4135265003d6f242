"""What was, or could be, observed: values and partial derivatives of g at points (x, s)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """r observables of g. Row i is g(x_i, s_i) if `part[i]` is 0, and its derivative by x_k if it is k >= 1.

    Batch dimensions are shared by x and s; `part` and `noise_scale` are the same in the whole batch.
    """

    x: Tensor  # (..., r, d)
    s: Tensor  # (..., r, m)
    part: Tensor  # (r,), integers 0..d
    noise_scale: Tensor  # (r,), multiplies the noise variance; 0 simulates g without noise and without quirks

    @property
    def d(self) -> int:
        return self.x.shape[-1]

    @property
    def m(self) -> int:
        return self.s.shape[-1]

    def __len__(self) -> int:
        return self.x.shape[-2]

    def __getitem__(self, chosen: Tensor | slice) -> "Rows":
        """Some of the rows, by index."""
        return Rows(
            x=self.x[..., chosen, :],
            s=self.s[..., chosen, :],
            part=self.part[chosen],
            noise_scale=self.noise_scale[chosen],
        )

    @property
    def has_quirk(self) -> Tensor:
        """Which rows show the quirk of their design, (r,), bool: values, unless they are simulated without noise."""
        return (self.part == 0) & (self.noise_scale > 0)

    @property
    def has_gradients(self) -> bool:
        return self.part is not _values_only(len(self.part)) and bool(self.part.any())


@functools.lru_cache(maxsize=256)
def _values_only(r: int) -> Tensor:
    """The parts of r values, one tensor for all who have the same: it is known without a look into it."""
    return torch.zeros(r, dtype=torch.long)


def value_rows(x: Tensor, s: Tensor, *, noise_scale: float = 1.0) -> Rows:
    """Values of g at paired points: x (..., r, d) with s (..., r, m), whose batch dimensions broadcast."""
    batch, r = np.broadcast_shapes(x.shape[:-2], s.shape[:-2]), x.shape[-2]
    x, s = x.expand(*batch, *x.shape[-2:]), s.expand(*batch, *s.shape[-2:])
    return Rows(x=x, s=s, part=_values_only(r), noise_scale=torch.full((r,), noise_scale, dtype=x.dtype))


def rows_at(x: Tensor, S: Tensor, *, gradients: bool = False, noise_scale: float = 1.0) -> Rows:
    """Y(x, S): the value at each fidelity of S and, on request, the gradient by x beside it.

    Args:
        x: (..., d).
        S: (..., l, m), with batch dimensions that broadcast with those of x.
        gradients: add d rows after each value.
    Returns:
        l rows, or l (1 + d) with gradients.
    """
    d, per_fidelity = x.shape[-1], 1 + gradients * x.shape[-1]
    S = S.repeat_interleave(per_fidelity, dim=-2)  # (..., r, m)
    batch, (r, m) = np.broadcast_shapes(x.shape[:-1], S.shape[:-2]), S.shape[-2:]
    part = torch.arange(1 + d).repeat(r // per_fidelity) if gradients else _values_only(r)
    x, S = x[..., None, :].expand(*batch, r, d), S.expand(*batch, r, m)
    return Rows(x=x, s=S, part=part, noise_scale=torch.full((r,), noise_scale, dtype=x.dtype))


def joined(rows: Sequence[Rows]) -> Rows:
    """The rows one after the other; batch dimensions are broadcast."""
    batch = np.broadcast_shapes(*(one.x.shape[:-2] for one in rows), *(one.s.shape[:-2] for one in rows))
    r = sum(len(one) for one in rows)
    return Rows(
        x=torch.cat([one.x.expand(*batch, *one.x.shape[-2:]) for one in rows], dim=-2),
        s=torch.cat([one.s.expand(*batch, *one.s.shape[-2:]) for one in rows], dim=-2),
        part=torch.cat([one.part for one in rows]) if any(one.has_gradients for one in rows) else _values_only(r),
        noise_scale=torch.cat([one.noise_scale for one in rows]),
    )


def check_rows(name: str, rows: Rows, *, d: int, m: int) -> None:
    """Raise unless the rows fit a model over d design and m fidelity dimensions."""
    for label, tensor, width in (("x", rows.x, d), ("s", rows.s, m)):
        if tensor.dtype != torch.float64:
            raise InputError(f"{name}.{label} has dtype {tensor.dtype}; expected torch.float64, try .double()")
        if tensor.ndim < 2 or tensor.shape[-1] != width:
            raise InputError(f"{name}.{label} has shape {tuple(tensor.shape)}; expected (..., rows, {width})")
        if not tensor.isfinite().all():
            bad = int((~tensor.isfinite()).sum())
            raise InputError(f"{name}.{label} has {bad} entries that are not finite; remove those rows")
    if rows.s.shape[-2] != len(rows):
        raise InputError(f"{name}.s has {rows.s.shape[-2]} rows; expected {len(rows)}, one for each row of x")
    if rows.s.numel() and (rows.s.min() < 0 or rows.s.max() > 1):
        raise InputError(
            f"{name}.s ranges over [{float(rows.s.min()):g}, {float(rows.s.max()):g}]; expected fidelities within "
            "[0, 1], with 1 the target: divide by the largest value of each"
        )
    for label, tensor in (("part", rows.part), ("noise_scale", rows.noise_scale)):
        if tensor.shape != (len(rows),):
            raise InputError(f"{name}.{label} has shape {tuple(tensor.shape)}; expected ({len(rows)},)")
    if len(rows) and not (int(rows.part.min()) >= 0 and int(rows.part.max()) <= d):
        raise InputError(
            f"{name}.part ranges over {int(rows.part.min())}..{int(rows.part.max())}; expected 0 for a value "
            f"or 1..{d} for a derivative by that component of x"
        )
    if not (rows.noise_scale >= 0).all():
        raise InputError(f"{name}.noise_scale has a minimum of {float(rows.noise_scale.min()):g}; expected >= 0")
