"""Covariances of many values from few kernels: those of the distinct x, and of the distinct values of each fidelity.

All rows of a trace share their x, and runs end at the same few steps. Rows of derivatives have no such form.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from takg.gp._kernels import (
    design_covariance,
    distance_to_target,
    fidelity_factor,
    noise_variance,
    profile,
    trend_covariance,
)
from takg.gp._model import Hyperparameters, Model
from takg.gp._rows import Rows, value_rows


class Distinct(NamedTuple):
    """What takes few values in many rows."""

    values: Tensor  # (k, ...)
    which: Tensor  # (n,)


@dataclass(frozen=True, kw_only=True)
class Tables:
    """n rows of values, without batch dimensions, by what distinguishes them."""

    model: Model
    rows: Rows
    x: Distinct  # values (u, d)
    s: tuple[Distinct, ...]  # m of them

    @classmethod
    def of(cls, model: Model, rows: Rows) -> "Tables":
        s = tuple(Distinct(*column.unique(return_inverse=True)) for column in rows.s.unbind(-1))
        return cls(model=model, rows=rows, x=Distinct(*rows.x.unique(dim=0, return_inverse=True)), s=s)

    def lower_covariance(self, theta: Hyperparameters, *, out: Tensor | None = None) -> Tensor:
        """The lower triangle, all that a factorisation reads, of the covariance of the rows with noise, (H, n, n)."""
        from takg.gp._gather import fill_lower  # on first use: Numba takes its time

        n = len(self.rows)
        K = torch.empty(theta.H, n, n, dtype=torch.float64) if out is None else out
        design = profile(self.model.design_kernel, theta.lengthscale**-2 @ self._squares) * theta.signal_var[:, None]
        factors = [
            fidelity_factor(self.model, theta, j, values[:, None], values[None, :]).numpy()
            for j, (values, _) in enumerate(self.s)
        ]  # (H, k_j, k_j)
        places = torch.stack([which for _, which in self.s]) if self.s else torch.zeros(1, n, dtype=torch.long)
        has_slopes = bool(self.model.trend_dims)
        fill_lower(
            design.numpy(),
            self.x.which.numpy(),
            tuple(factors or [np.ones((theta.H, 1, 1))]),
            places.numpy(),
            0.0 if has_slopes else self.model.mean_var,
            K.numpy(),
        )
        if has_slopes:
            K += self._trend
        if theta.quirk_var is not None:
            i, j, both = self._quirks
            K[:, i, j] += theta.quirk_var[:, None] * both
        K.diagonal(dim1=-2, dim2=-1).add_(noise_variance(theta, self.rows))
        return K

    @cached_property
    def _squares(self) -> Tensor:
        """Squared differences of each x with itself and those before it, (d, entries)."""
        a, b = torch.tril_indices(len(self.x.values), len(self.x.values))
        return (self.x.values[a] - self.x.values[b]).square().mT.contiguous()

    @cached_property
    def _quirks(self) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs of rows, the later first, that have the same x, and what their quirk is multiplied by."""
        is_same = self.x.which[:, None] == self.x.which[None, :]
        is_same &= self.rows.has_quirk[:, None] & self.rows.has_quirk
        i, j = is_same.tril().nonzero().unbind(-1)
        weight = distance_to_target(self.rows.s)
        return i, j, weight[i] * weight[j]

    @cached_property
    def _trend(self) -> Tensor:
        return trend_covariance(self.model, self.rows, self.rows)

    def covariance_with(
        self,
        theta: Hyperparameters,
        x: Tensor,
        owner: Tensor,
        s: Tensor,
        is_new: Tensor,
        has_quirk: Tensor | None = None,
    ) -> Tensor:
        """Covariance of the rows with r values each at B candidates of q evaluations, differentiable in x and s.

        Args:
            x: (B, q, d).
            owner: (r,), which of the q evaluations a value belongs to.
            s: (B, r, m).
            is_new: (B, r), 0 or 1: what a column is multiplied by.
            has_quirk: (r,), bool, see `Rows.has_quirk`; all have if it is left out.
        Returns:
            (H, n, B, r).
        """
        points = (self.x.values, x.flatten(0, 1))
        known, new = (value_rows(one, one.new_empty(len(one), 0)) for one in points)
        design = design_covariance(self.model, theta, known, new) * theta.signal_var[:, None, None]  # (H, u, B q)
        design = design.unflatten(-1, x.shape[:2])
        factors = [
            fidelity_factor(self.model, theta, j, values[:, None, None], s[..., j])
            for j, (values, _) in enumerate(self.s)
        ]  # (H, k_j, B, r)
        factors[0] = factors[0] * is_new
        places = torch.stack([which for _, which in self.s])
        constant = self.model.mean_var * is_new
        tables = design, *factors
        K: Tensor = _Product.apply(self.x.which, owner, places, constant, *tables)  # type: ignore[no-untyped-call]
        if theta.quirk_var is None:
            return K
        is_same = (self.x.values[:, None, None, :] == x).all(-1)  # (u, B, q)
        if not is_same.any():  # as for all but runs to be continued
            return K
        mine = distance_to_target(self.rows.s) * self.rows.has_quirk  # (n,)
        theirs = distance_to_target(s) * (is_new if has_quirk is None else is_new * has_quirk)  # (B, r)
        weight = mine[:, None, None] * theirs  # (n, B, r)
        return K + theta.quirk_var[:, None, None, None] * (weight * is_same[self.x.which][..., owner])


class _Product(torch.autograd.Function):
    """Entries of tables multiplied for each row and candidate."""

    @staticmethod
    def forward(ctx: Any, which: Tensor, owner: Tensor, places: Tensor, constant: Tensor, *tables: Tensor) -> Tensor:
        from takg.gp._gather import fill_product

        design, *factors = (table.contiguous() for table in tables)
        H, _, B, r = factors[0].shape
        K = torch.empty(H, len(which), B, r, dtype=torch.float64)
        factor_arrays = tuple(factor.detach().numpy() for factor in factors)
        fill_product(
            design.detach().numpy(),
            which.numpy(),
            owner.numpy(),
            factor_arrays,
            places.numpy(),
            constant.contiguous().numpy(),
            K.numpy(),
        )
        ctx.save_for_backward(which, owner, places, design, *factors)
        return K

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from takg.gp._gather import pull_back

        which, owner, places, design, *factors = ctx.saved_tensors
        outs = [torch.zeros_like(table) for table in (design, *factors)]
        pull_back(
            grads[0].contiguous().numpy(),
            design.detach().numpy(),
            which.numpy(),
            owner.numpy(),
            tuple(factor.detach().numpy() for factor in factors),
            places.numpy(),
            outs[0].numpy(),
            tuple(out.numpy() for out in outs[1:]),
        )
        return None, None, None, None, *outs
