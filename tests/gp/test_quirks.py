"""Deviations of single designs: covariances, posteriors and densities against loops in NumPy."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from dense_gp import (
    DESIGNS,
    N_PARAMETERS,
    Sample,
    generator,
    member,
    noise,
    posterior,
    samples_of,
    some_rows,
    some_theta,
    some_y,
    uniform,
)
from dense_gp import covariance as dense_covariance
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from takg.gp import (
    Hyperparameters,
    Model,
    Posterior,
    Rows,
    Tables,
    condition,
    covariance,
    folded_target_mean,
    rows_at,
    value_rows,
)
from takg.gp import _posterior as posterior_module
from takg.gp._evidence import LogDensity
from takg.gp._kernels import prior_variance

MIXES = [("curve",), ("size", "freeze_thaw"), ("data_size", "curve", "smooth")]
OWNERS = ([0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1, 1])
each_design = pytest.mark.parametrize("design", DESIGNS)
each_mix = pytest.mark.parametrize("mix", MIXES, ids="*".join)
with_or_without_gradients = pytest.mark.parametrize("gradients", [False, True])


def a_model(design: str, mix: tuple[str, ...], *, d: int = 2, **choices: object) -> Model:
    return Model(d=d, fidelity_kernels=mix, design_kernel=design, **{"mean_var": 0.6, "has_quirks": True} | choices)


def rows_among(
    designs: Tensor, model: Model, gen: torch.Generator, r: int, *batch: int, gradients: bool = False
) -> Rows:
    """r rows, most of them at one of the designs and some at an x of their own, with fidelities also at both ends."""
    rows = some_rows(model, gen, r, *batch, gradients=gradients)
    x, s = at_some(designs, rows.x, gen), ((rows.s - 0.15) / 0.7).clamp(0, 1)
    x[..., 0, :], s[..., 0, :] = designs[0], 0.3
    part = torch.where(torch.arange(r) % 3 < 2, 0, rows.part)  # most of them values
    return replace(rows, x=x, s=s, part=part)


def at_some(designs: Tensor, x: Tensor, gen: torch.Generator) -> Tensor:
    """x (..., d) with most of its points replaced by a design."""
    which = torch.randint(len(designs) + 1, x.shape[:-1], generator=gen)
    return torch.where((which < len(designs))[..., None], torch.cat([designs, designs[:1]])[which], x)


def without_quirks(theta: Hyperparameters) -> Hyperparameters:
    return replace(theta, quirk_var=None)


def differentiable(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


# The hyperparameter


@with_or_without_gradients
def test_the_variance_of_quirks_is_the_last_hyperparameter(gradients):
    plain, erratic = (
        Model(d=2, fidelity_kernels=("curve",), has_gradients=gradients, has_quirks=flag) for flag in (False, True)
    )
    assert tuple(erratic.priors) == (*plain.priors, "quirk_var")
    z = torch.randn(5, len(erratic.priors), generator=generator(1), dtype=torch.float64)
    theta, known = erratic.unpack(z), plain.unpack(z[:, :-1])
    torch.testing.assert_close(theta.quirk_var, 1e-6 * (3.5 * z[:, -1]).exp(), rtol=1e-13, atol=0)
    assert known.quirk_var is None
    for name in ("signal_var", "lengthscale", "noise_var", "gradient_noise_var"):
        assert torch.equal(getattr(theta, name), getattr(known, name))
    assert torch.equal(theta.part(slice(2)).quirk_var, theta.quirk_var[:2])
    assert torch.equal(theta.part(slice(3, 4)).quirk_var, theta.quirk_var[3:4])
    assert known.part(slice(2)).quirk_var is None


# The covariance of rows


@each_design
@each_mix
@with_or_without_gradients
def test_the_covariance_agrees_with_the_loop(design, mix, gradients):
    model = a_model(design, mix)
    gen = generator(2)
    theta, designs = some_theta(model, gen), uniform(gen, 3, model.d)
    a, b = (rows_among(designs, model, gen, r, gradients=gradients) for r in (13, 11))
    K = covariance(model, theta, a, b)
    assert K.shape == (3, 13, 11)
    for h, p in enumerate(samples_of(theta)):
        np.testing.assert_allclose(K[h], dense_covariance(model, p, a, b), rtol=1e-12, atol=1e-13)
        assert (abs(K[h].numpy() - dense_covariance(model, replace(p, quirk_var=0.0), a, b)) > 1e-3).sum() >= 5


@each_design
@pytest.mark.parametrize("mix", MIXES[:2], ids="*".join)
@pytest.mark.parametrize("batches", [((), (5,)), ((5,), ()), ((2, 1), (3,)), ((2, 3), (2, 3)), ((3,), (3,))])
def test_batches_agree_with_the_loop_for_each_member(design, mix, batches):
    """Also of H = 3 members, which are not to be taken for the samples."""
    model = a_model(design, mix)
    gen = generator(3)
    theta, designs = some_theta(model, gen), uniform(gen, 2, model.d)
    a, b = (
        rows_among(designs, model, gen, r, *batch, gradients=True) for r, batch in zip((4, 3), batches, strict=True)
    )
    K = covariance(model, theta, a, b)
    batch = np.broadcast_shapes(*batches)
    assert K.shape == (3, *batch, 4, 3)
    for h, p in enumerate(samples_of(theta)):
        for index in np.ndindex(batch):
            expected = dense_covariance(model, p, member(a, index, batch), member(b, index, batch))
            np.testing.assert_allclose(K[(h, *index)], expected, rtol=1e-12, atol=1e-13)


@each_design
@each_mix
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_the_prior_variance_is_the_diagonal_of_the_loop(design, mix, batch):
    model = a_model(design, mix)
    gen = generator(4)
    theta = some_theta(model, gen)
    rows = rows_among(uniform(gen, 2, model.d), model, gen, 7, *batch, gradients=True)
    variance = prior_variance(model, theta, rows)
    assert variance.shape == (3, *batch, 7)
    for h, p in enumerate(samples_of(theta)):
        for index in np.ndindex(batch):
            one = member(rows, index, batch)
            expected = dense_covariance(model, p, one, one).diagonal()
            np.testing.assert_allclose(variance[(h, *index)], expected, rtol=1e-12)


@each_design
def test_only_values_at_the_very_same_x_share_a_quirk(design):
    model = a_model(design, ("curve", "size"), d=3)
    gen = generator(5)
    theta = some_theta(model, gen)
    x = uniform(gen, 1, 3).repeat(4, 1)
    x[1, 2] = torch.nextafter(x[1, 2], x.new_tensor(2.0))
    x[2, 0] += 0.1
    rows = value_rows(x, uniform(gen, 4, 2))
    shared = covariance(model, theta, rows, rows) - covariance(model, without_quirks(theta), rows, rows)
    is_same = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)
    assert (shared[:, ~is_same] == 0).all()
    s = rows.s.numpy()
    for h, i, j in np.ndindex(3, 4, 4):
        expected = theta.quirk_var[h].item() * (1 - s[i, 0] * s[i, 1]) * (1 - s[j, 0] * s[j, 1]) * is_same[i, j].item()
        assert shared[h, i, j].item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@each_design
def test_derivatives_have_no_quirk(design):
    model = a_model(design, ("curve", "size"), has_gradients=True)
    gen = generator(6)
    theta = some_theta(model, gen)
    rows = rows_at(uniform(gen, 2), uniform(gen, 3, 2), gradients=True)  # values and derivatives at one x
    erratic, plain = covariance(model, theta, rows, rows), covariance(model, without_quirks(theta), rows, rows)
    both_values = (rows.part == 0)[:, None] & (rows.part == 0)
    assert torch.equal(erratic[:, ~both_values], plain[:, ~both_values])
    assert (erratic[:, both_values] > plain[:, both_values] + 1e-3).all()
    variance, plain_variance = (prior_variance(model, one, rows) for one in (theta, without_quirks(theta)))
    assert torch.equal(variance[:, rows.part > 0], plain_variance[:, rows.part > 0])
    assert (variance[:, rows.part == 0] > plain_variance[:, rows.part == 0] + 1e-3).all()


@each_design
def test_what_is_simulated_without_noise_has_no_quirk(design):
    model = a_model(design, ("curve", "size"))
    gen = generator(8)
    theta, designs = some_theta(model, gen), uniform(gen, 2, model.d)
    rows = replace(rows_among(designs, model, gen, 6), noise_scale=torch.tensor([0.7, 0, 1.3, 0, 1, 0.4]).double())
    K = covariance(model, theta, rows, rows)
    variance, lower = prior_variance(model, theta, rows), Tables.of(model, rows).lower_covariance(theta)
    x, owner = designs[None, :1], torch.zeros(6, dtype=torch.long)
    data = rows_among(designs, model, gen, 5)
    cross = Tables.of(model, data).covariance_with(
        theta, x, owner, rows.s[None], torch.ones(1, 6, dtype=torch.float64), rows.has_quirk
    )
    at_x = replace(rows, x=x[0].expand(6, -1))
    for h, p in enumerate(samples_of(theta)):
        expected = dense_covariance(model, p, rows, rows)
        np.testing.assert_allclose(K[h], expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(variance[h], expected.diagonal(), rtol=1e-12)
        np.testing.assert_allclose(lower[h].tril(), np.tril(expected + noise(p, rows)), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(cross[h, :, 0], dense_covariance(model, p, data, at_x), rtol=1e-12, atol=1e-13)


@each_design
def test_without_fidelities_there_are_no_quirks(design):
    model = a_model(design, ())
    gen = generator(7)
    theta = some_theta(model, gen)
    rows = rows_among(uniform(gen, 2, 2), model, gen, 6)
    assert torch.equal(covariance(model, theta, rows, rows), covariance(model, without_quirks(theta), rows, rows))
    assert torch.equal(prior_variance(model, theta, rows), prior_variance(model, without_quirks(theta), rows))
    lower, plain = (Tables.of(model, rows).lower_covariance(one) for one in (theta, without_quirks(theta)))
    assert torch.equal(lower.tril(), plain.tril())


exponents = st.floats(-3.0, 3.0)
coordinates = st.one_of(st.sampled_from([0.0, 0.5, 0.5 + 1e-9, 1.0]), st.floats(0.0, 1.0))


@st.composite
def erratic_kernels(draw):
    """Parameters over six orders of magnitude, and few distinct x."""
    d, mix = draw(st.integers(1, 2)), draw(st.lists(st.sampled_from(sorted(N_PARAMETERS)), min_size=1, max_size=3))
    model = Model(
        d=d,
        fidelity_kernels=tuple(mix),
        design_kernel=draw(st.sampled_from(DESIGNS)),
        mean_var=draw(st.sampled_from([0.0, 0.6, 40.0])),
        has_quirks=True,
    )

    def positive():
        return torch.tensor([10 ** draw(exponents)], dtype=torch.float64)

    theta = Hyperparameters(
        signal_var=positive(),
        lengthscale=torch.stack([positive() for _ in range(d)], -1),
        fidelity=tuple(tuple(positive() for _ in range(N_PARAMETERS[kind])) for kind in mix),
        noise_var=positive(),
        gradient_noise_var=positive(),
        quirk_var=positive(),
    )
    designs = draw(st.lists(st.lists(coordinates, min_size=d, max_size=d), min_size=1, max_size=3))
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(designs),
                st.lists(coordinates, min_size=len(mix), max_size=len(mix)),
                st.sampled_from([0, 0, *range(d + 1)]),
            ),
            min_size=1,
            max_size=9,
        )
    )
    x, s, part = zip(*rows, strict=True)
    x, s = (torch.tensor(points, dtype=torch.float64) for points in (x, s))
    return model, theta, Rows(x=x, s=s, part=torch.tensor(part), noise_scale=torch.ones(len(x)).double())


@settings(deadline=None, derandomize=True, max_examples=100)
@given(erratic_kernels())
def test_the_covariance_is_positive_semi_definite(case):
    model, theta, rows = case
    K = covariance(model, theta, rows, rows)[0].numpy()
    np.testing.assert_allclose(K, K.T, rtol=1e-13, atol=1e-13 * abs(K).max())
    eigenvalues = np.linalg.eigvalsh(K)
    assert eigenvalues[0] >= -1e-10 * eigenvalues[-1]


# The same from tables


@each_design
@each_mix
def test_the_lower_triangle_from_tables_agrees_with_the_loop(design, mix):
    model = a_model(design, mix)
    gen = generator(8)
    theta = some_theta(model, gen)
    rows = rows_among(uniform(gen, 3, model.d), model, gen, 14)
    rows.x[-1], rows.s[-1] = rows.x[0], rows.s[0]  # a row that is there twice
    K = Tables.of(model, rows).lower_covariance(theta)
    for h, p in enumerate(samples_of(theta)):
        expected = dense_covariance(model, p, rows, rows) + noise(p, rows)
        np.testing.assert_allclose(K[h].tril(), np.tril(expected), rtol=1e-12)


def test_slopes_and_quirks_are_added_to_the_same_triangle():
    model = a_model("matern52", ("curve", "size"), trend_dims=(1,), slope_var=2.6)
    gen = generator(9)
    theta = some_theta(model, gen)
    rows = rows_among(uniform(gen, 3, 2), model, gen, 10)
    K = Tables.of(model, rows).lower_covariance(theta)
    for h, p in enumerate(samples_of(theta)):
        expected = dense_covariance(model, p, rows, rows) + noise(p, rows)
        np.testing.assert_allclose(K[h].tril(), np.tril(expected), rtol=1e-12)


def test_the_same_tables_serve_one_sample_after_another():
    model = a_model("squared_exponential", ("curve", "size"))
    gen = generator(10)
    theta = some_theta(model, gen, H=4)
    tables = Tables.of(model, rows_among(uniform(gen, 3, 2), model, gen, 9))
    whole = tables.lower_covariance(theta).tril()
    for h in (2, 0, 2):
        one = tables.lower_covariance(theta.part(slice(h, h + 1))).tril()
        torch.testing.assert_close(one[0], whole[h], rtol=1e-14, atol=0)


def dense_with(
    model: Model, theta: Hyperparameters, rows: Rows, x: Tensor, owner: Tensor, s: Tensor, is_new: Tensor
) -> np.ndarray:
    """Covariance of the rows with r values at each of B candidates, (H, n, B, r), from the loop."""
    K = np.empty((theta.H, len(rows), *is_new.shape))
    for h, p in enumerate(samples_of(theta)):
        for b in range(len(x)):
            K[h, :, b] = dense_covariance(model, p, rows, value_rows(x[b, owner], s[b])) * is_new[b].numpy()
    return K


def some_candidates(
    designs: Tensor, model: Model, gen: torch.Generator, owner: Tensor, *, B: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, q, d), the first at known designs, the last at none; s (B, r, m); is_new (B, r), 0 in some places."""
    q, r = 1 + int(owner.max()), len(owner)
    x = uniform(gen, B, q, model.d)
    x[:-1] = at_some(designs, x[:-1], gen)
    x[0] = designs[:q]
    is_new = torch.ones(B, r, dtype=torch.float64)
    is_new[0, 1] = is_new[-1, 0] = 0.0
    return x, uniform(gen, B, r, model.m), is_new


