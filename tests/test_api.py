"""`create_study` and `load_study`: names, places, options."""

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import takg
from takg._api import _opened
from takg.errors import InputError, NoStudyError, SpaceError, StorageError, StudyExistsError
from takg.storage import MemoryStorage, SqlStorage
from takg.study import Study

SPACE = {"x": takg.Float(0.0, 1.0)}
EPOCHS = {"epochs": takg.Fidelity(1, 20, trace=True)}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checkpoints(study: Study) -> Path:
    return Path(study.checkpoints.directory(0)).parent


def test_by_default_a_study_is_in_a_file_of_the_working_directory_with_its_checkpoints_beside(tmp_path: Path) -> None:
    study = takg.create_study(SPACE, EPOCHS)
    assert (tmp_path / "takg.db").exists()
    assert checkpoints(study) == tmp_path / "takg-checkpoints" / "study"
    assert takg.load_study().name == "study"


def test_what_a_study_is_about_comes_back_when_it_is_loaded() -> None:
    space = {"x": takg.Float(0.1, 10.0, log=True), "net": {"kind": takg.Categorical(["a", "b"]), "layers": 3}}
    options: dict[str, Any] = {
        "direction": "maximise",
        "seed": 7,
        "initial": 9,
        "retained": 3,
        "basket": 4,
        "samples": 5,
    }
    study = takg.create_study(space, EPOCHS, acquisition="takg", warp="none", cost="reported", **options)
    loaded = takg.load_study()
    assert loaded.plan == study.plan
    for name, value in options.items():
        assert getattr(loaded.plan.options, name) == value


@pytest.mark.parametrize("where", ["runs.db", "sqlite:///runs.db", Path("runs.db"), "{home}/runs.db", "~/runs.db"])
def test_a_file_can_be_named_in_many_ways_and_is_the_same(
    where: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    where = where.replace("{home}", str(tmp_path)) if isinstance(where, str) else where
    study = takg.create_study(SPACE, storage=where)
    assert (tmp_path / "runs.db").exists()
    assert checkpoints(study) == tmp_path / "runs-checkpoints" / "study"
    study.tell(study.ask(), 0.5)
    assert takg.load_study(storage=tmp_path / "runs.db").trials == study.trials


def test_a_relative_name_means_another_file_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = takg.create_study(SPACE, name="first")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(StorageError, match="there is no such file"):
        takg.load_study()
    takg.create_study(SPACE, name="second")
    assert takg.load_study().name == "second"
    storage, _ = pickle.loads(pickle.dumps(first.connect))()  # as a worker would
    assert storage.names() == ["first"]


def test_a_file_that_was_deleted_and_made_anew_is_another_store() -> None:
    takg.create_study(SPACE, name="old")
    for name in ("takg.db", "takg.db-wal", "takg.db-shm"):
        Path(name).unlink(missing_ok=True)
    with pytest.raises(StorageError, match="there is no such file"):
        takg.load_study()
    study = takg.create_study(SPACE, name="new")
    study.tell(study.ask(), 0.5)
    with closing(SqlStorage(Path("takg.db"))) as storage:
        assert storage.names() == ["new"]
        assert len(storage.read("new")) == 3


def test_a_store_is_opened_once_in_a_process() -> None:
    takg.create_study(SPACE)
    assert _opened("takg.db", create=False) is _opened(Path("takg.db").absolute(), create=False)


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "..", ".safe", "größe 7 %"])
def test_any_name_has_one_directory_of_its_own(name: str, tmp_path: Path) -> None:
    study = takg.create_study(SPACE, EPOCHS, name=name)
    assert checkpoints(study).parent == tmp_path / "takg-checkpoints"
    assert takg.load_study(name).name == name


