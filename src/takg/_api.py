"""Make and open studies: the one place that joins the study with its store, its checkpoints and its workers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from takg.checkpoints import DirectoryCheckpoints
from takg.errors import InputError, StudyExistsError
from takg.executors import LocalProcesses
from takg.records import Storage
from takg.space import Fidelities, Fidelity, Space, check_names
from takg.study import CostFunction, Log, Options, Plan, Study

_DEFAULT_STORAGE = "takg.db"
_DEFAULT_NAME = "study"


def create_study(
    space: Mapping[str, Any],
    fidelities: Mapping[str, Fidelity] | None = None,
    *,
    name: str = _DEFAULT_NAME,
    storage: str | Path | Storage | None = _DEFAULT_STORAGE,
    checkpoints: str | Path | None = None,
    direction: str = "minimise",
    cost: str | CostFunction = "time",
    seed: int = 0,
    load_if_exists: bool = False,
    keep_checkpoints: bool = False,
    disk_limit: float | None = None,
    **options: Any,
) -> Study:
    """Begin a study.

    Args:
        space: parameters by name; `takg.Float`, `Int`, `Categorical`, `Ordinal`, constants, or nested dictionaries.
        fidelities: `takg.Fidelity` by name, up to four; without any, this is plain tuning at full fidelity.
        name: of the study in its store; one store can hold many.
        storage: a file, a URL (`sqlite:///...`, `postgresql://...`), a `Storage`, or None to keep it in memory.
        checkpoints: directory for the state of trainings; beside the file, if left out.
        direction: "minimise" or "maximise".
        cost: "time" (seconds of training), "reported" (by `evaluation.cost`), or a function of config and fidelity.
        seed: of all randomness in suggestions.
        load_if_exists: go on with a study of that name if there is one, with the same space, fidelities, direction and
            kind of cost; its other options stay as they are.
        keep_checkpoints: never delete any.
        disk_limit: bytes that checkpoints may take; the least promising trials lose theirs first.
        options: more of `takg.study.Options`: initial, retained, basket, acquisition, maximiser, warp, samples.
    """
    plan = Plan(
        space=space if isinstance(space, Space) else Space(space),
        fidelities=Fidelities(fidelities or {}),
        options=_options(direction=direction, cost=cost if isinstance(cost, str) else "function", seed=seed, **options),
    )
    check_names(plan.space, plan.fidelities)
    if plan.space.d == 0:
        raise InputError("space: nothing to tune; expected at least one parameter with more than one value")
    if not isinstance(name, str) or not name or any(ord(letter) < 32 for letter in name):
        raise InputError(f"name={name!r}: expected a non-empty text without control characters")
    if isinstance(cost, str) and cost == "function":
        raise InputError("cost='function': expected the function itself")
    if disk_limit is not None and not disk_limit > 0:
        raise InputError(f"disk_limit={disk_limit!r}: expected a number of bytes > 0")
    source = _source(storage, name, checkpoints)
    store, _ = source()
    try:
        store.create(plan.definition(name))
    except StudyExistsError:
        if not load_if_exists:
            raise
        existing = Plan.from_definition(store.definition(name))
        if (existing.space, existing.fidelities) != (plan.space, plan.fidelities):
            raise StudyExistsError(
                f"name={name!r}: a study of that name has another space or other fidelities; choose another name"
            ) from None
        for option in ("direction", "cost"):
            there, given = getattr(existing.options, option), getattr(plan.options, option)
            if there != given:
                raise StudyExistsError(
                    f"name={name!r}: a study of that name has {option}={there!r}, not {given!r}; choose another name"
                ) from None
    return _study(source, cost, keep_checkpoints, disk_limit)


def load_study(
    name: str | None = None,
    *,
    storage: str | Path | Storage = _DEFAULT_STORAGE,
    checkpoints: str | Path | None = None,
    cost: CostFunction | None = None,
    keep_checkpoints: bool = False,
    disk_limit: float | None = None,
) -> Study:
    """Open a study that exists; without a name, the only one in its store."""
    store = _opened(storage, create=False)
    if name is None:
        names = store.names()
        if len(names) != 1:
            raise InputError(f"name=None: the store has {len(names)} studies, {names}; expected a name out of these")
        name = names[0]
    source = _source(storage, name, checkpoints, store=store)
    return _study(source, cost or "", keep_checkpoints, disk_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Opens store and checkpoints in this process or, if the store is a file or a server, in another."""

    url: str | None
    name: str
    root: str
    store: Storage | None = None

    def __call__(self) -> tuple[Storage, DirectoryCheckpoints]:
        store = self.store if self.store is not None else _opened(self.url or "", create=False)
        return store, DirectoryCheckpoints(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.url is None:
            raise InputError(
                "storage: this study is kept in memory, where workers cannot see it; expected a file or URL"
            )
        return _rebuilt, (self.url, self.name, self.root)


def _rebuilt(url: str, name: str, root: str) -> _Source:
    return _Source(url=url, name=name, root=root)


_stores: dict[tuple[int, str], tuple[tuple[int, int] | None, Storage]] = {}  # of each process; with the file they are


def _opened(storage: Any, *, create: bool) -> Storage:
    """One connection for each store and process, as long as the file is the same."""
    from takg.storage import open_storage  # SQLAlchemy is only loaded by those who open a store

    if storage is None:
        return open_storage(None)
    if not isinstance(storage, str | Path):
        store: Storage = storage
        return store
    url = _located(storage)
    key = (os.getpid(), url)
    if key not in _stores or _stores[key][0] != _file(url):
        store = open_storage(url, create=create)
        _stores[key] = (_file(url), store)
    return _stores[key][1]


def _located(storage: str | Path) -> str:
    """The same place for another process or working directory."""
    path = str(storage).removeprefix("sqlite:///")
    if not path or "://" in path or path == ":memory:" or (path != str(storage) and "?" in path):
        return str(storage)
    return str(Path(path).expanduser().absolute())


def _file(url: str) -> tuple[int, int] | None:
    """Which file it is, whatever its name; None if there is none, or if it is a server."""
    try:
        facts = Path(url).stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _source(storage: Any, name: str, checkpoints: str | Path | None, *, store: Storage | None = None) -> _Source:
    store = store or _opened(storage, create=True)
    url = _located(storage) if isinstance(storage, str | Path) else None
    root = Path(checkpoints) if checkpoints is not None else _beside(url) / _folder(name)
    return _Source(url=url, name=name, root=str(root.absolute()), store=store)


def _beside(url: str | None) -> Path:
    """Checkpoints of takg.db are in takg-checkpoints; those of other stores in the working directory."""
    path = Path(url) if url and "://" not in url else Path("takg")
    return path.with_name(path.stem + "-checkpoints")


def _folder(name: str) -> str:
    """A study's name as that of one directory."""
    quoted = quote(name, safe=" ")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _options(**given: Any) -> Options:
    known = Options.__dataclass_fields__.keys()
    if unknown := given.keys() - known:
        raise InputError(f"unknown option {sorted(unknown)[0]!r}; expected one of {sorted(known)}")
    return Options(**given)


def _study(source: _Source, cost: str | CostFunction, keep_checkpoints: bool, disk_limit: float | None) -> Study:
    store, checkpoints = source()
    return Study(
        Log(store, source.name),
        Plan.from_definition(store.definition(source.name)),
        checkpoints,
        connect=source,
        processes=LocalProcesses,
        cost_function=None if isinstance(cost, str) else cost,
        keep_checkpoints=keep_checkpoints,
        disk_limit=disk_limit,
    )
