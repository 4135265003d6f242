"""BoTorch's own: log-EI, the knowledge gradient and its multi-fidelity version."""

from botorch.acquisition import PosteriorMean, qKnowledgeGradient, qLogExpectedImprovement
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
from botorch.acquisition.utils import project_to_target_fidelity
from botorch.models import SingleTaskMultiFidelityGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from torch import Tensor

from rivals._gp import RAW, RESTARTS, GPMethod
from rivals._protocol import STEPS, Point, Request

KG_FANTASIES, KG_RAW, KG_PASSES = 32, 64, 60
MFKG_FANTASIES = 16  # the tutorial's 128 take a minute and more for each suggestion


class LogEI(GPMethod):
    """qLogExpectedImprovement at full fidelity."""

    has_fidelities = False

    def suggest(self, model: Model) -> list[Request]:
        best = model.posterior(model.train_inputs[0]).mean.max().detach()  # of the mean: the values may be noisy
        acquisition = qLogExpectedImprovement(model, best_f=best)
        points, _ = optimize_acqf(acquisition, self.bounds, q=self.q, num_restarts=RESTARTS, raw_samples=RAW)
        return self.requests(points)


class CheapLogEI(LogEI):
    """Log-EI at s = 1/27, where it never looks up; it recommends the best point that it saw."""

    @property
    def fidelity(self) -> Point:
        return self.setting.runnable([1 / STEPS] * self.setting.m)

    def recommend(self) -> Point:
        return self.incumbent.x


class KG(GPMethod):
    """qKnowledgeGradient at full fidelity, one-shot."""

    has_fidelities = False

    def suggest(self, model: Model) -> list[Request]:
        acquisition = qKnowledgeGradient(model, num_fantasies=KG_FANTASIES)
        points, _ = optimize_acqf(
            acquisition,
            self.bounds,
            q=self.q,
            num_restarts=RESTARTS,
            raw_samples=KG_RAW,
            options={"maxiter": KG_PASSES, "batch_limit": RESTARTS},
        )
        return self.requests(points)


class MultiFidelityKG(GPMethod):
    """qMultiFidelityKnowledgeGradient per unit of cost, with its data-size kernel on every fidelity."""

    def build(self, inputs: Tensor, targets: Tensor) -> SingleTaskMultiFidelityGP:
        return SingleTaskMultiFidelityGP(
            inputs, targets, data_fidelities=list(self.fidelity_dims), linear_truncated=False
        )

    def suggest(self, model: Model) -> list[Request]:
        d, width, target = self.setting.d, self.bounds.shape[1], self.fidelity_dims
        mean = FixedFeatureAcquisitionFunction(
            PosteriorMean(model), d=width, columns=list(target), values=list(target.values())
        )
        _, current = optimize_acqf(mean, self.bounds[:, :d], q=1, num_restarts=RESTARTS, raw_samples=RAW)
        cost = GenericDeterministicModel(lambda X: self.cost(X[..., :d], X[..., d:])[..., None])
        acquisition = qMultiFidelityKnowledgeGradient(
            model,
            num_fantasies=MFKG_FANTASIES,
            current_value=current,
            cost_aware_utility=InverseCostWeightedUtility(cost_model=cost),
            project=lambda X: project_to_target_fidelity(X=X, d=width, target_fidelities=target),
        )
        points, _ = optimize_acqf(
            acquisition,
            self.bounds,
            q=1,
            num_restarts=RESTARTS,
            raw_samples=KG_RAW,
            options={"maxiter": KG_PASSES, "batch_limit": RESTARTS},
        )
        return self.requests(points)
