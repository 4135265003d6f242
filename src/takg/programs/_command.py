"""Command lines with placeholders."""

import json
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from takg.errors import InputError

RESERVED = ("checkpoint", "resumed", "config_file", "trial", "evaluation")
"""Placeholders that every program can have, besides its parameters, fidelities and `start.<fidelity>`."""


def placeholders(argument: str) -> list[str]:
    """The names in braces; InputError if the braces do not match."""
    return [name for _, name in _pieces(argument) if name is not None]


def filled(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The arguments with each placeholder replaced by its value.

    An argument with a placeholder that has no value, as a parameter that is not active, is left out. If it is nothing
    but that placeholder, the option before it is left out, too: `--momentum {momentum}`.
    """
    done: list[str] = []
    for i, argument in enumerate(command):
        pieces = _pieces(argument)
        if all(name is None or name in values for _, name in pieces):
            done.append("".join(text + ("" if name is None else _shown(values[name])) for text, name in pieces))
        elif len(pieces) == 1 and not pieces[0][0] and i > 0 and _is_option(command[i - 1]):
            done.pop()
    return done


def _pieces(argument: str) -> list[tuple[str, str | None]]:
    """Text, and the name of the placeholder that follows it."""
    try:
        parts = list(Formatter().parse(argument))
    except ValueError as error:
        raise InputError(f"{argument!r}: {error}; expected {{name}}, and {{{{ or }}}} for a brace itself") from None
    for _, name, rule, conversion in parts:
        if name == "" or rule or conversion:
            raise InputError(
                f"{argument!r}: expected nothing but a name between braces, {{{{ or }}}} for a brace itself"
            )
    return [(text, name) for text, name, _, _ in parts]


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and argument.strip("-") != "" and not placeholders(argument)


def _shown(value: Any) -> str:
    """Text as it is, all else as in JSON: true, null, 0.001."""
    return value if isinstance(value, str) else json.dumps(value)
