"""The trace-aware knowledge gradient and its 0-avoiding form, for one evaluation or for several at once."""

import copy
import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import torch
from torch import Tensor

from takg.acquisition._loss import Gain, LossSimulator
from takg.acquisition._target import Observations
from takg.errors import InputError
from takg.fidelity import check_fidelities, first_occurrence, in_trace, max_fidelity, zeroed
from takg.gp import Cost, Posterior, Rows, Survival, continuation_cost, joined, rows_at

DEFAULT_DRAWS = 8


class Valuation(NamedTuple):
    """An acquisition value with all that it is made of; shapes (...,) of the batch."""

    value: Tensor  # voi / cost
    standard_error: Tensor  # of value, from the simulation
    voi: Tensor
    cost: Tensor
    unconverged: int  # inner problems that were not solved to tolerance, out of
    problems: int
    jitter: float


class Acquisition(ABC):
    """Value of information per unit of cost; children say what the benchmark knows.

    Args:
        post: g given the data, under H hyperparameter samples.
        cost: cold-start cost of (x, s), see `takg.gp.Cost`.
        trace_dims: fidelities that are seen as a whole trace.
        seed: of the draws. The same seed gives the same value: a sample-average approximation.
        pending: rows of evaluations under way.
        gradients: an evaluation shows the gradient by x beside the value at each fidelity of S.
        overhead: what every evaluation costs beside its training, as the time to choose it.
        survival: how likely a training is to show anything. One that does not teaches nothing, and designs that are
            likely to diverge are no answer.
        draws, polish, method, candidates, among: of the simulation, see `LossSimulator`.
    """

    def __init__(
        self,
        post: Posterior,
        *,
        cost: Cost,
        trace_dims: tuple[int, ...],
        seed: int,
        pending: Rows | None = None,
        gradients: bool = False,
        overhead: float = 0.0,
        survival: Survival | None = None,
        draws: int = DEFAULT_DRAWS,
        polish: int = 3,
        method: str = "sobol",
        candidates: Tensor | None = None,
        among: Tensor | None = None,
    ) -> None:
        if not (math.isfinite(overhead) and overhead >= 0):
            raise InputError(f"overhead={overhead}: expected a finite cost >= 0")
        if gradients and not post.model.has_gradients:
            raise InputError("gradients=True but post.model.has_gradients is False; fit a model that allows gradients")
        if bad := [j for j in trace_dims if not 0 <= j < post.model.m]:
            raise InputError(f"trace_dims={trace_dims}: {bad} outside 0..{post.model.m - 1}, the model's fidelities")
        self.post, self.cost, self.trace_dims, self.gradients = post, cost, tuple(trace_dims), gradients
        self.overhead, self.survival = overhead, survival
        self.simulator = LossSimulator(
            post,
            seed=seed,
            pending=pending,
            candidates=candidates,
            among=among,
            survival=survival,
            draws=draws,
            polish=polish,
            method=method,
        )

    @abstractmethod
    def observations(self, x: Tensor, S: Tensor) -> Observations:
        """What evaluating x (B, q, d) at S (B, q, l, m) would show, benchmark first."""

    def redrawn(self, seed: int, *, draws: int | None = None, polish: int | None = None) -> Self:
        """The same acquisition function under fresh draws."""
        other = copy.copy(self)
        other.simulator = self.simulator.redrawn(seed, draws=draws, polish=polish)
        return other

    def thinned(self, samples: slice, *, draws: int, polish: int) -> Self:
        """A cheaper acquisition function for rough comparisons: some of the hyperparameter samples, and fewer draws."""
        other = copy.copy(self)
        other.simulator = self.simulator.thinned(samples, draws=draws, polish=polish)
        other.post = other.simulator.post
        return other

    def with_pending(self, x: Tensor, S: Tensor) -> Self:
        """The same acquisition function while q more evaluations run: x (q, d), S (q, l, m)."""
        other = copy.copy(self)
        rows, _ = _trace_rows(x[None], S[None], gradients=self.gradients, noise_scale=1.0)
        other.simulator = self.simulator.with_pending(
            Rows(x=rows.x[0], s=rows.s[0], part=rows.part, noise_scale=rows.noise_scale)
        )
        return other

    def __call__(self, x: Tensor, S: Tensor, *, s_from: Tensor | None = None) -> Tensor:
        """Value of one evaluation: x (..., d), S (..., l, m) -> (...,); see `evaluate`."""
        return self.evaluate(x, S, s_from=s_from).value

    def evaluate(self, x: Tensor, S: Tensor, *, s_from: Tensor | None = None) -> Valuation:
        """Value of one evaluation with its standard error, value of information and cost.

        Args:
            x: (..., d).
            S: (..., l, m), fidelities that are kept of the trace; the cost is that of max S.
            s_from: (..., m), where a run to be continued stands; NaN for a cold start, as without it.
        Returns:
            Differentiable in x and S (Theorem 1: inner minimisers are held fixed).
        """
        if x.ndim < 1 or S.ndim < 2:
            raise InputError(f"x and S have shapes {tuple(x.shape)}, {tuple(S.shape)}; expected (..., d), (..., l, m)")
        return self.evaluate_joint(
            x[..., None, :], S[..., None, :, :], s_from=None if s_from is None else s_from[..., None, :]
        )

    def evaluate_joint(self, x: Tensor, S: Tensor, *, s_from: Tensor | None = None) -> Valuation:
        """Value of q evaluations at once, whose cost is that of the dearest: x (..., q, d), S (..., q, l, m)."""
        self._check(x, S)
        if s_from is not None and s_from.shape != (*x.shape[:-1], self.post.model.m):
            expected = (*x.shape[:-1], self.post.model.m)
            raise InputError(f"s_from has shape {tuple(s_from.shape)}; expected {expected}, one for each evaluation")
        batch, q = x.shape[:-2], x.shape[-2]
        B = math.prod(batch)  # spelled out, since -1 is ambiguous without fidelities (m = 0)
        x = x.reshape(B, q, x.shape[-1])
        S = S.reshape(B, *S.shape[-3:])
        s_from = None if s_from is None else s_from.reshape(B, *s_from.shape[-2:])
        gain, cost = self.gain(x, S), self.batch_cost(x, S, s_from)
        return Valuation(
            (gain.value / cost).reshape(batch),
            (gain.standard_error / cost.detach()).reshape(batch),
            gain.value.reshape(batch),
            cost.reshape(batch),
            gain.unconverged,
            gain.problems,
            gain.jitter,
        )

    def gain(self, x: Tensor, S: Tensor, *, near: Tensor | None = None) -> Gain:
        """Simulated reductions of the loss, x (B, q, d), S (B, q, l, m), unchecked; see `LossSimulator.gain`."""
        gain = self.simulator.gain(self.observations(x, S), near=near)
        if self.survival is None:
            return gain
        share = self.survival(x, max_fidelity(S)).mean(-1)  # (B,), of the q evaluations
        return gain._replace(reduction=gain.reduction * share[:, None])

    def batch_cost(self, x: Tensor, S: Tensor, s_from: Tensor | None) -> Tensor:
        """The largest cost of the q members with its overhead, (B,)."""
        s = max_fidelity(S)  # (B, q, m)
        cost = self.cost(x, s)
        if s_from is not None and s_from.shape[-1] and not s_from.isnan().all():
            is_warm = ~s_from.isnan().any(-1)  # (B, q)
            onward = continuation_cost(self.cost, x, s, torch.where(is_warm[..., None], s_from, 0.0), whole=cost)
            cost = torch.where(is_warm, onward, cost)
        is_bad = ~(cost.isfinite() & (cost > 0))
        if is_bad.any():
            raise InputError(f"cost returned {float(cost.detach()[is_bad][0]):g}; expected finite values > 0")
        return cost.amax(-1) + self.overhead

    def _check(self, x: Tensor, S: Tensor) -> None:
        model = self.post.model
        if x.ndim < 2 or x.shape[-1] != model.d or x.dtype != torch.float64:
            raise InputError(f"x has shape {tuple(x.shape)}, {x.dtype}; expected (..., {model.d}), torch.float64")
        if not (x.isfinite() & (x >= 0) & (x <= 1)).all():
            raise InputError(f"x ranges over [{float(x.min()):g}, {float(x.max()):g}]; expected the unit cube")
        if 0 in x.shape[:-1]:
            raise InputError(f"x has shape {tuple(x.shape)}, no evaluation; expected at least one (q >= 1)")
        check_fidelities("S", S, model.m)
        if S.ndim < 3 or S.dtype != torch.float64:
            raise InputError(f"S has shape {tuple(S.shape)}, {S.dtype}; expected (..., l, {model.m}), torch.float64")
        if S.shape[-2] == 0:
            raise InputError(f"S has shape {tuple(S.shape)}, no fidelity; expected at least one (|S| >= 1)")
        if S.shape[:-2] != x.shape[:-1]:
            raise InputError(
                f"S has shape {tuple(S.shape)}; expected the batch of x, {tuple(x.shape[:-1])}, and (l, m)"
            )
        s = max_fidelity(S)
        if not in_trace(S, s, self.trace_dims).all():
            raise InputError(
                f"S is not part of a trace B(s): its members differ in a fidelity outside trace_dims={self.trace_dims}"
            )


