"""What is believed of the loss and of the cost, given all that was observed."""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from takg.gp import (
    Chains,
    Cost,
    Fit,
    Model,
    OutcomeTransform,
    Posterior,
    Rows,
    Survival,
    fit,
    fit_cost,
    fit_outcome,
    fit_survival,
    learn_warp_scale,
    value_rows,
)
from takg.numerics import Allowed, sobol_points
from takg.optim import BEYOND, Recommendation, recommend
from takg.records import Config, StudyState
from takg.space import Pool
from takg.study._data import CostFunction, Paid, Point, Row, designs, observed, paid
from takg.study._plan import Plan

_IMAGINED = 32  # places where a cost that is given as a function is looked at, for a smooth cost to be fitted
_QUANTILES = 64  # of each predictive distribution
_LEAST_ROWS, _MORE_ROWS = 6, 1.2  # from which on the warp is learned, and how many times as many to learn it again
_FEW_STEPS = 2  # of the sampler, while what cost and survival were learned from is still most of all there is
_CAUTION = 0.5  # sds of doubt that count as loss in what is recommended
_SURE, _SUREST = 0.99, 0.1  # of surviving, to be recommended; and the share of designs that is surest, if that is less
_PLACES = 512  # designs that share is of
_CLOSE = 16  # configurations next to the recommended one that can be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What makes the next fit and search faster; all of it can be lost without harm."""

    chains: Chains | None = None
    cost_chains: Chains | None = None
    cost_rows: int = 0  # from how many evaluations those were learned
    survival_chains: Chains | None = None
    survival_rows: int = 0  # from how many observations those were learned
    winners: tuple[Point, ...] = ()
    scale: float | None = None  # of the log warp
    looked_rows: int = 0  # how many observations there were when it and the modes of the model were last looked for

    def dumps(self) -> str:
        return json.dumps(
            {
                "chains": self.chains and self.chains.to_json(),
                "cost_chains": self.cost_chains and self.cost_chains.to_json(),
                "cost_rows": self.cost_rows,
                "survival_chains": self.survival_chains and self.survival_chains.to_json(),
                "survival_rows": self.survival_rows,
                "winners": self.winners,
                "scale": self.scale,
                "looked_rows": self.looked_rows,
            }
        )

    @classmethod
    def loads(cls, text: str | None) -> "Memory":
        if text is None:
            return cls()
        data: dict[str, Any] = json.loads(text)
        chains, cost_chains, survival_chains = data["chains"], data["cost_chains"], data.get("survival_chains")
        return cls(
            chains=chains and Chains.from_json(chains),
            cost_chains=cost_chains and Chains.from_json(cost_chains),
            cost_rows=data.get("cost_rows", 0),
            survival_chains=survival_chains and Chains.from_json(survival_chains),
            survival_rows=data.get("survival_rows", 0),
            winners=tuple(tuple(one) for one in data["winners"]),
            scale=data.get("scale"),
            looked_rows=data.get("looked_rows", 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a loss is believed to be, in the user's units and direction."""

    mean: float  # without the outermost 1 % on either side
    sd: float  # likewise
    median: float
    low: float  # 5 % quantile
    high: float  # 95 % quantile


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Posterior over the loss, predicted cost, and the way back to the user's units."""

    plan: Plan
    posterior: Posterior
    outcome: OutcomeTransform
    cost: Cost
    survival: Survival | None  # None while nothing has diverged
    xs: Tensor  # (trials, d), the configurations that were tried
    lowest: Tensor  # (1, d), that with the lowest loss where it stands
    memory: Memory
    seed: int

    @cached_property
    def full_cost(self) -> float:
        """Predicted cost of one full training, the median over the configurations tried: the unit of budgets."""
        with torch.no_grad():
            ones = torch.ones(len(self.xs), self.plan.fidelities.m, dtype=torch.float64)
            return float(self.cost(self.xs, ones).median())

    @cached_property
    def among(self) -> Tensor | None:
        """The designs of a pool, (k, d)."""
        space = self.plan.space
        return _tensor(space.points, space.d) if isinstance(space, Pool) else None

    @cached_property
    def tells_slopes(self) -> bool:
        """Whether enough configurations were tried to lay a plane through them; before, no extrapolation is trusted.

        Nor, out of a pool, before one was trained in full.
        """
        is_settled = self.among is None or bool((self.posterior.rows.s == 1).all(-1).any())
        return is_settled and len(self.xs) > self.plan.space.d + 1

    @cached_property
    def can_be_answer(self) -> Allowed | None:
        """Designs that have survived a full training or are sure to; as long as hardly any is, the surest of all."""
        if self.survival is None:
            return None
        certainty, rows = self.survival.certainty, self.posterior.rows
        everywhere = sobol_points(_PLACES, self.plan.space.d, seed=self.seed) if self.among is None else self.among
        least = min(_SURE, float(certainty(everywhere).quantile(1 - _SUREST)))
        survived = rows.x[(rows.s == 1).all(-1)]
        return lambda x: (certainty(x) >= least) | (x[..., None, :] == survived).all(-1).any(-1)

    @cached_property
    def recommended(self) -> Recommendation:
        """Where the mean at full fidelity is smallest, in the unit cube; at first what is lowest so far."""
        return recommend(
            self.posterior,
            seed=self.seed,
            outcome=self.outcome,
            among=self.among if self.tells_slopes else self.lowest,
            allowed=self.can_be_answer,
            caution=_CAUTION,
        )

    @cached_property
    def best(self) -> tuple[Config, Prediction]:
        """The configuration that can be run next to the recommended one, and what is predicted of it."""
        limit = 1 if isinstance(self.plan.space, Pool) or not self.tells_slopes else _CLOSE
        near = self.plan.space.neighbours(tuple(self.recommended.x.tolist()), limit=limit)
        places = _tensor(near, self.plan.space.d)
        with torch.no_grad():
            mean = self.posterior.mean(self.posterior.target_rows(places)).mean(0)
        if self.can_be_answer is not None and (is_allowed := self.can_be_answer(places)).any():
            mean = mean.masked_fill(~is_allowed, math.inf)
        point = near[int(mean.argmin())]
        return self.plan.space.from_unit(point), self.predict(point, [(1.0,) * self.plan.fidelities.m])[0]

    def predict(self, x: Point, fidelities: Sequence[Point]) -> list[Prediction]:
        """The loss of x at each of some fidelities in the unit cube."""
        rows = value_rows(
            _tensor([x] * len(fidelities), self.plan.space.d), _tensor(fidelities, self.plan.fidelities.m)
        )
        with torch.no_grad():
            mu, sd = self.posterior.mean(rows), self.posterior.variance(rows).clamp_min(0).sqrt()  # (H, r)
            # Every sample's distribution by its quantiles; the sign turns the lowest into the highest.
            shares = _shares()[:, None]
            z = mu[:, None] + sd[:, None] * torch.special.ndtri(shares)  # (H, k, r)
            least = self.posterior.y.min()
            best = self.outcome.inverse(least)
            losses = _above_zero(self.outcome.inverse(z), float(best))
            # Far below all that was seen no sample knows how far: anything from there up to the best so far.
            doubt = (least - BEYOND - z).clamp(0, 1) * shares
            losses = torch.lerp(losses, best, doubt)
            values = (self.plan.sign * losses).flatten(0, 1).sort(0).values  # (H k, r)
            count = len(values)
            # With the log warp the far tail, which no data support, would decide mean and sd: 1 % each is left out.
            core = values[round(0.01 * count) : count - round(0.01 * count)]
            quantiles = values.quantile(0.5, 0), values[round(0.05 * count)], values[round(0.95 * count) - 1]
            columns = torch.stack([core.mean(0), core.std(0), *quantiles]).T
        return [
            Prediction(mean=mean, sd=sd, median=median, low=low, high=high)
            for mean, sd, median, low, high in columns.tolist()
        ]

    def in_loss(self, voi: float) -> float:
        """A value of information in units of the loss: what one step at the best loss is worth."""
        slope = float(self.outcome.slope(torch.tensor(self.outcome.origin, dtype=torch.float64)))
        return voi / slope if slope > 0 else math.inf


def learn(
    plan: Plan, state: StudyState, memory: Memory, *, seed: int, cost_function: CostFunction | None = None
) -> Belief | None:
    """Fit both models; None while there is nothing to fit them to."""
    xs = designs(plan, state)
    rows, costs = observed(plan, state, xs), paid(plan, state, xs)
    if not any(math.isfinite(row.y) for row in rows):
        return None
    outcome, fitted, memory = _fit_value(plan, [row for row in rows if math.isfinite(row.y)], memory, seed)
    survival, memory = _fit_survival(plan, rows, memory, seed)
    cost, memory = _fit_cost(plan, costs, memory, seed, cost_function)
    distinct = sorted({row.x for row in rows})
    return Belief(
        plan=plan,
        posterior=fitted.posterior,
        outcome=outcome,
        cost=cost,
        survival=survival,
        xs=_tensor(distinct, plan.space.d),
        lowest=_tensor([_lowest(rows)], plan.space.d),
        memory=dataclasses.replace(memory, chains=fitted.chains),
        seed=seed,
    )


def _lowest(rows: Sequence[Row]) -> Point:
    """The design with the lowest loss at the last of its rows; one that has diverged only if all have."""
    last = {row.x: row.y for row in rows}
    finite = {x: y for x, y in last.items() if math.isfinite(y)}
    finite = finite or {row.x: row.y for row in rows if math.isfinite(row.y)}
    return min(finite, key=lambda x: finite[x])


def rows_to_come(plan: Plan, rows: Sequence[Row]) -> Rows | None:
    if not rows:
        return None
    return value_rows(
        _tensor([row.x for row in rows], plan.space.d), _tensor([row.s for row in rows], plan.fidelities.m)
    )


def _fit_value(plan: Plan, data: Sequence[Row], memory: Memory, seed: int) -> tuple[OutcomeTransform, Fit, Memory]:
    y = torch.tensor([row.y for row in data], dtype=torch.float64)
    rows = value_rows(
        _tensor([row.x for row in data], plan.space.d), _tensor([row.s for row in data], plan.fidelities.m)
    )
    model = Model(d=plan.space.d, fidelity_kernels=plan.fidelities.kernels, has_quirks=plan.fidelities.m > 0)
    if memory.chains is not None and memory.chains.names != tuple(model.priors):  # of another version's model
        memory = dataclasses.replace(memory, chains=None)
    is_due = len(data) >= max(_LEAST_ROWS, _MORE_ROWS * memory.looked_rows)
    if is_due:
        memory = dataclasses.replace(memory, looked_rows=len(data))
    if is_due and plan.options.warp == "log":
        scale = learn_warp_scale(model, rows, y, scale=memory.scale, chains=memory.chains)
        # Under another warp the hyperparameters are others: the walkers start anew.
        chains = memory.chains if scale == memory.scale else None
        memory = dataclasses.replace(memory, scale=scale, chains=chains)
    outcome = fit_outcome(y, warp=plan.options.warp, scale=memory.scale)
    fitted = fit(
        model,
        rows,
        outcome.forward(y),
        seed=seed,
        draws=plan.options.samples,
        chains=memory.chains,
        look_again=is_due,
        sharpen=True,
    )
    return outcome, fitted, memory


def _fit_survival(plan: Plan, data: Sequence[Row], memory: Memory, seed: int) -> tuple[Survival | None, Memory]:
    survived = torch.tensor([math.isfinite(row.y) for row in data])
    if survived.all():
        return None, memory
    is_due = len(data) >= _MORE_ROWS * memory.survival_rows
    fitted = fit_survival(
        _tensor([row.x for row in data], plan.space.d),
        _tensor([row.s for row in data], plan.fidelities.m),
        survived,
        seed=seed,
        chains=memory.survival_chains,
        steps=None if is_due else _FEW_STEPS,
    )
    rows = len(data) if is_due else memory.survival_rows
    return fitted.survival, dataclasses.replace(memory, survival_chains=fitted.chains, survival_rows=rows)


def _fit_cost(
    plan: Plan, costs: Sequence[Paid], memory: Memory, seed: int, function: CostFunction | None
) -> tuple[Cost, Memory]:
    if function is not None:
        costs = [*costs, *_imagined(plan, function)]
    if not costs:  # nothing was paid yet, as when all that was told came without a cost
        return lambda x, s: 0.01 + s.prod(-1) if s.shape[-1] else x.new_ones(x.shape[:-1]), memory
    is_due = len(costs) >= _MORE_ROWS * memory.cost_rows
    fitted = fit_cost(
        _tensor([one.x for one in costs], plan.space.d),
        _tensor([one.s for one in costs], plan.fidelities.m),
        torch.tensor([one.cost for one in costs], dtype=torch.float64),
        seed=seed,
        chains=memory.cost_chains,
        steps=None if is_due else _FEW_STEPS,
    )
    rows = len(costs) if is_due else memory.cost_rows
    return fitted.cost, dataclasses.replace(memory, cost_chains=fitted.chains, cost_rows=rows)


def _imagined(plan: Plan, function: CostFunction) -> list[Paid]:
    """The given cost at a few places, half of them at full fidelity."""
    d, m = plan.space.d, plan.fidelities.m
    found = []
    for i, point in enumerate(sobol_points(_IMAGINED, d + m, seed=0).tolist()):
        config = plan.space.from_unit(point[:d])
        fidelity = plan.full if i % 2 else plan.from_s(tuple(value**3 for value in point[d:]))
        cost = float(function(config, plan.named(fidelity)))
        found.append(Paid(plan.space.to_unit(config), plan.to_s(fidelity), cost))
    return found


def _above_zero(losses: Tensor, best: float) -> Tensor:
    """As long as no loss was negative none is predicted to be: below the best one they approach 0."""
    return torch.where(losses < best, best / (2 - losses / best), losses) if best > 0 else losses


def _shares() -> Tensor:
    """The middles of equally likely parts of a distribution, (k,)."""
    return (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES


def _tensor(points: Sequence[Point], width: int) -> Tensor:
    return torch.tensor(points, dtype=torch.float64).reshape(len(points), width)
