"""The numbers that each plot shows, and the view of a study that they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from takg.plots._scale import Scale
from takg.records import Config, EvaluationState
from takg.study import Plan, Trial

FATES = ("new", "dropped", "failed", "diverged", "running", "continued", "complete")

Point = tuple[float, float]


class Estimate(Protocol):
    """What is believed of a value."""

    @property
    def mean(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Forecaster(Protocol):
    """What predicts values in the unit cube: the belief of a study."""

    @property
    def best(self) -> tuple[Config, Estimate]: ...

    def predict(self, x: tuple[float, ...], fidelities: Sequence[tuple[float, ...]]) -> Sequence[Estimate]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A study at one moment."""

    name: str
    plan: Plan
    trials: tuple[Trial, ...]
    evaluations: tuple[EvaluationState, ...]
    forecaster: Forecaster | None  # None if there is nothing to predict from, or if nothing is to be predicted

    def legs(self, trial: int) -> list[EvaluationState]:
        return [evaluation for evaluation in self.evaluations if evaluation.asked.trial == trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A plot without data, and why."""

    title: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The finite points of one trial, in the order of the axis."""

    trial: int
    config: Config
    fate: str  # one of FATES
    x: tuple[float, ...]
    y: tuple[float, ...]
    pauses: tuple[Point, ...]  # where a leg ended that was continued later
    diverged: tuple[float, float | None] | None  # where, and the last finite value before
    others: Mapping[str, float]  # the fidelities that are not on the axis
    level: float  # of these, as a share of full training


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """All learning curves or, without a trace fidelity, points."""

    name: str
    sign: float
    axis: str | None  # the fidelity on the axis; None: the number of the trial
    x_low: float
    x_high: float
    is_x_log: bool
    is_x_integer: bool
    are_lines: bool
    others: tuple[str, ...]
    curves: tuple[Curve, ...]
    silent: int  # trials without any report
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Cost over the level of one fidelity that evaluations reached."""

    fidelity: str
    edges: tuple[float, ...]
    new: tuple[float, ...]  # cost of first legs, in each bin
    continued: tuple[float, ...]
    is_log: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where the cost went, fidelity by fidelity."""

    name: str
    unit: str
    total: float
    histograms: tuple[Histogram, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A predicted mean with its 5 % and 95 % quantiles."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Best values against the cost; each point is an improvement."""

    name: str
    sign: float
    unit: str
    total: float
    full: tuple[Point, ...]  # cost, best value at full fidelity so far
    anywhere: tuple[Point, ...]  # likewise at any fidelity
    predicted: Band | None  # of the recommended configuration, now: one place, at the end
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One trial: what was observed, and how its curve is predicted to go on."""

    name: str
    sign: float
    trial: int
    config: Config
    status: str
    axis: str | None  # None if the study has no fidelities
    is_x_integer: bool
    observed: tuple[Point, ...]
    own: Band  # at the trial's other fidelities
    others: Mapping[str, float]  # what these are
    full: Band | None  # with the other fidelities at full, if they are not
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """The last finite value of one trial."""

    trial: int
    x: float
    y: float
    share: float  # of a full training: the product over the fidelities


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One parameter: the trials that have it, and the prediction along it."""

    parameter: str
    low: float
    high: float
    is_log: bool
    is_integer: bool
    choices: tuple[Any, ...]  # at the positions 0, 1, ...; () for a number
    dots: tuple[Dot, ...]
    diverged: tuple[tuple[int, float], ...]  # trial, position
    best: float | None  # in the recommended configuration; None if it has no such parameter
    band: Band
    given: Mapping[str, Any]  # parents that had to change for the parameter to be there


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Parameter by parameter, those whose prediction varies most if there are too many."""

    name: str
    sign: float
    fidelities: tuple[str, ...]
    slices: tuple[Slice, ...]
    left_out: int
    scale: Scale


Info = Nothing | Curves | Costs | Progress | Prediction | Slices
