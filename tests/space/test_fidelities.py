"""Fidelities in the user's units and as s."""

import copy
import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takg import gp
from takg.errors import SpaceError
from takg.space import FIDELITY_KERNELS, Fidelities, Fidelity, Float, Space, check_names

laws = settings(deadline=None, derandomize=True, max_examples=150)
EPOCHS, DATA, SIZE = Fidelity(1, 20, trace=True), Fidelity(500, 50_000, trace=False), Fidelity(0.1, 0.7, trace=False)
BOTH = Fidelities({"epochs": EPOCHS, "data": DATA})


def test_the_kernels_are_those_of_the_model() -> None:
    assert FIDELITY_KERNELS == gp.FIDELITY_KERNELS


def test_a_fidelity_is_of_integers_if_its_bounds_are_and_has_the_kernel_of_its_sort() -> None:
    assert (EPOCHS.integer, EPOCHS.kernel, DATA.kernel) == (True, "curve", "size")
    assert (Fidelity(1, 2.0, trace=True).integer, SIZE.integer) == (False, False)
    assert Fidelity(1, 2, trace=True, integer=False).low.hex() == (1.0).hex()
    whole = Fidelity(1.0, 3.0, trace=True, integer=True, kernel="smooth")
    assert (type(whole.high), whole.high, whole.kernel) == (int, 3, "smooth")


@pytest.mark.parametrize(
    ("fidelity", "text"),
    [
        (EPOCHS, "Fidelity(1, 20, trace=True)"),
        (Fidelity(1, 3, trace=False, integer=False), "Fidelity(1.0, 3.0, trace=False)"),
        (Fidelity(1.0, 3.0, trace=True, integer=True), "Fidelity(1, 3, trace=True)"),
        (Fidelity(0.5, 3, trace=True, kernel="smooth"), "Fidelity(0.5, 3.0, trace=True, kernel='smooth')"),
        (BOTH, "Fidelities({'epochs': Fidelity(1, 20, trace=True), 'data': Fidelity(500, 50000, trace=False)})"),
    ],
)
def test_a_repr_is_what_one_would_write_and_copies_are_equal(fidelity, text) -> None:
    assert repr(fidelity) == text
    assert eval(text) == fidelity
    assert pickle.loads(pickle.dumps(fidelity)) == copy.deepcopy(fidelity) == fidelity


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fidelity(2, 2, trace=True), r"Fidelity\(2, 2\): expected 0 <= low < high"),
        (lambda: Fidelity(-1, 2, trace=True), r"Fidelity\(-1, 2\): expected 0 <= low < high"),
        (lambda: Fidelity(0.5, math.inf, trace=True), r"\(0.5, inf\): expected low and high to be finite numbers"),
        (lambda: Fidelity(1, True, trace=True), "expected low and high to be finite numbers"),
        (lambda: Fidelity(0.5, 2, trace=True, integer=True), r"\(0.5, 2\): expected low and high to be integers"),
        (lambda: Fidelity(1, math.nan, trace=True, integer=True), "expected low and high to be integers"),
        (lambda: Fidelity(1, 2**51, trace=True), r"expected high up to 2\*\*50; use integer=False"),
        (lambda: Fidelity(1, 2, trace=1), r"trace=1, integer=None; expected True or False"),
        (lambda: Fidelity(1, 2, trace=True, integer="no"), r"integer='no'; expected True or False"),
        (lambda: Fidelity(1, 2, trace=True, kernel="rbf"), r"kernel='rbf'; expected one of \('curve', 'data_size'"),
        (lambda: Fidelities([EPOCHS]), "fidelities is a list; expected a dict of names and Fidelity"),
        (lambda: Fidelities({"a": 3}), r"fidelity 'a' is 3; expected a Fidelity\(low, high, trace=...\)"),
        (lambda: Fidelities({"": EPOCHS}), "the fidelity's name ''; expected a name"),
        (lambda: Fidelities({"a.b": EPOCHS}), "the fidelity's name 'a.b' contains a dot"),
        (lambda: Fidelities({"a\t": EPOCHS}), r"the fidelity's name 'a\\t' contains control characters"),
        (lambda: Fidelities(dict.fromkeys("abcde", EPOCHS)), r"5 fidelities, \['a', 'b', .*; expected at most 4"),
    ],
)
def test_a_definition_without_meaning_is_refused(make, message) -> None:
    with pytest.raises(SpaceError, match=message):
        make()


