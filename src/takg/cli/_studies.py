"""`takg studies`."""

import argparse

from takg.cli._arguments import Commands, add_storage, command
from takg.cli._print import print_json


def add_to(commands: Commands) -> None:
    parser = command(
        commands,
        "studies",
        _run,
        about="list the names of the studies in a store",
        example="takg studies --storage runs.db",
    )
    add_storage(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _run(given: argparse.Namespace) -> int:
    from takg.storage import open_storage

    store = open_storage(given.storage, create=False)
    try:
        names = store.names()
    finally:
        store.close()
    if given.json:
        print_json(names)
    else:
        for name in names:
            print(name)
    return 0
