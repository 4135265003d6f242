"""`takg best`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from takg.cli._arguments import Commands, add_study, command, opened
from takg.cli._print import pairs, print_json, print_table

if TYPE_CHECKING:
    from takg.study import Best, Trained


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "best",
        _run,
        about="show the configuration that is predicted to be best",
        more="With its value when trained in full, and the best of those that were trained in full.",
        example="takg best --config > best.json",
    )
    add_study(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--config", action="store_true", help="nothing but the predicted best configuration, as JSON")


def _run(given: argparse.Namespace) -> int:
    study = opened(given)
    best, trained = study.best, study.best_trained
    if given.config:
        print_json(best.config)
    elif given.json:
        print_json({"predicted": asdict(best), "trained": trained and asdict(trained)})
    else:
        _print(best, trained)
    return 0


def _print(best: "Best", trained: "Trained | None") -> None:
    print_table(
        ("", "value", "5 %", "95 %", "trial", "configuration"),
        [
            ("predicted best", best.median, best.low, best.high, None, pairs(best.config)),
            ("best trained in full", trained.value, None, None, trained.trial, pairs(trained.config))
            if trained
            else ("best trained in full", None, None, None, None, "none yet"),
        ],
    )