def test_names_dims_least_and_full_follow_the_order() -> None:
    fidelities = Fidelities({"data": DATA, "epochs": EPOCHS, "size": SIZE})
    assert (fidelities.names, fidelities.m) == (("data", "epochs", "size"), 3)
    assert (fidelities.trace_names, fidelities.trace_dims) == (("epochs",), (1,))
    assert fidelities.kernels == ("size", "curve", "size")
    assert fidelities.least == (0.01, 0.05, 0.1 / 0.7)
    assert fidelities.full == {"data": 50_000, "epochs": 20, "size": 0.7}
    assert fidelities.fidelities["epochs"] == EPOCHS
    assert fidelities.from_unit(fidelities.least) == {"data": 500, "epochs": 1, "size": 0.1}
    assert fidelities.to_unit(fidelities.full) == (1.0, 1.0, 1.0)


def test_without_fidelities_everything_is_empty() -> None:
    none = Fidelities({})
    assert (none.m, none.names, none.trace_dims, none.least, none.full) == (0, (), (), (), {})
    assert (none.to_unit({}), none.from_unit(())) == ((), {})
    assert Fidelities.from_json(none.to_json()) == none


def test_s_is_the_value_over_high() -> None:
    assert BOTH.to_unit({"data": 500, "epochs": 3}) == (3 / 20, 500 / 50_000)
    assert BOTH.to_unit({"data": 123, "epochs": 3.0}) == (3 / 20, 123 / 50_000)
    assert BOTH.to_unit({"data": 0, "epochs": 0}) == (0.0, 0.0)


def test_integers_are_rounded_to_the_nearest_and_stay_above_low() -> None:
    values = BOTH.from_unit((0.174, 0.001))
    assert values == {"epochs": 3, "data": 500}
    assert [type(value) for value in values.values()] == [int, int]
    assert BOTH.from_unit((0.176, 1 + 1e-10)) == {"epochs": 4, "data": 50_000}
    assert Fidelities({"size": SIZE}).from_unit((0.01,)) == {"size": 0.1}
    assert Fidelities({"size": SIZE}).from_unit((0.5,)) == {"size": 0.35}


@laws
@given(st.data(), st.integers(1, 2**50))
def test_every_integer_comes_back(data, high) -> None:
    fidelities = Fidelities({"n": Fidelity(0, high, trace=True)})
    value = data.draw(st.integers(0, high))
    assert fidelities.from_unit(fidelities.to_unit({"n": value})) == {"n": value}


@laws
@given(st.floats(0.01, 1e6), st.floats(1e-9, 1.0))
def test_a_continuous_value_with_15_digits_comes_back_and_any_is_stable_after_one_round(high, share) -> None:
    high = float(f"{high:.14e}")
    fidelities = Fidelities({"n": Fidelity(0.0, high, trace=True)})
    value = min(float(f"{share * high:.14e}"), high)
    assert fidelities.from_unit(fidelities.to_unit({"n": value})) == {"n": value}
    once = fidelities.from_unit((share,))
    assert fidelities.from_unit(fidelities.to_unit(once)) == once
    assert once["n"] == pytest.approx(share * high, rel=1e-15)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 3}, r"fidelities \['data'\] are missing; expected \('epochs', 'data'\)"),
        ({"epochs": 3, "data": 9, "x": 1}, r"fidelities \['x'\] are unknown; expected \('epochs', 'data'\)"),
        ({"epochs": 21, "data": 9}, "epochs=21; expected an integer above 0 and at most 20"),
        ({"epochs": -1, "data": 9}, "epochs=-1; expected an integer above 0"),
        ({"epochs": 2.5, "data": 9}, "epochs=2.5; expected an integer above 0"),
        ({"epochs": True, "data": 9}, "epochs=True; expected an integer"),
        ({"epochs": 2, "data": "9"}, "data='9'; expected an integer above 0 and at most 50000"),
        ({"epochs": 2, "data": math.nan}, "data=nan; expected an integer"),
        ([3, 9], r"the fidelities are \[3, 9\]; expected a dict with \('epochs', 'data'\)"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values, message) -> None:
    for function in (BOTH.check, BOTH.to_unit):
        with pytest.raises(SpaceError, match=message):
            function(values)


def test_a_report_may_lie_below_low_and_a_target_may_not() -> None:
    BOTH.check({"epochs": 1, "data": 9})
    BOTH.check({"epochs": 1, "data": 500}, target=True)
    with pytest.raises(SpaceError, match="data=9; expected an integer at least 500 and at most 50000"):
        BOTH.check({"epochs": 1, "data": 9}, target=True)
    with pytest.raises(SpaceError, match="data=0; expected an integer above 0 and at most 50000"):
        BOTH.check({"epochs": 1, "data": 0})
    with pytest.raises(SpaceError, match=r"size=0; expected a number above 0 and at most 2\.0"):
        Fidelities({"size": Fidelity(0.0, 2.0, trace=True)}).check({"size": 0}, target=True)


