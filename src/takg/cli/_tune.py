"""Read tune.toml: what is tuned, by which program, for how long. Every mistake is an error with its line and key."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from takg.cli._lines import KeyPath, key_lines
from takg.errors import InputError, SpaceError
from takg.programs import KEYS, RESERVED, ProgramTrain, placeholders
from takg.space import Categorical, Constant, Fidelities, Fidelity, Float, Int, Ordinal, Space, check_names
from takg.study import Options


class Kind(NamedTuple):
    """What a key may hold."""

    name: str
    holds: Callable[[Any], bool]
    each: "Kind | None" = None  # what each value of a table may hold


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool | int | float)


TEXT = Kind("a string", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", _is_number)
WHOLE = Kind("an integer", lambda value: isinstance(value, int) and not isinstance(value, bool))
POSITIVE = Kind("a number > 0", lambda value: _is_number(value) and value > 0)
POSITIVE_WHOLE = Kind("an integer >= 1", lambda value: WHOLE.holds(value) and value >= 1)
SCALAR = Kind("a string, a number, true or false", _is_scalar)
SCALARS = Kind("an array of strings, numbers, true or false", lambda value: _are(value, _is_scalar))
TEXTS = Kind("an array of strings, the program first", lambda value: _are(value, TEXT.holds) and len(value) > 0)
TABLE = Kind("a table", lambda value: isinstance(value, dict))
ENVIRONMENT = Kind("a table of strings", TABLE.holds, each=TEXT)
ALLOWED = Kind(f"{SCALAR.name}, or an array of them", lambda value: _is_scalar(value) or _are(value, _is_scalar))
CONDITIONS = Kind("a table of parameters and what each must be", TABLE.holds, each=ALLOWED)


def _are(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _one_of(*choices: str) -> Kind:
    return Kind(f"one of {', '.join(map(repr, choices))}", lambda value: isinstance(value, str) and value in choices)


_TOP = {"study": TABLE, "space": TABLE, "fidelities": TABLE, "program": TABLE, "run": TABLE}
_STUDY = {
    "name": TEXT,
    "storage": TEXT,
    "checkpoints": TEXT,
    "keep_checkpoints": FLAG,
    "disk_limit": POSITIVE,
    "direction": _one_of("minimise", "maximise"),
    "cost": _one_of("time", "reported"),
    "seed": WHOLE,
    "initial": WHOLE,
    "retained": WHOLE,
    "basket": WHOLE,
    "acquisition": TEXT,
    "warp": TEXT,
    "samples": WHOLE,
}
_FIDELITY = {"low": NUMBER, "high": NUMBER, "trace": FLAG, "integer": FLAG, "kernel": TEXT}
_PROGRAM = {"command": TEXTS, "cwd": TEXT, "env": ENVIRONMENT, "timeout": POSITIVE}
_RUN = {
    "budget": POSITIVE,
    "cost": POSITIVE,
    "evaluations": POSITIVE_WHOLE,
    "seconds": POSITIVE,
    "stop_below": POSITIVE,
    "workers": POSITIVE_WHOLE,
}


class _Shape(NamedTuple):
    """What a table that describes a parameter has besides `type`."""

    make: Callable[..., Any]
    needed: dict[str, Kind]
    more: dict[str, Kind]


_PARAMETERS = {
    "float": _Shape(Float, {"low": NUMBER, "high": NUMBER}, {"log": FLAG, "default": NUMBER, "when": CONDITIONS}),
    "int": _Shape(Int, {"low": WHOLE, "high": WHOLE}, {"log": FLAG, "default": WHOLE, "when": CONDITIONS}),
    "categorical": _Shape(Categorical, {"choices": SCALARS}, {"default": SCALAR, "when": CONDITIONS}),
    "ordinal": _Shape(Ordinal, {"choices": SCALARS}, {"default": SCALAR, "when": CONDITIONS}),
    "constant": _Shape(Constant, {"value": SCALAR}, {"when": CONDITIONS}),
}
_TYPE = _one_of(*_PARAMETERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a file asks for."""

    space: dict[str, Any]
    fidelities: dict[str, Fidelity]
    name: str
    storage: str
    checkpoints: str | None
    folder: Path  # of the file, which its paths are relative to
    settings: dict[str, Any]  # more arguments of `create_study`, as far as given
    program: ProgramTrain
    timeout: float | None
    run: dict[str, Any]  # limits and workers, as far as given
    source: "_Source"

    def checkpoints_of(self, name: str, storage: str) -> Path | None:
        """A directory for each study, as trials of two must not meet; None leaves it to be beside the store's file."""
        root = self.checkpoints or ("takg-checkpoints" if "://" in storage else None)
        return None if root is None else self.folder / root / name

    def check_options(self, options: Options) -> None:
        """InputError if the study was made with other options than the file has: they cannot be changed."""
        for field in fields(Options):
            was, is_now = getattr(options, field.name), self.settings.get(field.name)
            if is_now is not None and is_now != was:
                raise self.source.error(
                    ("study", field.name),
                    f"{is_now!r}, but study {self.name!r} was made with {was!r}; choose another name for a new study",
                )