@each_design
@each_mix
@pytest.mark.parametrize("owner", OWNERS)
def test_the_covariance_with_candidates_agrees_with_the_loop(design, mix, owner):
    model = a_model(design, mix)
    gen = generator(11)
    theta, designs, owner = some_theta(model, gen), uniform(gen, 3, model.d), torch.tensor(owner)
    rows = rows_among(designs, model, gen, 12)
    x, s, is_new = some_candidates(designs, model, gen, owner)
    s[0, 0], s[0, 2] = 1.0, 0.0
    tables = Tables.of(model, rows)
    expected = dense_with(model, theta, rows, x, owner, s, is_new)
    for is_enabled in (True, False):
        with torch.set_grad_enabled(is_enabled):
            K = tables.covariance_with(theta, x, owner, s, is_new)
        np.testing.assert_allclose(K, expected, rtol=1e-12)
    with torch.no_grad():
        plain = tables.covariance_with(without_quirks(theta), x, owner, s, is_new)
    assert ((K - plain) > 1e-3).sum() >= 5
    assert torch.equal(K[:, :, -1], plain[:, :, -1])  # candidates at no known x
    assert (K[:, :, is_new == 0] == 0).all()


@pytest.mark.parametrize("owner", OWNERS)
def test_candidates_at_no_known_x_have_the_covariance_of_a_process_without_quirks(owner):
    model = a_model("matern52", ("curve", "size"))
    gen = generator(12)
    theta, designs, owner = some_theta(model, gen), uniform(gen, 3, 2), torch.tensor(owner)
    tables = Tables.of(model, rows_among(designs, model, gen, 9))
    x, s = uniform(gen, 3, 1 + int(owner.max()), 2), uniform(gen, 3, len(owner), 2)
    is_new = torch.ones(3, len(owner), dtype=torch.float64)
    erratic, plain = (tables.covariance_with(one, x, owner, s, is_new) for one in (theta, without_quirks(theta)))
    assert torch.equal(erratic, plain)


