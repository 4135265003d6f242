"""Acquisition functions: how much an evaluation is expected to improve the final answer, per unit of cost."""

from takg.acquisition._loss import Gain, LossSimulator, Observations
from takg.acquisition._takg import Acquisition, KnowledgeGradient, TaKG, TaKGZero, TaKGZeroAsPrinted, Valuation

__all__ = [
    "Acquisition",
    "Gain",
    "KnowledgeGradient",
    "LossSimulator",
    "Observations",
    "TaKG",
    "TaKGZero",
    "TaKGZeroAsPrinted",
    "Valuation",
]
