"""Gaussian processes over designs x and fidelities s, with hyperparameters integrated over."""

from takg.gp._cost import Cost, CostFit, LearnedCost, cold_start_costs, continuation_cost, fit_cost, given_cost
from takg.gp._fit import Chains, Diagnostics, Fit, fit
from takg.gp._folded import FoldedMean, folded_target_mean, target_factor
from takg.gp._kernels import covariance, design_covariance, design_profile, noise_variance, squared_distances
from takg.gp._model import DESIGN_KERNELS, FIDELITY_KERNELS, Hyperparameters, Model
from takg.gp._outcome import WARPS, OutcomeTransform, fit_outcome
from takg.gp._posterior import Posterior, condition, sigma_tilde
from takg.gp._rows import Rows, joined, rows_at, value_rows
from takg.gp._survival import Survival, SurvivalFit, fit_survival
from takg.gp._tables import Tables
from takg.gp._warp_scale import learn_warp_scale

__all__ = [
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
    "Survival",
    "SurvivalFit",
    "Tables",
    "cold_start_costs",
    "condition",
    "continuation_cost",
    "covariance",
    "design_covariance",
    "design_profile",
    "fit",
    "fit_cost",
    "fit_outcome",
    "fit_survival",
    "folded_target_mean",
    "given_cost",
    "joined",
    "learn_warp_scale",
    "noise_variance",
    "rows_at",
    "sigma_tilde",
    "squared_distances",
    "target_factor",
    "value_rows",
]