def central_differences(function: Callable[[Tensor], float], z: Tensor, h: float = 1e-5) -> Tensor:
    out = torch.empty_like(z)
    for index in np.ndindex(*z.shape):
        step = torch.zeros_like(z)
        step[index] = h
        out[index] = (function(z + step) - function(z - step)) / (2 * h)
    return out


@each_design
@each_mix
@pytest.mark.parametrize("owner", OWNERS[:2])
def test_gradients_by_fidelities_agree_with_central_differences_of_the_loop(design, mix, owner):
    """These err by h^2 of a third derivative of order 1, and by 1e-15 / h of rounding: below 1e-8 with h = 1e-5."""
    model = a_model(design, mix)
    gen = generator(13)
    theta, designs, owner = some_theta(model, gen, H=2), uniform(gen, 2, model.d), torch.tensor(owner)
    rows = rows_among(designs, model, gen, 5)
    x, s, is_new = some_candidates(designs, model, gen, owner, B=2)  # one at known designs, the other at new ones
    weight = torch.randn(2, 5, *is_new.shape, generator=gen, dtype=torch.float64)
    (leaf,) = differentiable(s)
    tables = Tables.of(model, rows)
    K = tables.covariance_with(theta, x, owner, leaf, is_new)
    (slope,) = torch.autograd.grad((K * weight).sum(), leaf)
    expected = central_differences(
        lambda s: float((dense_with(model, theta, rows, x, owner, s, is_new) * weight.numpy()).sum()), s
    )
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)
    plain = tables.covariance_with(without_quirks(theta), x, owner, leaf, is_new)
    (plain_slope,) = torch.autograd.grad((plain * weight).sum(), leaf)
    assert (slope - plain_slope)[0].abs().max() > 1e-2
    assert torch.equal(slope[1], plain_slope[1])


