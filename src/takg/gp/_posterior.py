"""The exact posterior for H hyperparameter samples at once; docs/paper.md#posterior."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from takg.errors import InputError
from takg.gp._kernels import covariance, noise_variance, prior_variance
from takg.gp._model import Hyperparameters, Model
from takg.gp._rows import Rows, check_rows, joined, value_rows
from takg.gp._tables import Tables
from takg.numerics import extended_factor, jittered_cholesky, side_by_side

_FEW = 500  # rows whose covariance, under all samples, is made at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """g given n rows, under each of H hyperparameter samples. H leads every result."""

    model: Model
    theta: Hyperparameters
    rows: Rows  # n of them, no batch dimensions
    y: Tensor  # (n,)
    L: Tensor  # (H, n, n), Cholesky factor of the covariance of the rows, noise and jitter included
    weights: Tensor  # (H, n), (K + noise)^-1 y
    jitter: Tensor  # (H,), the largest that was added to the diagonal; 0 when none was needed

    @property
    def n(self) -> int:
        return len(self.rows)

    def mean(self, rows: Rows) -> Tensor:
        """mu_n, (H, ..., r)."""
        K = covariance(self.model, self.theta, rows, self.rows)  # (H, ..., r, n)
        weights = self.weights.reshape(self.theta.H, *[1] * (K.ndim - 3), -1, 1)
        return (K @ weights)[..., 0]

    def covariance(self, a: Rows, b: Rows | None = None) -> Tensor:
        """K_n between two sets of rows (of one with itself if b is left out), (H, ..., a, b)."""
        V_a = self._whitened(a)
        V_b = V_a if b is None else self._whitened(b)
        K = covariance(self.model, self.theta, a, a if b is None else b)
        return K - _lifted(V_a, K.ndim).mT @ _lifted(V_b, K.ndim)

    def variance(self, rows: Rows) -> Tensor:
        """The diagonal of K_n, (H, ..., r); rounding never takes it below 0."""
        reduction = self._whitened(rows).square().sum(-2)
        return (prior_variance(self.model, self.theta, rows) - reduction).clamp_min(0)

    def observation_covariance(self, rows: Rows) -> Tensor:
        """Covariance of observations still to be made at rows: K_n plus noise, (H, ..., r, r)."""
        K = self.covariance(rows)
        noise = noise_variance(self.theta, rows)
        return K + _lifted(noise, K.ndim - 1).diag_embed()

    def target_mean(self, x_new: Tensor) -> Tensor:
        """mu_n(x', 1) at (..., c, d): (H, ..., c)."""
        return self.mean(self.target_rows(x_new))

    def target_rows(self, x_new: Tensor) -> Rows:
        """The rows (x', 1): every fidelity at its target."""
        return value_rows(x_new, torch.ones(*x_new.shape[:-1], self.model.m, dtype=x_new.dtype))

    def extended(self, rows: Rows, y: Tensor) -> "Posterior":
        """The posterior after r further observations, by r appended rows of the Cholesky factor."""
        check_data(self.model, rows, y)
        cross = covariance(self.model, self.theta, self.rows, rows)  # (H, n, r)
        block = _observed_covariance(self.model, self.theta, rows)  # (H, r, r)
        factor = extended_factor(self.L, cross, block)
        y = torch.cat([self.y, y])
        return Posterior(
            model=self.model,
            theta=self.theta,
            rows=joined([self.rows, rows]),
            y=y,
            L=factor.L,
            weights=_solve(factor.L, y),
            jitter=torch.maximum(self.jitter, factor.jitter),
        )

    def part(self, chosen: slice) -> "Posterior":
        """The posterior under some of the hyperparameter samples only."""
        return dataclasses.replace(
            self,
            theta=self.theta.part(chosen),
            L=self.L[chosen],
            weights=self.weights[chosen],
            jitter=self.jitter[chosen],
        )

    def _whitened(self, rows: Rows) -> Tensor:
        """L^-1 K(X_n, rows), (H, ..., n, r). The batch joins the columns, so that L is never copied."""
        K = covariance(self.model, self.theta, self.rows, rows)  # (H, ..., n, r)
        H, *batch, n, r = K.shape
        columns = K.movedim(-2, 1).reshape(H, n, -1)  # (H, n, batch r)
        V: Tensor = torch.linalg.solve_triangular(self.L, columns, upper=False)
        return V.reshape(H, n, *batch, r).movedim(1, -2)


def condition(model: Model, theta: Hyperparameters, rows: Rows, y: Tensor) -> Posterior:
    """The posterior of g given observations y (n,) at rows."""
    check_data(model, rows, y)
    if len(rows) <= _FEW:
        L, jitter = jittered_cholesky(_observed_covariance(model, theta, rows))
        return Posterior(model=model, theta=theta, rows=rows, y=y, L=L, weights=_solve(L, y), jitter=jitter)
    n = len(rows)
    L = torch.empty(theta.H, n, n, dtype=torch.float64).mT  # by columns, as factors come
    jitter = torch.empty(theta.H, dtype=torch.float64)
    tables = None if rows.has_gradients else Tables.of(model, rows)

    def factorise(some: slice) -> None:
        """One after the other: there is room for all factors, but not for what leads to them."""
        room = None if tables is None else torch.empty(1, n, n, dtype=torch.float64)
        with torch.no_grad():
            for h in range(theta.H)[some]:
                one = theta.part(slice(h, h + 1))
                K = _observed_covariance(model, one, rows) if tables is None else tables.lower_covariance(one, out=room)
                jitter[h : h + 1] = jittered_cholesky(K, out=L[h : h + 1]).jitter

    side_by_side(factorise, theta.H)
    return Posterior(model=model, theta=theta, rows=rows, y=y, L=L, weights=_solve(L, y), jitter=jitter)


def sigma_tilde(post: Posterior, x_new: Tensor, rows: Rows) -> Tensor:
    """Shift of the target mean per unit of W ~ N(0, I_r); docs/paper.md#sigma-tilde.

    Args:
        x_new: (..., c, d), where the mean at the target fidelity is read.
        rows: r observations under consideration, values or derivatives; batch dimensions broadcast with x_new's.
    Returns:
        (H, ..., c, r), such that mu_{n+1}(x_new, 1) = mu_n(x_new, 1) + sigma_tilde @ W.
    """
    before = prior_variance(post.model, post.theta, rows)  # (H, ..., r)
    D = jittered_cholesky(post.observation_covariance(rows), diagonal=before).L  # (H, ..., r, r)
    K_1S = post.covariance(post.target_rows(x_new), rows)  # (H, ..., c, r)
    shift: Tensor = torch.linalg.solve_triangular(_lifted(D, K_1S.ndim), K_1S.mT, upper=False).mT  # K_1S D^-T
    return shift


def _observed_covariance(model: Model, theta: Hyperparameters, rows: Rows) -> Tensor:
    return covariance(model, theta, rows, rows) + noise_variance(theta, rows).diag_embed()


def _lifted(T: Tensor, ndim: int) -> Tensor:
    """Ones after H, so that batch dimensions broadcast with each other and never with H."""
    return T.reshape(T.shape[0], *[1] * (ndim - T.ndim), *T.shape[1:])


def _solve(L: Tensor, y: Tensor) -> Tensor:
    """K^-1 y by two triangular solves, since a Cholesky solve would copy the factors."""
    v = torch.linalg.solve_triangular(L, y[:, None].expand(len(L), -1, 1), upper=False)
    weights: Tensor = torch.linalg.solve_triangular(L.mT, v, upper=True)
    return weights[..., 0]


def check_data(model: Model, rows: Rows, y: Tensor) -> None:
    check_rows("rows", rows, d=model.d, m=model.m)
    for label, tensor in (("x", rows.x), ("s", rows.s)):
        if tensor.ndim != 2:
            expected = (len(rows), tensor.shape[-1])
            raise InputError(f"rows.{label} has shape {tuple(tensor.shape)}; expected {expected}, data have no batch")
    if len(rows) == 0:
        raise InputError("rows is empty; expected at least one observation")
    if rows.has_gradients and not model.has_gradients:
        raise InputError("rows has derivatives but model.has_gradients is False; expected a model that allows them")
    if y.shape != (len(rows),) or y.dtype != torch.float64:
        raise InputError(f"y has shape {tuple(y.shape)}, dtype {y.dtype}; expected ({len(rows)},), torch.float64")
    if not y.isfinite().all():
        bad = int((~y.isfinite()).sum())
        raise InputError(f"y has {bad} entries that are not finite; expected outcomes after fit_outcome's transform")
