"""Carries out requests on a problem and keeps the books, for all methods alike."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from rivals._protocol import STEPS, Point, Reply, Request, Setting, tensor
from takg.problems import Problem

LOW = 0.05  # money spent on evaluations with a fidelity below this is counted


class Simulator:
    """A problem that answers requests. `cost` is what was paid, `low_cost` what of it went below s = 0.05."""

    def __init__(self, problem: Problem, seed: int, *, budget: float = math.inf, most: int | None = None) -> None:
        if len(problem.fidelities.trace_dims) > 1:
            raise ValueError(f"{problem.name} has {len(problem.fidelities.trace_dims)} traces; expected at most one")
        self.problem, self.seed = problem, seed
        self.setting = Setting(
            d=problem.d,
            names=problem.fidelities.names,
            trace_dims=problem.fidelities.trace_dims,
            cost=problem.cost if problem.cost_is_known else None,
            seed=seed,
            pool=problem.pool,
            budget=budget,
            most=most,
        )
        self.cost = self.low_cost = 0.0
        self.suggestions = 0
        self._runs: list[tuple[Point, Point]] = []  # x, and how far it was trained
        self._worst: float | None = None

    def evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        """Several at the same time cost as much as the dearest."""
        replies = [self._evaluate(request) for request in requests]
        costs = [reply.cost for reply in replies]
        low = sum(cost for cost, reply in zip(costs, replies, strict=True) if min(reply.s, default=1.0) < LOW)
        self.cost += max(costs)
        self.low_cost += max(costs) * low / sum(costs)
        self.suggestions += len(requests)
        return replies

    def regret(self, x: Point) -> float:
        """Of a recommendation: how far its true value at s = 1 is above the minimum."""
        value = float(self.problem.evaluate(tensor(x), tensor(self.setting.full)))
        return value - self.problem.minimum if math.isfinite(value) else self._worst_regret()

    def _evaluate(self, request: Request) -> Reply:
        s = self.setting.runnable(request.s)
        start: Point | None = None
        if request.run is None:
            self._runs.append((request.x, s))
            run = len(self._runs) - 1
        else:
            run = request.run
            x, start = self._runs[run]
            fixed = [j for j in range(self.setting.m) if j not in self.setting.trace_dims]
            is_onward = all(s[j] == start[j] for j in fixed) and math.prod(s) > math.prod(start)
            if x != request.x or not is_onward:
                raise ValueError(f"run {run} of x={x} stands at {start}; it cannot go on to x={request.x}, s={s}")
        places = self._places(s, start)
        with torch.no_grad():
            values = self.problem.evaluate(tensor(request.x), tensor(places))
        noise = np.random.default_rng([self.seed, run]).standard_normal(STEPS + 1)
        trace = []
        for place, value in zip(places, values.tolist(), strict=True):
            step = round(place[self.setting.trace_dims[0]] * STEPS) if self.setting.trace_dims else 0
            trace.append((place, value + self.problem.noise_sd * float(noise[step])))
            if not math.isfinite(value):
                break  # diverged: nobody trains on
        self._runs[run] = (request.x, trace[-1][0])
        paid = self._price(request.x, trace[-1][0]) - (0.0 if start is None else self._price(request.x, start))
        gradient = self._gradient(request.x, s) if request.gradient else None
        return Reply(run=run, trace=tuple(trace), cost=max(paid, 1e-6), gradient=gradient)

    def _places(self, s: Point, start: Point | None) -> list[Point]:
        """The steps of the trace after `start` up to s; only s where there is no trace."""
        if not self.setting.trace_dims:
            return [s]
        (j,) = self.setting.trace_dims
        first = 0 if start is None else round(start[j] * STEPS)
        return [(*s[:j], step / STEPS, *s[j + 1 :]) for step in range(first + 1, round(s[j] * STEPS) + 1)]

    def _price(self, x: Point, s: Point) -> float:
        return float(self.problem.cost(tensor(x), tensor(s)))

    def _gradient(self, x: Point, s: Point) -> Point:
        x_unit = tensor(x).requires_grad_()
        (gradient,) = torch.autograd.grad(self.problem.evaluate(x_unit, tensor(s)), x_unit)
        return tuple(gradient.tolist())

    def _worst_regret(self) -> float:
        """What the recommendation of a design that diverges counts as: as bad as a design can be that does not."""
        if self._worst is None:
            points = torch.quasirandom.SobolEngine(self.problem.d, scramble=True, seed=0).draw(2**12).double()
            values = self.problem.evaluate(points, tensor(self.setting.full))
            self._worst = float(values[values.isfinite()].max()) - self.problem.minimum
        return self._worst
