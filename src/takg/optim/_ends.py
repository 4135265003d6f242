"""Which end of the ascents is the best, as what can really be run next to it, and what the others were worth."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from takg.acquisition import Acquisition, Valuation
from takg.errors import InputError
from takg.optim._ascend import Ascent
from takg.optim._region import Region, Runs
from takg.optim._screen import spread_out

_FINAL_POLISH = 5  # Newton passes of the inner problems in the last valuation
_FINALISTS = 3  # ends that are valued with more draws
_SNAPPED = 8  # ends at most that are compared by what can be run next to them
_KEPT = 0.5  # share of the highest value that what can be run should have
_ROUNDING = 1e-9  # by which what can be run may miss where a run stands

Source = tuple[int | None, ...]
Snap = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""x (q, d), S (q, l, m) and where runs stand (q, m), NaN for new ones, to what can really be run next to it:
(k, q, d), (k, q, l, m)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What to evaluate next, and why."""

    x: Tensor  # (q, d)
    S: Tensor  # (q, l, m), fidelities to keep; the last is the one to run to
    source: Source  # for each evaluation, the basket entry that it continues, or None
    value: float
    standard_error: float
    voi: float
    cost: float
    is_converged: bool  # the ascent that led here ended at a stationary point
    unconverged: int  # inner problems of the last valuation that were not solved to tolerance
    problem_values: tuple[float, ...]  # the best value of each basket entry, then that of the cold start
    history: Tensor  # of the best restart, value after each pass (stochastic: gradient norm)
    winners: Tensor  # (k, p), good points to start from next time
    runners_up: tuple["Suggestion", ...] = ()  # other hills, the highest first

    @property
    def s(self) -> Tensor:
        """max S, (q, m)."""
        return self.S[:, -1]


def best_end(
    acquisition: Acquisition,
    region: Region,
    ends: Ascent,
    runs: Runs,
    sources: Sequence[Source],
    snap: Snap | None,
    *,
    final_draws: int,
    spares: int,
    seed: int,
) -> Suggestion:
    """Value the highest ends with more draws, snap the best, and say what each problem was worth."""
    exact = acquisition.redrawn((seed + 104_729) % 2**31, draws=final_draws, polish=_FINAL_POLISH)
    values = ends.value.clone()
    high = values.topk(min(_FINALISTS, len(values))).indices
    choice = region.decode(ends.z[high], runs.of(high))
    with torch.no_grad():
        valuation = exact.evaluate_joint(choice.x, choice.S.clamp(0, 1), s_from=runs.s[high])
    values[high] = valuation.value
    place = int(valuation.value.argmax())
    winner = int(high[place])
    x, S, one = choice.x[place], choice.S[place], _member(valuation, place)
    if snap is not None:
        winner, x, S, one = _best_snapped(exact, region, snap, ends.z, runs, values)
    is_cold = torch.tensor([all(j is None for j in source) for source in sources])
    in_basket = {
        source[0]: float(value) for source, value in zip(sources, values, strict=True) if source[0] is not None
    }
    valued = torch.zeros_like(is_cold)
    valued[high] = True
    told = is_cold & valued if (is_cold & valued).any() else is_cold  # few draws flatter some of many
    best_cold = float(values[told].max()) if told.any() else -math.inf
    best = Suggestion(
        x=x,
        S=S,
        source=sources[winner],
        value=float(one.value),
        standard_error=float(one.standard_error),
        voi=float(one.voi),
        cost=float(one.cost),
        is_converged=bool(ends.is_converged[winner]),
        unconverged=one.unconverged,
        problem_values=(*(in_basket[j] for j in sorted(in_basket)), best_cold),
        history=ends.history[winner],
        winners=ends.z[is_cold][values[is_cold].argsort(descending=True)[:4]],
    )
    if not spares:
        return best
    values[winner] = math.inf  # the first to be chosen
    hills = spread_out(acquisition, region, values, ends.z, 1 + spares, is_strict=True)[1:]
    others = [_runner_up(acquisition, region, ends, runs, sources, snap, best, int(i), float(values[i])) for i in hills]
    return dataclasses.replace(best, runners_up=tuple(sorted(others, key=lambda one: -one.value)))