class TaKG(Acquisition):
    """[L_n({}) - L_n(x, S)] / cost(x, max S); docs/paper.md#takg."""

    def observations(self, x: Tensor, S: Tensor) -> Observations:
        tail, owner = _trace_rows(x, S, gradients=self.gradients, noise_scale=1.0)
        return Observations(x=x, rows=tail, owner=owner, lead=0, is_new=_is_new(tail, owner))


class TaKGZero(Acquisition):
    """[L_n(x, C) - L_n(x, C + S)] / cost(x, max S) with C = C(S); docs/paper.md#takg-zero.

    `has_noisy_zeros` simulates C(S) with noise, as the paper prints it. The value then does not vanish as a component
    of max S goes to 0, since a second noisy look at almost the same fidelity is worth something.
    """

    has_noisy_zeros = False

    def observations(self, x: Tensor, S: Tensor) -> Observations:
        zeros = zeroed(S, self.trace_dims)  # (B, q, k, m)
        scale = 1.0 if self.has_noisy_zeros else 0.0
        lead, lead_owner = _trace_rows(x, zeros, gradients=self.gradients, noise_scale=scale)
        tail, tail_owner = _trace_rows(x, S, gradients=self.gradients, noise_scale=1.0)
        rows, owner = joined([lead, tail]), torch.cat([lead_owner, tail_owner])
        return Observations(x=x, rows=rows, owner=owner, lead=len(lead), is_new=_is_new(rows, owner))


