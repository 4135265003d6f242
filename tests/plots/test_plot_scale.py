import math

import pytest

from takg.plots._scale import Scale, log_ticks, scale_of, within_bounds


def test_an_axis_shows_all_values_with_a_margin_of_a_twentieth() -> None:
    scale = scale_of([3.0, 1.0, 2.5], sign=1)
    assert scale == Scale(is_log=False, low=pytest.approx(0.9), high=pytest.approx(3.1), hidden=0)


def test_positive_values_that_span_more_than_two_orders_of_magnitude_get_a_log_axis() -> None:
    scale = scale_of([0.001, 10.0], sign=1)
    assert scale.is_log
    assert math.log10(scale.low) == pytest.approx(-3.2)
    assert math.log10(scale.high) == pytest.approx(1.2)


@pytest.mark.parametrize("values", [[0.1, 9.9], [0.0, 500.0], [-1.0, 500.0]])
def test_values_with_a_smaller_span_or_not_all_positive_get_a_linear_axis(values: list[float]) -> None:
    assert not scale_of(values, sign=1).is_log


@pytest.mark.parametrize(("value", "low", "high"), [(4.0, 3.8, 4.2), (-4.0, -4.2, -3.8), (0.0, -1.0, 1.0)])
def test_a_single_value_has_room_around_it(value: float, low: float, high: float) -> None:
    scale = scale_of([value], sign=1)
    assert (scale.low, scale.high) == (pytest.approx(low), pytest.approx(high))


def test_a_value_that_is_far_worse_than_all_others_is_hidden_and_counted() -> None:
    values = [0.5 + 0.01 * i for i in range(20)]
    scale = scale_of([*values, 1e30, 1e31], sign=1)
    assert (scale.hidden, scale.is_log) == (2, False)
    assert scale.high == pytest.approx(0.69 + 0.05 * 0.19)


def test_when_maximising_the_far_low_values_are_hidden_and_the_far_high_ones_are_not() -> None:
    values = [-0.5 - 0.01 * i for i in range(20)]
    assert scale_of([*values, -1e9], sign=-1).hidden == 1
    assert scale_of([*values, 1e9], sign=-1).hidden == 0


def test_nothing_is_hidden_of_few_values_or_where_all_are_wanted() -> None:
    few = [0.5, 0.6, 0.7, 1e30]
    assert scale_of(few, sign=1).hidden == 0
    many = [0.5 + 0.01 * i for i in range(20)] + [1e30]
    assert scale_of(many, sign=1, shows_all=True).hidden == 0
    assert scale_of(many, sign=1, shows_all=True).high > 1e30


def test_a_band_extends_the_axis_by_no_more_than_its_stretch() -> None:
    scale = scale_of([1.0, 3.0], sign=1, band=[0.9, 100.0], stretch=0.5)
    assert (scale.low, scale.high) == (pytest.approx(0.9 - 0.05 * 3.1), pytest.approx(4.0 + 0.05 * 3.1))


def test_a_band_below_zero_takes_all_its_room_on_a_log_axis() -> None:
    scale = scale_of([1.0, 10_000.0], sign=1, band=[-5.0], stretch=0.5)
    assert math.log10(scale.low) == pytest.approx(-2 - 0.05 * 6)
    boundless = scale_of([1.0, 10_000.0], sign=1, band=[-5.0])
    assert math.log10(boundless.low) == pytest.approx(-0.05 * 4)


def test_runs_that_diverged_are_marked_just_inside_the_bad_end() -> None:
    linear = Scale(is_log=False, low=0.0, high=8.0)
    assert (linear.bad_end(1), linear.bad_end(-1)) == (pytest.approx(7.8), pytest.approx(0.2))
    log = Scale(is_log=True, low=1e-2, high=1e2)
    assert math.log10(log.bad_end(1)) == pytest.approx(1.9)


def test_values_are_clamped_to_the_limits() -> None:
    scale = Scale(is_log=False, low=1.0, high=2.0)
    assert [scale.clamped(value) for value in (0.5, 1.5, math.inf)] == [1.0, 1.5, 2.0]


@pytest.mark.parametrize("values", [[0.1, 1e308], [-1e308, 1e308], [-1e308], [5e-324, 1.0]])
def test_the_largest_floats_have_finite_limits(values: list[float]) -> None:
    scale = scale_of(values, sign=1, band=[-1e300, 1e300], stretch=0.5)
    assert math.isfinite(scale.high - scale.low)
    assert scale.high - scale.low > 0
    assert not scale.is_log or scale.low > 0


def test_what_overflowed_is_taken_for_a_large_number() -> None:
    assert [within_bounds(value) for value in (-math.inf, 2.5, math.inf)] == [-1e300, 2.5, 1e300]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.09, 1.1, [0.1, 0.2, 0.5, 1.0]),
        (0.5, 2000.0, [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]),
        (1e-5, 1.0, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
        (1e-10, 1e10, [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9]),
    ],
)
def test_the_ticks_of_a_log_axis_are_few_and_round(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == ticks


def test_the_widest_log_axis_has_ticks() -> None:
    assert log_ticks(1e-300, 1e300) == [float(f"1e{75 * i}") for i in range(-4, 5)]
