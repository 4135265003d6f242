"""Covariances of values and derivatives against plain NumPy forms, finite differences and GPyTorch."""

from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from dense_gp import (
    DESIGNS,
    MIXES,
    N_PARAMETERS,
    design_entry,
    design_value,
    generator,
    member,
    rows_of,
    samples_of,
    share_there,
    some_rows,
    some_theta,
    uniform,
    value,
)
from dense_gp import covariance as dense_covariance
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from takg.gp import DESIGN_KERNELS, FIDELITY_KERNELS, Hyperparameters, Model, Rows, covariance, joined, rows_at
from takg.gp._kernels import (
    design_covariance,
    design_profile,
    noise_variance,
    prior_variance,
    profile,
    profile_curvature,
    profile_slope,
)

laws = settings(deadline=None, derandomize=True, max_examples=150)
each_design = pytest.mark.parametrize("design", DESIGNS)
each_mix = pytest.mark.parametrize("mix", MIXES, ids="*".join)


def a_model(design, mix=(), *, d=3, **settings):
    return Model(d=d, fidelity_kernels=mix, design_kernel=design, **{"mean_var": 0.6} | settings)


def tensor_of(values):
    return torch.tensor(values, dtype=torch.float64)


def by_finite_differences(model, p, a, b):
    """Complex steps for one derivative; for a second, central differences of order 6 of the complex steps."""

    def by_first(x, s, k, y, t):
        if not k:
            return value(model, p, x, s, y, t)
        return value(model, p, x + 1e-30j * np.eye(len(x))[k - 1], s, y, t).imag / 1e-30

    if not b.part:
        return by_first(a.x, a.s, a.part, b.x, b.s)
    if not a.part:
        return by_first(b.x, b.s, b.part, a.x, a.s)
    h, stencil = 3e-4, {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
    e = h * np.eye(len(b.x))[b.part - 1]
    return (
        sum(
            sign * weight * by_first(a.x, a.s, a.part, b.x + sign * i * e, b.s)
            for i, weight in stencil.items()
            for sign in (1, -1)
        )
        / h
    )


# Values and shapes


@each_design
@each_mix
def test_values_and_derivatives_agree_with_the_numpy_form(design, mix):
    model = a_model(design, mix)
    gen = generator(1)
    theta = some_theta(model, gen)
    a, b = some_rows(model, gen, 9, gradients=True), some_rows(model, gen, 7, gradients=True)
    K = covariance(model, theta, a, b)
    assert K.shape == (3, 9, 7)
    for h, p in enumerate(samples_of(theta)):
        np.testing.assert_allclose(K[h], dense_covariance(model, p, a, b), rtol=1e-12, atol=1e-13)


@each_design
@pytest.mark.parametrize("mix", [(), ("curve",), ("data_size", "freeze_thaw", "smooth")], ids="*".join)
@pytest.mark.parametrize("batches", [((), (5,)), ((5,), ()), ((2, 1), (3,)), ((2, 3), (2, 3)), ((3,), (3,))])
@pytest.mark.parametrize("gradients", [False, True])
def test_batch_dimensions_broadcast(design, mix, batches, gradients):
    model = a_model(design, mix, d=2)
    gen = generator(2)
    theta = some_theta(model, gen)  # H = 3, which some batch dimensions equal
    a = some_rows(model, gen, 3, *batches[0], gradients=gradients)
    b = some_rows(model, gen, 4, *batches[1], gradients=gradients)
    K = covariance(model, theta, a, b)
    batch = np.broadcast_shapes(*batches)
    assert K.shape == (3, *batch, 3, 4)
    for index in np.ndindex(batch):
        for h, p in enumerate(samples_of(theta)):
            expected = dense_covariance(model, p, member(a, index, batch), member(b, index, batch))
            np.testing.assert_allclose(K[h][index], expected, rtol=1e-12, atol=1e-13)


@each_design
@pytest.mark.parametrize("trend_dims", [(0,), (2, 1)])
@pytest.mark.parametrize("gradients", [False, True])
def test_the_trend_adds_a_constant_and_a_slope_in_each_of_its_dimensions(design, trend_dims, gradients):
    model = a_model(design, ("freeze_thaw",), mean_var=0.7, trend_dims=trend_dims, slope_var=2.6)
    gen = generator(3)
    theta = some_theta(model, gen)
    a = some_rows(model, gen, 6, 2, gradients=gradients)
    b = some_rows(model, gen, 5, gradients=gradients)
    K = covariance(model, theta, a, b)
    for h, p in enumerate(samples_of(theta)):
        for i in range(2):
            expected = dense_covariance(model, p, member(a, (i,), (2,)), b)
            np.testing.assert_allclose(K[h, i], expected, rtol=1e-12, atol=1e-13)


@each_design
def test_a_slope_without_a_constant_is_still_a_trend(design):
    model = a_model(design, mean_var=0.0, trend_dims=(1,), slope_var=3.2)
    gen = generator(31)
    theta = some_theta(model, gen)
    rows = some_rows(model, gen, 5)
    flat = covariance(replace(model, trend_dims=()), theta, rows, rows)
    slope = 3.2 * np.outer(rows.x[:, 1], rows.x[:, 1])
    np.testing.assert_allclose(covariance(model, theta, rows, rows), flat.numpy() + slope, rtol=1e-12)


@each_design
@pytest.mark.parametrize("trend_dims", [(), (0, 2)])
@pytest.mark.parametrize("mix", [(), ("freeze_thaw",), ("size", "curve"), ("smooth", "data_size", "freeze_thaw")])
def test_the_prior_variance_is_the_diagonal_of_the_covariance(design, mix, trend_dims):
    model = a_model(design, mix, trend_dims=trend_dims, slope_var=1.8)
    gen = generator(4)
    theta = some_theta(model, gen)
    for batch in ((), (2,), (3, 4)):
        rows = some_rows(model, gen, 8, *batch, gradients=True)
        expected = [
            [dense_covariance(model, p, one, one).diagonal() for p in samples_of(theta)]
            for one in (member(rows, index, batch) for index in np.ndindex(batch))
        ]
        expected = np.moveaxis(np.array(expected), 0, 1).reshape(3, *batch, 8)
        np.testing.assert_allclose(prior_variance(model, theta, rows), expected, rtol=1e-12)
        diagonal = covariance(model, theta, rows, rows).diagonal(dim1=-2, dim2=-1)
        np.testing.assert_allclose(diagonal, expected, rtol=1e-12)


@each_design
@pytest.mark.parametrize("batch", [(), (2,), (4, 2)])
@pytest.mark.parametrize("gradients", [False, True])
def test_aligned_points_meet_only_their_own_sample(design, batch, gradients):
    model = a_model(design)
    gen = generator(16)
    theta = some_theta(model, gen)
    a = some_rows(model, gen, 5, 3, *batch, gradients=gradients)
    b = some_rows(model, gen, 4, 3, *batch, gradients=gradients)
    K = design_covariance(model, theta, a, b, is_aligned=True)
    assert K.shape == (3, *batch, 5, 4)
    for h, p in enumerate(samples_of(theta)):
        for index in np.ndindex(batch):
            rows = [rows_of(member(r, (h, *index), (3, *batch))) for r in (a, b)]
            expected = [[design_entry(design, p.lengthscale, i, j) for j in rows[1]] for i in rows[0]]
            np.testing.assert_allclose(K[h][index], expected, rtol=1e-12, atol=1e-13)


@each_design
def test_profiles_are_the_design_kernel_by_squared_distance_and_its_derivatives(design):
    u = np.array([0.03, 0.7, 2.9, 11.0])

    def phi(u):
        return design_value(design, 1.0, np.sqrt(u)[..., None], np.zeros(1))

    def slope(f, h=1e-2):
        """Central differences of order 6 in log u."""
        e = np.exp(h * np.array([1, 2, 3]))
        weights = np.array([45, -9, 1]) / 60
        return lambda u: sum(w * (f(u * x) - f(u / x)) for w, x in zip(weights, e, strict=True)) / (h * u)

    def by_complex_step(u):
        return phi(u * (1 + 1e-30j)).imag / (1e-30 * u)

    bend = slope(by_complex_step)
    expected = [phi(u), by_complex_step(u), bend(u), slope(bend)(u)]
    u = torch.from_numpy(u)
    for ours, theirs, rtol in zip(design_profile(design, u), expected, (1e-14, 1e-12, 1e-9, 1e-7), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol)
    for ours, theirs in zip((profile, profile_slope, profile_curvature), expected, strict=False):
        np.testing.assert_allclose(ours(design, u), theirs, rtol=1e-7)
    at_0 = design_profile(design, torch.zeros(1, dtype=torch.float64))
    series = [1, -1 / 2, 1 / 4] if design == "squared_exponential" else [1, -5 / 6, 25 / 12]
    np.testing.assert_allclose(torch.cat(at_0[:3]), series, rtol=1e-12)


def test_values_and_derivatives_have_their_own_noise():
    model = a_model("matern52")
    gen = generator(5)
    theta = some_theta(model, gen)
    rows = some_rows(model, gen, 6, gradients=True)
    noise = noise_variance(theta, rows)
    for i, row in enumerate(rows_of(rows)):
        var = theta.gradient_noise_var if row.part else theta.noise_var
        np.testing.assert_allclose(noise[:, i], var.numpy() * row.noise_scale, rtol=1e-15)


# Derivative rows


@each_design
@pytest.mark.parametrize("mix", [(), ("freeze_thaw", "data_size"), ("curve", "size"), ("smooth",)], ids="*".join)
@pytest.mark.parametrize("trend_dims", [(), (1,)])
def test_derivative_rows_are_the_derivatives_of_the_value_form(design, mix, trend_dims):
    model = a_model(design, mix, trend_dims=trend_dims, slope_var=0.45)
    gen = generator(6)
    theta = some_theta(model, gen)
    a = rows_at(uniform(gen, 3), uniform(gen, 2, model.m), gradients=True)
    b = rows_at(uniform(gen, 3), uniform(gen, 3, model.m), gradients=True)
    K = covariance(model, theta, a, b)
    for h, p in enumerate(samples_of(theta)):
        expected = [[by_finite_differences(model, p, i, j) for j in rows_of(b)] for i in rows_of(a)]
        np.testing.assert_allclose(K[h], expected, rtol=1e-8, atol=1e-9)


@each_design
def test_derivative_rows_at_one_point_are_the_derivatives_of_the_value_form(design):
    model = a_model(design, ("freeze_thaw",))
    gen = generator(7)
    theta = some_theta(model, gen)
    rows = rows_at(uniform(gen, 3), uniform(gen, 2, 1), gradients=True)
    K = covariance(model, theta, rows, rows)
    for h, p in enumerate(samples_of(theta)):
        expected = [[by_finite_differences(model, p, i, j) for j in rows_of(rows)] for i in rows_of(rows)]
        np.testing.assert_allclose(K[h], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("gradients", [False, True])
@each_design
@pytest.mark.parametrize("d", [1, 2, 4])
def test_without_fidelities_the_kernel_is_gpytorchs(d, design, gradients):
    model = a_model(design, d=d, mean_var=0.0)
    gen = generator(8)
    theta = some_theta(model, gen)
    x, y = uniform(gen, 5, d), uniform(gen, 4, d)
    y[0] = x[2]  # a repeated point
    none = torch.empty(1, 0, dtype=torch.float64)
    a, b = (joined([rows_at(point, none, gradients=gradients) for point in z]) for z in (x, y))
    is_smooth = design == "squared_exponential"
    if gradients:
        kind = gpytorch.kernels.RBFKernelGrad if is_smooth else gpytorch.kernels.Matern52KernelGrad
        theirs = kind(ard_num_dims=d)
    elif is_smooth:
        theirs = gpytorch.kernels.RBFKernel(ard_num_dims=d)
    else:
        theirs = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=d)
    theirs = gpytorch.kernels.ScaleKernel(theirs).double()
    K = covariance(model, theta, a, b)
    for h in range(3):
        theirs.outputscale = theta.signal_var[h]
        theirs.base_kernel.lengthscale = theta.lengthscale[h]
        with torch.no_grad():
            expected = theirs(x, y).to_dense()
        torch.testing.assert_close(K[h], expected, rtol=1e-9, atol=1e-10)


# Laws

exponents = st.floats(-3.0, 3.0)
# Few distinct coordinates, some of them almost equal: many repeats and near-repeats.
coordinates = st.one_of(st.sampled_from([0.0, 0.5, 0.5 + 1e-9, 0.50001, 1.0]), st.floats(0.0, 1.0))


@st.composite
def kernels_and_rows(draw, *, gradients):
    d, mix = draw(st.integers(1, 3)), draw(st.lists(st.sampled_from(sorted(N_PARAMETERS)), max_size=3))
    model = Model(
        d=d,
        fidelity_kernels=tuple(mix),
        design_kernel=draw(st.sampled_from(DESIGNS)),
        mean_var=draw(st.sampled_from([0.0, 0.6, 40.0])),
    )

    def positive():
        return torch.tensor([10 ** draw(exponents)], dtype=torch.float64)

    theta = Hyperparameters(
        signal_var=positive(),
        lengthscale=torch.stack([positive() for _ in range(d)], -1),
        fidelity=tuple(tuple(positive() for _ in range(N_PARAMETERS[kind])) for kind in mix),
        noise_var=positive(),
        gradient_noise_var=positive(),
    )
    r = draw(st.integers(1, 9))
    points = draw(st.lists(st.lists(coordinates, min_size=d + len(mix), max_size=d + len(mix)), min_size=r, max_size=r))
    points = torch.tensor(points, dtype=torch.float64)
    part = torch.tensor([draw(st.integers(0, d)) if gradients else 0 for _ in range(r)])
    return model, theta, Rows(x=points[:, :d], s=points[:, d:], part=part, noise_scale=torch.ones(r).double())


def smallest_eigenvalue_of_correlation(model, theta, rows):
    K = covariance(model, theta, rows, rows).numpy()  # (H, r, r)
    assert np.isfinite(K).all()
    sd = np.sqrt(K.diagonal(axis1=-2, axis2=-1))
    correlation = K / (sd[:, :, None] * sd[:, None, :])
    np.testing.assert_allclose(correlation, correlation.swapaxes(-2, -1), rtol=0, atol=1e-13)
    return np.linalg.eigvalsh(correlation).min()


@laws
@given(kernels_and_rows(gradients=False))
def test_values_at_any_points_have_a_positive_semi_definite_covariance(case):
    assert smallest_eigenvalue_of_correlation(*case) >= -1e-10


@laws
@given(kernels_and_rows(gradients=True))
def test_values_and_derivatives_at_any_points_have_a_positive_semi_definite_covariance(case):
    assert smallest_eigenvalue_of_correlation(*case) >= -1e-10


@each_design
@each_mix
def test_a_dense_set_of_points_with_repeats_has_a_positive_semi_definite_covariance(design, mix):
    model = a_model(design, mix, d=2, has_gradients=True)
    gen = generator(9)
    rows = some_rows(model, gen, 60, gradients=True)
    rows.x[30:] = rows.x[:30]
    rows.s[15:45] = rows.s[:30].clone()
    assert smallest_eigenvalue_of_correlation(model, some_theta(model, gen), rows) >= -1e-10


@laws
@given(kernels_and_rows(gradients=True), st.randoms(use_true_random=False))
def test_shuffling_rows_shuffles_the_covariance(case, random):
    model, theta, rows = case
    order = list(range(len(rows)))
    random.shuffle(order)
    mixed = Rows(x=rows.x[order], s=rows.s[order], part=rows.part[order], noise_scale=rows.noise_scale)
    K = covariance(model, theta, rows, rows)
    torch.testing.assert_close(covariance(model, theta, mixed, mixed), K[:, order][:, :, order], rtol=1e-13, atol=0)


# Gradients of the covariance itself


def flat_parameters(theta):
    return [theta.signal_var, theta.lengthscale, *(p for parameters in theta.fidelity for p in parameters)]


def covariance_of_tensors(model, a, b):
    """covariance as a function of x, s, x', s' and every hyperparameter, for gradcheck."""

    def function(x, s, y, t, signal_var, lengthscale, *fidelity):
        flat = iter(fidelity)
        theta = Hyperparameters(
            signal_var=signal_var,
            lengthscale=lengthscale,
            fidelity=tuple(tuple(next(flat) for _ in range(N_PARAMETERS[kind])) for kind in model.fidelity_kernels),
            noise_var=signal_var,
            gradient_noise_var=signal_var,
        )
        return covariance(model, theta, replace(a, x=x, s=s), replace(b, x=y, s=t))

    return function


def differentiable(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def check_gradients(model, theta, a, b):
    inputs = differentiable(a.x, a.s, b.x, b.s, *flat_parameters(theta))
    assert gradcheck(covariance_of_tensors(model, a, b), inputs, eps=1e-6, atol=1e-7, rtol=1e-6)


@each_design
@pytest.mark.parametrize(
    "mix", [(), ("freeze_thaw",), ("data_size",), ("smooth", "freeze_thaw"), ("size", "curve")], ids="*".join
)
@pytest.mark.parametrize("gradients", [False, True])
def test_gradients_by_points_and_hyperparameters_are_right_in_general_position(design, mix, gradients):
    model = a_model(design, mix, d=2)
    gen = generator(10)
    theta = some_theta(model, gen, H=2)
    check_gradients(
        model, theta, some_rows(model, gen, 3, 2, gradients=gradients), some_rows(model, gen, 3, gradients=gradients)
    )


@each_design
@pytest.mark.parametrize(
    "mix", [("freeze_thaw",), ("data_size",), ("smooth",), ("data_size", "freeze_thaw"), ("size", "curve")]
)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("ends", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 0.37)])
def test_gradients_are_right_at_the_ends_of_the_fidelities_and_at_repeated_points(design, mix, gradients, ends):
    model = a_model(design, mix, d=2)
    gen = generator(11)
    theta = some_theta(model, gen, H=2)
    # delta > 1: beyond the kink at s = 1 a central difference errs by (1 - s)^delta = 1e-6^delta only.
    theta = replace(theta, fidelity=tuple(tuple(p + 1.1 for p in parameters) for parameters in theta.fidelity))
    a, b = (some_rows(model, gen, 4, gradients=gradients) for _ in range(2))
    b.x[:3] = a.x[:3]
    a, b = replace(a, s=torch.full_like(a.s, ends[0])), replace(b, s=torch.full_like(b.s, ends[1]))
    if gradients:
        a, b = replace(a, part=torch.tensor([0, 1, 2, 1])), replace(b, part=torch.tensor([1, 1, 1, 0]))
    check_gradients(model, theta, a, b)