def _runner_up(
    acquisition: Acquisition,
    region: Region,
    ends: Ascent,
    runs: Runs,
    sources: Sequence[Source],
    snap: Snap | None,
    best: Suggestion,
    i: int,
    value: float,
) -> Suggestion:
    """The end of another ascent, by the value that the ascent saw; snapped to what is nearest."""
    run = Runs(runs.x[i], runs.s[i])
    choice = region.decode(ends.z[i : i + 1], runs.of(torch.tensor([i])))
    x, S = choice.x[0], choice.S[0].clamp(0, 1)
    if snap is not None:
        xs, Ss = _possible(acquisition, snap, x, S, run)
        x, S = xs[0], Ss[0]
    with torch.no_grad():
        cost = float(acquisition.batch_cost(x[None], S[None], run.s[None]))
    return dataclasses.replace(
        best,
        x=x,
        S=S,
        source=sources[i],
        value=value,
        standard_error=math.inf,
        voi=value * cost,
        cost=cost,
        is_converged=bool(ends.is_converged[i]),
        history=ends.history[i],
    )


def _best_snapped(
    acquisition: Acquisition, region: Region, snap: Snap, z: Tensor, runs: Runs, values: Tensor
) -> tuple[int, Tensor, Tensor, Valuation]:
    """Which end (B, q p) is worth the most as what can be run next to it, and that: x, S and its value.

    What can be run may be worth nothing, where a whole epoch more or less is what was seen already. Then the other ends
    are tried, from the highest value on, until one keeps what was promised or none promises more.
    """

    def run_next_to(i: int) -> tuple[int, Tensor, Tensor, Valuation]:
        choice = region.decode(z[i : i + 1], runs.of(torch.tensor([i])))
        return i, *_snapped(acquisition, snap, choice.x[0], choice.S[0], Runs(runs.x[i], runs.s[i]))

    first, *others = values.topk(min(_SNAPPED, len(values))).indices.tolist()
    best = run_next_to(first)
    for i in others:
        if best[3].value >= min(values[i], _KEPT * values[first]):
            break
        best = max(best, run_next_to(i), key=lambda one: one[3].value)
    return best


def _snapped(
    acquisition: Acquisition, snap: Snap, x: Tensor, S: Tensor, runs: Runs
) -> tuple[Tensor, Tensor, Valuation]:
    """The best of what can be run next to (x, S), by value."""
    xs, Ss = _possible(acquisition, snap, x, S, runs)
    with torch.no_grad():
        valuation = acquisition.evaluate_joint(xs, Ss, s_from=runs.s.expand(len(xs), *runs.s.shape))
    best = int(valuation.value.argmax())
    return xs[best], Ss[best], _member(valuation, best)


def _possible(acquisition: Acquisition, snap: Snap, x: Tensor, S: Tensor, runs: Runs) -> tuple[Tensor, Tensor]:
    """What can be run next to (x, S), the nearest first; runs to be continued keep their x and do go on."""
    xs, Ss = snap(x, S, runs.s)
    if xs.ndim != 3 or Ss.ndim != 4 or len(xs) == 0 or xs.shape[1:] != x.shape or Ss.shape != (len(xs), *S.shape):
        raise InputError(
            f"snap returned shapes {tuple(xs.shape)} and {tuple(Ss.shape)}; expected k >= 1 neighbours, "
            f"(k, {', '.join(map(str, x.shape))}) and (k, {', '.join(map(str, S.shape))})"
        )
    is_new = runs.is_new  # (q,)
    gap = Ss - runs.s[:, None, :]  # (k, q, l, m), NaN for new runs
    is_there = (xs - runs.x).abs().amax(-1) <= _ROUNDING
    is_fixed = torch.ones(gap.shape[-1], dtype=torch.bool)
    is_fixed[list(acquisition.trace_dims)] = False  # a run cannot change what it has no trace of
    is_there &= (gap[..., is_fixed].abs() <= _ROUNDING).all((-2, -1))
    goes_on = is_there & (gap >= -_ROUNDING).all((-2, -1)) & (gap > _ROUNDING).any((-2, -1))
    is_possible = (is_new | goes_on).all(-1)
    if not is_possible.any():
        raise InputError(f"snap returned {len(xs)} neighbours, none of which goes on from s={runs.s[~is_new].tolist()}")
    return xs[is_possible], Ss[is_possible]


def _member(valuation: Valuation, i: int) -> Valuation:
    """One entry of a batch."""
    return valuation._replace(
        value=valuation.value[i],
        standard_error=valuation.standard_error[i],
        voi=valuation.voi[i],
        cost=valuation.cost[i],
    )
