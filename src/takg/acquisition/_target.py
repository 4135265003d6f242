"""The mean at the target fidelity, and how observations still to be made would move it.

Rows at one x, of values or of one derivative, fold into one slot, whatever the length of the traces: the mean is a sum
over slots, and so is K_n((x', 1), rows), which is what a simulated outcome shifts it by.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from takg.acquisition._inner import KernelSums, scaled_features
from takg.gp import (
    Posterior,
    Rows,
    Tables,
    covariance,
    design_covariance,
    noise_variance,
    target_factor,
    value_rows,
)
from takg.numerics import jittered_cholesky, normal_draws

_POINTS_AT_ONCE = 128
_LEAST_NOISE = 1e-8  # variance of a simulated observation, as a share of the signal's


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What a batch of B candidates would observe, each of q evaluations at its own x."""

    x: Tensor  # (B, q, d)
    rows: Rows  # r of them with batch (B,), the lead first
    owner: Tensor  # (r,), which of the q evaluations a row belongs to
    lead: int  # how many rows are known to the benchmark too
    is_new: Tensor  # (B, r), bool; a row that repeats an earlier one observes nothing

    def __getitem__(self, chosen: slice) -> "Observations":
        rows = Rows(
            x=self.rows.x[chosen], s=self.rows.s[chosen], part=self.rows.part, noise_scale=self.rows.noise_scale
        )
        return Observations(x=self.x[chosen], rows=rows, owner=self.owner, lead=self.lead, is_new=self.is_new[chosen])


class Shift(NamedTuple):
    """The parts of sigma-tilde that do not depend on x'."""

    factor: Tensor  # (H, B, r, r), D
    inverse: Tensor  # (H, B, r, r), D^-1
    folded: Tensor  # (H, B, slots, r), weights of the slots in K_n((x', 1), rows)
    offset: Tensor  # (H, B, r)
    pull: Tensor  # (H, B, r), what k_x(x', x) is multiplied by
    constant: Tensor  # (B, r)
    jitter: float