@pytest.mark.parametrize("delta", [0.02, 0.5, 0.97])
@each_design
def test_data_size_with_a_small_power_has_a_zero_slope_at_the_target(delta, design):
    model = a_model(design, ("data_size",), d=2)
    gen = generator(12)
    theta = replace(
        some_theta(model, gen, H=2),
        fidelity=((uniform(gen, 2), tensor_of([delta, 2 * delta]).requires_grad_()),),
    )
    a, b = some_rows(model, gen, 3, gradients=True), some_rows(model, gen, 3, gradients=True)
    s = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    by_s, by_delta = torch.autograd.grad(
        covariance(model, theta, replace(a, s=s), b).square().sum(), (s, theta.fidelity[0][1])
    )
    # The one-sided derivative of (1 - s)^(1 + delta) is 0 at s = 1, and it is 0 there for every delta.
    assert (by_s == 0).all()
    assert (by_delta == 0).all()


@pytest.mark.parametrize("delta", [0.02, 0.97])
@each_design
def test_size_with_a_small_power_has_the_slopes_of_its_doubt_and_onset_at_the_target(delta, design):
    model = a_model(design, ("size",), d=2)
    gen = generator(17)
    c, power, doubt = uniform(gen, 2), tensor_of([delta, 2 * delta]).requires_grad_(), uniform(gen, 2, low=0.3)
    reach, onset = uniform(gen, 2, low=0.3), uniform(gen, 2, low=0.01)
    theta = replace(some_theta(model, gen, H=2), fidelity=((c, power, doubt, reach, onset),))
    a, b = some_rows(model, gen, 1), some_rows(model, gen, 1)
    s = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    gap = 1 - b.s.item()
    for h in range(2):
        K = covariance(model, theta, replace(a, s=s), b)[h, 0, 0]
        by_s, by_power = torch.autograd.grad(K, (s, power))
        k_x = design_value(design, theta.lengthscale[h].numpy(), a.x[0].numpy(), b.x[0].numpy())
        k_x *= theta.signal_var[h].item()
        bend = reach[h].item() ** -2
        doubted = doubt[h].item() * np.exp(-bend * gap**2 / 2)
        late = onset[h].item()
        slope = -gap * bend * doubted + (c[h].item() + doubted) * late / (1.001 * (1.001 + late))
        assert by_s.item() == pytest.approx(k_x * share_there(b.s.item(), late) * slope, rel=1e-10)
        assert (by_power == 0).all()


