"""Covariances of many values from few kernels: those of the distinct x, and of the distinct values of each fidelity.

All rows of a trace share their x, and runs end at the same few steps. Rows of derivatives have no such form.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from takg.gp._kernels import design_covariance, fidelity_factor, noise_variance, profile, trend_covariance
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

    def lower_covariance(self, theta: Hyperparameters) -> Tensor:
        """The lower triangle, all that a factorisation reads, of the covariance of the rows with noise, (H, n, n)."""
        from takg.gp._gather import multiply_lower  # on first use: Numba takes its time

        n = len(self.rows)
        K = torch.ones(theta.H, n, n, dtype=torch.float64)
        table = profile(self.model.design_kernel, theta.lengthscale**-2 @ self._squares) * theta.signal_var[:, None]
        multiply_lower(K.numpy(), table.numpy(), self.x.which.numpy())
        for j, (values, which) in enumerate(self.s):
            a, b = torch.tril_indices(len(values), len(values))
            table = fidelity_factor(self.model, theta, j, values[a], values[b])  # (H, entries)
            multiply_lower(K.numpy(), table.numpy(), which.numpy())
        K += self._trend
        K.diagonal(dim1=-2, dim2=-1).add_(noise_variance(theta, self.rows))
        return K

    @cached_property
    def _squares(self) -> Tensor:
        """Squared differences of each x with itself and those before it, (d, entries)."""
        a, b = torch.tril_indices(len(self.x.values), len(self.x.values))
        return (self.x.values[a] - self.x.values[b]).square().mT.contiguous()

    @cached_property
    def _trend(self) -> Tensor:
        return trend_covariance(self.model, self.rows, self.rows)

    def covariance_with(self, theta: Hyperparameters, x: Tensor, owner: Tensor, s: Tensor, is_new: Tensor) -> Tensor:
        """Covariance of the rows with r values each at B candidates of q evaluations, differentiable in x and s.

        Args:
            x: (B, q, d).
            owner: (r,), which of the q evaluations a value belongs to.
            s: (B, r, m).
            is_new: (B, r), 0 or 1: what a column is multiplied by.
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
        return _Product.apply(self.x.which, owner, places, constant, *tables)  # type: ignore[no-untyped-call, no-any-return]


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
