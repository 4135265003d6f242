"""`takg plot`."""

import argparse
from pathlib import Path

from takg.cli._arguments import Commands, add_study, command, opened
from takg.errors import InputError

_ABOUT = {
    "curves": "learning curves, coloured by what was continued",
    "fidelities": "cost spent at each fidelity",
    "progress": "best value against cost",
    "prediction": "predicted curve of a trial, with its band",
    "slices": "value against each parameter",
}


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "plot",
        _run,
        about="draw a study, as PNG or interactive HTML",
        more="Kinds: " + "; ".join(f"{kind}, {text}" for kind, text in _ABOUT.items()) + ".",
        example="takg plot curves prediction --trial 7 --out plots --format png --format html",
    )
    parser.add_argument("kinds", nargs="+", metavar="KIND", help=f"{', '.join(_ABOUT)}, or all")
    parser.add_argument("--trial", type=int, metavar="T", help="which one `prediction` is about (default: the best)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="directory (default: this one)")
    parser.add_argument("--format", action="append", choices=("png", "html"), help="may be given twice (default: png)")
    add_study(parser)


def _run(given: argparse.Namespace) -> int:
    from takg.plots import KINDS, figures

    kinds = KINDS if "all" in given.kinds else tuple(dict.fromkeys(given.kinds))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError(f"KIND={unknown[0]!r}: expected some of {', '.join(KINDS)}, or all")
    study = opened(given)
    given.out.mkdir(parents=True, exist_ok=True)
    for kind, figure in figures(study, kinds, trial=given.trial).items():
        for suffix in dict.fromkeys(given.format or ["png"]):
            print(figure.save(given.out / f"{kind}.{suffix}"))
    return 0
