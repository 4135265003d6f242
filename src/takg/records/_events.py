"""What can happen to a study. Stores keep these, in order; all else is a fold over them.

A **trial** is one training run of one configuration at fixed non-trace fidelities, trained further and further. An
**evaluation** is one leg of it: asked for once, carried out in one or more **attempts** (more if workers die), paid.
Fidelities are tuples in user units, in the order of the study's definition.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from takg.errors import InputError, StorageError

Config = Mapping[str, Any]
FidelityValues = tuple[float, ...]

FAILURES = ("error", "timeout", "killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An evaluation was decided on and given to a worker, as its first attempt."""

    evaluation: int
    trial: int
    target: FidelityValues
    worker: str
    time: float
    config: Config | None = None  # of a new trial; a continued one has its own
    start: FidelityValues | None = None  # where the checkpoint stands that it goes on from; None: from scratch
    kept: tuple[FidelityValues, ...] = ()  # of the trace, what the model wants to see; () leaves it to the model
    reason: Mapping[str, Any] = field(default_factory=dict)  # why this one: values, expected gain and cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An evaluation whose attempt was lost was given to a worker once more."""

    evaluation: int
    attempt: int
    worker: str
    time: float
    start: FidelityValues | None = None  # None: no checkpoint is left, so from scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One point of the trace; the value is the user's, NaN or infinite if training diverged."""

    evaluation: int
    attempt: int
    fidelity: FidelityValues
    value: float
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint was saved on the way; `copy` names the safe copy of it."""

    evaluation: int
    attempt: int
    fidelity: FidelityValues
    copy: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An attempt came to its end; the evaluation is paid and closed."""

    evaluation: int
    attempt: int
    cost: float  # in the study's unit
    seconds: float
    time: float
    has_checkpoint: bool = False  # the trial's directory holds the state at the last point reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An evaluation is given up: its training raised, took too long, or its workers died again and again."""

    evaluation: int
    attempt: int
    kind: str  # one of FAILURES
    message: str
    cost: float
    seconds: float
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An attempt is over without an end: its worker died or fell silent. It will be given again."""

    evaluation: int
    attempt: int
    reason: str
    time: float
    is_suspect: bool = False  # the training itself may have killed its worker, say by using up the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A trial will not be continued; its checkpoint may be deleted."""

    trial: int
    reason: str
    time: float


Event = Asked | Given | Observed | Saved | Finished | Failed | Lost | Dropped

_KINDS: dict[str, type[Event]] = {
    "asked": Asked,
    "given": Given,
    "observed": Observed,
    "saved": Saved,
    "finished": Finished,
    "failed": Failed,
    "lost": Lost,
    "dropped": Dropped,
}
_AT_ONCE = 500  # rows in one call of the parser; more of them would only keep the garbage collector busy
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(one.name for one in fields(kind)) for kind in _NAMES}


def encoded(event: Event) -> tuple[str, str]:
    """The kind of an event and all else as strict JSON; InputError if it holds what JSON cannot keep.

    What JSON has no word for is an object with one key: `{"$float": "nan"}`, `{"$tuple": [...]}`. A user's own
    object with one key that begins with `$` gets one more `$`.
    """
    kind = type(event)
    try:
        if isinstance(event, Observed):  # nearly all events are of this kind: a short list is read thrice as fast
            numbers = (event.evaluation, event.attempt, event.time, event.value, *event.fidelity)
            if all(map(math.isfinite, numbers)):
                return "observed", _to_json(numbers)
        return _NAMES[kind], _to_json({name: _plain(getattr(event, name)) for name in _FIELDS[kind]})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"event={event!r:.500}: cannot be written as JSON: {error}") from error


def decoded(rows: Sequence[tuple[str, str]]) -> list[Event]:
    """The events that `encoded` wrote."""
    events: list[Event] = []
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        try:
            data = _from_json(f"[{','.join([text for _, text in part])}]")
            events += [
                _observed(*one) if kind == "observed" and type(one) is list else _event(kind, one)
                for (kind, _), one in zip(part, data, strict=True)
            ]
        except (TypeError, ValueError, RecursionError) as error:
            raise StorageError(f"the log is damaged: {_damage(part, error, before=start)}") from error
    return events


def _plain(value: Any) -> Any:
    """As `json` can write it and `_object` read it back to the very same."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, tuple):
        return {"$tuple": [_plain(one) for one in value]}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.100} is of type {type(value).__name__}")
    if other := [key for key in value if not isinstance(key, str)]:
        raise TypeError(f"the key {other[0]!r:.100} is not a string")
    escape = "$" if len(value) == 1 and next(iter(value)).startswith("$") else ""
    return {escape + key: _plain(one) for key, one in value.items()}


def _object(data: dict[str, Any]) -> Any:
    if len(data) != 1 or not (key := next(iter(data))).startswith("$"):
        return data
    if key.startswith("$$"):
        return {key[1:]: data[key]}
    if key == "$tuple":
        return tuple(data[key])
    if key == "$float":
        return float(data[key])
    raise ValueError(f"{key!r} is no type that takg knows")


_to_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_from_json = json.JSONDecoder(object_hook=_object).decode

# A frozen dataclass sets its fields in Python, one by one; its slots can be set in C, which halves the time.
_set_evaluation, _set_attempt, _set_fidelity, _set_value, _set_time = (
    vars(Observed)[name].__set__ for name in ("evaluation", "attempt", "fidelity", "value", "time")
)


def _observed(evaluation: int, attempt: int, time: float, value: float, *fidelity: float) -> Observed:
    event = object.__new__(Observed)
    _set_evaluation(event, evaluation)
    _set_attempt(event, attempt)
    _set_fidelity(event, fidelity)
    _set_value(event, value)
    _set_time(event, time)
    return event


def _event(kind: str, data: Any) -> Event:
    if kind not in _KINDS:
        raise ValueError(f"an event of kind {kind!r}; expected one of {sorted(_KINDS)}")
    if not isinstance(data, dict):
        raise ValueError(f"an event of kind {kind!r} is not a JSON object")
    return _KINDS[kind](**data)


def _damage(rows: Sequence[tuple[str, str]], error: Exception, *, before: int) -> str:
    """What is wrong with which row, for a message."""
    if len(rows) > 1:
        for number, row in enumerate(rows, start=before + 1):
            try:
                decoded([row])
            except StorageError as first:
                return f"event {number} of those read: {first.__cause__}"
    return str(error)
