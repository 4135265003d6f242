"""What the commands have in common: how they are declared, and how they find their study."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the engine and the store take their time to load
    from takg.study import Study

Commands = Any  # argparse does not export the type of what `add_subparsers` returns


def command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    about: str,
    example: str,
    more: str = "",
) -> argparse.ArgumentParser:
    """Declare a command; `about` is its line in `takg --help`, too."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
        epilog=f"example: {example}",
    )
    parser.set_defaults(command=run)
    return parser


def add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", default="takg.db", metavar="S", help="file or URL of the store (default: takg.db)")


def add_study(parser: argparse.ArgumentParser) -> None:
    """Options that say which study to look at."""
    add_storage(parser)
    parser.add_argument("--name", metavar="N", help="of the study; not needed if the store has only one")


def opened(given: argparse.Namespace) -> "Study":
    from takg._api import load_study

    return load_study(given.name, storage=given.storage)
