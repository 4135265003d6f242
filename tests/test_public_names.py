"""What users may import; a change here is a change of the public interface and belongs in the CHANGELOG."""

import importlib

import pytest

PUBLIC = {
    "takg": [
        "InputError",
        "NumericsError",
        "SpaceError",
        "TakgError",
    ],
    "takg.acquisition": [
        "Acquisition",
        "Gain",
        "KnowledgeGradient",
        "LossSimulator",
        "Observations",
        "TaKG",
        "TaKGZero",
        "TaKGZeroAsPrinted",
        "Valuation",
    ],
    "takg.errors": [
        "InputError",
        "NumericsError",
        "SpaceError",
        "TakgError",
    ],
    "takg.fidelity": [
        "FidelitySpace",
        "check_fidelities",
        "first_occurrence",
        "in_trace",
        "max_fidelity",
        "trace",
        "zero_avoiding_set",
        "zeroed",
    ],
    "takg.gp": [
        "DESIGN_KERNELS",
        "FIDELITY_KERNELS",
        "WARPS",
        "Chains",
        "Cost",
        "CostFit",
        "Diagnostics",
        "Fit",
        "FoldedMean",
        "Hyperparameters",
        "LearnedCost",
        "Model",
        "OutcomeTransform",
        "Posterior",
        "Rows",
        "cold_start_costs",
        "condition",
        "continuation_cost",
        "covariance",
        "design_covariance",
        "design_profile",
        "fit",
        "fit_cost",
        "fit_outcome",
        "folded_target_mean",
        "given_cost",
        "joined",
        "noise_variance",
        "rows_at",
        "sigma_tilde",
        "target_factor",
        "value_rows",
    ],
    "takg.numerics": [
        "DRAW_METHODS",
        "Factor",
        "Minimum",
        "NewtonStep",
        "extended_factor",
        "jittered_cholesky",
        "minimise",
        "newton_step",
        "normal_draws",
        "sobol_points",
        "threads_for",
    ],
    "takg.optim": [
        "METHODS",
        "Basket",
        "Choice",
        "Recommendation",
        "Region",
        "Runs",
        "Snap",
        "Suggestion",
        "maximise",
        "recommend",
    ],
    "takg.problems": [
        "PROBLEMS",
        "Problem",
        "branin",
        "hartmann3",
        "hartmann6",
        "rosenbrock3",
    ],
}


def in_order(names: list[str]) -> list[str]:
    """Constants, then classes, then functions, each by name: the order that the linter holds too."""
    return sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_the_public_names_are_these_and_sorted(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert list(names) == PUBLIC[module]
    assert list(names) == in_order(names)
    for name in names:
        assert hasattr(importlib.import_module(module), name)
