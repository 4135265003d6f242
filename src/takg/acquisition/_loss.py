"""L_n(x, S) by simulation: what the best answer is expected to lose after observations still to be made.

docs/paper.md#loss. Simulated observations come in the order pending, lead, tail. For taKG-zero the lead is C(S) and
the tail is S; for taKG the lead is empty. One Cholesky factor serves both terms of the value of information, the
lead's being its leading block, and both use the same draws W.

The tail's draws come with both signs. Because a minimum is concave, the mean of the two minima lies below the one at 0,
which is the benchmark: no estimate of a value of information is ever negative. Where an evaluation only matters if it
comes out unusually well, plain draws would hardly ever say so; the tail's radius and the lead's most telling component
are drawn from wider distributions and weighted for that. Values are unbiased, and for fixed draws they are smooth
functions of x and S whose gradients are exact (Theorem 1).
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor

from takg.acquisition._draws import Draws, drawn, turned
from takg.acquisition._target import Observations, Shift, TargetMean
from takg.errors import InputError
from takg.gp import (
    Posterior,
    Rows,
    Survival,
    joined,
)
from takg.numerics import (
    DRAW_METHODS,
    allowed_part,
    furthest_allowed,
    side_by_side,
    sobol_points,
)

_ENTRIES_AT_ONCE = 2_000_000
_WORTH_A_THREAD = 32  # candidates
_NODES = 3  # inner problems of a draw: either sign of the tail, and the benchmark if it depends on the candidate
_PASSES_FROM_NEAR = 1  # Newton passes to follow an inner minimum that has moved a little
_SPREAD, _LOW = 32, 64  # candidates for inner minima, beside the minimisers of the mean
_LEAST_OWN = 0.5  # chance of an evaluation's own x to be the answer: if it is seen to survive, it will be higher
_LOW_OF_POOL = 192  # candidates where only some designs can be run


class Gain(NamedTuple):
    """Simulated reductions of the expected loss; their mean over H and M is the value of information."""

    reduction: Tensor  # (H, B, M), differentiable in the observations' x and s (Theorem 1)
    benchmark: Tensor  # (H, B, M), the minimum before the tail is observed
    unconverged: int  # inner problems that did not reach their minimum to tolerance
    problems: int
    jitter: float  # largest that was added to a covariance of the simulated observations
    minimisers: Tensor  # (H, B, M, J, d), of every inner problem: where to start after a small change

    @property
    def value(self) -> Tensor:
        """Value of information, (B,)."""
        return self.reduction.mean((0, 2))

    @property
    def standard_error(self) -> Tensor:
        """Of the simulation, (B,); the H samples are taken as given."""
        H, _, M = self.reduction.shape
        if M < 2:
            return torch.full_like(self.value, torch.inf)
        return self.reduction.detach().var(-1).div(M).mean(0).div(H).sqrt()


class LossSimulator:
    """A posterior prepared for many evaluations of the expected loss.

    Args:
        post: the posterior, under H hyperparameter samples.
        pending: evaluations under way; their outcomes are simulated, not made up.
        candidates: (g, d), where inner minima are first looked for; by default Sobol points, the data's x
            and the minimisers of the mean under each sample.
        draws: M, simulated outcomes for each hyperparameter sample; the tail's count twice.
        polish: Newton passes from the best candidate of each inner problem.
        method: "sobol" or "monte_carlo".
        among: (k, d), the only designs there are, if not all of the cube: inner minima are not polished then.
        survival: says which designs can be the answer, if not all can; if none of the candidates can, all do.
    """

    def __init__(
        self,
        post: Posterior,
        *,
        seed: int,
        pending: Rows | None = None,
        candidates: Tensor | None = None,
        among: Tensor | None = None,
        survival: Survival | None = None,
        draws: int = 8,
        polish: int = 3,
        method: str = "sobol",
    ) -> None:
        _check_effort(draws, polish)
        if method not in DRAW_METHODS:
            raise InputError(f"method={method!r}: expected one of {DRAW_METHODS}")
        if post.model.trend_dims:
            raise InputError(f"post.model.trend_dims={post.model.trend_dims}: expected a model with a constant trend")
        if pending is not None and len(pending) == 0:
            pending = None
        self.post, self.draws, self.polish, self.method, self.seed = post, draws, polish, method, seed
        self.pending, self.among, self.survival = pending, among, survival
        self._allowed = None if survival is None else survival.is_safe
        self.known = post.rows.x.unique(dim=0)  # the designs that were evaluated, (k, d)
        with torch.no_grad():
            self._target = self._folded()
            candidates = self._default_candidates() if candidates is None else candidates
            if self._allowed is not None and not self._allowed(candidates).any():
                self._allowed = None
            self.candidates = allowed_part(self._allowed, candidates)
            self._prepare_candidates()

    def redrawn(self, seed: int, *, draws: int | None = None, polish: int | None = None) -> "LossSimulator":
        """The same posterior and candidates under fresh draws."""
        other = copy.copy(self)
        other.seed, other.draws = seed, self.draws if draws is None else draws
        other.polish = self.polish if polish is None else polish
        _check_effort(other.draws, other.polish)
        if self.pending is not None:  # their outcomes are drawn too
            with torch.no_grad():
                other._target = other._folded()
                other._prepare_candidates()
        return other

    def thinned(self, samples: slice, *, draws: int, polish: int) -> "LossSimulator":
        """A cheaper simulator for rough comparisons: some of the hyperparameter samples, and fewer draws."""
        return LossSimulator(
            self.post.part(samples),
            seed=self.seed,
            pending=self.pending,
            candidates=self.candidates,
            among=self.among,
            survival=self.survival,
            draws=draws,
            polish=polish,
            method=self.method,
        )

    def with_pending(self, rows: Rows) -> "LossSimulator":
        """The same draws with further evaluations under way."""
        return LossSimulator(
            self.post,
            seed=self.seed,
            pending=rows if self.pending is None else joined([self.pending, rows]),
            candidates=torch.cat([self.candidates, rows.x.unique(dim=0)]),
            among=self.among,
            survival=self.survival,
            draws=self.draws,
            polish=self.polish,
            method=self.method,
        )

    @property
    def current_loss(self) -> Tensor:
        """L_n of the pending observations alone, or min mu_n where there are none; a scalar."""
        return self._floor.value.mean()

    @property
    def minimisers(self) -> Tensor:
        """Where each sample's mean (after pending draws) is smallest, (H, M or 1, d)."""
        return self._floor.x

    def gain(self, observations: Observations, *, near: Tensor | None = None) -> Gain:
        """What each of B candidates is expected to lower the loss by.

        Args:
            near: (H, B, M, J, d), `Gain.minimisers` of candidates next to these. Inner minima are then followed from
                there, in a single pass, and not looked for: much faster, and as good as long as steps are small.
        """
        B, r = observations.is_new.shape
        width = _NODES * self.draws * max(len(self.candidates), self._target.slots.x.shape[0]) * self.post.theta.H
        size = max(1, _ENTRIES_AT_ONCE // width)
        k = observations.lead
        is_widened = k > 0 and observations.x.shape[1] == 1
        draws = drawn(self.post.theta.H, self.draws, k, r - k, is_widened, self.seed + 1, self.method)
        is_differentiable = torch.is_grad_enabled()
        if not is_differentiable:
            size = min(size, max(_WORTH_A_THREAD, math.ceil(B / 2)))
        begins = range(0, B, size)

        def gains(some: slice) -> list[Gain]:
            with torch.set_grad_enabled(is_differentiable):
                return [
                    self._gain(observations[i : i + size], draws, None if near is None else near[:, i : i + size])
                    for i in begins[some]
                ]

        found = [gains(slice(None))] if is_differentiable else side_by_side(gains, len(begins))
        parts = [part for some in found for part in some]
        return Gain(
            torch.cat([part.reduction for part in parts], dim=1),
            torch.cat([part.benchmark for part in parts], dim=1),
            sum(part.unconverged for part in parts),
            sum(part.problems for part in parts),
            max(part.jitter for part in parts),
            torch.cat([part.minimisers for part in parts], dim=1),
        )

    def _folded(self) -> TargetMean:
        return TargetMean(self.post, self.pending, draws=self.draws, seed=self.seed, method=self.method)

    def _default_candidates(self) -> Tensor:
        """Few points, since every simulated outcome is compared on all of them: those of low mean, and a spread."""
        d = self.post.model.d
        if self.among is not None:
            pool = allowed_part(self._allowed, self.among)
            count = min(_LOW_OF_POOL, len(pool))
            return pool[self._target.means(pool).mean(0).topk(count, largest=False).indices]
        spread = sobol_points(_SPREAD, d, seed=self.seed)
        pool = torch.cat([sobol_points(4 * _SPREAD, d, seed=self.seed + 1), self._target.slots.x.unique(dim=0)])
        pool = allowed_part(self._allowed, pool)
        low = pool[self._target.means(pool).mean(0).topk(min(_LOW, len(pool)), largest=False).indices]
        return torch.cat([spread, low, self._minimisers_from(torch.cat([pool, spread]))])

    def _minimisers_from(self, points: Tensor) -> Tensor:
        """Local minimisers of each sample's mean, from the best few of the points."""
        H, d = self.post.theta.H, self.post.model.d
        weights = self._target.weights.mean(1, keepdim=True)
        values = self._target.means(points)  # (H, g)
        starts = points[values.topk(min(4, len(points)), largest=False).indices]  # (H, k, d)
        P = starts.shape[1]
        found = self._target.sums(weights.expand(-1, P, -1), values.new_zeros(H, P)).minimise(starts, passes=20)
        distinct: Tensor = found.x.reshape(-1, d).unique(dim=0)
        return distinct

    def _prepare_candidates(self) -> None:
        G = self.candidates
        if G.ndim != 2 or len(G) == 0 or G.shape[-1] != self.post.model.d or G.dtype != torch.float64:
            raise InputError(
                f"candidates has shape {tuple(G.shape)}, {G.dtype}; expected (g, {self.post.model.d}) with g >= 1, "
                "torch.float64"
            )
        if not ((G >= 0) & (G <= 1)).all():
            raise InputError(
                f"candidates ranges over [{float(G.min()):g}, {float(G.max()):g}]; expected points of the unit cube"
            )
        H = self.post.theta.H
        self._candidate_features = self._target.features(G[None].expand(H, -1, -1))  # (H, g, slots)
        base = self._target.offset[..., None] + self._target.weights @ self._candidate_features.mT  # (H, M or 1, g)
        self._candidate_base = base
        starts = G[base.argmin(-1)]  # (H, M or 1, d)
        passes = 20 if self.among is None else 0
        self._floor = self._target.sums(self._target.weights, self._target.offset).minimise(starts, passes=passes)
        if self._allowed is not None and passes:
            x = furthest_allowed(self._allowed, starts, self._floor.x)
            features = self._target.features(x)  # (H, M or 1, slots)
            value = (features * self._target.weights).sum(-1) + self._target.offset
            self._floor = self._floor._replace(x=x, value=value, features=features)

    def _gain(self, observations: Observations, draws: Draws, near: Tensor | None) -> Gain:
        k = observations.lead
        shift = self._target.shift(observations)
        # What multiplies T(x'): the lead's part, and that with the tail's of either sign.
        lead = draws.lead[:, None].expand(-1, len(observations.x), -1, -1)  # (H, B, M, k)
        if draws.is_widened and k > 1:
            lead = turned(lead, shift.factor[..., -1, :k])
        origin = lead @ shift.inverse[..., :k, :]  # (H, B, M, r)
        tail = draws.tail[:, None] @ shift.inverse[..., k:, :]  # (H, B, M, r)
        with torch.no_grad():
            ways = [origin + tail, origin - tail] + ([origin] if k else [])
            v = torch.stack(ways, dim=3)  # (H, B, M, J, r)
            # (H, B, M, J, d), (H, B, M, J, slots), (H, B, M, J)
            x_star, features, is_converged = self._inner_minima(observations, shift, v, near)
            base = self._target.base(features)  # (H, B, M, J)
        T = self._target.T(observations, shift, x_star, features)  # (H, B, M, J, r)
        if k == 0:  # the benchmark is the same for all candidates, and known
            floor = self._floor
            T_floor = self._target.T(
                observations,
                shift,
                floor.x[:, None].expand(-1, len(observations.x), -1, -1),
                self._target.features(floor.x)[:, None].expand(-1, len(observations.x), -1, -1),
            )  # (H, B, M or 1, r)
            T = torch.cat([T, T_floor[:, :, :, None].expand(-1, -1, self.draws, -1, -1)], dim=3)
            base = torch.cat([base, floor.value[:, None, :, None].expand(*base.shape[:3], 1)], dim=3)
        level = base + (T * origin[..., None, :]).sum(-1)  # of each x* when the tail adds nothing
        change = (T * tail[..., None, :]).sum(-1)
        # Each x* is a candidate for the other two problems: what one missed another may have found, and a benchmark
        # that is too high would pass for a gain.
        benchmark, up, down = level.amin(-1), (level + change).amin(-1), (level - change).amin(-1)
        reduction = (benchmark - 0.5 * (up + down)) * draws.weight[:, None]
        missed = int((~is_converged).sum())
        return Gain(reduction, benchmark.detach(), missed, is_converged.numel(), shift.jitter, x_star)

    def _inner_minima(
        self, observations: Observations, shift: Shift, v: Tensor, near: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x* of every simulated outcome: the best candidate, or one from nearby, polished."""
        H, B, M, J, _ = v.shape
        d, q = self.post.model.d, observations.x.shape[1]
        is_pool = self.among is not None
        start = self._best_candidates(observations, shift, v) if near is None or is_pool else near
        passes = self.polish if near is None else min(self.polish, _PASSES_FROM_NEAR)
        if passes == 0 or is_pool:
            return start, self._target.features(start), torch.ones(start.shape[:-1], dtype=torch.bool)

        P = B * M * J
        weights = self._target.weights[:, None].expand(H, B, -1, -1)  # (H, B, M or 1, slots)
        if weights.shape[2] > 1:
            weights = weights.repeat_interleave(J, dim=2)
        weights = torch.baddbmm(
            weights.reshape(H * B, -1, weights.shape[-1]), v.reshape(H * B, M * J, -1), _flat(shift.folded).mT, alpha=-1
        )
        offset = self._target.offset[:, None, :, None] - (v * shift.offset[:, :, None, None, :]).sum(-1)
        offset = offset + (v * shift.constant[:, None, None, :]).sum(-1)
        pulled = v * shift.pull[:, :, None, None, :]  # (H, B, M, J, r)
        own_weights, own_gradients = self._own_weights(observations, pulled)
        sums = self._target.sums(
            weights.reshape(H, P, -1),
            offset.reshape(H, P),
            observations.x[:, None].expand(B, M * J, q, d).reshape(P, q, d),
            own_weights.reshape(H, P, q),
            None if own_gradients is None else own_gradients.reshape(H, P, q, d),
        )
        found = sums.minimise(start.reshape(H, P, d), passes=passes)
        x_star = found.x.reshape(H, B, M, J, d)
        if self._allowed is not None:
            x_star = furthest_allowed(self._allowed, start, x_star)
        # With derivative slots the sums' own centres are not the slots, and features have to be made anew.
        is_there = self._allowed is None and not self._target.slots.has_gradients
        features = found.features.reshape(H, B, M, J, -1) if is_there else self._target.features(x_star)
        return x_star, features, found.converged.reshape(H, B, M, J)

    def _best_candidates(self, observations: Observations, shift: Shift, v: Tensor) -> Tensor:
        """The best of the shared candidates and the evaluation's own x for every outcome, (H, B, M, J, d)."""
        H, B, M, J, r = v.shape
        d, q = self.post.model.d, observations.x.shape[1]
        g = len(self.candidates)
        T = self._target.prior_covariance(observations, shift, self.candidates, is_aligned=False)  # (H, B, g, r)
        # The batch joins the columns, so that the candidates' features are never copied.
        columns = shift.folded.movedim(1, 2).reshape(H, -1, B * r)  # (H, slots, B r)
        T = T - (self._candidate_features @ columns).reshape(H, g, B, r).movedim(2, 1) - shift.offset[:, :, None, :]
        values = (v.reshape(H, B, M * J, r) @ T.mT).reshape(H, B, M, J, g)
        values += self._candidate_base[:, None, :, None, :]
        best, where = values.min(-1)
        start = self.candidates[where]  # (H, B, M, J, d)

        x_own = observations.x.expand(H, B, q, d)
        own_features = self._target.features(x_own)  # (H, B, q, slots)
        own_T = self._target.T(observations, shift, x_own, own_features)  # (H, B, q, r)
        own_base = (
            own_features @ self._target.weights.mT[:, None] + self._target.offset[:, None, None, :]
        )  # (H, B, q, M)
        own_values = torch.einsum("hbmtr,hbqr->hbmtq", v, own_T) + own_base.mT[:, :, :, None, :]
        if self.survival is not None:
            is_safe = self.survival.is_safe(observations.x, least=_LEAST_OWN)  # (B, q)
            own_values = own_values.masked_fill(~is_safe[:, None, None, :], math.inf)
        own_best, own_where = own_values.min(-1)  # (H, B, M, J)
        which = own_where[..., None].expand(*own_where.shape, d)
        own_start = x_own[:, :, None, None].expand(H, B, M, J, q, d).gather(-2, which[..., None, :])[..., 0, :]
        return torch.where((own_best < best)[..., None], own_start, start)

    def _own_weights(self, observations: Observations, pulled: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gather row weights by evaluation: (H, B, M, J, q) and, with derivative rows, (H, B, M, J, q, d)."""
        q, d = observations.x.shape[1:]
        part, owner = observations.rows.part, observations.owner
        belongs = torch.nn.functional.one_hot(owner, q).to(pulled.dtype)  # (r, q)
        weights = pulled @ (belongs * (part == 0)[:, None])
        if not observations.rows.has_gradients:
            return weights, None
        along = torch.nn.functional.one_hot((part - 1).clamp_min(0), d) * (part > 0)[:, None]  # (r, d)
        return weights, torch.einsum("hbmtr,rq,rd->hbmtqd", pulled, belongs, along.to(pulled.dtype))


def _flat(T: Tensor) -> Tensor:
    """The first two dimensions as one."""
    return T.reshape(-1, *T.shape[2:])


def _check_effort(draws: int, polish: int) -> None:
    if draws < 1:
        raise InputError(f"draws={draws}: expected at least 1")
    if polish < 0:
        raise InputError(f"polish={polish}: expected at least 0 passes")