@pytest.mark.parametrize(
    ("s", "message"),
    [
        ((0.5,), r"s has 1 components; expected 2, one for each of \('epochs', 'data'\)"),
        ((0.5, 1.1), r"s of 'data' is 1.1; expected a number in \[0, 1\]"),
        ((math.nan, 1), r"s of 'epochs' is nan; expected a number in \[0, 1\]"),
    ],
)
def test_s_outside_the_cube_is_refused(s, message) -> None:
    with pytest.raises(SpaceError, match=message):
        BOTH.from_unit(s)


def test_steps_are_the_values_still_to_train_for() -> None:
    assert list(BOTH.steps("epochs", None, 3)) == list(BOTH.steps("epochs", 0, 3)) == [1, 2, 3]
    assert list(BOTH.steps("epochs", 3, 5)) == [4, 5]
    assert list(BOTH.steps("epochs", 5, 5)) == []


@pytest.mark.parametrize(
    ("fidelities", "arguments", "message"),
    [
        (BOTH, ("epoch", 1, 2), r"fidelity 'epoch' is unknown; expected one of \('epochs', 'data'\)"),
        (BOTH, ("epochs", 3, 2), "steps of 'epochs' from start=3 to target=2; expected start <= target"),
        (BOTH, ("epochs", None, 21), "target=21; expected an integer above 0 and at most 20"),
        (BOTH, ("epochs", None, 0), "target=0; expected an integer above 0"),
        (BOTH, ("epochs", -1, 2), "start=-1; expected an integer above 0"),
        (BOTH, ("epochs", 0.5, 2), "start=0.5; expected an integer"),
        (Fidelities({"size": SIZE}), ("size", None, 0.5), r"'size' has no steps, as it is continuous: Fidelity\(0.1"),
    ],
)
def test_steps_that_mean_nothing_are_refused(fidelities, arguments, message) -> None:
    with pytest.raises(SpaceError, match=message):
        fidelities.steps(*arguments)


def test_a_name_means_one_thing_in_a_study() -> None:
    check_names(Space({"lr": Float(0, 1), "g": {"epochs": 3}}), BOTH)
    for space in (Space({"epochs": Float(0, 1)}), Space({"epochs": {"x": 1}})):
        with pytest.raises(
            SpaceError, match=r"\['epochs'\] are names in the space and of fidelities; expected distinct"
        ):
            check_names(space, BOTH)


def test_fidelities_come_back_from_json_text_in_their_order() -> None:
    smooth = Fidelity(0, 3, trace=True, integer=False, kernel="smooth")
    fidelities = Fidelities({"b": DATA, "a": EPOCHS, "size": SIZE, "z": smooth})
    back = Fidelities.from_json(json.loads(json.dumps(fidelities.to_json(), allow_nan=False, sort_keys=True)))
    assert back == fidelities
    assert hash(back) == hash(fidelities)
    assert (back.names, repr(back)) == (fidelities.names, repr(fidelities))
    assert Fidelities({"a": EPOCHS, "b": DATA}) != Fidelities({"b": DATA, "a": EPOCHS})
    assert Fidelities({"a": EPOCHS}) != {"a": EPOCHS}
    assert Fidelities({"a": EPOCHS}).to_json() == {
        "fidelities": [
            {"name": "a", "low": 1, "high": 20, "trace": True, "integer": True, "kernel": "curve"},
        ]
    }


ENTRY = BOTH.to_json()["fidelities"][0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "the JSON of fidelities has 3; expected one key, 'fidelities', that holds a list"),
        ({"fidelities": [], "x": 1}, r"has \['fidelities', 'x'\]; expected one key"),
        ({"fidelities": None}, r"has \['fidelities'\]; expected one key, 'fidelities', that holds a list"),
        ({"fidelities": [{"low": 1}]}, r"a fidelity in JSON is \{'low': 1\}; expected an object with a 'name'"),
        ({"fidelities": [{**ENTRY, "unit": 1}]}, r"fidelity 'epochs' has the unknown keys \['unit'\]; drop them"),
        ({"fidelities": [{"name": "a", "low": 1}]}, r"fidelity 'a' lacks \['high', 'trace', 'integer', 'kernel'\]"),
        ({"fidelities": [{**ENTRY, "low": 30}]}, r"fidelity 'epochs': Fidelity\(30, 20\): expected 0 <= low < high"),
        ({"fidelities": [ENTRY, ENTRY]}, "fidelity 'epochs' is there twice; expected distinct names"),
    ],
)
def test_json_that_is_no_fidelities_is_refused(data, message) -> None:
    with pytest.raises(SpaceError, match=message):
        Fidelities.from_json(data)
