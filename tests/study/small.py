"""Small studies without a model, and what to look at in them; `trainings` has what they train."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import takg
from takg.records import EvaluationState, Event
from takg.study import Study
from takg.study._suggest import Proposal

SPACE = {"x": takg.Float(0.0, 1.0), "y": takg.Float(0.0, 1.0)}
EPOCHS = {"epochs": takg.Fidelity(1, 20, trace=True)}


def small_study(directory: Path, fidelities: dict[str, takg.Fidelity] | None = EPOCHS, **options: Any) -> Study:
    """In a file, with an initial design that is never left."""
    given = {"space": SPACE, "storage": directory / "study.db", "initial": 50, **options}
    return takg.create_study(fidelities=fidelities, **given)


def reloaded(directory: Path, **options: Any) -> Study:
    return takg.load_study(storage=directory / "study.db", **options)


def new(epochs: int, **config: float) -> Proposal:
    return Proposal(config={"x": 0.25, "y": 0.75, **config}, target=(epochs,))


def further(study: Study, trial: int, epochs: int) -> Proposal:
    """Go on with a trial from its checkpoint."""
    return Proposal(trial=trial, start=study.state.trials[trial].checkpoint, target=(epochs,))


def script(study: Study, *proposals: Proposal | Callable[[], Proposal]) -> None:
    """What the study will suggest, in order, in place of its own ideas."""
    rest = list(proposals)

    def next_ones(count: int, *, overhead: float) -> tuple[int, Sequence[Proposal]]:
        one = rest.pop(0)
        return len(study.state.evaluations), [one if isinstance(one, Proposal) else one()]

    study._proposals = next_ones  # type: ignore[method-assign]


def events(study: Study) -> list[Event]:
    return study.log.storage.read(study.name)


def kinds(study: Study) -> list[str]:
    return [type(event).__name__ for event in events(study)]


def last(study: Study) -> EvaluationState:
    return study.log.refresh().evaluations[-1]


def notes(study: Study) -> list[str]:
    return (Path(study.checkpoints.directory(0)).parent / "notes").read_text().splitlines()
