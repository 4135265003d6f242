"""The command line. Each command is a module that imports what it needs when it runs: `takg --help` needs nothing."""

import argparse
import os
import sys
from collections.abc import Sequence

from takg.cli import _best, _demo, _export, _plot, _run, _status, _studies, _trials
from takg.errors import TakgError

__all__ = ["main"]

_COMMANDS = (_demo, _run, _status, _best, _trials, _plot, _export, _studies)
_ERROR, _INTERRUPTED, _BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    try:
        if arguments[:1] == [_demo.NAME]:  # has options of its own, which only it knows
            return _demo.demo(arguments[1:])
        given = _parser().parse_args(arguments)
        code: int = given.command(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        print("takg: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (TakgError, OSError) as error:
        print(f"takg: error: {error}", file=sys.stderr)
        return _ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takg",
        description="Tune the hyperparameters of models that are trained step by step.",
        epilog="example: takg run tune.toml --budget 20 && takg best",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_to(commands)
    return parser
