"""The log posterior density of the hyperparameters, for many whitened vectors in one batched Cholesky."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from takg.gp._kernels import covariance, noise_variance
from takg.gp._model import Model
from takg.gp._rows import Rows
from takg.gp._tables import Tables

Z_MAX = 5.0  # the prior is cut five standard deviations from its centre, where nothing is lost but overflow
_LARGE_QUIRKS = 3.5  # in sds of their prior
_ENTRIES_WITH_GRADIENT = 1_500_000  # with all that a derivative has to remember
_ENTRIES_AT_ONCE = 6_000_000  # of covariance matrices; keeps the batch in tens of megabytes at any n


def with_large_quirks(z: Tensor, names: Iterable[str]) -> Tensor:
    """The same hyperparameters but for the quirks: small ones have no slope that would lead to large ones."""
    is_quirk = torch.tensor([name == "quirk_var" for name in names])
    return z.masked_fill(is_quirk, _LARGE_QUIRKS)


@dataclass(slots=True, kw_only=True)
class LogDensity:
    """log p(z | y) up to a constant, counting the matrices that had no Cholesky factor."""

    model: Model
    rows: Rows
    y: Tensor  # (n,)
    failures: int = 0
    evaluations: int = 0
    _tables: Tables | None = None

    def __call__(self, z: Tensor) -> Tensor:
        """(W, p) -> (W,); -inf where z is out of range or the covariance has no factor."""
        size = max(1, _ENTRIES_AT_ONCE // len(self.rows) ** 2)
        with torch.no_grad():
            return torch.cat([self._values(chunk) for chunk in z.split(size)])

    def negative_with_gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """-log density and its gradient, (W,) and (W, p); +inf where there is no value."""
        size = max(1, _ENTRIES_WITH_GRADIENT // len(self.rows) ** 2)
        values, gradients = zip(*(self._with_gradient(chunk) for chunk in z.split(size)), strict=True)
        return torch.cat(values), torch.cat(gradients)

    def _values(self, z: Tensor) -> Tensor:
        L, is_bad = self._factor(self._lower_covariance(z), z)
        v = torch.linalg.solve_triangular(L, self.y[:, None].expand(len(z), -1, 1), upper=False)[..., 0]
        return self._log_density(z, v.square().sum(-1), L).where(~is_bad, -math.inf)

    def _with_gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            K = self._covariance(z)  # (W, n, n)
        L, is_bad = self._factor(K.detach(), z.detach())
        weights = torch.cholesky_solve(self.y[:, None].expand(len(z), -1, 1), L)  # (W, n, 1)
        # d(-log N)/dK = (K^-1 - w w^T) / 2: contracted with K itself, it needs no derivative of the factor.
        sensitivity = 0.5 * (torch.cholesky_inverse(L) - weights @ weights.mT)
        (gradient,) = torch.autograd.grad((sensitivity * K).sum(), z)
        z = z.detach()
        value = -self._log_density(z, (weights[..., 0] @ self.y), L)
        return value.where(~is_bad, math.inf), (gradient + z).where(~is_bad[:, None], 0.0)

    def _covariance(self, z: Tensor) -> Tensor:
        theta = self.model.unpack(z)
        K = covariance(self.model, theta, self.rows, self.rows)
        return K + noise_variance(theta, self.rows).diag_embed()

    def _lower_covariance(self, z: Tensor) -> Tensor:
        """The lower triangle of the covariance, which is all that a factorisation reads."""
        if self.rows.has_gradients:
            return self._covariance(z)
        if self._tables is None:
            self._tables = Tables.of(self.model, self.rows)
        return self._tables.lower_covariance(self.model.unpack(z))

    def _factor(self, K: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        L, info = torch.linalg.cholesky_ex(K)
        has_no_factor = (info > 0) | ~L.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)
        self.failures += int(has_no_factor.sum())
        self.evaluations += len(z)
        if has_no_factor.any():  # any matrix will do: what follows from it is discarded
            L = torch.where(has_no_factor[:, None, None], torch.eye(K.shape[-1], dtype=K.dtype), L)
        return L, has_no_factor | (z.abs().amax(-1) > Z_MAX)

    def _log_density(self, z: Tensor, quadratic: Tensor, L: Tensor) -> Tensor:
        log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        n = len(self.rows)
        return -0.5 * (quadratic + log_det + n * math.log(2 * math.pi) + z.square().sum(-1))