class TaKGZeroAsPrinted(TaKGZero):
    """taKG-zero with observation noise in C(S), the paper's formula to the letter."""

    has_noisy_zeros = True


class KnowledgeGradient(TaKG):
    """The single-fidelity knowledge gradient: S = {1} and cost 1; with `gradients`, the derivative-enabled one."""

    def __init__(
        self,
        post: Posterior,
        *,
        seed: int,
        gradients: bool = False,
        pending: Rows | None = None,
        survival: Survival | None = None,
        draws: int = DEFAULT_DRAWS,
        polish: int = 3,
        method: str = "sobol",
        candidates: Tensor | None = None,
        among: Tensor | None = None,
    ) -> None:
        super().__init__(
            post,
            cost=lambda x, s: torch.ones(x.shape[:-1], dtype=x.dtype),
            trace_dims=(),
            seed=seed,
            gradients=gradients,
            pending=pending,
            survival=survival,
            draws=draws,
            polish=polish,
            method=method,
            candidates=candidates,
            among=among,
        )


def _trace_rows(x: Tensor, S: Tensor, *, gradients: bool, noise_scale: float) -> tuple[Rows, Tensor]:
    """Rows of q evaluations one after the other, x (B, q, d), S (B, q, k, m), and the owner of each."""
    rows = rows_at(x, S, gradients=gradients, noise_scale=noise_scale)  # batch (B, q)
    B, q, r, _ = rows.x.shape
    flat = Rows(
        x=rows.x.reshape(B, q * r, rows.d),
        s=rows.s.reshape(B, q * r, rows.m),
        part=rows.part.repeat(q) if q > 1 else rows.part,
        noise_scale=rows.noise_scale.repeat(q),
    )
    return flat, torch.arange(q).repeat_interleave(r)


def _is_new(rows: Rows, owner: Tensor) -> Tensor:
    """Whether a row is not the same observable of the same evaluation as an earlier one, (B, r)."""
    label = torch.stack([owner, rows.part], dim=-1).to(rows.s.dtype).expand(*rows.s.shape[:-1], 2)
    return first_occurrence(torch.cat([label, rows.s.detach()], dim=-1))
