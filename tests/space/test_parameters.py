"""Single parameters against exact fractions, 50-digit logarithms and bins written out."""

import copy
import json
import math
import pickle
import subprocess
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from takg.errors import SpaceError
from takg.space import Categorical, Constant, Float, Int, Ordinal

laws = settings(deadline=None, derandomize=True, max_examples=150)
finite = st.floats(allow_nan=False, allow_infinity=False)
unit = st.floats(0, 1)
TINY, HUGE = 5e-324, sys.float_info.max
RANGES = [
    (0.0, 1.0),
    (-1.0, 1.0),
    (0.3, 7.0),
    (-2.5, 0.7),
    (-1e308, 1e308),
    (-HUGE, HUGE),
    (TINY, 7 * TINY),
    (-3e-310, 5e-311),
    (1.9, math.nextafter(1.9, 2)),
    (1e6, 1e6 + 1e-3),
]
LOG_RANGES = [
    (1e-6, 1.0),
    (0.5, 0.99),
    (3e-5, 8e20),
    (TINY, 7 * TINY),
    (TINY, HUGE),
    (1e300, HUGE),
    (1.9, math.nextafter(1.9, 2)),
    (1.9, 1.9 + 1e-13),
]


@st.composite
def floats(draw, *, log=None):
    """A Float of any range, plain or famous for rounding."""
    log = draw(st.booleans()) if log is None else log
    number = st.floats(TINY, HUGE) if log else finite
    pair = st.tuples(number, number).filter(lambda pair: pair[0] != pair[1]).map(sorted)
    close = number.filter(lambda low: low < 1e308).flatmap(
        lambda low: st.integers(1, 40).map(lambda k: (low, low + k * math.ulp(low)))
    )
    low, high = draw(st.sampled_from(LOG_RANGES if log else RANGES) | pair | close)
    return Float(low, high, log=log)


def inside(parameter):
    return st.floats(parameter.low, parameter.high)


def is_hidden_by_an_end(parameter, value):
    """So close to an end, itself given to many digits, that no coordinate can tell them apart."""
    ends = (parameter.low, parameter.high)
    return value not in ends and parameter.to_unit(value) in map(parameter.to_unit, ends)


