"""Text, tables and JSON on the standard output."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from takg.space import flat


def print_json(data: Any) -> None:
    from takg.export import strict_json

    print(strict_json(data))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table: drawn in a terminal, else aligned text. Columns of numbers are aligned on the right."""
    cells = [[shown(value) for value in row] for row in rows]
    is_right = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(titles))]
    if sys.stdout.isatty():
        _draw(titles, cells, is_right)
        return
    widths = [max(len(row[i]) for row in [titles, *cells]) for i in range(len(titles))]
    for row in [titles, *cells]:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, is_right, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def shown(value: Any) -> str:
    """For people: five digits, and nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else " ".join(str(value).split())


def pairs(values: Mapping[str, Any] | None) -> str:
    """`lr=0.001, optimizer.name=adam`."""
    return ", ".join(f"{name}={shown(value)}" for name, value in flat(values or {}).items())


def _draw(titles: Sequence[str], cells: Sequence[Sequence[str]], is_right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for title, right in zip(titles, is_right, strict=True):
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)
