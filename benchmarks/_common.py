"""What every benchmark shares: timing, the command line, and the list of bars at the end of its JSON."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_IDLE = 0.1  # cores that others may have where cores count as idle


@dataclass(frozen=True)
class Bar:
    """One figure that must hold: the value is at most (or at least) the limit."""

    name: str
    value: float | None  # None if it could not be measured, which does not hold
    limit: float
    holds: bool


def at_most(name: str, value: float | None, limit: float) -> Bar:
    return Bar(name, value, limit, value is not None and value <= limit)


def at_least(name: str, value: float | None, limit: float) -> Bar:
    return Bar(name, value, limit, value is not None and value >= limit)


@dataclass(frozen=True)
class Timing:
    """Wall and CPU seconds (of all threads), and how many cores something else had meanwhile."""

    wall: float
    cpu: float
    others: float = 0.0


def timed(job: Callable[[], Any]) -> tuple[Timing, Any]:
    busy, wall, cpu = _busy_seconds(), time.perf_counter(), time.process_time()
    result = job()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Timing(wall, cpu, max(0.0, (_busy_seconds() - busy - cpu) / wall)), result


def median(timings: list[Timing]) -> Timing:
    return Timing(*(statistics.median(getattr(t, name) for t in timings) for name in ("wall", "cpu", "others")))


def quiet_median(timings: Iterator[Timing], count: int) -> Timing:
    """Median of `count` repetitions during which the cores were idle but for them.

    On a shared machine others come and go; three times as many are tried, and then the least disturbed are taken.
    """
    tried: list[Timing] = []
    for timing in timings:
        tried.append(timing)
        if sum(t.others < _IDLE for t in tried) >= count or len(tried) >= 3 * count:
            break
    return median(sorted(tried, key=lambda t: max(_IDLE, t.others))[:count])


def _busy_seconds() -> float:
    """CPU seconds of all processes since the machine has started, and those that other machines took from it."""
    try:
        times = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    except OSError:  # not a Linux
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, times)
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, under a minute")
    return parser


def finish(args: argparse.Namespace, figures: dict[str, Any], bars: list[Bar], packages: list[str]) -> int:
    """Print the bars, write the JSON if asked to, and return an exit code: 0 if all bars hold."""
    print()
    for bar in bars:
        value = "none" if bar.value is None else f"{bar.value:.4g}"
        print(f"{'ok  ' if bar.holds else 'MISS'}  {bar.name}: {value} (limit {bar.limit:g})")
    if args.json:
        report = {
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in packages},
            "quick": args.quick,
            **figures,
            "bars": [asdict(bar) for bar in bars],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(bar.holds for bar in bars) else 1


def _version(package: str) -> str | None:
    """None if it is not there: peers that are missing are figures that could not be measured, and bars that miss."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
