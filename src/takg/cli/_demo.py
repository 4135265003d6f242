"""`takg demo`."""

import argparse
from collections.abc import Sequence

from takg.cli._arguments import Commands, command

NAME = "demo"


def add_to(commands: Commands) -> None:
    command(commands, NAME, _run, about="tune a small network on handwritten digits", example="takg demo --budget 6")


def demo(arguments: Sequence[str]) -> int:
    from takg.demo import main

    return main(arguments)


def _run(given: argparse.Namespace) -> int:
    return demo([])
