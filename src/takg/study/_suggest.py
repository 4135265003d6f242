"""What to evaluate next: a pure function of the study's state and its seed."""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from takg.acquisition import Acquisition, KnowledgeGradient, TaKG, TaKGZero, TaKGZeroAsPrinted
from takg.numerics import sobol_points, threads_for
from takg.optim import Region, Suggestion, maximise
from takg.records import Config, FidelityValues, StudyState, TrialState
from takg.space import Pool
from takg.study._belief import Belief, Memory, rows_to_come
from takg.study._data import Point, pending
from takg.study._plan import Plan
from takg.study._view import is_complete

_JOINTLY, _HILLS = 8, 16  # evaluations that are chosen together, and that are taken from one search if there are more
_NEAR_X = 8  # configurations next to a suggestion that are valued
_CHEAP = (0.02, 0.1)  # product of the fidelities in the initial design, unless the least that can be run is larger
LEAST_INITIAL = 4  # evaluations, however dear they are
# A step much smaller than what was trained so far would show the slope of the curve there, if the model were right in
# every detail; it is not, and a search that trusts it creeps along.
_GROWTH = 1.0
_RECENT = 9  # evaluations whose choice says how long the next one takes
_PASSES = {"sample_average": 18, "stochastic": 60}  # noisy steps are smaller ones
_KINDS: dict[str, type[TaKG | TaKGZero]] = {
    "takg": TaKG,
    "takg_zero": TaKGZero,
    "takg_zero_as_printed": TaKGZeroAsPrinted,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One evaluation: a new configuration, or a trial to go on with."""

    target: FidelityValues
    config: Config | None = None
    trial: int | None = None
    start: FidelityValues | None = None
    kept: tuple[FidelityValues, ...] = ()
    reason: dict[str, Any] = field(default_factory=dict)
    place: int | None = None  # in the initial design


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What to evaluate next, which trials to give up for it, and what to remember."""

    proposals: tuple[Proposal, ...]
    dropped: tuple[tuple[int, str], ...] = ()  # trial, why
    memory: Memory


def initial_size(plan: Plan) -> int:
    return plan.options.initial or max(LEAST_INITIAL, plan.space.d + 1)


def initial(plan: Plan, index: int) -> Proposal:
    """The index-th evaluation of the initial design: spread over the space, at mixed cheap fidelities."""
    d, m = plan.space.d, plan.fidelities.m
    size = max(initial_size(plan), index + 1)
    point = sobol_points(size, d + m, seed=plan.options.seed)[index].tolist()
    low, high = (cost ** (1 / m) for cost in _CHEAP) if m else (1.0, 1.0)
    s = tuple(
        max(least, low) * (max(least, high) / max(least, low)) ** u
        for least, u in zip(plan.fidelities.least, point[d:], strict=True)
    )
    target = plan.from_s(s)
    shares = [(i + 1) / plan.options.retained for i in range(plan.options.retained)]
    kept = tuple(dict.fromkeys(_part_of_the_way(plan, plan.to_s(target), share) for share in shares))
    config = plan.space.from_unit(tuple(point[:d]))
    return Proposal(config=config, target=target, kept=kept, reason={"why": "initial design"}, place=index)


def suggest(plan: Plan, state: StudyState, belief: Belief, n: int, *, seed: int, overhead: float = 0.0) -> Proposals:
    """n evaluations chosen by the acquisition function, those under way taken into account.

    `overhead` is what each takes beside its cost.
    Up to eight are chosen jointly. More have to be chosen faster than that: as many workers wait. They are the highest
    hills of one search, at most sixteen at a time, those before them under way.
    """
    overhead = overhead if plan.fidelities.m else 0.0  # all evaluations cost the same
    basket = _continuable(plan, state)
    chosen: list[Proposal] = []
    dropped: list[tuple[int, str]] = []
    with threads_for(belief.posterior.n):
        acquisition = _acquisition(plan, state, belief, seed, overhead)
    region = _region(plan)
    winners = belief.memory.winners
    while len(chosen) < n:
        first = len(chosen)
        is_joint = n <= _JOINTLY
        found = maximise(
            acquisition,
            region,
            seed=seed + first,
            q=n if is_joint else 1,
            method=plan.options.maximiser,
            passes=_PASSES[plan.options.maximiser],
            spares=0 if is_joint else min(_HILLS, n - first) - 1,
            basket=[(_vector(plan.space.to_unit(trial.config)), _vector(plan.to_s(at))) for trial, at in basket],
            winners=torch.tensor(winners, dtype=torch.float64) if winners else None,
            snap=functools.partial(_runnable, plan),
        )
        winners = tuple(tuple(row) for row in found.winners.tolist())
        all_found = (found, *found.runners_up)
        proposals = [_proposal(plan, belief, basket, one, i, overhead) for one in all_found for i in range(len(one.x))]
        chosen += proposals
        if len(chosen) < n:
            x, S = (torch.cat([getattr(one, name) for one in all_found]) for name in ("x", "S"))
            acquisition = acquisition.with_pending(x, S)
        dropped += _leaving(plan, state, basket, found, proposals, before=first)
        gone = {one.trial for one in proposals} | {trial for trial, _ in dropped}
        basket = [(trial, at) for trial, at in basket if trial.id not in gone]
    return Proposals(
        proposals=tuple(chosen),
        dropped=tuple(dropped),
        memory=dataclasses.replace(belief.memory, winners=winners),
    )


def _acquisition(plan: Plan, state: StudyState, belief: Belief, seed: int, overhead: float) -> Acquisition:
    to_come = rows_to_come(plan, pending(plan, state))
    among = belief.among
    if plan.fidelities.m == 0:
        return KnowledgeGradient(belief.posterior, seed=seed, pending=to_come, survival=belief.survival, among=among)
    kind = _KINDS[plan.options.acquisition]
    trace_dims = plan.fidelities.trace_dims
    return kind(
        belief.posterior,
        cost=belief.cost,
        trace_dims=trace_dims,
        seed=seed,
        pending=to_come,
        overhead=_thinking(plan, state) + overhead,
        survival=belief.survival,
        among=among,
    )


def _thinking(plan: Plan, state: StudyState) -> float:
    """Where cost is time, the time to choose an evaluation is paid, too: none is worth choosing that is shorter."""
    if plan.options.cost != "time":
        return 0.0
    seconds = [e.asked.reason["seconds"] for e in state.evaluations[-_RECENT:] if "seconds" in e.asked.reason]
    return statistics.median(seconds) if seconds else 0.0


def _region(plan: Plan) -> Region:
    return Region(
        d=plan.space.d,
        m=plan.fidelities.m,
        trace_dims=plan.fidelities.trace_dims,
        retained=plan.options.retained,
        s_min=plan.fidelities.least,
        growth=_GROWTH,
    )


def _continuable(plan: Plan, state: StudyState) -> list[tuple[TrialState, FidelityValues]]:
    """The basket: trials with a checkpoint that can still be trained further, and where each stands."""
    return [
        (trial, trial.checkpoint)
        for trial in state.basket()
        if trial.checkpoint is not None and not is_complete(plan, trial)
    ]


def _proposal(
    plan: Plan,
    belief: Belief,
    basket: Sequence[tuple[TrialState, FidelityValues]],
    found: Suggestion,
    i: int,
    overhead: float,
) -> Proposal:
    source = found.source[i]
    kept = _kept(plan, found.S[i])
    gain, error = belief.in_loss(found.voi), belief.in_loss(found.standard_error) * found.cost
    cost = found.cost - overhead
    reason = {
        "why": "new" if source is None else "continued",
        "gain": gain,
        "cost": cost,
        "overhead": overhead,
        "value": gain / (cost / belief.full_cost),
        "value_error": error / (cost / belief.full_cost),
        "alternatives": {
            "new": found.problem_values[-1] if source is not None or len(basket) else None,
            **{str(trial.id): value for (trial, _), value in zip(basket, found.problem_values, strict=False)},
        },
    }
    if source is None:
        return Proposal(
            config=plan.space.from_unit(tuple(found.x[i].tolist())), target=kept[-1], kept=kept, reason=reason
        )
    trial, at = basket[source]
    return Proposal(trial=trial.id, start=at, target=kept[-1], kept=kept, reason=reason)


def _kept(plan: Plan, S: Tensor) -> tuple[FidelityValues, ...]:
    """Fidelities (l, m) each once, in the order in which a run comes by: the target, which none exceeds, is last."""
    return tuple(sorted({plan.from_s(tuple(s)) for s in S.tolist()}))


def _leaving(
    plan: Plan,
    state: StudyState,
    basket: Sequence[tuple[TrialState, FidelityValues]],
    found: Suggestion,
    proposals: Sequence[Proposal],
    *,
    before: int,
) -> list[tuple[int, str]]:
    """With too many runs to keep, those of the smallest value leave; the paper's update of the basket."""
    if not plan.fidelities.trace_dims:
        return []
    taken = {one.trial for one in proposals}
    idle = [(value, trial.id) for (trial, _), value in zip(basket, found.problem_values, strict=False)]
    idle = sorted((value, trial) for value, trial in idle if trial not in taken)
    held = len(basket) + len(state.open) + before + sum(one.trial is None for one in proposals)
    excess = max(0, held - plan.options.basket)
    return [
        (trial, f"to go on with it was worth the least of {len(basket)}: {value:.3g} per cost")
        for value, trial in idle[:excess]
    ]


def _part_of_the_way(plan: Plan, s: Point, share: float) -> FidelityValues:
    return plan.from_s(tuple(value * share if j in plan.fidelities.trace_dims else value for j, value in enumerate(s)))


def _runnable(plan: Plan, x: Tensor, S: Tensor, s_from: Tensor) -> tuple[Tensor, Tensor]:
    """What can be run next to q evaluations: whole epochs, whole sizes, categories; one member varied at a time."""
    members = []
    for point, kept, at in zip(x.tolist(), S.tolist(), s_from.tolist(), strict=True):
        start = tuple(at) if at and not any(map(math.isnan, at)) else None
        limit = 1 if isinstance(plan.space, Pool) else _NEAR_X  # of a pool it is one already
        places = [tuple(point)] if start else plan.space.neighbours(tuple(point), limit=limit)
        members.append(list(itertools.product(places, _runnable_fidelities(plan, kept, start))))
    nearest = [options[0] for options in members]
    all_of_them = [nearest]
    for i, options in enumerate(members):
        all_of_them += [[*nearest[:i], option, *nearest[i + 1 :]] for option in options[1:]]
    xs = torch.tensor([[point for point, _ in one] for one in all_of_them], dtype=torch.float64)
    Ss = torch.tensor([[kept for _, kept in one] for one in all_of_them], dtype=torch.float64)
    return xs.reshape(len(all_of_them), *x.shape), Ss.reshape(len(all_of_them), *S.shape)


def _runnable_fidelities(plan: Plan, kept: Sequence[Sequence[float]], start: Point | None) -> list[list[Point]]:
    """The kept fidelities of one evaluation, rounded; its target to the nearest that can be run and those beside it.

    Fidelities without a trace are only rounded: a run that is continued cannot change them.
    """
    trace_dims = plan.fidelities.trace_dims
    nearest = plan.to_s(plan.from_s(tuple(kept[-1])))
    tops = [nearest]
    for direction in (1, -1):
        moved = [
            min(1.0, max(least, value + direction * step)) if j in trace_dims else value
            for j, (value, step, least) in enumerate(zip(nearest, plan.steps, plan.fidelities.least, strict=True))
        ]
        tops.append(plan.to_s(plan.from_s(tuple(moved))))
    if start is not None:  # it has to go on, and by no smaller a step than was asked for
        tops = [s for s in tops if any(s[j] > start[j] for j in trace_dims) and s >= nearest]
    rounded = [plan.to_s(plan.from_s(tuple(one))) for one in kept[:-1]]
    return [
        [
            *(
                tuple(min(a, b) if j in trace_dims else b for j, (a, b) in enumerate(zip(s, top, strict=True)))
                for s in rounded
            ),
            top,
        ]
        for top in dict.fromkeys(tops)
    ]


def _vector(values: Point) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
