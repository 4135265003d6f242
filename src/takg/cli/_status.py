"""`takg status`."""

import argparse
import math
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from takg.cli._arguments import Commands, add_study, command, opened
from takg.cli._print import pairs, print_json, print_table, shown

if TYPE_CHECKING:
    from takg.records import EvaluationState
    from takg.study import Study, Trial


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "status",
        _run,
        about="show how far a study is and what runs now",
        example="takg status --storage runs.db --name resnet",
    )
    add_study(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _run(given: argparse.Namespace) -> int:
    status = status_of(opened(given))
    if given.json:
        print_json(status)
    else:
        _print(status)
    return 0


def status_of(study: "Study") -> dict[str, Any]:
    """What is shown, as plain data."""
    trials = study.trials
    state, trained = study.state, study.best_trained
    silences = study.log.storage.silences(study.name)
    return {
        "name": study.name,
        "direction": study.plan.options.direction,
        "trials": {"all": len(trials), **Counter(trial.status for trial in trials)},
        "evaluations": {"all": len(state.evaluations), **Counter(one.status for one in state.evaluations)},
        "cost": state.cost,
        "cost_unit": "seconds" if study.plan.options.cost == "time" else study.plan.options.cost,
        "seconds": state.seconds,
        "running": [_running(study, evaluation, silences) for evaluation in state.running()],
        "paused": [
            {"trial": trial.id, "fidelity": trial.fidelity, "value": trial.value}
            for trial in trials
            if trial.status == "paused"
        ],
        "best_observed": _best_observed(study, trials),
        "best_trained": trained and asdict(trained),
    }


def _running(study: "Study", evaluation: "EvaluationState", silences: dict[str, float]) -> dict[str, Any]:
    reached = evaluation.reached or evaluation.start
    return {
        "evaluation": evaluation.id,
        "trial": evaluation.asked.trial,
        "attempt": evaluation.attempt,
        "worker": evaluation.worker,
        "silent_seconds": silences.get(evaluation.worker),
        "reached": None if reached is None else study.plan.named(reached),
        "target": study.plan.named(evaluation.asked.target),
        "value": next(reversed(evaluation.points.values()), None),
    }


def _best_observed(study: "Study", trials: "list[Trial]") -> dict[str, Any] | None:
    """The best last value of a trial, however far that was trained."""
    values = {
        trial.id: study.plan.sign * trial.value
        for trial in trials
        if trial.value is not None and math.isfinite(trial.value)
    }
    if not values:
        return None
    best = trials[min(values, key=lambda number: values[number])]
    return {"trial": best.id, "value": best.value, "fidelity": best.fidelity, "config": best.config}


def _print(status: dict[str, Any]) -> None:
    unit = {"seconds": "s of training", "reported": "as reported", "function": "by the study's function"}
    observed, trained = status["best_observed"], status["best_trained"]
    rows = [
        ("study", f"{status['name']} ({status['direction']})"),
        ("trials", _counts(status["trials"])),
        ("evaluations", _counts(status["evaluations"])),
        ("cost", f"{shown(status['cost'])} {unit[status['cost_unit']]}"),
        ("best observed", _finding(observed, f" at {pairs(observed['fidelity'])}" if observed else "")),
        ("best trained in full", _finding(trained, "")),
    ]
    for title, text in rows:
        print(f"{title + ':':<22}{text}")
    if status["running"]:
        print("\nrunning")
        titles = ("trial", "evaluation", "reached", "target", "value", "worker", "last sign of life")
        print_table(titles, [_running_row(one) for one in status["running"]])
    if status["paused"]:
        print("\npaused, can be continued")
        paused = [(one["trial"], pairs(one["fidelity"]), one["value"]) for one in status["paused"]]
        print_table(("trial", "trained to", "value"), paused)


def _running_row(one: dict[str, Any]) -> tuple[Any, ...]:
    silence = "" if one["silent_seconds"] is None else f"{one['silent_seconds']:.0f} s ago"
    reached, target = pairs(one["reached"]), pairs(one["target"])
    return one["trial"], one["evaluation"], reached or "start", target, one["value"], one["worker"], silence


def _counts(counts: dict[str, int]) -> str:
    parts = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()) if status != "all")
    return f"{counts['all']} ({parts})" if parts else str(counts["all"])


def _finding(found: dict[str, Any] | None, place: str) -> str:
    if found is None:
        return "none yet"
    return f"{shown(found['value'])}{place}, trial {found['trial']}: {pairs(found['config'])}"
