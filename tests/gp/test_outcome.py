"""The output transform, against NumPy and SciPy forms that share no code with it."""

import json
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from takg.errors import InputError
from takg.gp._outcome import OutcomeTransform, fit_outcome

EPS = np.finfo(np.float64).eps
BOTH_WARPS = pytest.mark.parametrize("warp", ["none", "log"])
repeatable = settings(deadline=None, derandomize=True, max_examples=60)

seeds = st.integers(0, 2**32 - 1)
exponents = st.floats(-12.0, 12.0)
warps = st.sampled_from(["none", "log"])


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def losses(seed: int, *, n: int = 37, skew: float = 1.3) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(sigma=skew, size=n)


def branin(rng: np.random.Generator, n: int) -> np.ndarray:
    x, y = rng.uniform(-5, 10, n), rng.uniform(0, 15, n)
    bowl = (y - 5.1 * x**2 / (4 * np.pi**2) + 5 * x / np.pi - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10


def inverse_by_numpy(transform: OutcomeTransform, z: np.ndarray) -> np.ndarray:
    w = transform.mean + transform.sd * np.asarray(z)
    u = np.where(w > 0, np.sinh(np.maximum(w, 0)), w) if transform.warp == "log" else w
    return transform.origin + transform.scale * u


@pytest.fixture(params=["none", "log"])
def transform(request: pytest.FixtureRequest) -> OutcomeTransform:
    return fit_outcome(tensor(losses(3)), warp=request.param)


# ---------------- there and back


@repeatable
@given(seed=seeds, scale=exponents, offset=exponents, sign=st.sampled_from([-1, 0, 1]), warp=warps)
def test_inverse_undoes_forward_inside_the_fences(seed, scale, offset, sign, warp):
    y = tensor(losses(seed, skew=2.0) * 10**scale + sign * 10**offset)
    transform = fit_outcome(y, warp=warp)
    inside = y[(y >= transform.floor) & (y <= transform.cap)]
    assert len(inside) > len(y) / 2
    w = transform.mean + transform.sd * transform.forward(inside)
    rounding = EPS * (w.abs() + abs(transform.mean) + 4)  # of w, which is a relative error of y - origin
    tolerance = rounding * ((inside - transform.origin).abs() + transform.scale) + EPS * inside.abs()
    assert ((transform.inverse(transform.forward(inside)) - inside).abs() <= 4 * tolerance).all()


@repeatable
@given(seed=seeds, scale=exponents, z=st.floats(-1.2, 1.2), warp=warps)
def test_forward_undoes_inverse_inside_the_fences(seed, scale, z, warp):
    transform = fit_outcome(tensor(losses(seed) * 10**scale), warp=warp)
    y = transform.inverse(tensor(z))
    assert transform.floor < y < transform.cap
    assert abs(float(transform.forward(y)) - z) < 1e-12


@repeatable
@given(seed=seeds, scale=exponents, offset=st.floats(-5.0, 5.0), warp=warps)
def test_fitted_rows_have_mean_zero_and_sd_one(seed, scale, offset, warp):
    y = tensor((losses(seed, skew=2.5) + offset) * 10**scale)
    y[::7] = math.nan
    z = fit_outcome(y, warp=warp).forward(y).numpy()
    assert abs(z.mean()) < 1e-12
    assert abs(z.std() - 1) < 1e-12


@repeatable
@given(seed=seeds, power=st.integers(-40, 40), warp=warps)
def test_units_of_the_loss_and_order_of_rows_change_nothing(seed, power, warp):
    y = losses(seed, skew=2.0)
    shuffled = np.random.default_rng(seed).permutation(y)
    z = fit_outcome(tensor(shuffled), warp=warp).forward(tensor(y))
    scaled = tensor(y * 2.0**power)  # without rounding
    torch.testing.assert_close(fit_outcome(scaled, warp=warp).forward(scaled), z, rtol=1e-12, atol=1e-12)


@repeatable
@given(seed=seeds, shift=st.floats(-1e3, 1e3))
def test_a_constant_added_to_all_losses_changes_nothing_without_a_warp(seed, shift):
    y = tensor(losses(seed))
    z = fit_outcome(y).forward(y)
    torch.testing.assert_close(fit_outcome(y + shift).forward(y + shift), z, rtol=1e-9, atol=1e-9)


@repeatable
@given(seed=seeds, scale=exponents, warp=warps)
def test_forward_never_decreases_and_inverse_always_increases(seed, scale, warp):
    y = losses(seed, skew=3.0) * 10**scale
    transform = fit_outcome(tensor(y), warp=warp)
    wide = np.sort(np.concatenate([y, -y, 1e12 * y, -1e12 * y, y * 1e280, [-1.7e308, 0.0, 1.7e308]]))
    assert (transform.forward(tensor(wide)).diff() >= 0).all()
    grid = np.linspace(transform.floor, transform.cap, 301)
    assert (transform.forward(tensor(grid)).diff() > 0).all()
    there = transform.inverse(torch.linspace(-300.0, 300.0, 6001, dtype=torch.float64))
    assert there.isfinite().all()
    assert (there.diff() > 0).all()


def test_inverse_agrees_with_numpy_also_beyond_the_fences(transform):
    z = np.linspace(-8.3, 29.7, 57).reshape(3, 19)
    actual = transform.inverse(tensor(z))
    assert actual.max() > transform.cap
    np.testing.assert_allclose(actual.numpy(), inverse_by_numpy(transform, z), rtol=1e-12)


def test_log_warp_is_linear_below_the_best_loss_and_logarithmic_far_above_it():
    transform = fit_outcome(tensor(np.geomspace(1e-3, 1e7, 41)), warp="log")
    steps = transform.inverse(tensor([-2.9, -2.6, -2.3])).diff()
    assert transform.inverse(tensor(-2.3)) < 1e-3
    assert steps[0] == pytest.approx(float(steps[1]), rel=1e-9)
    z = transform.forward(tensor([2.5e3, 2.5e4, 2.5e5]))
    np.testing.assert_allclose(z.diff().numpy(), math.log(10) / transform.sd, rtol=1e-6)


# ---------------- a scale that is given


@pytest.mark.parametrize("scale", [0.013, 0.7, 240.0])
def test_a_given_scale_is_where_the_log_warp_turns(scale):
    y = losses(5, skew=2.1)
    z = fit_outcome(tensor(y), warp="log", scale=scale).forward(tensor(y)).numpy()
    w = np.arcsinh((y - y.min()) / scale)  # no loss is outside the fences
    np.testing.assert_allclose(z, (w - w.mean()) / w.std(), rtol=1e-11, atol=1e-12)


@repeatable
@given(seed=seeds, exponent=st.floats(-6.0, 6.0), diverged=st.booleans())
def test_a_given_scale_leaves_fences_and_origin_as_they_were(seed, exponent, diverged):
    y = losses(seed, skew=2.5)
    y[3] = 1e34
    if diverged:
        y[::7] = math.nan
    usual = fit_outcome(tensor(y), warp="log")
    given = fit_outcome(tensor(y), warp="log", scale=usual.scale * 10**exponent)
    assert given.scale == usual.scale * 10**exponent
    for name in ("floor", "cap", "worst", "origin"):
        assert getattr(given, name) == getattr(usual, name)
    z = given.forward(tensor(y)).numpy()
    assert abs(z.mean()) < 1e-9
    assert abs(z.std() - 1) < 1e-9


def test_the_usual_scale_when_given_changes_nothing():
    y = tensor(losses(6))
    usual = fit_outcome(y, warp="log")
    assert fit_outcome(y, warp="log", scale=usual.scale) == usual


@pytest.mark.parametrize("y", [[], [math.nan], [0.4, 0.4]])
def test_a_given_scale_says_nothing_about_losses_that_do_not_differ(y):
    assert fit_outcome(tensor(y), warp="log", scale=0.3) == fit_outcome(tensor(y), warp="log")


@pytest.mark.parametrize("scale", [0.0, -0.0, -0.3, math.nan, math.inf, -math.inf])
def test_a_scale_that_is_no_positive_number_is_refused(scale):
    with pytest.raises(InputError, match=rf"scale={scale}, warp='log': expected a number > 0"):
        fit_outcome(tensor(losses(1)), warp="log", scale=scale)


def test_a_scale_without_the_log_warp_is_refused():
    with pytest.raises(InputError, match=r"scale=0.3, warp='none': expected .*, with warp='log' only"):
        fit_outcome(tensor(losses(1)), scale=0.3)


# ---------------- losses that misbehave


@BOTH_WARPS
def test_diverged_runs_count_as_the_worst_finite_loss(warp):
    y = tensor([0.7, math.nan, 1.9, math.inf, 1.2, -math.inf])
    transform = fit_outcome(y, warp=warp)
    z = transform.forward(y)
    assert z.isfinite().all()
    assert (z[[1, 3, 5]] == z[2]).all()
    assert z[2] > z[4] > z[0]
    assert (transform.slope(y)[[1, 3, 5]] == 0).all()


@BOTH_WARPS
def test_diverged_runs_count_as_the_cap_where_the_worst_loss_is_winsorised(warp):
    y = tensor([*losses(5), 1e34, math.nan])
    transform = fit_outcome(y, warp=warp)
    assert transform.worst == transform.cap < 1e34
    assert transform.forward(y)[-1] == transform.forward(y)[-2] == transform.forward(y).max()


@BOTH_WARPS
@pytest.mark.parametrize("y", [[], [math.nan], [math.inf, -math.inf, math.nan]])
def test_without_any_finite_loss_every_row_is_zero(warp, y):
    transform = fit_outcome(tensor(y), warp=warp)
    assert (transform.forward(tensor(y)) == 0).all()
    assert transform.inverse(tensor([-2.0, 0.0, 2.0])).isfinite().all()
    assert transform.forward(tensor([-1e9, 1e9])).isfinite().all()


@BOTH_WARPS
@pytest.mark.parametrize("value", [0.0, -2.7, 3.1e-9, 1e20, -1e300, 1.7e308, 5e-324])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_equal_losses_are_zero_in_the_units_of_the_loss(warp, value, n):
    y = torch.full((n,), value, dtype=torch.float64)
    transform = fit_outcome(y, warp=warp)
    assert (transform.forward(y) == 0).all()
    assert (transform.scale, transform.sd) == (1.0, 1.0)
    assert (transform.slope(y.clamp(-1e300, 1e300)) == 1).all()
    assert (transform.forward(tensor([math.nan, value])) == 0).all()
    assert transform.forward(tensor([-1e308, 1e308])).isfinite().all()


@BOTH_WARPS
@pytest.mark.parametrize("y", [[0.1 + 0.2, 0.3, 0.3, 0.3], [0.0, 3e-310, 5e-300]])
def test_losses_that_differ_by_rounding_or_underflow_only_count_as_equal(warp, y):
    y = tensor(y)
    transform = fit_outcome(y, warp=warp)
    assert transform.sd * transform.scale == 1
    assert transform.forward(y).abs().max() < 1e-15


@BOTH_WARPS
def test_one_loss_of_1e34_leaves_the_others_resolved(warp):
    y = np.random.default_rng(11).uniform(0.4, 1.6, 30)
    with_outlier = tensor([*y, 1e34])
    z = fit_outcome(with_outlier, warp=warp).forward(with_outlier)
    assert z[:-1].std() > 0.2
    assert z[-1] == z.max() < 6


@BOTH_WARPS
def test_the_best_stay_resolved_while_nearly_half_of_the_runs_diverge_to_huge_losses(warp):
    rng = np.random.default_rng(12)
    y = tensor(np.concatenate([rng.uniform(0.4, 1.6, 22), 10 ** rng.uniform(5, 30, 18)]))
    z = fit_outcome(y, warp=warp).forward(y)
    assert z[:22].std() > 0.05
    assert z[22:].min() > z[:22].max()


def test_log_warp_tells_twelve_orders_of_magnitude_apart():
    y = torch.logspace(-6, 6, 13, dtype=torch.float64)
    transform = fit_outcome(y, warp="log")
    z = transform.forward(y)
    assert transform.cap > y[-1]
    assert z.diff().min() > 0.1
    assert z.abs().max() < 3


def test_without_a_warp_twelve_orders_of_magnitude_resolve_the_lower_ones():
    y = torch.logspace(-6, 6, 13, dtype=torch.float64)
    z = fit_outcome(y).forward(y)
    assert (z[:8].diff() > 0).all()
    assert z[7] - z[6] > 1  # losses 1 and 10
    assert z.abs().max() < 3


@pytest.mark.parametrize("best", [[0.0], [1e-200], [0.0, 1e-200], [-1e-200, 1e-200]])
def test_a_best_loss_of_almost_zero_does_not_stand_apart_under_the_log_warp(best):
    y = losses(8, n=12)
    z = fit_outcome(tensor([*best, *y]), warp="log").forward(tensor(y))
    assert z.std() > (0.5 if len(best) == 1 else 0.1)


def test_two_nearly_equal_best_losses_do_not_stand_apart_under_the_log_warp():
    y = 0.5 + losses(9, n=12)
    z = fit_outcome(tensor([0.5, 0.5 + 1e-9, *y]), warp="log").forward(tensor(y))
    assert z.std() > 0.5


@pytest.mark.parametrize("repeats", [3, 30, 300])
def test_a_better_loss_is_in_sight_of_many_that_differ_in_their_sixth_digit_only(repeats):
    """As of networks that learn nothing: the scale is that of those that do."""
    rng = np.random.default_rng(14)
    plateau, others = math.log(2) + 2e-6 * rng.normal(size=repeats), 0.7 + rng.uniform(0, 0.1, 20)
    transform = fit_outcome(tensor([*plateau, *others]), warp="log")
    assert 0.02 < transform.scale < 0.1
    z = transform.forward(tensor([math.log(2), 0.5]))
    assert z[0] - z[1] < 15


@pytest.mark.parametrize("constant", [1e5, 1e7])
def test_a_constant_added_to_all_losses_does_not_undo_the_log_warp(constant):
    y = torch.logspace(-2, 3, 21, dtype=torch.float64) + constant
    z = fit_outcome(y, warp="log").forward(y)
    assert z[20] - z[16] > 0.5  # at distances of 1000 and 100 from the best


@pytest.mark.parametrize("n", [8, 25, 200])
def test_ordinary_losses_are_hardly_touched(n):
    rng = np.random.default_rng(13)
    draw = {"normal": rng.normal, "uniform": rng.uniform}
    for name in ("normal", "uniform", "branin"):
        outside = 0
        for _ in range(100):
            y = branin(rng, n) if name == "branin" else draw[name](size=n) * 2.3 - 0.7
            transform = fit_outcome(tensor(y))
            outside += np.sum((y < transform.floor) | (y > transform.cap))
        assert outside <= 0.01 * 100 * n, name


@BOTH_WARPS
def test_a_single_absurdly_low_loss_is_fenced(warp):
    y = np.random.default_rng(14).uniform(0.4, 1.6, 30)
    with_bug = tensor([*y, -1e30])
    transform = fit_outcome(with_bug, warp=warp)
    z = transform.forward(with_bug)
    assert -50 < transform.floor < 0
    assert z[-1] == z.min() > -6
    assert z[:-1].std() > 0.02


def test_a_real_discovery_is_released_by_a_second_value():
    rng = np.random.default_rng(15)
    flat = -1e-6 * rng.uniform(size=30)
    first, second = -0.31, -0.83
    assert fit_outcome(tensor([*flat, first])).floor > first
    transform = fit_outcome(tensor([*flat, first, second]))
    assert transform.floor < second
    assert transform.forward(tensor(second)) < transform.forward(tensor(first)) - 1


@repeatable
@given(seed=seeds, skew=st.floats(0.1, 12.0), warp=warps)
def test_losses_that_are_never_negative_are_never_touched_from_below(seed, skew, warp):
    assert fit_outcome(tensor(losses(seed, n=9, skew=skew)), warp=warp).floor < 0


@repeatable
@given(
    y=st.lists(st.floats(), max_size=9),  # all floats: NaN, infinities, subnormal and largest numbers
    new=st.floats(),
    warp=warps,
)
def test_any_losses_give_finite_values_in_the_same_order(y, new, warp):
    transform = fit_outcome(tensor(y), warp=warp)
    z = transform.forward(tensor([*y, new]))
    assert z.isfinite().all()
    assert transform.slope(tensor([*y, new])).isfinite().all()
    order = np.argsort([v if math.isfinite(v) else math.inf for v in y], kind="stable")
    assert (z[:-1][order].diff() >= 0).all()
    json.dumps(transform.to_json(), allow_nan=False)


@BOTH_WARPS
@pytest.mark.parametrize("y", [[-1.7e308, 3.0, 1.7e308], [1e300, 2e299, -4e299, 7e299], [2e-308, 5e-288, 1e-287]])
def test_extreme_losses_neither_overflow_nor_vanish(warp, y):
    transform = fit_outcome(tensor(y), warp=warp)
    z = transform.forward(tensor(y))
    assert abs(float(z.std(correction=0)) - 1) < 1e-12
    assert transform.inverse(torch.linspace(-1e3, 1e3, 101, dtype=torch.float64)).isfinite().all()
    mean, sd = transform.mixture_mean_and_sd(tensor([0.2, -0.7]), tensor([0.3, 0.6]))
    assert mean.isfinite()
    assert 0 < sd < math.inf


# ---------------- slopes and gradients


def test_slope_agrees_with_central_differences_of_forward(transform):
    y = tensor([transform.floor * 0.6, transform.origin - 0.2, transform.origin + 0.3, 2.9, transform.cap * 0.9])
    h = 1e-6 * (transform.scale + (y - transform.origin).abs())
    by_difference = (transform.forward(y + h) - transform.forward(y - h)) / (2 * h)
    torch.testing.assert_close(transform.slope(y), by_difference, rtol=1e-6, atol=0.0)


def test_slope_is_the_gradient_of_forward_everywhere(transform):
    best = transform.origin  # with the log warp the point where its two branches meet
    y = tensor([transform.floor * 2, -0.4, best, 1.7, transform.cap * 1.01, 1e200, math.nan, math.inf, -math.inf])
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(transform.forward(y).sum(), y)
    torch.testing.assert_close(transform.slope(y), gradient, rtol=1e-13, atol=0.0)
    assert (gradient[[0, 4, 5, 6, 7, 8]] == 0).all()
    assert (gradient[[1, 2, 3]] > 0).all()


def test_forward_and_inverse_pass_gradcheck(transform):
    y = tensor([[-0.4, 0.83], [1.7, 6.1]]).requires_grad_()
    assert torch.autograd.gradcheck(transform.forward, y)
    z = tensor([-1.9, -0.35, 0.6, 3.7]).requires_grad_()
    assert torch.autograd.gradcheck(transform.inverse, z)


def test_inverse_has_finite_gradients_far_out_on_both_sides():
    transform = fit_outcome(torch.logspace(-6, 6, 13, dtype=torch.float64), warp="log")
    z = tensor([-1e4, -300.0, 300.0, 1e4]).requires_grad_()
    (gradient,) = torch.autograd.grad(transform.inverse(z).log1p().nan_to_num(0.0).sum(), z)
    assert gradient[2:].isfinite().all()
    (gradient,) = torch.autograd.grad(transform.inverse(z).sum(), z)
    assert gradient.isfinite().all()
    assert (gradient > 0).all()


def test_moments_pass_gradcheck(transform):
    mu, sd = tensor([[-0.9, 0.3], [0.2, 1.4]]).requires_grad_(), tensor([0.31, 0.72]).requires_grad_()
    assert torch.autograd.gradcheck(transform.mean_and_sd, (mu, sd))
    assert torch.autograd.gradcheck(transform.mixture_mean_and_sd, (mu, sd))


def test_moments_without_uncertainty_are_the_inverse_and_have_finite_gradients(transform):
    mu, sd = tensor([-0.9, 0.3]).requires_grad_(), tensor([0.0, 0.0]).requires_grad_()
    mean, spread = transform.mean_and_sd(mu, sd)
    torch.testing.assert_close(mean, transform.inverse(mu), rtol=1e-14, atol=0.0)
    assert (spread == 0).all()
    for gradient in torch.autograd.grad((mean + spread).sum(), (mu, sd)):
        assert gradient.isfinite().all()


# ---------------- moments and quantiles


@pytest.mark.parametrize("p", [1e-9, 0.04, 0.5, 0.81, 1 - 1e-9])
def test_quantile_is_the_normal_quantile_mapped(transform, p):
    mu, sd = np.array([-0.8, 0.35, 1.9]), np.array([0.6, 0.25, 1.1])
    expected = inverse_by_numpy(transform, scipy.stats.norm.ppf(p, mu, sd))
    np.testing.assert_allclose(transform.quantile(tensor(mu), tensor(sd), p).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("p", [0.03, 0.4, 0.93])
def test_quantile_splits_mapped_samples_in_the_right_shares(transform, p):
    N, mu, sd = 10**6, 0.27, 0.83
    Y = inverse_by_numpy(transform, np.random.default_rng(21).normal(mu, sd, N))
    quantile = float(transform.quantile(tensor(mu), tensor(sd), p))
    share = (quantile > Y).mean()
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / N)


@pytest.mark.parametrize(("mu", "sd"), [(-0.6, 0.4), (0.3, 0.8)])
def test_mean_and_sd_agree_with_monte_carlo(transform, mu, sd):
    Y = inverse_by_numpy(transform, np.random.default_rng(22).normal(mu, sd, 10**6))
    mean, spread = transform.mean_and_sd(tensor(mu), tensor(sd))
    assert abs(float(mean) - Y.mean()) < 4 * Y.std() / len(Y) ** 0.5
    squares = (Y - Y.mean()) ** 2
    assert abs(float(spread) ** 2 - squares.mean()) < 4 * squares.std() / len(Y) ** 0.5


@pytest.mark.parametrize("warped_sd", [0.02, 0.7, 1.9, 4.8])
@pytest.mark.parametrize("warped_mean", [-1.1, 0.0, 0.4, 13.0])
def test_moments_under_the_log_warp_agree_with_adaptive_quadrature(warped_mean, warped_sd):
    y = torch.logspace(-4, 3, 29, dtype=torch.float64)
    transform = fit_outcome(y, warp="log")
    mu, sd = (warped_mean - transform.mean) / transform.sd, warped_sd / transform.sd

    def expect(f):
        def integrand(t):
            return f(float(inverse_by_numpy(transform, mu + sd * t))) * math.exp(-t * t / 2)

        kink = -warped_mean / warped_sd
        edges = [-12.0, *([kink] if abs(kink) < 12 else []), 2 * warped_sd, 2 * warped_sd + 12]
        pieces = zip(sorted(edges)[:-1], sorted(edges)[1:], strict=True)
        total = sum(scipy.integrate.quad(integrand, a, b, epsrel=1e-11, epsabs=0, limit=200)[0] for a, b in pieces)
        return total / math.sqrt(2 * math.pi)

    centre = float(inverse_by_numpy(transform, mu))
    shift = expect(lambda v: v - centre)
    spread = math.sqrt(expect(lambda v: (v - centre - shift) ** 2))
    actual_mean, actual_sd = transform.mean_and_sd(tensor(mu), tensor(sd))
    assert abs(float(actual_mean) - centre - shift) < 1e-4 * spread
    assert abs(float(actual_sd) - spread) < 1e-4 * spread


@pytest.mark.parametrize("mu", [-2.6, -1.1, 0.4, 3.7])
def test_moments_of_a_narrow_gaussian_are_those_of_the_tangent(transform, mu):
    sd, h = 1e-7, 1e-4
    tangent = np.diff(inverse_by_numpy(transform, np.array([mu - h, mu + h]))).item() / (2 * h)
    mean, spread = transform.mean_and_sd(tensor(mu), tensor(sd))
    assert float(spread) == pytest.approx(tangent * sd, rel=1e-6)
    assert abs(float(mean) - float(inverse_by_numpy(transform, np.array(mu)))) < 1e-5 * tangent * sd


def test_moments_without_a_warp_are_those_of_a_shifted_and_scaled_normal():
    y = losses(4, skew=0.6)
    transform = fit_outcome(tensor(y))
    assert transform.cap > y.max()
    mean, sd = transform.mean_and_sd(tensor([0.7, -1.3]), tensor([0.4, 1.7]))
    np.testing.assert_allclose(mean.numpy(), y.mean() + y.std() * np.array([0.7, -1.3]), rtol=1e-12)
    np.testing.assert_allclose(sd.numpy(), y.std() * np.array([0.4, 1.7]), rtol=1e-12)


MIXTURE_MU = np.array([[-0.7, 2.1], [0.4, -3.3], [1.6, 0.2]])  # (H, 2)
MIXTURE_SD = np.array([[0.3, 0.04], [0.9, 0.6], [0.2, 1.2]])


@pytest.mark.parametrize("p", [2**-45, 0.05, 1 / 3, 0.62, 0.975, 1 - 2**-45])
def test_mixture_quantile_is_the_root_of_the_mixture_cdf(transform, p):
    actual = transform.mixture_quantile(tensor(MIXTURE_MU), tensor(MIXTURE_SD), p)
    for j in range(2):
        components = scipy.stats.norm(MIXTURE_MU[:, j], MIXTURE_SD[:, j])

        def log_tail_ratio(z, components=components):
            return math.log(components.cdf(z).mean() / p) if p < 0.5 else math.log(components.sf(z).mean() / (1 - p))

        root = scipy.optimize.brentq(log_tail_ratio, -15, 15, xtol=1e-14)
        assert float(actual[j]) == pytest.approx(float(inverse_by_numpy(transform, root)), rel=1e-9)


@pytest.mark.parametrize("p", [0.07, 0.55, 0.9])
def test_mixture_quantile_splits_mapped_samples_in_the_right_shares(transform, p):
    N, rng = 300_000, np.random.default_rng(23)
    actual = transform.mixture_quantile(tensor(MIXTURE_MU), tensor(MIXTURE_SD), p).numpy()
    which = rng.integers(3, size=N)
    Y = inverse_by_numpy(transform, rng.normal(MIXTURE_MU[which], MIXTURE_SD[which]))  # (N, 2)
    assert (np.abs((actual > Y).mean(0) - p) < 4 * math.sqrt(p * (1 - p) / N)).all()


def test_mixture_quantile_of_point_masses_is_one_of_them(transform):
    masses = [-0.75, 0.5, 1.75]  # the second is exactly where the first bisection step lands
    for p, expected in zip([0.2, 0.5, 0.9], masses, strict=True):
        actual = transform.mixture_quantile(tensor(masses), tensor([0.0, 0.0, 0.0]), p)
        torch.testing.assert_close(actual, transform.inverse(tensor(expected)), rtol=1e-12, atol=0.0)


def test_mixture_moments_agree_with_monte_carlo(transform):
    N, rng = 300_000, np.random.default_rng(24)
    mu, sd = MIXTURE_MU * 0.5, MIXTURE_SD * 0.5
    which = rng.integers(3, size=N)
    Y = inverse_by_numpy(transform, rng.normal(mu[which], sd[which]))  # (N, 2)
    mean, spread = (t.numpy() for t in transform.mixture_mean_and_sd(tensor(mu), tensor(sd)))
    assert (np.abs(mean - Y.mean(0)) < 4 * Y.std(0) / N**0.5).all()
    squares = (Y - Y.mean(0)) ** 2
    assert (np.abs(spread**2 - squares.mean(0)) < 4 * squares.std(0) / N**0.5).all()


def test_a_mixture_of_one_or_of_equal_gaussians_is_that_gaussian(transform):
    mu, sd = tensor(MIXTURE_MU), tensor(MIXTURE_SD)  # here (3, 2) is a batch
    for H in (1, 4):
        many = mu.expand(H, 3, 2), sd.expand(H, 3, 2)
        actual = transform.mixture_quantile(*many, 0.83)
        torch.testing.assert_close(actual, transform.quantile(mu, sd, 0.83), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(
            transform.mixture_mean_and_sd(*many), transform.mean_and_sd(mu, sd), rtol=1e-12, atol=1e-12
        )


# ---------------- shapes, JSON, errors


def test_every_shape_is_kept_and_arguments_broadcast(transform):
    for shape in [(), (0,), (4,), (2, 3, 1)]:
        y = torch.full(shape, 1.3, dtype=torch.float64)
        assert transform.forward(y).shape == transform.inverse(y).shape == transform.slope(y).shape == shape
        assert all(t.shape == shape for t in transform.mean_and_sd(y, tensor(0.4)))
    mu, sd = torch.full((5, 2, 3), 0.3), torch.full((3,), 0.2)  # float32 is taken, float64 returned
    results = [*transform.mean_and_sd(mu, sd), transform.quantile(mu, sd, 0.3)]
    assert all(t.shape == (5, 2, 3) and t.dtype == torch.float64 for t in results)
    results = [*transform.mixture_mean_and_sd(mu, sd), transform.mixture_quantile(mu, sd, 0.3)]
    assert all(t.shape == (2, 3) and t.dtype == torch.float64 for t in results)


@BOTH_WARPS
def test_fitting_takes_any_shape_integers_and_tensors_with_a_gradient(warp):
    y = torch.tensor([[4, 9, 2], [7, 7, 5]])
    with_gradient = tensor([2.0, 4.0, 5.0, 7.0, 7.0, 9.0]).requires_grad_()
    transform, same = (fit_outcome(t, warp=warp) for t in (y, with_gradient))
    torch.testing.assert_close(transform.forward(y), same.forward(y), rtol=1e-13, atol=1e-13)


def test_json_round_trip_keeps_every_digit(transform):
    text = json.dumps(transform.to_json(), allow_nan=False)
    assert OutcomeTransform.from_json(json.loads(text)) == transform


def test_an_unknown_warp_is_named_with_the_choices(transform):
    with pytest.raises(InputError, match=r"warp='sqrt': expected one of 'none', 'log'"):
        fit_outcome(tensor([1.2, 3.4]), warp="sqrt")
    with pytest.raises(InputError, match=r"warp='sqrt': expected one of 'none', 'log'"):
        OutcomeTransform.from_json(transform.to_json() | {"warp": "sqrt"})


@pytest.mark.parametrize("p", [0.0, 1.0, -0.2, math.nan])
def test_a_probability_outside_the_open_unit_interval_is_refused(transform, p):
    for method in (transform.quantile, transform.mixture_quantile):
        with pytest.raises(InputError, match=f"p={p}: expected a probability strictly between 0 and 1"):
            method(tensor([0.3]), tensor([0.4]), p)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_a_mixture_without_gaussians_is_refused(transform, shape):
    mu = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(InputError, match=r"broadcast to the shape \(.*\); expected \(H, ...\)"):
        transform.mixture_mean_and_sd(mu, mu)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sd": 0.0}, r"sd=0.0: expected a positive number"),
        ({"scale": -1.5}, r"scale=-1.5: expected a positive number"),
        ({"mean": math.nan}, r"mean=nan: expected a finite number"),
        ({"origin": "0.3"}, r"origin='0.3': expected a finite number"),
        ({"worst": 1e99}, r"worst=1e\+99: expected a loss in \[floor, cap\]"),
        ({"colour": 1.0}, r"data has the keys .*'colour'.*; expected \['cap', 'floor', 'mean'"),
    ],
)
def test_broken_json_is_refused_with_the_field_named(transform, change, message):
    with pytest.raises(InputError, match=message):
        OutcomeTransform.from_json(transform.to_json() | change)