@each_design
@pytest.mark.parametrize("above", [np.nextafter(1.0, 2.0), 1.001])
def test_a_data_size_that_went_above_the_target_counts_as_the_target(design, above):
    model = a_model(design, ("data_size",), d=2)
    gen = generator(13)
    theta = some_theta(model, gen)
    a, b = some_rows(model, gen, 4), some_rows(model, gen, 3)
    too_much, all_of_it = (replace(a, s=torch.full_like(a.s, s)) for s in (above, 1.0))
    assert torch.equal(covariance(model, theta, too_much, b), covariance(model, theta, all_of_it, b))
    assert torch.equal(covariance(model, theta, b, too_much), covariance(model, theta, b, all_of_it))


@each_design
@pytest.mark.parametrize("gap", [0.0, 1e-160, 1e-17, 1e-12, 1e-8, 1e-5])
def test_gradients_stay_finite_and_continuous_as_two_points_meet(design, gap):
    """For close points every gradient tends to the one at equal points, linearly in the gap."""
    model = a_model(design, ("freeze_thaw",), d=2)
    gen = generator(14)
    theta = some_theta(model, gen, H=2)
    one = rows_at(uniform(gen, 2), uniform(gen, 2, 1), gradients=True)

    def gradients(shift):
        x = (one.x + shift).requires_grad_()
        # cos makes every entry count with a different weight
        K = covariance(model, theta, replace(one, x=x), one)
        weights = torch.arange(1.0, K.numel() + 1, dtype=torch.float64).reshape(K.shape).cos()
        return torch.autograd.grad((K * weights).sum(), x)[0]

    close, equal = gradients(gap * torch.tensor([0.8, -0.6], dtype=torch.float64)), gradients(0.0)
    assert close.isfinite().all()
    torch.testing.assert_close(close, equal, rtol=1e-9 + 1e3 * gap, atol=1e-9 + 1e3 * gap)


@each_design
def test_second_derivatives_by_the_points_are_right(design):
    """Newton steps and curvature diagnostics differentiate a covariance of values twice."""
    model = a_model(design, d=2)
    gen = generator(15)
    theta = some_theta(model, gen, H=2)
    a, b = some_rows(model, gen, 3), some_rows(model, gen, 3)
    b.x[0] = a.x[0]
    (x,) = differentiable(a.x)
    assert torch.autograd.gradgradcheck(
        lambda x: covariance(model, theta, replace(a, x=x), b), (x,), atol=1e-6, rtol=1e-5
    )


def test_every_kernel_is_among_those_tested():
    assert sorted(DESIGNS) == sorted(DESIGN_KERNELS)
    assert sorted(N_PARAMETERS) == sorted(FIDELITY_KERNELS)
    assert len(set(MIXES)) == len(MIXES)
    assert {kind for mix in MIXES for kind in mix} == set(FIDELITY_KERNELS)
