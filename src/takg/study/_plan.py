"""What a study is about, typed: the search space, the fidelities and the options, and their JSON form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from takg.errors import InputError, StorageError
from takg.records import Definition, FidelityValues
from takg.space import Fidelities, Pool, Space

DIRECTIONS = ("minimise", "maximise")
COSTS = ("time", "reported", "function")
MAXIMISERS = ("sample_average", "stochastic")
ACQUISITIONS = ("takg", "takg_zero", "takg_zero_as_printed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the study searches; fixed when it is created, since every suggestion depends on it."""

    direction: str = "minimise"
    cost: str = "time"  # seconds of training, or what the training reports, or a function of config and fidelity
    seed: int = 0
    initial: int | None = None  # evaluations before the model takes over; None: d + 1, or fewer if these are dear
    retained: int = 2  # l: how many points of each trace the model sees
    basket: int = 10  # b: how many runs can be continued at a time
    acquisition: str = "takg"  # docs/paper.md says when the 0-avoiding form is the better choice
    maximiser: str = "sample_average"  # or "stochastic", the paper's; docs/paper.md#maximiser
    warp: str = "log"
    samples: int = 10  # H: hyperparameter samples that are averaged over

    def __post_init__(self) -> None:
        for name, choices in (
            ("direction", DIRECTIONS),
            ("cost", COSTS),
            ("acquisition", ACQUISITIONS),
            ("maximiser", MAXIMISERS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(f"{name}={getattr(self, name)!r}: expected one of {choices}")
        if self.warp not in ("none", "log"):
            raise InputError(f"warp={self.warp!r}: expected 'none' or 'log'")
        least = {"seed": 0, "initial": 1, "retained": 1, "basket": 0, "samples": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is None and name == "initial":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InputError(f"{name}={value!r}: expected an integer >= {low}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Space, fidelities and options of one study."""

    space: Space
    fidelities: Fidelities
    options: Options

    @property
    def sign(self) -> float:
        """The engine minimises; this is the one place that knows which way the user looks."""
        return 1.0 if self.options.direction == "minimise" else -1.0

    def definition(self, name: str) -> Definition:
        return Definition(
            name=name,
            space=self.space.to_json(),
            fidelities=self.fidelities.to_json(),
            settings=asdict(self.options),
        )

    @classmethod
    def from_definition(cls, definition: Definition) -> "Plan":
        known = {field.name for field in fields(Options)}
        if unknown := definition.settings.keys() - known:
            raise StorageError(f"study {definition.name!r} has options {sorted(unknown)} that this version lacks")
        return cls(
            space=(Pool if "configs" in definition.space else Space).from_json(definition.space),
            fidelities=Fidelities.from_json(definition.fidelities),
            options=Options(**definition.settings),
        )

    def named(self, values: FidelityValues) -> dict[str, float]:
        """Fidelities by name."""
        return dict(zip(self.fidelities.names, values, strict=True))

    def ordered(self, values: Mapping[str, Any]) -> FidelityValues:
        """Fidelities in the order of the definition."""
        return tuple(values[name] for name in self.fidelities.names)

    def to_s(self, values: FidelityValues) -> tuple[float, ...]:
        return self.fidelities.to_unit(self.named(values))

    def from_s(self, s: tuple[float, ...]) -> FidelityValues:
        """The nearest fidelity that can be run."""
        return self.ordered(self.fidelities.from_unit(s))

    @property
    def full(self) -> FidelityValues:
        return self.ordered(self.fidelities.full)

    @property
    def steps(self) -> tuple[float, ...]:
        """The least difference between two values of each fidelity, as a share of its largest; 0 if continuous."""
        return tuple(1.0 / one.high if one.integer else 0.0 for one in self.fidelities.fidelities.values())