@each_design
@pytest.mark.parametrize("end", [None, 0.0, 1.0])
def test_each_entry_has_its_gradient_by_fidelities_also_at_their_ends(design, end):
    model = a_model(design, ("curve", "size"))
    gen = generator(14)
    theta, designs, owner = some_theta(model, gen, H=2), uniform(gen, 2, 2), torch.tensor(OWNERS[1])
    # delta > 1: beyond the kink at s = 1 a central difference errs by (1 - s)^delta = 1e-6^delta only.
    theta = replace(theta, fidelity=tuple(tuple(p + 1.1 for p in parameters) for parameters in theta.fidelity))
    rows = rows_among(designs, model, gen, 5)
    x, s, is_new = some_candidates(designs, model, gen, owner, B=2)
    s = s if end is None else torch.full_like(s, end)
    tables = Tables.of(model, rows)
    assert gradcheck(
        lambda s: tables.covariance_with(theta, x, owner, s, is_new), differentiable(s), atol=1e-7, rtol=1e-6
    )


def test_a_quirk_has_no_slope_in_x():
    model = a_model("matern52", ("curve", "size"))
    gen = generator(15)
    theta, designs, owner = some_theta(model, gen), uniform(gen, 3, 2), torch.tensor(OWNERS[1])
    tables = Tables.of(model, rows_among(designs, model, gen, 9))
    x, s, is_new = some_candidates(designs, model, gen, owner)
    (leaf,) = differentiable(x)
    weight = torch.randn(3, 9, *is_new.shape, generator=gen, dtype=torch.float64)
    erratic, plain = (
        torch.autograd.grad((tables.covariance_with(one, leaf, owner, s, is_new) * weight).sum(), leaf)[0]
        for one in (theta, without_quirks(theta))
    )
    assert torch.equal(erratic, plain)


