"""Events as JSON and back."""

import json
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.errors import InputError, StorageError
from takg.records import (
    FAILURES,
    Asked,
    Dropped,
    Event,
    Failed,
    Finished,
    Given,
    Lost,
    Observed,
    Saved,
    decoded,
    encoded,
)

laws = settings(deadline=None, derandomize=True)
numbers = st.integers(0, 10**6)
floats = st.floats()
texts = st.text(max_size=20)
fidelities = st.lists(st.floats() | st.integers(), max_size=3).map(tuple)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.sampled_from(["$float", "$tuple", "$$", "$"]), inner, max_size=3)
    ),
    max_leaves=8,
)
configs = st.dictionaries(texts, values, max_size=4)
leg = {"evaluation": numbers, "attempt": numbers, "time": floats}
points = st.builds(Observed, **leg, fidelity=fidelities, value=floats | st.integers())
events = st.one_of(
    st.builds(
        Asked,
        evaluation=numbers,
        trial=numbers,
        target=fidelities,
        worker=texts,
        time=floats,
        config=st.none() | configs,
        start=st.none() | fidelities,
        kept=st.lists(fidelities, max_size=3).map(tuple),
        reason=configs,
    ),
    st.builds(Given, **leg, worker=texts, start=st.none() | fidelities),
    points,
    st.builds(Saved, **leg, fidelity=fidelities, copy=texts),
    st.builds(Finished, **leg, cost=floats, seconds=floats, has_checkpoint=st.booleans()),
    st.builds(Failed, **leg, kind=st.sampled_from(FAILURES), message=texts, cost=floats, seconds=floats),
    st.builds(Lost, **leg, reason=texts),
    st.builds(Dropped, trial=numbers, reason=texts, time=floats),
)


def strictly(text: str) -> Any:
    """JSON as other languages read it, without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@laws
@given(st.lists(events, max_size=8))
def test_events_come_back_exactly(history: list[Event]) -> None:
    rows = [encoded(event) for event in history]
    assert repr(decoded(rows)) == repr(history)  # types, the sign of zero and NaN, which equality does not see
    for _, text in rows:
        strictly(text)
        assert text.isascii()


@laws
@given(st.lists(points | events, min_size=1, max_size=40), st.integers(1, 40))
def test_rows_may_be_read_in_parts(history: list[Event], cut: int) -> None:
    rows = [encoded(event) for event in history] * 30  # more than are parsed at once
    assert repr(decoded(rows[:cut]) + decoded(rows[cut:])) == repr(history * 30)


def test_nothing_is_decoded_to_nothing() -> None:
    assert decoded([]) == []


def test_a_point_is_a_short_list_of_numbers() -> None:
    point = Observed(evaluation=3, attempt=1, fidelity=(2, 0.5), value=0.25, time=7.5)
    assert encoded(point) == ("observed", "[3,1,7.5,0.25,2,0.5]")


def test_a_decoded_point_is_frozen_like_any_other() -> None:
    [point] = decoded([("observed", "[3,1,7.5,0.25,2,0.5]")])
    assert hash(point) == hash(Observed(evaluation=3, attempt=1, fidelity=(2, 0.5), value=0.25, time=7.5))
    with pytest.raises(AttributeError, match="cannot assign to field 'value'"):
        point.value = 1.0  # type: ignore[misc, union-attr]


def test_values_without_a_json_form_are_tagged() -> None:
    config = {"a": math.nan, "b": (1, -math.inf), "c": "nan", "d": {"$tuple": 1}, "e": {"$tuple": 1, "x": 2}}
    _, text = encoded(Asked(evaluation=0, trial=0, target=(1.0,), worker="w", time=0.0, config=config))
    assert strictly(text)["config"] == {
        "a": {"$float": "nan"},
        "b": {"$tuple": [1, {"$float": "-inf"}]},
        "c": "nan",
        "d": {"$$tuple": 1},
        "e": {"$tuple": 1, "x": 2},
    }


def test_any_mapping_is_kept_as_a_dict() -> None:
    config = MappingProxyType({"a": MappingProxyType({"b": 1})})
    [event] = decoded([encoded(Asked(evaluation=0, trial=0, target=(1.0,), worker="w", time=0.0, config=config))])
    assert isinstance(event, Asked)
    assert event.config == {"a": {"b": 1}}


class Model:
    def __repr__(self) -> str:
        return "Model()"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"a": Model()}, r"Model\(\) is of type Model"),
        ({"a": [{"b": {1, 2}}]}, r"\{1, 2\} is of type set"),
        ({"a": b"x"}, "is of type bytes"),
        ({"a": 1j}, "is of type complex"),
        ({1: "a"}, "the key 1 is not a string"),
        ({"a": {None: 1}}, "the key None is not a string"),
    ],
)
def test_what_json_cannot_keep_is_refused_by_name(config: Any, match: str) -> None:
    with pytest.raises(InputError, match=rf"event=Asked\(.*cannot be written as JSON: .*{match}"):
        encoded(Asked(evaluation=0, trial=0, target=(1.0,), worker="w", time=0.0, config=config))


@pytest.mark.parametrize("value", [None, "0.5", 1j, Model(), [0.5]])
def test_a_value_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"event=Observed\(.*cannot be written as JSON"):
        encoded(Observed(evaluation=0, attempt=1, fidelity=(1.0,), value=value, time=0.0))


def test_something_else_than_an_event_is_refused() -> None:
    @dataclass
    class Stopped:
        time: float = 0.0

    event: Any = Stopped()
    with pytest.raises(InputError, match=r"event=.*Stopped.*cannot be written as JSON"):
        encoded(event)


GOOD = ("lost", '{"evaluation": 0, "attempt": 1, "reason": "", "time": 0.0}')


@pytest.mark.parametrize(
    ("kind", "text", "match"),
    [
        ("observed", "[1, 2", "Expecting"),
        ("observed", "", "Expecting|rows|argument"),
        ("observed", "[1, 2, 3]", "missing 1 required positional argument"),
        ("observed", "[1, 1, 0.5, 0.5, 1], [1, 1, 0.5, 0.5, 1]", "shorter|longer"),
        ("observed", "3", "not a JSON object"),
        ("observed", "null", "not a JSON object"),
        ("lost", "[1, 1, 0.5]", "'lost' is not a JSON object"),
        ("lost", "{}", "missing 4 required"),
        (
            "lost",
            '{"evaluation": 0, "attempt": 1, "reason": "", "time": 0.0, "x": 1}',
            "unexpected keyword argument 'x'",
        ),
        ("lost", '{"evaluation": {"$set": []}, "attempt": 1, "reason": "", "time": 0.0}', r"'\$set' is no type"),
        ("lost", '{"evaluation": {"$float": "x"}, "attempt": 1, "reason": "", "time": 0.0}', "could not convert"),
        ("lost", '{"evaluation": {"$tuple": 3}, "attempt": 1, "reason": "", "time": 0.0}', "not iterable"),
        ("lost", "[" * 100_000, "Expecting|recursion"),
        ("Lost", GOOD[1], "an event of kind 'Lost'; expected one of .*'lost'"),
        ("continued", "{}", "an event of kind 'continued'; expected one of"),
    ],
)
def test_damaged_rows_are_named(kind: str, text: str, match: str) -> None:
    with pytest.raises(StorageError, match=f"the log is damaged: .*({match})"):
        decoded([(kind, text)])
    with pytest.raises(StorageError, match=f"the log is damaged: event 701 of those read: .*({match})"):
        decoded([GOOD] * 700 + [(kind, text)] + [GOOD] * 2)
