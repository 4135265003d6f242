"""What a study has seen, as CSV, JSON or Parquet."""

import contextlib
import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from takg.errors import InputError
from takg.study import Study

SUFFIXES = (".csv", ".json", ".parquet")
TABLES = ("points", "trials")

__all__ = ["export", "rows_of", "strict_json"]

Row = Mapping[str, Any]


def rows_of(study: Study, what: str = "points") -> list[Row]:
    """One flat row for each reported point, or for each trial."""
    if what not in TABLES:
        raise InputError(f"what={what!r}: expected one of {TABLES}")
    return [*study.to_rows()] if what == "points" else _trial_rows(study)


def export(study: Study, path: str | Path, what: str = "points") -> int:
    """Write a table to a file, in the format that its suffix names; how many rows there are.

    A file of that name is replaced, and only when the new one is complete.
    """
    path = Path(path)
    write = {".csv": _write_csv, ".json": _write_json, ".parquet": _write_parquet}.get(path.suffix.lower())
    if write is None:
        raise InputError(f"path={str(path)!r}: the suffix is {path.suffix!r}; expected one of {SUFFIXES}")
    if not path.parent.is_dir():
        raise InputError(f"path={str(path)!r}: {str(path.parent)!r} is not a directory; make it first")
    rows = rows_of(study, what)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            write(rows, file)
        draft.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
    return len(rows)


def strict_json(data: Any) -> str:
    """JSON that every reader takes: numbers that are not finite are null."""
    return json.dumps(_finite(data), indent=2, allow_nan=False, ensure_ascii=False)


def _trial_rows(study: Study) -> list[Row]:
    return [
        {
            "trial": trial.id,
            "status": trial.status,
            **(trial.fidelity or dict.fromkeys(study.plan.fidelities.names)),
            "value": trial.value,
            "cost": trial.cost,
            "legs": trial.legs,
            "reason": trial.reason,
            **{f"config.{name}": _inside(trial.config, name) for name in study.plan.space.names},
        }
        for trial in study.trials
    ]


def _inside(config: Mapping[str, Any], name: str) -> Any:
    """The value under a name with dots; None if it is not active."""
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _write_csv(rows: Sequence[Row], file: IO[bytes]) -> None:
    columns = _columns(rows)
    text = csv.writer(_Encoded(file))
    text.writerow(columns)
    text.writerows(zip(*columns.values(), strict=True))


class _Encoded:
    """What `csv` writes to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        self._file.write(text.encode())


def _write_json(rows: Sequence[Row], file: IO[bytes]) -> None:
    file.write(strict_json(rows).encode() + b"\n")


def _write_parquet(rows: Sequence[Row], file: IO[bytes]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("parquet needs pyarrow: pip install 'takg[frames]', or export .csv or .json") from error
    columns = {name: _alike(values) for name, values in _columns(rows).items()}
    parquet.write_table(pyarrow.table(columns), file)


def _alike(values: Sequence[Any]) -> list[Any]:
    """Values of one type, as a column needs: integers become floats beside floats, others text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return [*values]
    kind = float if kinds == {int, float} else str
    return [None if value is None else kind(value) for value in values]


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data