def gradients_are_right(design: str, s: float | None, t: float | None) -> bool:
    """Of every entry of `covariance` by both fidelities and the variance of quirks, with rows that share their x."""
    model = a_model(design, ("size", "curve"))
    gen = generator(16)
    theta, designs = some_theta(model, gen, H=2), uniform(gen, 2, 2)
    theta = replace(theta, fidelity=tuple(tuple(p + 1.1 for p in parameters) for parameters in theta.fidelity))
    a, b = (rows_among(designs, model, gen, 4, gradients=True) for _ in range(2))
    a, b = replace(a, part=torch.tensor([0, 0, 1, 0])), replace(b, part=torch.tensor([0, 2, 0, 0]))
    b.x[0], b.x[2], b.x[3] = a.x[0], a.x[1], a.x[3]
    inputs = (uniform(gen, 4, 2) if end is None else torch.full((4, 2), end, dtype=torch.float64) for end in (s, t))
    return gradcheck(
        lambda s, t, var: covariance(model, replace(theta, quirk_var=var), replace(a, s=s), replace(b, s=t)),
        differentiable(*inputs, theta.quirk_var),
        atol=1e-7,
        rtol=1e-6,
    )


@each_design
@pytest.mark.parametrize(("s", "t"), [(None, None), (0.0, None), (0.0, 0.0), (1.0, 1.0)])
def test_gradients_of_the_covariance_by_fidelities_and_the_variance_are_right(design, s, t):
    assert gradients_are_right(design, s, t)