def read(path: Path) -> Tuning:
    """InputError, with line and key, for all that is wrong in the file by itself."""
    source = _Source.read(path)
    root = source.checked((), _TOP, needed=("space", "program"))
    study = source.checked(("study",), _STUDY)
    fidelities = {name: _fidelity(source, name) for name in root.get("fidelities", {})}
    space = _group(source, ("space",))
    names = _placeholders(source, _checked_space(source, space), fidelities)
    folder = path.absolute().parent
    settings = {key: value for key, value in study.items() if key not in ("name", "storage", "checkpoints")}
    _check_settings(source, settings)
    return Tuning(
        space=space,
        fidelities=fidelities,
        name=study.get("name", path.stem),
        storage=_located(study.get("storage", "takg.db"), folder),
        checkpoints=study.get("checkpoints"),
        folder=folder,
        settings=settings,
        program=_program(source, fidelities, names, folder),
        timeout=root["program"].get("timeout"),
        run=source.checked(("run",), _RUN),
        source=source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The file, and where each key of it stands."""

    name: str
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    @classmethod
    def read(cls, path: Path) -> "_Source":
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise InputError(f"{path}:{line}: expected UTF-8; {error.reason}") from error
        text = text.replace("\r\n", "\n")
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what, place, numbers = str(error).partition(" (at ")
            match = re.match(r"line (\d+)", numbers)
            line = int(match[1]) if match else text.count("\n") + 1
            raise InputError(f"{path}:{line}: {what}{place}{numbers}") from error
        return cls(name=str(path), data=data, lines=key_lines(text))

    def error(self, keys: KeyPath, message: str) -> InputError:
        return InputError(f"{self.place(keys)}: {message}")

    def place(self, keys: KeyPath) -> str:
        """`tune.toml:12: space.lr.low`; the line of the innermost table if the key itself is not there."""
        known = next((keys[:n] for n in range(len(keys), 0, -1) if keys[:n] in self.lines), ())
        return f"{self.name}:{self.lines.get(known, 1)}: {_dotted(keys)}" if keys else f"{self.name}:1"

    def at(self, keys: KeyPath) -> Any:
        value: Any = self.data
        for key in keys:
            value = value.get(key, {})
        return value

    def checked(self, keys: KeyPath, kinds: Mapping[str, Kind], *, needed: tuple[str, ...] = ()) -> dict[str, Any]:
        """The table at some keys, empty if there is none; InputError for keys or types that it should not have."""
        table = self.at(keys)
        if not isinstance(table, dict):
            raise self.error(keys, f"{table!r}: expected a table")
        for key, value in table.items():
            if key not in kinds:
                raise self.error((*keys, key), f"unknown key; expected one of {', '.join(kinds)}")
            if not kinds[key].holds(value):
                raise self.error((*keys, key), f"{value!r:.200}: expected {kinds[key].name}")
            if each := kinds[key].each:
                self.checked((*keys, key), dict.fromkeys(value, each))
        for key in needed:
            if key not in table:
                raise self.error((*keys, key), f"missing; expected {kinds[key].name}")
        return dict(table)


def _dotted(keys: KeyPath) -> str:
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            shown = key if re.fullmatch(r"[\w-]+", key) else repr(key)
            text += f".{shown}" if text else shown
    return text


def _fidelity(source: _Source, name: str) -> Fidelity:
    keys = ("fidelities", name)
    table = source.checked(keys, _FIDELITY, needed=("low", "high", "trace"))
    if name in KEYS:
        raise source.error(keys, f"this name has a meaning in the program's output, like {KEYS}; choose another")
    try:
        return Fidelity(table.pop("low"), table.pop("high"), **table)
    except SpaceError as error:
        raise source.error(keys, str(error)) from error


def _checked_space(source: _Source, tree: dict[str, Any]) -> Space:
    try:
        return Space(tree)
    except SpaceError as error:
        quoted = re.match(r"'([^']*)'", str(error))  # the parameter that it is about, if it begins with one
        keys = quoted[1].split(".") if quoted else []
        raise source.error(("space", *keys), str(error)) from error


def _group(source: _Source, keys: KeyPath) -> dict[str, Any]:
    """Parameters, constants and groups of them."""
    found: dict[str, Any] = {}
    for name, value in source.at(keys).items():
        here = (*keys, name)
        if not isinstance(value, dict):
            if not _is_scalar(value):
                raise source.error(here, f"{value!r:.200}: expected a table, or for a constant {SCALAR.name}")
            found[name] = value
        elif "type" in value and not isinstance(value["type"], dict):
            found[name] = _parameter(source, here)
        elif bare := [key for key in ("low", "high", "choices") if key in value and not isinstance(value[key], dict)]:
            raise source.error((*here, "type"), f"missing beside {bare[0]!r}; expected {_TYPE.name}")
        else:
            found[name] = _group(source, here)
    return found


def _parameter(source: _Source, keys: KeyPath) -> Any:
    kind = source.at(keys)["type"]
    if not _TYPE.holds(kind):
        raise source.error((*keys, "type"), f"{kind!r:.200}: expected {_TYPE.name}")
    shape = _PARAMETERS[kind]
    kinds = {"type": _TYPE, **shape.needed, **shape.more}
    table = source.checked(keys, kinds, needed=tuple(shape.needed))
    del table["type"]
    try:
        return shape.make(**table)
    except SpaceError as error:
        raise source.error(keys, str(error)) from error


def _placeholders(source: _Source, space: Space, fidelities: Mapping[str, Fidelity]) -> set[str]:
    """All names that the command may have in braces; InputError if two things have one name."""
    try:
        check_names(space, Fidelities(fidelities))
    except SpaceError as error:
        raise source.error(("fidelities",), str(error)) from error
    names = {*RESERVED, *(f"start.{name}" for name in fidelities)}
    for name in space.names:
        if name in names:
            raise source.error(
                ("space", *name.split(".")), f"the placeholder {{{name}}} means something else; rename it"
            )
    for name in fidelities:
        if name in names:
            raise source.error(("fidelities", name), f"the placeholder {{{name}}} means something else; rename it")
    return names | {*space.names, *fidelities}


def _program(source: _Source, fidelities: Mapping[str, Fidelity], names: set[str], folder: Path) -> ProgramTrain:
    table = source.checked(("program",), _PROGRAM, needed=("command",))
    for i, argument in enumerate(table["command"]):
        keys = ("program", "command", i)
        try:
            used = placeholders(argument)
        except InputError as error:
            raise source.error(keys, str(error)) from error
        if unknown := [name for name in used if name not in names]:
            raise source.error(
                keys, f"the placeholder {{{unknown[0]}}} is unknown; expected one of {', '.join(sorted(names))}"
            )
    cwd = folder / table.get("cwd", ".")
    if not cwd.is_dir():
        raise source.error(("program", "cwd"), f"{str(cwd)!r}: expected a directory that exists")
    traces = [name for name, fidelity in fidelities.items() if fidelity.trace]
    is_counted = len(traces) == 1 and fidelities[traces[0]].integer
    return ProgramTrain(
        command=tuple(table["command"]),
        counted=traces[0] if is_counted else None,
        cwd=str(cwd),
        env=table.get("env", {}),
    )


def _check_settings(source: _Source, settings: Mapping[str, Any]) -> None:
    names = {field.name for field in fields(Options)}
    try:
        Options(**{name: value for name, value in settings.items() if name in names})
    except InputError as error:
        raise source.error(("study", str(error).partition("=")[0]), str(error)) from error


def _located(storage: str, folder: Path) -> str:
    """A file relative to the folder; a server's URL as it is."""
    file = storage.removeprefix("sqlite:///")
    return storage if "://" in file else str(folder / Path(file).expanduser())
