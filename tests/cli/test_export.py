"""Files that others can read, complete or not at all."""

import csv
import json
import math
from pathlib import Path

import pandas
import pytest

import takg
from takg.errors import InputError
from takg.export import export, rows_of
from takg.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = takg.create_study(
        {
            "lr": takg.Float(0.1, 1.0),
            "opt": {"name": takg.Categorical(["sgd", 7]), "momentum": takg.Float(0, 1, when={"name": "sgd"})},
        },
        {"epochs": takg.Fidelity(1, 4, trace=True)},
        storage=None,
        checkpoints=tmp_path / "checkpoints",
        initial=8,
    )
    for value in (0.25, math.nan, 1.5):
        evaluation = study.ask()
        study.tell(evaluation, trace=[(1, 2.5), (evaluation.fidelity["epochs"], value)], cost=3.0)
    evaluation = study.ask()
    study.fail(evaluation, 'no "memory", é')
    return study


def test_points_are_written_as_csv(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    rows = rows_of(study, "points")
    assert export(study, path) == len(rows) > 2
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in found] == [row["trial"] for row in rows]
    assert [row["value"] for row in found] == [str(row["value"]) for row in rows]
    assert "nan" in {row["value"] for row in found}
    assert {"config.lr", "config.opt.name", "config.opt.momentum", "epochs", "evaluation"} <= found[0].keys()


def test_trials_are_written_as_strict_json(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    assert export(study, path, "trials") == 4

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(path.read_text(), parse_constant=refuse)
    assert [row["status"] for row in found] == ["stopped", "diverged", "stopped", "failed"]
    assert found[1]["value"] is None
    assert found[3]["reason"] == 'error: no "memory", é'
    assert found[3]["epochs"] is None
    assert all((row["config.opt.momentum"] is None) == (row["config.opt.name"] == 7) for row in found)


@pytest.mark.parametrize("what", ["points", "trials"])
def test_parquet_comes_back_as_it_was(study: Study, tmp_path: Path, what: str) -> None:
    path = tmp_path / "table.parquet"
    export(study, path, what)
    frame = pandas.read_parquet(path)
    rows = rows_of(study, what)
    assert list(frame["config.lr"]) == [row["config.lr"] for row in rows]
    assert list(frame["config.opt.name"]) == [str(row["config.opt.name"]) for row in rows]
    assert len(frame) == len(rows)


def test_a_study_without_points_is_an_empty_table(tmp_path: Path) -> None:
    study = takg.create_study({"x": takg.Float(0, 1)}, storage=None, checkpoints=tmp_path)
    for suffix in ("csv", "json", "parquet"):
        assert export(study, tmp_path / f"points.{suffix}") == 0
    assert json.loads((tmp_path / "points.json").read_text()) == []


def test_what_cannot_be_written_is_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the suffix is '\.xls'; expected one of"):
        export(study, tmp_path / "points.xls")
    with pytest.raises(InputError, match=r"what='curves': expected one of"):
        export(study, tmp_path / "points.csv", "curves")
    with pytest.raises(InputError, match=r"'.*nowhere' is not a directory; make it first"):
        export(study, tmp_path / "nowhere" / "points.csv")


def test_without_pyarrow_the_message_says_what_to_do(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "points.parquet").write_text("old")
    with pytest.raises(InputError, match=r"parquet needs pyarrow: pip install 'takg\[frames\]'"):
        export(study, tmp_path / "points.parquet")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["points.parquet"]
    assert (tmp_path / "points.parquet").read_text() == "old"
