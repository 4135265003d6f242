"""`takg export`."""

import argparse
from pathlib import Path

from takg.cli._arguments import Commands, add_study, command, opened


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "export",
        _run,
        about="write all reported points, or all trials, to a file",
        example="takg export points.csv --storage runs.db",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="ends in .csv, .json or .parquet")
    parser.add_argument(
        "--what",
        choices=("points", "trials"),
        default="points",
        help="a row for each reported point (default), or for each trial",
    )
    add_study(parser)


def _run(given: argparse.Namespace) -> int:
    from takg.export import export

    count = export(opened(given), given.file, given.what)
    print(f"{given.file}: {count} {given.what}")
    return 0