@each_design
@pytest.mark.parametrize(("s", "t"), [(1.0, None), (0.0, 1.0)])
def test_gradients_of_the_covariance_are_right_where_one_side_is_at_the_target(design, s, t):
    """(1 - s) (1 - t) vanishes there, its slope does not."""
    assert gradients_are_right(design, s, t)


# At the target


@each_design
@each_mix
def test_nothing_is_left_of_quirks_at_the_target(design, mix):
    model = a_model(design, mix)
    gen = generator(17)
    theta, designs = some_theta(model, gen), uniform(gen, 3, model.d)
    rows = rows_among(designs, model, gen, 8)
    target = value_rows(torch.cat([designs, uniform(gen, 2, model.d)]), torch.ones(5, model.m, dtype=torch.float64))
    half = replace(target, s=torch.where(torch.arange(5)[:, None] < 3, target.s, 0.4))  # no row to be singled out by
    for a, b in ((rows, target), (target, rows), (target, target), (rows, half[:3]), (half[:3], rows)):
        assert torch.equal(covariance(model, theta, a, b), covariance(model, without_quirks(theta), a, b))
    whole, plain = covariance(model, theta, half, rows), covariance(model, without_quirks(theta), half, rows)
    assert torch.equal(whole[:, :3], plain[:, :3])
    assert torch.equal(prior_variance(model, theta, target), prior_variance(model, without_quirks(theta), target))


def a_posterior(design: str, mix: tuple[str, ...], *, gradients: bool = False) -> tuple[Posterior, Tensor]:
    """Three designs seen at several fidelities, and some that were seen once; the designs."""
    model = a_model(design, mix, has_gradients=gradients)
    gen = generator(18)
    designs = uniform(gen, 3, model.d)
    rows = rows_among(designs, model, gen, 14, gradients=gradients)
    return condition(model, some_theta(model, gen), rows, some_y(gen, 14)), designs


