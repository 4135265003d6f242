"""Maximise an acquisition function; recommend the best design."""

from takg.optim._ascend import METHODS
from takg.optim._basket import Basket
from takg.optim._ends import Snap, Suggestion
from takg.optim._outer import maximise
from takg.optim._recommend import BEYOND, Recommendation, recommend
from takg.optim._region import Choice, Region, Runs

__all__ = [
    "BEYOND",
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
]
