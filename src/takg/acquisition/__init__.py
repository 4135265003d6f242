"""Acquisition functions: how much an evaluation is expected to improve the final answer, per unit of cost."""

from takg.acquisition._loss import Gain, LossSimulator
from takg.acquisition._takg import Acquisition, KnowledgeGradient, TaKG, TaKGZero, TaKGZeroAsPrinted, Valuation
from takg.acquisition._target import Observations

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