class TargetMean:
    """mu_n(x', 1) under each sample and each draw of the pending outcomes, and the covariances that shift it."""

    def __init__(self, post: Posterior, pending: Rows | None, *, draws: int, seed: int, method: str) -> None:
        self.post, H = post, post.theta.H
        if pending is None:
            self._L, self._rows = post.L, post.rows
            weights = post.weights[:, None, :]  # (H, 1, n)
        else:
            D = jittered_cholesky(post.observation_covariance(pending)).L  # (H, p, p)
            W = normal_draws(H, draws, len(pending), seed=seed, method=method)
            # Shuffled, since two Sobol sequences in step with each other fill a curve and not the square.
            W = W[:, torch.randperm(draws, generator=torch.Generator().manual_seed(seed))]
            outcome = post.mean(pending)[:, None, :] + W @ D.mT  # (H, M, p)
            longer = post.extended(pending, torch.zeros(len(pending), dtype=torch.float64))
            self._L, self._rows = longer.L, longer.rows
            y = torch.cat([post.y.expand(H, draws, -1), outcome], dim=-1)  # (H, M, n + p)
            weights = torch.cholesky_solve(y.mT, self._L).mT
        key = torch.cat([self._rows.x, self._rows.part[:, None].to(torch.float64)], dim=-1)
        distinct, self._slot_of_row = key.unique(dim=0, return_inverse=True)
        no_s = distinct.new_empty(len(distinct), 0)
        self.slots = value_rows(distinct[:, :-1], no_s)
        if self._rows.has_gradients:
            self.slots = dataclasses.replace(self.slots, part=distinct[:, -1].long())
        has_tables = post.model.m and not self._rows.has_gradients
        self._tables = Tables.of(post.model, self._rows) if has_tables else None
        self._is_value = (self._rows.part == 0).to(torch.float64)
        self._pull = target_factor(post.model, post.theta, self._rows)  # (H, n)
        self.weights = self._fold((weights * self._pull[:, None, :]).mT).mT  # (H, M or 1, slots)
        self.offset = post.model.mean_var * (weights * self._is_value).sum(-1)  # (H, M or 1)

    def base(self, features: Tensor) -> Tensor:
        """The mean as it is, from k(x', slots): (H, B, M, J, slots) -> (H, B, M, J)."""
        H, B, M, J, _ = features.shape
        if self.weights.shape[1] == 1:  # nothing is pending: one product
            found = (features.reshape(H, B * M * J, -1) @ self.weights.mT).reshape(H, B, M, J)
        else:
            found = torch.einsum("hbmju,hmu->hbmj", features, self.weights)
        return found + self.offset[:, None, :, None]

    def means(self, points: Tensor) -> Tensor:
        """Mean of each sample, averaged over draws of pending outcomes, up to a constant: (g, d) -> (H, g)."""
        weights = self.weights.mean(1)[..., None]  # (H, slots, 1)
        parts = points.expand(self.post.theta.H, -1, -1).split(_POINTS_AT_ONCE, dim=1)
        return torch.cat([self.features(part) @ weights for part in parts], dim=1)[..., 0]

    def features(self, x_new: Tensor) -> Tensor:
        """k_x(x', slot), points that differ between samples: (H, ..., c, d) -> (H, ..., c, slots)."""
        model, theta = self.post.model, self.post.theta
        if self.slots.has_gradients:
            points = value_rows(x_new, x_new.new_empty(*x_new.shape[:-1], 0))
            slots = Rows(
                x=self.slots.x.expand(*x_new.shape[:-2], *self.slots.x.shape),
                s=self.slots.s,
                part=self.slots.part,
                noise_scale=self.slots.noise_scale,
            )
            return design_covariance(model, theta, points, slots, is_aligned=True)
        flat = x_new.reshape(theta.H, -1, model.d) / theta.lengthscale[:, None, :]
        return scaled_features(model.design_kernel, flat, self.slots.x / theta.lengthscale[:, None, :]).reshape(
            *x_new.shape[:-1], -1
        )

    def sums(
        self,
        weights: Tensor,
        offset: Tensor,
        own: Tensor | None = None,
        own_weights: Tensor | None = None,
        own_gradients: Tensor | None = None,
    ) -> KernelSums:
        """P functions of x' from weights of the slots (H, P, slots)."""
        H, P, _ = weights.shape
        d = self.post.model.d
        shared_gradients = None
        if self.slots.has_gradients:
            shared_gradients, weights = _by_part(weights, self.slots.part, d)
        return KernelSums(
            kernel=self.post.model.design_kernel,
            lengthscale=self.post.theta.lengthscale,
            shared=self.slots.x,
            shared_weights=weights,
            shared_gradients=shared_gradients,
            own=weights.new_empty(P, 0, d) if own is None else own,
            own_weights=weights.new_empty(H, P, 0) if own_weights is None else own_weights,
            own_gradients=own_gradients,
            offset=offset,
        )

    def shift(self, observations: Observations) -> "Shift":
        """The parts of sigma-tilde that do not depend on x'."""
        model, theta = self.post.model, self.post.theta
        rows = observations.rows
        is_new = observations.is_new.to(torch.float64)  # (B, r)
        if self._tables is None or rows.has_gradients:
            K = (covariance(model, theta, self._rows, rows) * is_new[:, None, :]).movedim(2, 1)
        else:
            K = self._tables.covariance_with(theta, observations.x, observations.owner, rows.s, is_new, rows.has_quirk)
        H, n, B, r = K.shape
        V = torch.linalg.solve_triangular(self._L, K.reshape(H, n, B * r), upper=False)
        A = torch.linalg.solve_triangular(self._L.mT, V, upper=True)  # (H, n, B r)
        V = V.reshape(H, n, B, r).movedim(1, 2)  # (H, B, n, r)
        # Rows without noise keep a little: two of them next to each other would magnify rounding errors.
        noise = noise_variance(theta, rows)  # (H, r) or (H, B, r)
        noise = noise if noise.ndim == 3 else noise[:, None]
        noise = torch.maximum(noise, _LEAST_NOISE * theta.signal_var[:, None, None])
        prior = covariance(model, theta, rows, rows) + torch.diag_embed(noise)
        # A repeated row becomes one of unit variance that is independent of everything.
        both = is_new[:, :, None] * is_new[:, None, :]
        prior = prior * both + torch.diag_embed(1 - is_new)
        factor = jittered_cholesky(prior - V.mT @ V, diagonal=prior.diagonal(dim1=-2, dim2=-1))
        eye = torch.eye(r, dtype=torch.float64).expand(H, B, r, r)
        folded = self._fold((A * self._pull[:, :, None]).reshape(H, n, B, r))  # (H, slots, B, r)
        return Shift(
            factor=factor.L,
            inverse=torch.linalg.solve_triangular(factor.L, eye, upper=False),
            folded=folded.movedim(1, 2),
            offset=model.mean_var * (A * self._is_value[:, None]).sum(1).reshape(H, B, r),
            pull=target_factor(model, theta, rows) * is_new,
            constant=model.mean_var * is_new * (rows.part == 0),
            jitter=float(factor.jitter.max()),
        )

    def T(self, observations: Observations, shift: "Shift", x_new: Tensor, features: Tensor) -> Tensor:
        """K_n((x', 1), rows) at points that differ between samples, (H, B, ..., d) -> (H, B, ..., r)."""
        H, B, *between, d = x_new.shape
        flat = x_new.reshape(H, B, -1, d)
        prior = self.prior_covariance(observations, shift, flat, is_aligned=True)  # (H, B, c, r)
        T = prior - features.reshape(H, B, flat.shape[2], -1) @ shift.folded - shift.offset[:, :, None, :]
        return T.reshape(H, B, *between, -1)

    def prior_covariance(
        self, observations: Observations, shift: "Shift", points: Tensor, *, is_aligned: bool
    ) -> Tensor:
        """K((x', 1), rows) before any data, at points (c, d), or (H, B, c, d) with `is_aligned`: (H, B, c, r)."""
        rows, has_gradients = observations.rows, observations.rows.has_gradients
        if not has_gradients:  # all values at one x have the same
            rows = value_rows(observations.x, observations.x.new_empty(*observations.x.shape[:-1], 0))
        near = design_covariance(
            self.post.model,
            self.post.theta,
            value_rows(points, points.new_empty(*points.shape[:-1], 0)),
            _with_batch(rows, self.post.theta.H) if is_aligned else rows,
            is_aligned=is_aligned,
        )  # (H, B, c, r or q)
        if not has_gradients:
            near = near[..., observations.owner]
        return near * shift.pull[:, :, None, :] + shift.constant[:, None, :]

    def _fold(self, columns: Tensor) -> Tensor:
        """Sum rows of (H, n, ...) that share a slot: (H, slots, ...)."""
        H, _, *rest = columns.shape
        out = columns.new_zeros(H, len(self.slots.part), *rest)
        return out.index_add(1, self._slot_of_row, columns)


def _with_batch(rows: Rows, H: int) -> Rows:
    return Rows(x=rows.x.expand(H, *rows.x.shape), s=rows.s[..., :0], part=rows.part, noise_scale=rows.noise_scale)


def _by_part(weights: Tensor, part: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Split weights of slots (..., u) into those of derivatives (..., u, d) and those of values (..., u)."""
    along = torch.nn.functional.one_hot((part - 1).clamp_min(0), d) * (part > 0)[:, None]
    return weights[..., None] * along.to(weights.dtype), weights * (part == 0).to(weights.dtype)
