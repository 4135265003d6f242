"""Definitions as JSON text."""

import json
from dataclasses import asdict

from takg.errors import InputError, StorageError
from takg.records import Definition


def definition_text(definition: Definition) -> str:
    """All but the name, as strict JSON; InputError if it would not come back the same."""
    if not definition.name.isprintable() or not definition.name.strip():
        raise InputError(f"name={definition.name!r}: expected a name of printable characters")
    data = {key: value for key, value in asdict(definition).items() if key != "name"}
    try:
        text = json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"definition of {definition.name!r}: {error}; expected plain JSON data") from error
    if json.loads(text) != data:
        raise InputError(
            f"definition of {definition.name!r}: {text:.200} would not come back as it is; expected plain JSON data: "
            "lists, not tuples, and keys that are strings"
        )
    return text


def definition_of(name: str, text: str) -> Definition:
    try:
        return Definition(name=name, **json.loads(text))
    except (TypeError, ValueError) as error:
        raise StorageError(f"the definition of study {name!r} is damaged: {error}") from error
