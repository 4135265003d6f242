"""`takg run`."""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from takg.cli._arguments import Commands, command
from takg.cli._print import pairs, shown
from takg.errors import InputError, StorageError

if TYPE_CHECKING:
    from takg.cli._tune import Tuning
    from takg.study import Study


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "run",
        _run,
        about="tune any program, as a TOML file describes it",
        more="Run again, it goes on; after Ctrl-C, too.",
        example="takg run tune.toml --budget 20 --workers 2",
    )
    parser.add_argument("file", type=Path, metavar="tune.toml", help="see docs/cli.md")
    parser.add_argument("--budget", type=float, metavar="X", help="total cost in full trainings")
    parser.add_argument("--workers", type=int, metavar="K", help="programs that run at a time (default: 1)")
    parser.add_argument("--storage", metavar="S", help="file or URL of the store, instead of the file's")
    parser.add_argument("--name", metavar="N", help="of the study, instead of the file's")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="a live display (default: in a terminal)"
    )


def _run(given: argparse.Namespace) -> int:
    from takg.cli._tune import read

    tuning = read(given.file)
    limits = {"workers": 1, **tuning.run}
    for key in ("budget", "workers"):
        if (value := getattr(given, key)) is not None:
            if not value > 0:
                raise InputError(f"--{key}={value}: expected a number > 0")
            limits[key] = value
    if limits.keys() == {"workers"}:
        raise InputError(
            f"{tuning.source.place(('run',))}: no limit; expected budget, cost, evaluations, seconds or stop_below, "
            "or --budget"
        )
    name, storage = given.name or tuning.name, given.storage or tuning.storage
    study = _opened(tuning, name, storage)
    study.optimize(tuning.program, **limits, timeout=tuning.timeout, progress=given.progress)
    _report(study, name, storage)
    return 0


def _opened(tuning: "Tuning", name: str, storage: str) -> "Study":
    from takg._api import create_study, load_study

    checkpoints = tuning.checkpoints_of(name, storage)
    with contextlib.suppress(StorageError):  # there is none yet, or what is wrong with it shows below
        tuning.check_options(load_study(name, storage=storage, checkpoints=checkpoints).plan.options)
    return create_study(
        tuning.space,
        tuning.fidelities,
        name=name,
        storage=storage,
        checkpoints=checkpoints,
        load_if_exists=True,
        **tuning.settings,
    )


def _report(study: "Study", name: str, storage: str) -> None:
    state, trained = study.state, study.best_trained
    done = len(state.evaluations) - len(state.open)
    print(f"{name}: {done} evaluations of {len(state.trials)} trials, cost {shown(state.cost)}")
    if trained is not None:
        print(f"best trained in full: {shown(trained.value)}, trial {trained.trial}: {pairs(trained.config)}")
    print(f"predicted best: takg best --storage {storage} --name {name}")