@each_design
@each_mix
@with_or_without_gradients
def test_the_posterior_is_that_of_a_dense_solve(design, mix, gradients):
    post, designs = a_posterior(design, mix, gradients=gradients)
    query = rows_among(designs, post.model, generator(19), 8, gradients=gradients)
    mean, K, variance = post.mean(query), post.covariance(query), post.variance(query)
    for h, p in enumerate(samples_of(post.theta)):
        expected_mean, expected_K = posterior(post.model, p, post.rows, post.y, query)
        np.testing.assert_allclose(mean[h], expected_mean, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(K[h], expected_K, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(variance[h], expected_K.diagonal(), rtol=1e-9, atol=1e-10)


@each_design
@each_mix
@with_or_without_gradients
def test_the_folded_mean_is_that_at_the_target(design, mix, gradients):
    post, designs = a_posterior(design, mix, gradients=gradients)
    x_new = torch.cat([designs, uniform(generator(20), 9, 2)])  # where quirks are known, and where not
    folded = folded_target_mean(post)(x_new)
    torch.testing.assert_close(folded, post.target_mean(x_new), rtol=1e-11, atol=1e-11)
    for h, p in enumerate(samples_of(post.theta)):
        expected, _ = posterior(post.model, p, post.rows, post.y, post.target_rows(x_new))
        np.testing.assert_allclose(folded[h], expected, rtol=1e-9, atol=1e-10)


def test_observations_of_a_known_x_may_be_appended():
    post, designs = a_posterior("matern52", ("curve", "size"))
    gen = generator(21)
    more, y = rows_among(designs, post.model, gen, 4), some_y(gen, 4)
    query = rows_among(designs, post.model, gen, 6)
    longer = post.extended(more, y)
    for h, p in enumerate(samples_of(post.theta)):
        mean, K = posterior(post.model, p, longer.rows, torch.cat([post.y, y]), query)
        np.testing.assert_allclose(longer.mean(query)[h], mean, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(longer.covariance(query)[h], K, rtol=1e-9, atol=1e-10)


def test_many_rows_are_conditioned_on_by_their_tables(monkeypatch):
    post, _ = a_posterior("matern52", ("curve", "size"))
    monkeypatch.setattr(posterior_module, "_FEW", 3)
    by_tables = condition(post.model, post.theta, post.rows, post.y)
    torch.testing.assert_close(by_tables.L.tril(), post.L, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(by_tables.weights, post.weights, rtol=1e-9, atol=1e-10)


# The density of the hyperparameters

# (median, sd) of the log-normal priors, not read from the source.
PRIORS = {
    "freeze_thaw": [(1.0, 1.0), (1.0, 1.0), (1.0, 0.7)],
    "size": [(1.0, 1.0), (1.0, 0.7), (0.3, 0.7), (0.7, 0.7), (0.003, 2.0)],
    "curve": [(1.0, 1.0), (1.0, 1.0), (1.0, 0.7), (0.3, 0.7), (0.7, 0.7), (0.003, 2.0)],
}
SIGNAL_VAR, NOISE_VAR, GRADIENT_NOISE_VAR, QUIRK_VAR = (1.0, 1.0), (1e-4, 2.5), (1e-3, 2.5), (1e-6, 3.5)
NOISE_FLOOR = 1e-6
ERRATIC = {
    "curve": Model(d=1, fidelity_kernels=("curve",), mean_var=0.9, has_quirks=True),
    "size_and_curve": Model(d=2, fidelity_kernels=("size", "curve"), design_kernel="matern52", has_quirks=True),
    "trend": Model(d=2, fidelity_kernels=("freeze_thaw",), trend_dims=(1,), slope_var=1.9, has_quirks=True),
    "gradients": Model(d=2, fidelity_kernels=("freeze_thaw",), has_gradients=True, mean_var=0.6, has_quirks=True),
}
each_erratic = pytest.mark.parametrize("model", ERRATIC.values(), ids=ERRATIC.keys())


def sample_of(model: Model, z: np.ndarray) -> Sample:
    """One whitened vector as hyperparameters."""
    table = [SIGNAL_VAR, *[(0.5 * math.sqrt(model.d), 1.0)] * model.d]
    table += [prior for kind in model.fidelity_kernels for prior in PRIORS[kind]]
    table += [NOISE_VAR, *[GRADIENT_NOISE_VAR] * model.has_gradients, QUIRK_VAR]
    values = iter([median * math.exp(sd * z_k) for (median, sd), z_k in zip(table, z, strict=True)])
    signal_var, lengthscale = next(values), np.array([next(values) for _ in range(model.d)])
    fidelity = tuple(tuple(next(values) for _ in PRIORS[kind]) for kind in model.fidelity_kernels)
    *noises, quirk_var = values
    return Sample(signal_var, lengthscale, fidelity, NOISE_FLOOR + noises[0], NOISE_FLOOR + noises[-1], quirk_var)


def log_density(model: Model, rows: Rows, y: Tensor, z: np.ndarray) -> float:
    """log N(y; 0, K + noise) + log prior(z), without the prior's constant."""
    p = sample_of(model, z)
    K = dense_covariance(model, p, rows, rows) + noise(p, rows)
    return float(scipy.stats.multivariate_normal.logpdf(y.numpy(), np.zeros(len(rows)), K) - z @ z / 2)


def some_z(model: Model, rng: np.random.Generator, count: int) -> np.ndarray:
    """Generic, with noise variances of 3e-4 to 2e-2 (of derivatives ten times that) and quirks of 0.01 to 0.5."""
    p = 3 + model.d + sum(len(PRIORS[kind]) for kind in model.fidelity_kernels) + model.has_gradients
    z = rng.uniform(-1.3, 1.3, (count, p))
    z[:, -2 - model.has_gradients : -1] = rng.uniform(0.4, 2.1, (count, 1 + model.has_gradients))
    z[:, -1] = rng.uniform(2.6, 3.75, count)
    return z


def some_data(model: Model, seed: int) -> tuple[Rows, Tensor, np.ndarray]:
    """Eleven rows at few designs, outcomes drawn from the process itself, and z to look at."""
    gen, rng = generator(seed), np.random.default_rng(seed)
    rows = rows_among(uniform(gen, 3, model.d), model, gen, 11, gradients=model.has_gradients)
    p = sample_of(model, some_z(model, rng, 1)[0])
    L = np.linalg.cholesky(dense_covariance(model, p, rows, rows) + noise(p, rows))
    return rows, torch.from_numpy(L @ rng.standard_normal(11)), some_z(model, rng, 3)


@each_erratic
def test_the_density_is_a_normal_one_times_the_prior(model):
    rows, y, z = some_data(model, 22)
    density = LogDensity(model=model, rows=rows, y=y)
    expected = [log_density(model, rows, y, one) for one in z]
    np.testing.assert_allclose(density(torch.from_numpy(z)), expected, rtol=1e-9)
    values, _ = density.negative_with_gradient(torch.from_numpy(z))
    np.testing.assert_allclose(-values, expected, rtol=1e-9)
    assert density.failures == 0


@each_erratic
def test_the_gradient_of_the_density_agrees_with_finite_differences(model):
    """Five-point differences with steps of 2e-3 err by 1e-11 of a fifth derivative, and by 1e-10 of rounding."""
    rows, y, z = some_data(model, 23)
    _, gradients = LogDensity(model=model, rows=rows, y=y).negative_with_gradient(torch.from_numpy(z))
    h = 2e-3

    def slope(z: np.ndarray, e: np.ndarray) -> float:
        near, far = (log_density(model, rows, y, z + k * e) - log_density(model, rows, y, z - k * e) for k in (1, 2))
        return -(8 * near - far) / (12 * h)

    expected = np.array([[slope(one, e) for e in h * np.eye(z.shape[1])] for one in z])
    np.testing.assert_allclose(gradients, expected, rtol=1e-6, atol=1e-7)
    assert (abs(expected[:, -1] - z[:, -1]) > 1e-3).all()  # the data have something to say of quirks
