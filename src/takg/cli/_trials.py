"""`takg trials`."""

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from takg.cli._arguments import Commands, add_study, command, opened
from takg.cli._print import pairs, print_json, print_table

if TYPE_CHECKING:
    from takg.study import Trial

_STATUSES = ("running", "waiting", "paused", "complete", "diverged", "failed", "dropped", "stopped")
_ORDERS: dict[str, "Callable[[Trial, float], Any]"] = {
    "id": lambda trial, sign: trial.id,
    "status": lambda trial, sign: trial.status,
    "value": lambda trial, sign: math.inf if _is_without_value(trial) else sign * (trial.value or 0.0),
    "cost": lambda trial, sign: -trial.cost,
    "legs": lambda trial, sign: -trial.legs,
}


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "trials",
        _run,
        about="list the training runs",
        more="With how far each came, what it cost and, if it is not continued, why.",
        example="takg trials --status paused --sort value",
    )
    add_study(parser)
    parser.add_argument("--json", action="store_true", help="as JSON, with each trace")
    parser.add_argument("--status", action="append", choices=_STATUSES, help="only those; may be given more than once")
    parser.add_argument(
        "--sort", choices=tuple(_ORDERS), default="id", help="best value, highest cost, most legs first (default: id)"
    )


def _run(given: argparse.Namespace) -> int:
    study = opened(given)
    trials = [trial for trial in study.trials if not given.status or trial.status in given.status]
    trials.sort(key=lambda trial: _ORDERS[given.sort](trial, study.plan.sign))
    if given.json:
        print_json([_described(trial) for trial in trials])
        return 0
    print_table(
        ("trial", "status", "trained to", "value", "cost", "legs", "configuration", "reason"),
        [
            (
                trial.id,
                trial.status,
                pairs(trial.fidelity),
                trial.value,
                trial.cost,
                trial.legs,
                pairs(trial.config),
                trial.reason,
            )
            for trial in trials
        ],
    )
    return 0


def _is_without_value(trial: "Trial") -> bool:
    return trial.value is None or not math.isfinite(trial.value)


def _described(trial: "Trial") -> dict[str, Any]:
    return {
        "trial": trial.id,
        "status": trial.status,
        "fidelity": trial.fidelity,
        "value": trial.value,
        "cost": trial.cost,
        "legs": trial.legs,
        "reason": trial.reason,
        "config": trial.config,
        "trace": [{"fidelity": place, "value": value} for place, value in trial.trace],
    }
