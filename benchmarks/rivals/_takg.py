"""takg through its public interface, and the derivative-enabled knowledge gradient of its engine."""

import math
from collections.abc import Sequence
from typing import Any

import torch

import takg
from rivals._protocol import LEAST, STEPS, Incumbent, Method, Point, Reply, Request, Setting, as_point, scratch, tensor
from takg.acquisition import KnowledgeGradient
from takg.gp import Model, Rows, fit, fit_outcome, joined, rows_at
from takg.optim import Region, maximise, recommend
from takg.records import decoded, encoded
from takg.storage import MemoryStorage

_NAME = "study"
_NOTE = "engine"  # where the study keeps the state of its chains


class Takg(Method):
    """A study that is asked and told; runs are continued from the basket, the recommendation is `study.best`."""

    resumes_by = "state"

    def __init__(self, setting: Setting, *, q: int = 1, **options: Any) -> None:
        super().__init__(setting)
        self.q = q
        self._incumbent = Incumbent()  # while nothing finite was seen
        self._runs: dict[int, int] = {}  # trial: run
        self._storage = MemoryStorage()
        self.study = takg.create_study(
            self._space(),
            {name: self._fidelity(j) for j, name in enumerate(setting.names)},
            name=_NAME,
            storage=self._storage,
            checkpoints=scratch(self),  # what stands for them, a file each
            cost="reported" if setting.cost is None else self._cost,
            seed=setting.seed,
            **options,
        )

    def ask(self) -> list[Request]:
        setting, study = self.setting, self.study
        is_limited = setting.most is not None and math.isfinite(setting.budget)
        scarcity = study.scarcity(evaluations=setting.most, cost=setting.budget) if is_limited else 0.0
        self._asked = study.ask(self.q, overhead=scarcity)
        return [self._request(evaluation) for evaluation in self._asked]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        for evaluation, request, reply in zip(self._asked, requests, replies, strict=True):
            self._incumbent.see(request.x, reply.s, reply.value)
            self._runs[evaluation.trial] = reply.run
            if self.study.plan.options.basket:  # without a checkpoint a run cannot be continued
                (evaluation.checkpoint / "state").write_text(f"{reply.run} {reply.s}")
            self.study.tell(evaluation, trace=[(self._named(s), y) for s, y in reply.trace], cost=reply.cost)

    def recommend(self) -> Point:
        if self.study.belief() is None:
            return self._incumbent.x
        return self._x(self.study.best.config)

    def state(self) -> Any:
        return {
            "events": [encoded(event) for event in self._storage.read(_NAME)],
            "note": self._storage.recall(_NAME, _NOTE),
            "runs": list(self._runs.items()),
        }

    def load(self, state: Any) -> None:
        self._storage.append(_NAME, decoded([tuple(event) for event in state["events"]]), after=0)
        if state["note"] is not None:
            self._storage.remember(_NAME, _NOTE, state["note"])
        self._runs = dict(state["runs"])
        self.study.log.refresh()
        for trial in self.study.state.trials:
            if trial.checkpoint is not None:
                (self.study.checkpoints.directory(trial.id) / "state").write_text(str(trial.id))
            for at, value in trial.points.items():
                s = self._s(self.study.plan.named(at))
                self._incumbent.see(self._x(trial.config), s, value)

    def _space(self) -> Any:
        every = {f"x{i}": takg.Float(0.0, 1.0) for i in range(self.setting.d)}
        if self.setting.pool is None:
            return every
        return takg.Pool(every, [dict(zip(every, point, strict=True)) for point in self.setting.pool])

    def _fidelity(self, j: int) -> takg.Fidelity:
        is_trace = j in self.setting.trace_dims
        return takg.Fidelity(1, STEPS, trace=True) if is_trace else takg.Fidelity(LEAST, 1.0, trace=False)

    def _request(self, evaluation: takg.Evaluation) -> Request:
        run = self._runs[evaluation.trial] if evaluation.resumed else None
        return Request(self._x(evaluation.config), self._s(evaluation.fidelity), run)

    def _cost(self, config: dict[str, Any], fidelity: dict[str, float]) -> float:
        assert self.setting.cost is not None
        return float(self.setting.cost(tensor(self._x(config)), tensor(self._s(fidelity))))

    def _x(self, config: dict[str, Any]) -> Point:
        return tuple(float(config[f"x{i}"]) for i in range(self.setting.d))

    def _s(self, fidelity: dict[str, float]) -> Point:
        dims = self.setting.trace_dims
        return tuple(fidelity[name] / (STEPS if j in dims else 1) for j, name in enumerate(self.setting.names))

    def _named(self, s: Point) -> dict[str, float]:
        dims = self.setting.trace_dims
        return {name: round(s[j] * STEPS) if j in dims else s[j] for j, name in enumerate(self.setting.names)}


class DerivativeKG(Method):
    """Wu et al. 2017 at full fidelity: every evaluation shows the gradient by x, too."""

    resumes_by = "telling"

    def __init__(self, setting: Setting, *, q: int = 1) -> None:
        super().__init__(setting)
        self.q = q
        self._rows: list[Rows] = []
        self._y: list[list[float]] = []  # value, then its derivatives, of each evaluation
        self._x: list[Point] = []
        self._fit: Any = None
        self._model = Model(d=setting.d, fidelity_kernels=(), has_gradients=True)

    def ask(self) -> list[Request]:
        if len(self._x) < self.setting.initial_size:
            points = [one.x for one in self.setting.initial()[len(self._x) :][: self.q]]
        else:
            seed = self.setting.seed_of(len(self._x))
            acquisition = KnowledgeGradient(self._fitted(), seed=seed, gradients=True)
            region = Region(d=self.setting.d, m=0, trace_dims=(), retained=1)
            points = [as_point(x) for x in maximise(acquisition, region, seed=seed, q=self.q).x]
        return [Request(x, self.setting.full, gradient=True) for x in points]

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        self._fit = None
        for request, reply in zip(requests, replies, strict=True):
            assert reply.gradient is not None
            self._x.append(request.x)
            row = [reply.value, *reply.gradient]
            self._y.append(row if all(map(math.isfinite, row)) else [math.nan] * len(row))

    def recommend(self) -> Point:
        if len(self._x) < self.setting.initial_size:
            return min(zip(self._y, self._x, strict=True), key=lambda pair: (math.isnan(pair[0][0]), pair[0][0]))[1]
        return as_point(recommend(self._fitted(), seed=self.setting.seed).x)

    def _fitted(self) -> Any:
        if self._fit is None:
            outcome = fit_outcome(torch.tensor([row[0] for row in self._y], dtype=torch.float64), warp="log")
            rows, z = [], []
            for x, row in zip(self._x, self._y, strict=True):
                value, *gradient = torch.tensor(row, dtype=torch.float64)
                slope = outcome.slope(value)
                has_gradient = bool(slope > 0)  # beyond the fences it says nothing about the transformed loss
                rows.append(rows_at(tensor(x), torch.ones(1, 0).double(), gradients=has_gradient))
                z += [outcome.forward(value[None])[0], *(slope * one for one in gradient if has_gradient)]
            self._fit = fit(
                self._model, joined(rows), torch.stack(z), seed=self.setting.seed_of(len(self._x))
            ).posterior
        return self._fit
