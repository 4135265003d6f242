"""The study: what was done, what to do next, what is best. Only the engine behind `ask` and `best` needs torch."""

from takg.study._data import CostFunction
from takg.study._evaluation import DivergedError, Evaluation, Train
from takg.study._log import Log
from takg.study._plan import Options, Plan
from takg.study._study import Study
from takg.study._view import Best, Trained, Trial

__all__ = [
    "Best",
    "CostFunction",
    "DivergedError",
    "Evaluation",
    "Log",
    "Options",
    "Plan",
    "Study",
    "Train",
    "Trained",
    "Trial",
]