@pytest.mark.parametrize("name", ["", "a\nb", 3, None])
def test_names_are_checked(name: Any) -> None:
    with pytest.raises(InputError, match="expected a non-empty text without control characters"):
        takg.create_study(SPACE, name=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direction": "up"}, "direction='up': expected one of"),
        ({"cost": "money"}, "cost='money': expected one of"),
        ({"cost": "function"}, "cost='function': expected the function itself"),
        ({"seed": -1}, "seed=-1: expected an integer >= 0"),
        ({"initial": 0}, "initial=0: expected an integer >= 1"),
        ({"samples": 1.5}, "samples=1.5: expected an integer >= 1"),
        ({"warp": "sqrt"}, "warp='sqrt': expected 'none' or 'log'"),
        ({"acquisition": "ei"}, "acquisition='ei': expected one of"),
        ({"maximiser": "adam"}, "maximiser='adam': expected one of"),
        ({"disk_limit": 0}, "disk_limit=0: expected a number of bytes > 0"),
        ({"disk_limit": float("nan")}, "disk_limit=nan: expected a number of bytes > 0"),
        ({"patience": 3}, "unknown option 'patience'; expected one of"),
        ({"space": {"x": 3}}, "space: nothing to tune"),
        ({"storage": "mysql://here"}, "storage='mysql://here': expected a path"),
        ({"storage": ":memory:"}, "storage=':memory:': expected a path"),
    ],
)
def test_arguments_are_checked_before_anything_is_made(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        takg.create_study(**{"space": SPACE, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_a_name_means_one_thing() -> None:
    with pytest.raises(SpaceError, match=r"\['x'\] are names in the space and of fidelities"):
        takg.create_study(SPACE, {"x": takg.Fidelity(1, 3, trace=True)})


def test_a_study_is_made_once_or_loaded_if_that_is_wanted() -> None:
    study = takg.create_study(SPACE, EPOCHS)
    study.tell(study.ask(), 0.5)
    with pytest.raises(StudyExistsError, match="there is a study 'study' already"):
        takg.create_study(SPACE, EPOCHS)
    again = takg.create_study(SPACE, EPOCHS, load_if_exists=True, seed=3)
    assert again.trials == study.trials
    assert again.plan.options.seed == 0
    with pytest.raises(StudyExistsError, match="has another space or other fidelities"):
        takg.create_study({"y": takg.Float(0.0, 1.0)}, EPOCHS, load_if_exists=True)
    with pytest.raises(StudyExistsError, match="has direction='minimise', not 'maximise'"):
        takg.create_study(SPACE, EPOCHS, load_if_exists=True, direction="maximise")
    with pytest.raises(StudyExistsError, match="has cost='time', not 'reported'"):
        takg.create_study(SPACE, EPOCHS, load_if_exists=True, cost="reported")


def test_one_store_can_hold_many_studies() -> None:
    for name in ("a", "b"):
        study = takg.create_study(SPACE, name=name)
        study.tell(study.ask(), 0.5)
    assert [len(takg.load_study(name).trials) for name in ("a", "b")] == [1, 1]
    with pytest.raises(InputError, match=r"name=None: the store has 2 studies, \['a', 'b'\]"):
        takg.load_study()
    with pytest.raises(NoStudyError, match="there is no study 'c'"):
        takg.load_study("c")


def test_a_study_in_memory_leaves_no_file(tmp_path: Path) -> None:
    study = takg.create_study(SPACE, EPOCHS, storage=None)
    study.tell(study.ask(), 0.5)
    assert list(tmp_path.iterdir()) == []
    assert takg.create_study(SPACE, EPOCHS, storage=None).trials == []


def test_any_store_will_do() -> None:
    storage = MemoryStorage()
    study = takg.create_study(SPACE, storage=storage)
    study.tell(study.ask(), 0.5)
    assert takg.load_study(storage=storage).trials == study.trials


def test_workers_of_a_study_never_make_a_store() -> None:
    study = takg.create_study(SPACE)
    connect = pickle.loads(pickle.dumps(study.connect))
    Path("takg.db").unlink()
    with pytest.raises(StorageError, match="there is no such file"):
        connect()
    assert not Path("takg.db").exists()