def test_the_module_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, takg.space; print({'torch', 'numpy', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@laws
@given(st.data(), floats(log=False))
def test_a_linear_coordinate_is_the_share_of_the_range_below_the_value(data, parameter) -> None:
    value = data.draw(inside(parameter))
    exact = (Fraction(value) - Fraction(parameter.low)) / (Fraction(parameter.high) - Fraction(parameter.low))
    assert abs(Fraction(parameter.to_unit(value)[0]) - exact) <= Fraction(4e-16)


@laws
@given(st.data(), floats(log=True))
def test_a_log_coordinate_is_the_share_of_the_logarithm(data, parameter) -> None:
    value = data.draw(inside(parameter))
    with localcontext() as context:
        context.prec = 50
        low, at, high = (Decimal(v).ln() for v in (parameter.low, value, parameter.high))
        exact = (at - low) / (high - low)
        assert abs(Decimal(parameter.to_unit(value)[0]) - exact) <= Decimal("1e-15")


@laws
@given(st.data(), floats())
def test_a_larger_value_has_no_smaller_coordinate(data, parameter) -> None:
    small, large = sorted(data.draw(st.tuples(inside(parameter), inside(parameter))))
    assert 0 <= parameter.to_unit(small)[0] <= parameter.to_unit(large)[0] <= 1


@laws
@given(floats())
def test_both_ends_have_the_end_coordinates_and_come_back(parameter) -> None:
    assert (parameter.to_unit(parameter.low), parameter.to_unit(parameter.high)) == ((0.0,), (1.0,))
    assert (parameter.from_unit((0.0,)), parameter.from_unit((1.0,))) == (parameter.low, parameter.high)


@laws
@given(floats(), unit)
@example(Float(-1.0, 1.0), 0.5)
@example(Float(1e-6, 1.0, log=True), 1 - 2**-53)
def test_a_float_that_was_handed_out_comes_back_bit_for_bit(parameter, u) -> None:
    value = parameter.from_unit((u,))
    own = parameter.to_unit(value)
    assert parameter.low <= value <= parameter.high
    assert parameter.from_unit(own).hex() == value.hex()
    assert parameter.to_unit(parameter.from_unit(own)) == own


@laws
@given(st.data(), floats())
def test_any_float_keeps_its_coordinate_and_is_stable_after_one_round(data, parameter) -> None:
    u = parameter.to_unit(data.draw(inside(parameter)))
    value = parameter.from_unit(u)
    assert parameter.to_unit(value) == u
    assert parameter.from_unit(parameter.to_unit(value)).hex() == value.hex()


@laws
@given(st.data(), floats())
def test_what_is_handed_out_is_the_closest_there_is(data, parameter) -> None:
    u = data.draw(unit)
    (own,) = parameter.to_unit(parameter.from_unit((u,)))
    for other in (parameter.low, parameter.high, data.draw(inside(parameter))):
        assert abs(own - u) <= abs(parameter.to_unit(other)[0] - u)


@laws
@given(st.data(), floats(log=False))
def test_a_value_with_14_places_below_the_size_of_a_linear_range_comes_back_bit_for_bit(data, parameter) -> None:
    with localcontext() as context:
        context.prec = 1300
        span = Decimal(parameter.high) - Decimal(parameter.low)
        place = Decimal(1).scaleb(span.adjusted() - 14)
        value = float(Decimal(data.draw(inside(parameter))).quantize(place)) + 0.0
    assume(parameter.low <= value <= parameter.high and not is_hidden_by_an_end(parameter, value))
    assert parameter.from_unit(parameter.to_unit(value)).hex() == value.hex()


@laws
@given(st.data(), floats(log=True))
def test_a_value_with_12_digits_on_any_log_scale_comes_back_bit_for_bit(data, parameter) -> None:
    value = float(f"{data.draw(inside(parameter)):.11e}")
    assume(parameter.low <= value <= parameter.high and not is_hidden_by_an_end(parameter, value))
    assert parameter.from_unit(parameter.to_unit(value)).hex() == value.hex()


@laws
@given(st.floats(1e-6, 1.0))
def test_a_learning_rate_with_14_digits_comes_back_bit_for_bit(value) -> None:
    parameter = Float(1e-6, 1.0, log=True)
    value = min(max(float(f"{value:.13e}"), 1e-6), 1.0)
    assert parameter.from_unit(parameter.to_unit(value)).hex() == value.hex()


@laws
@given(st.just(0.0) | st.floats(2.0**-900, 1.0), st.integers(-30, 30))
def test_every_float_of_a_range_from_zero_to_a_power_of_two_comes_back_bit_for_bit(value, power) -> None:
    parameter = Float(0, 2.0**power)
    assert parameter.from_unit(parameter.to_unit(value * 2.0**power)) == value * 2.0**power


@pytest.mark.parametrize(("low", "high"), [(1.9, 1.9 + 9 * math.ulp(1.9)), (TINY, 10 * TINY)])
@pytest.mark.parametrize("log", [False, True])
def test_every_float_of_a_range_with_ten_of_them_comes_back(low, high, log) -> None:
    parameter = Float(low, high, log=log)
    values = [low + k * math.ulp(low) for k in range(10)]
    assert [parameter.from_unit(parameter.to_unit(value)) for value in values] == values


def test_a_float_is_handed_out_with_as_few_digits_as_its_coordinate_needs() -> None:
    assert Float(1e-6, 1.0, log=True).from_unit((0.5,)) == 0.001
    assert Float(-1.0, 1.0).from_unit((0.5,)).hex() == (0.0).hex()
    assert Float(-1.0, 1.0).from_unit(Float(-1.0, 1.0).to_unit(1e-300)) == 0.0
    assert Float(1e-6, 1.0, log=True).from_unit((math.log(0.02e6) / math.log(1e6),)) == 0.02


def test_a_default_and_an_end_come_back_though_shorter_neighbours_share_their_coordinate() -> None:
    third = math.nextafter(1 / 3, 1)
    plain = Float(1e-6, 1.0, log=True)
    assert plain.from_unit(plain.to_unit(third)) != third
    chosen = Float(1e-6, 1.0, log=True, default=third)
    assert chosen.from_unit(chosen.to_unit(third)) == third
    assert Float(1e-6, third, log=True).from_unit((1.0,)) == third


@pytest.mark.parametrize(("low", "high"), [(-3, 7), (0, 1), (10**18, 10**18 + 5), (0, 2**40 - 1)])
def test_each_integer_has_the_same_share_and_lies_in_the_middle_of_it(low, high) -> None:
    parameter, n = Int(low, high), high - low + 1
    for i in {0, 1, n // 3, n // 2, n - 1}:
        centre = float(Fraction(2 * i + 1, 2 * n))
        assert parameter.to_unit(low + i) == (pytest.approx(centre, rel=1e-15),)
        for u in (centre, float(Fraction(100 * i + 1, 100 * n)), float(Fraction(100 * i + 99, 100 * n))):
            assert parameter.from_unit((u,)) == low + i
    assert (parameter.from_unit((0.0,)), parameter.from_unit((1.0,))) == (low, high)


@pytest.mark.parametrize(("low", "high"), [(1, 9), (32, 1024), (5, 6), (1, 2**40)])
def test_log_bins_are_as_wide_as_the_logarithm_of_their_edges(low, high) -> None:
    parameter = Int(low, high, log=True)
    with localcontext() as context:
        context.prec = 50

        def edge(value: int) -> Decimal:
            first, at, last = (Decimal(2 * v - 1).ln() for v in (low, value, high + 1))
            return (at - first) / (last - first)

        for value in {low, low + 1, (low + high) // 2, high - 1, high}:
            a, b = edge(value), edge(value + 1)
            assert float((a + b) / 2) == pytest.approx(parameter.to_unit(value)[0], abs=4e-16)
            for share in (Decimal("0.05"), Decimal("0.5"), Decimal("0.95")):
                assert parameter.from_unit((float(a + share * (b - a)),)) == value
    assert (parameter.from_unit((0.0,)), parameter.from_unit((1.0,))) == (low, high)


@laws
@given(st.data(), st.booleans(), st.integers(1, 2**40 - 1))
def test_every_integer_comes_back(data, log, low) -> None:
    parameter = Int(low, data.draw(st.integers(low + 1, 2**40)), log=log)
    value = data.draw(st.integers(parameter.low, parameter.high))
    assert parameter.from_unit(parameter.to_unit(value)) == value


def test_three_or_more_categories_are_one_hot_and_the_largest_wins() -> None:
    parameter = Categorical(["a", None, 2.5, True])
    assert parameter.d == 4
    assert parameter.to_unit(2.5) == (0.0, 0.0, 1.0, 0.0)
    assert parameter.from_unit((0.1, 0.7, 0.2, 0.6)) is None
    assert parameter.from_unit((0.2, 0.7, 0.1, 0.7)) is None
    assert parameter.from_unit((0.0, 0.0, 0.0, 0.0)) == "a"


def test_two_categories_share_a_coordinate_and_one_has_none() -> None:
    pair, single = Categorical(["sgd", "adam"]), Categorical(["sgd"])
    assert (pair.d, pair.to_unit("sgd"), pair.to_unit("adam")) == (1, (0.0,), (1.0,))
    assert [pair.from_unit((u,)) for u in (0.0, 0.5, math.nextafter(0.5, 1), 1.0)] == ["sgd", "sgd", "adam", "adam"]
    assert (single.d, single.to_unit("sgd"), single.from_unit(())) == (0, (), "sgd")


def test_ordinal_choices_are_equally_spaced_on_one_coordinate() -> None:
    parameter = Ordinal(["low", "mid", "high", "top", "over"])
    assert parameter.d == 1
    assert [parameter.to_unit(choice)[0] for choice in parameter.choices] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    chosen = [parameter.from_unit((u,)) for u in (0.0, 0.19, 0.21, 0.59, 0.61, 1.0)]
    assert chosen == ["low", "low", "mid", "high", "top", "over"]
    assert (Ordinal([3]).d, Ordinal([3]).to_unit(3), Ordinal([3]).from_unit(()), Ordinal([3]).usual) == (0, (), 3, 3)


def test_choices_that_python_calls_equal_are_told_apart_by_type() -> None:
    for kind in (Categorical, Ordinal):
        parameter = kind([True, 1, 1.0, "1"])
        for choice in parameter.choices:
            back = parameter.from_unit(parameter.to_unit(choice))
            assert (type(back), back) == (type(choice), choice)
    assert Categorical([0, 1]) != Categorical([False, True])
    assert Constant(1) != Constant(1.0)
    assert Constant(1, when={"a": 1}) != Constant(1, when={"a": True})


def test_parameters_are_equal_and_hash_alike_if_their_arguments_are() -> None:
    assert Float(1, 2) == Float(1.0, 2.0) != Float(1, 2, log=True)
    assert Int(1, 2) != Float(1, 2)
    assert Ordinal([1, 2]) != Categorical([1, 2])
    assert Int(1, 3, when={"b": 1, "a": [2]}) == Int(1, 3, when={"a": 2, "b": (1,)})
    assert len({Int(1, 3, default=2), Int(1, 3, default=2), Int(1, 3)}) == 2


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (Float(1e-6, 1, log=True, default=0.1), "Float(1e-06, 1.0, log=True, default=0.1)"),
        (Int(1, 9, when={"optimizer": "sgd"}), "Int(1, 9, when={'optimizer': 'sgd'})"),
        (Categorical(("a", None), default=None), "Categorical(['a', None], default=None)"),
        (Ordinal([1, 2.0], when={"n": (1, 2)}), "Ordinal([1, 2.0], when={'n': [1, 2]})"),
        (Constant(None), "Constant(None)"),
    ],
)
def test_a_repr_is_what_one_would_write_and_copies_are_equal(parameter, text) -> None:
    assert repr(parameter) == text
    assert eval(text) == parameter
    assert pickle.loads(pickle.dumps(parameter)) == copy.deepcopy(parameter) == parameter


def test_parameters_cannot_be_changed_nor_through_the_lists_they_were_made_from() -> None:
    choices, when = ["a", "b"], {"n": [1, 2]}
    parameter = Categorical(choices, when=when)
    choices.append("c")
    when["n"].append(3)
    assert parameter == Categorical(["a", "b"], when={"n": [1, 2]})
    with pytest.raises(AttributeError, match="choices"):
        parameter.choices = ("c",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(2, 2), r"Float\(2, 2\): expected low < high; use Constant"),
        (lambda: Float(3, 2), r"Float\(3, 2\): expected low < high"),
        (lambda: Float(0, math.inf), r"Float\(0, inf\): expected low and high to be finite"),
        (lambda: Float(math.nan, 1), r"Float\(nan, 1\): expected low and high to be finite"),
        (lambda: Float(0, 10**400), "expected low and high to be finite"),
        (lambda: Float(False, 1), r"Float\(False, 1\): expected low and high to be finite numbers"),
        (lambda: Float("0", 1), r"Float\('0', 1\): expected low and high to be finite numbers"),
        (lambda: Float(0, 1, log=True), r"Float\(0, 1\): low=0.0 has no logarithm; expected low > 0"),
        (lambda: Float(1, 2, log=1), r"Float\(1, 2\): log=1; expected True or False"),
        (lambda: Float(0, 1, default=1.5), r"default=1.5 \(float\); expected a number from 0.0 to 1.0"),
        (lambda: Int(1, 2.0), r"Int\(1, 2.0\): expected low and high to be integers"),
        (lambda: Int(True, 2), r"Int\(True, 2\): expected low and high to be integers"),
        (lambda: Int(2, 1), r"Int\(2, 1\): expected low < high"),
        (lambda: Int(0, 8, log=True), r"Int\(0, 8\): low=0 has no logarithm"),
        (lambda: Int(0, 2**40), r"expected a range of at most 2\*\*40 = 1099511627776; use Float and round"),
        (lambda: Int(2**40, 2**40 + 1, log=True), r"expected high up to 2\*\*40 = 1099511627776"),
        (lambda: Int(1, 3, default=2.0), r"default=2.0 \(float\); expected an integer from 1 to 3"),
        (lambda: Categorical([]), r"Categorical\(\[\]\): no choices; expected at least one"),
        (lambda: Categorical("abc"), r"Categorical\('abc'\): the choices are a str; expected a list or tuple"),
        (lambda: Ordinal({1}), r"Ordinal\(\{1\}\): the choices are a set; expected a list or tuple"),
        (lambda: Ordinal(["a", "b", "a"]), r"\['a'\] more than once; list each choice once"),
        (lambda: Categorical([(1, 2)]), r"\(1, 2\) is a tuple; expected str, int, float, bool or None"),
        (lambda: Categorical([1.0, math.nan]), "nan is not finite"),
        (lambda: Categorical(["a"], default="b"), r"default='b' \(str\); expected one of \['a'\]"),
        (lambda: Categorical([1], default=True), r"default=True \(bool\); expected one of \[1\]"),
        (lambda: Constant([1]), r"Constant\(\[1\]\): \[1\] is a list; expected str"),
        (lambda: Constant(-math.inf), r"Constant\(-inf\): -inf is not finite"),
        (lambda: Int(1, 2, when="sgd"), r"when='sgd'; expected a dict such as \{'optimizer': 'sgd'\}"),
        (lambda: Int(1, 2, when={3: 1}), r"when has the parents \[3\]; expected names"),
        (lambda: Int(1, 2, when={"a": []}), r"when 'a' is one of \[\]; expected one or more distinct values"),
        (lambda: Int(1, 2, when={"a": [1, 1]}), r"when 'a' is one of \[1, 1\]; expected one or more distinct"),
        (lambda: Int(1, 2, when={"a": {1: 2}}), r"when 'a': \{1: 2\} is a dict; expected str"),
    ],
)
def test_a_definition_without_meaning_is_refused(make, message) -> None:
    with pytest.raises(SpaceError, match=message):
        make()


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        (Float(0, 1), 1.0000000000000002, r"p=1.0000000000000002 \(float\); expected a number from 0.0 to 1.0"),
        (Float(0, 1), math.nan, r"p=nan \(float\); expected a number"),
        (Float(0, 1), True, r"p=True \(bool\); expected a number"),
        (Float(0, 1), "0.5", r"p='0.5' \(str\); expected a number"),
        (Int(1, 3), 4, r"p=4 \(int\); expected an integer from 1 to 3"),
        (Int(1, 3), 2.0, r"p=2.0 \(float\); expected an integer from 1 to 3"),
        (Int(0, 3), True, r"p=True \(bool\); expected an integer"),
        (Categorical([1, "a"]), 1.0, r"p=1.0 \(float\); expected one of \[1, 'a'\]"),
        (Ordinal([1, 2]), [1], r"p=\[1\] \(list\); expected one of \[1, 2\]"),
        (Constant(1), True, r"p=True \(bool\); expected the constant 1"),
    ],
)
def test_a_value_outside_the_set_is_refused_by_name(parameter, value, expected) -> None:
    with pytest.raises(SpaceError, match=expected):
        parameter.checked("p", value)


def test_minus_zero_is_zero() -> None:
    assert Float(-0.0, 1).low.hex() == Float(-1, 1).checked("p", -0.0).hex() == (0.0).hex()
    assert Float(-0.0, 1) == Float(0, 1)


def test_numbers_of_other_libraries_become_python_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    value = Float(0, 1).checked("p", numpy.float32(0.5))
    assert (type(value), value) == (float, 0.5)
    count = Int(0, 9).checked("p", numpy.int64(5))
    assert (type(count), count, json.dumps(count)) == (int, 5, "5")
    assert Float(0, 1).checked("p", 1) == 1.0
