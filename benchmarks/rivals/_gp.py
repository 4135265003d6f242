"""What the rivals built on BoTorch share: data, model and recommendation, with the library's default priors."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.generation.gen import gen_candidates_scipy
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from rivals._protocol import Incumbent, Method, Point, Reply, Request, Setting, as_point, tensor
from takg.numerics import sobol_points

RESTARTS, RAW = 5, 256  # of every acquisition function that is cheap


class GPMethod(Method):
    """Initial design, then an acquisition function; recommends where the posterior mean at s = 1 is smallest.

    Of a trace only the last value is used. BoTorch maximises: the model is of minus the loss.
    """

    resumes_by = "telling"
    has_fidelities = True  # of the model's inputs; otherwise all evaluations are at one fidelity

    def __init__(self, setting: Setting, *, q: int = 1) -> None:
        super().__init__(setting)
        self.q = q
        self.x: list[Point] = []
        self.s: list[Point] = []
        self.y: list[float] = []
        self.paid: list[float] = []
        self.incumbent = Incumbent()
        self._model: Model | None = None

    @property
    def fidelity(self) -> Point | None:
        """At which all evaluations are; None if they are at several."""
        return None if self.has_fidelities else self.setting.full

    @property
    def fidelity_dims(self) -> dict[int, float]:
        """The model's inputs that are fidelities, and their target."""
        d, m = self.setting.d, self.setting.m
        return dict.fromkeys(range(d, d + m), 1.0) if self.has_fidelities else {}

    @property
    def bounds(self) -> Tensor:
        width = self.setting.d + len(self.fidelity_dims)
        return torch.stack([torch.zeros(width), torch.ones(width)]).double()

    def ask(self) -> list[Request]:
        count = len(self.x)
        if count < self.setting.initial_size:
            return self.setting.initial(s=self.fidelity)[count : count + self.q]
        torch.manual_seed(self.setting.seed_of(count))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits and searches that end early, which are taken as they are
            return self.suggest(self.model())

    @abstractmethod
    def suggest(self, model: Model) -> list[Request]: ...

    def tell(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        self._model = None
        for request, reply in zip(requests, replies, strict=True):
            self.x.append(request.x)
            self.s.append(reply.s)
            self.y.append(reply.value)
            self.paid.append(reply.cost)
            self.incumbent.see(request.x, reply.s, reply.value)

    def recommend(self) -> Point:
        if len(self.x) < self.setting.initial_size:
            return self.incumbent.x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return as_point(best_mean(self.model(), tensor(self.x), len(self.fidelity_dims), self.setting.seed))

    def model(self) -> Model:
        if self._model is None:
            inputs = tensor(self.x)
            if self.has_fidelities:
                inputs = torch.cat([inputs, tensor(self.s)], dim=-1)
            self._model = self.build(inputs, -cleaned(self.y)[:, None])
            fit_gpytorch_mll(ExactMarginalLogLikelihood(self._model.likelihood, self._model))
        return self._model

    def build(self, inputs: Tensor, targets: Tensor) -> Any:
        return SingleTaskGP(inputs, targets)

    def cost(self, x: Tensor, s: Tensor) -> Tensor:
        """As given or, if it is unknown, a + b prod s fitted to what was paid."""
        if self.setting.cost is not None:
            return self.setting.cost(x.clamp(0, 1), s.clamp(0, 1))
        size = tensor(self.s).prod(-1)
        basis = torch.stack([torch.ones_like(size), size], dim=-1)
        a, b = torch.linalg.lstsq(basis, tensor(self.paid)[:, None]).solution[:, 0].clamp_min(1e-3)
        return a + b * s.prod(-1)

    def requests(self, points: Tensor) -> list[Request]:
        """Rows (q, d) or (q, d + m) as requests."""
        d = self.setting.d
        return [
            Request(
                as_point(row[:d]), self.setting.runnable(row[d:].tolist()) if self.fidelity is None else self.fidelity
            )
            for row in points
        ]


def cleaned(values: Sequence[float]) -> Tensor:
    """Losses fit for a GP: those that diverged, or are far out, are as bad as the upper fence of a box plot times 5."""
    y = torch.tensor(values, dtype=torch.float64)
    finite = y[y.isfinite()]
    if not len(finite):
        return torch.zeros_like(y)
    low, middle, high = finite.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    fence = middle + 5 * (high - low) if high > low else finite.max()
    return torch.where(y.isfinite(), y, math.inf).clamp_max(float(torch.minimum(finite.max(), fence)))


def best_mean(model: Model, seen: Tensor, m: int, seed: int) -> Tensor:
    """Where the mean of the model at the target is largest: a screen that includes all x seen, then L-BFGS."""
    d = seen.shape[-1]

    def mean(x: Tensor) -> Tensor:  # (b, 1, d) -> (b,)
        at_target = torch.cat([x, x.new_ones(*x.shape[:-1], m)], dim=-1)
        return model.posterior(at_target).mean[..., 0, 0]

    candidates = torch.cat([sobol_points(512, d, seed=seed), seen])[:, None]
    with torch.no_grad():
        starts = candidates[mean(candidates).topk(RESTARTS).indices]
    points, values = gen_candidates_scipy(starts, mean, lower_bounds=0.0, upper_bounds=1.0)
    return points[values.argmax(), 0]
