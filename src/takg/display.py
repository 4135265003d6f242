"""A live view of a running study; silent where the output is not a terminal."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

_INTERVAL = 0.2  # seconds between two pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One evaluation under way."""

    trial: int
    is_continued: bool
    share: float  # of the way to its target
    target: Mapping[str, float]
    value: float | None  # last reported
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is shown."""

    name: str
    spent: float
    goal: float | None
    unit: str
    evaluations: int
    trials: int
    paused: int
    best: tuple[float, float, float] | None  # predicted at full fidelity: median, 5 % and 95 % quantiles
    running: list[Row]


class Display:
    """Shows snapshots while the context is open.

    Args:
        is_shown: True, False, or None for "if the output is a terminal".
    """

    def __init__(self, is_shown: bool | None = None) -> None:
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._live: Any = None
        self._last = 0.0

    def __enter__(self) -> Self:
        if self._is_shown:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(BrokenPipeError):
                self._live.__exit__(kind, error, trace)

    def show(self, snapshot: Callable[[], Snapshot], *, activity: str = "") -> None:
        """Draw, unless that was done a moment ago; an activity is always drawn."""
        if self._live is None or (not activity and time.monotonic() - self._last < _INTERVAL):
            return
        self._last = time.monotonic()
        self._live.update(drawn(snapshot(), activity), refresh=True)


def drawn(snapshot: Snapshot, activity: str = "") -> Any:
    """The picture, as something that rich can print."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    amount = f"{snapshot.spent:.2f}" if isinstance(snapshot.spent, float) else str(snapshot.spent)
    goal = "" if snapshot.goal is None else f" of {snapshot.goal:g}"
    bar = ProgressBar(total=snapshot.goal or 1.0, completed=min(snapshot.spent, snapshot.goal or 0.0), width=30)
    best = "-" if snapshot.best is None else "{:.4g} ({:.2g} to {:.2g})".format(*snapshot.best)
    head.add_row(Text(snapshot.name, style="bold"), bar, f"{amount}{goal} {snapshot.unit}")
    facts = f"{snapshot.evaluations} evaluations of {snapshot.trials} trials, {snapshot.paused} can be continued"
    lines: list[Any] = [head, Text(f"{facts}; best predicted {best}")]
    if snapshot.running:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for title in ("trial", "", "progress", "target", "last value", "configuration"):
            table.add_column(title)
        for row in snapshot.running:
            table.add_row(
                str(row.trial),
                "continued" if row.is_continued else "new",
                ProgressBar(total=1.0, completed=row.share, width=16),
                ", ".join(f"{name} {value:g}" for name, value in row.target.items()),
                "" if row.value is None else f"{row.value:.4g}",
                Text(", ".join(f"{name}={_short(value)}" for name, value in row.config.items()), overflow="ellipsis"),
            )
        lines.append(table)
    lines.append(Text(activity, style="dim"))
    return Group(*lines)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
