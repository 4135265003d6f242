"""Covariances gathered from tables, against a loop over all pairs of rows in NumPy, and their gradients."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_gp import generator, some_theta, uniform
from torch.autograd import gradcheck

from takg.gp import Model, Rows, Tables

DESIGNS = ("squared_exponential", "matern52")
MIXES = [
    ("freeze_thaw",),
    ("data_size",),
    ("smooth",),
    ("curve",),
    ("size",),
    ("curve", "size"),
    ("smooth", "freeze_thaw"),
    ("data_size", "curve", "smooth"),
    ("size", "freeze_thaw", "size"),
]
OWNER = torch.tensor([1, 0, 0, 1])  # of r = 4 values at q = 2 evaluations

each_design = pytest.mark.parametrize("design", DESIGNS)
each_mix = pytest.mark.parametrize("mix", MIXES, ids="*".join)


def a_model(design, mix, *, d=3, **settings):
    return Model(d=d, fidelity_kernels=mix, design_kernel=design, **{"mean_var": 0.6} | settings)


def rows_of(x, s, gen):
    """Values, each with its own noise scale."""
    noise_scale = uniform(gen, len(x), low=0.4, high=1.7)
    return Rows(x=x, s=s, part=torch.zeros(len(x), dtype=torch.long), noise_scale=noise_scale)


def traces(model, gen, *, n=14, u=4):
    """n rows in no order: u distinct x, five values of each fidelity, among them both ends, and repeated rows."""
    x, s = uniform(gen, u, model.d), torch.tensor([0.0, 0.21, 0.5, 0.83, 1.0], dtype=torch.float64)
    x, s = x[torch.randint(u, (n,), generator=gen)], s[torch.randint(5, (n, model.m), generator=gen)]
    x[n // 2], s[n // 2] = x[0], s[0]
    x[-1], s[-1] = x[0], s[0]
    return rows_of(x, s, gen)


def some_candidates(model, gen, *, B=3, q=2, r=4):
    return uniform(gen, B, q, model.d), uniform(gen, B, r, model.m)


def differentiable(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


# What is compared with


def fidelity_kernel(kind, s, t, p):
    if kind == "freeze_thaw":
        w, beta, alpha = p
        return w + (1 + (s + t) / beta) ** -alpha
    if kind == "data_size":
        c, delta = p
        return c + (1 - s) ** (1 + delta) * (1 - t) ** (1 + delta)
    if kind == "smooth":
        return np.exp(-((s - t) ** 2) / (2 * p[0] ** 2))
    plain = {"curve": "freeze_thaw", "size": "data_size"}[kind]
    *known, doubt, reach, onset = p
    both = ((1.001 + onset) / 1.001) ** 2 * np.prod([(one + 0.001) / (one + 0.001 + onset) for one in (s, t)], axis=0)
    return both * (fidelity_kernel(plain, s, t, known) + doubt * np.exp(-((s - t) ** 2) / (2 * reach**2)))


def kernel(model, theta, h, x, s, y, t):
    """Covariance of g(x, s) and g(y, t), without a trend, under one of the samples."""
    r = np.linalg.norm((x - y) / theta.lengthscale[h].numpy())
    matern52 = (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r)
    k = theta.signal_var[h].item() * (matern52 if model.design_kernel == "matern52" else np.exp(-(r**2) / 2))
    for j, kind in enumerate(model.fidelity_kernels):
        k *= fidelity_kernel(kind, s[j], t[j], [one[h].item() for one in theta.fidelity[j]])
    return k


def dense_lower(model, theta, rows):
    """The lower triangle with trend and noise, and zeros above it."""
    x, s, n = rows.x.numpy(), rows.s.numpy(), len(rows)
    K = np.zeros((theta.H, n, n))
    for h, i in np.ndindex(theta.H, n):
        for j in range(i + 1):
            slopes = sum(model.slope_var * x[i, k] * x[j, k] for k in model.trend_dims)
            K[h, i, j] = kernel(model, theta, h, x[i], s[i], x[j], s[j]) + model.mean_var + slopes
        K[h, i, i] += theta.noise_var[h].item() * rows.noise_scale[i].item()
    return K


def dense_with(model, theta, rows, x, owner, s, is_new):
    """Of rows and candidates; x, s and is_new as NumPy arrays."""
    X, S = rows.x.numpy(), rows.s.numpy()
    K = np.zeros((theta.H, len(rows), *is_new.shape))
    for h, i, b, c in np.ndindex(*K.shape):
        k = kernel(model, theta, h, X[i], S[i], x[b, owner[c]], s[b, c])
        K[h, i, b, c] = (k + model.mean_var) * is_new[b, c]
    return K


def check_lower(model, theta, rows):
    K = Tables.of(model, rows).lower_covariance(theta)
    assert K.shape == (theta.H, len(rows), len(rows))
    np.testing.assert_allclose(np.tril(K.numpy()), dense_lower(model, theta, rows), rtol=1e-12)


def check_with(model, theta, rows, x, owner, s, is_new):
    K = Tables.of(model, rows).covariance_with(theta, x, owner, s, is_new)
    assert K.shape == (theta.H, len(rows), *is_new.shape)
    expected = dense_with(model, theta, rows, *(tensor.numpy() for tensor in (x, owner, s, is_new)))
    np.testing.assert_allclose(K, expected, rtol=1e-12)


# What distinguishes rows


def test_the_tables_hold_each_x_and_each_fidelity_once():
    model = a_model("matern52", ("curve", "size"), d=2)
    x = torch.tensor([[0.7, 0.2], [0.7, 0.1], [0.7, 0.2], [0.3, 0.2]], dtype=torch.float64)
    s = torch.tensor([[0.5, 0.9], [0.5, 0.4], [0.5, 0.9], [0.1, 0.6]], dtype=torch.float64)
    tables = Tables.of(model, rows_of(x, s, generator(1)))
    assert len(tables.x.values) == 3
    assert [len(one.values) for one in tables.s] == [2, 3]
    assert torch.equal(tables.x.values[tables.x.which], x)
    assert torch.equal(torch.stack([one.values[one.which] for one in tables.s], dim=-1), s)


# The covariance of the rows


@each_design
@pytest.mark.parametrize("mix", [(), *MIXES], ids="*".join)
def test_the_lower_triangle_agrees_with_the_loop(design, mix):
    model = a_model(design, mix)
    gen = generator(2)
    check_lower(model, some_theta(model, gen), traces(model, gen))


@each_design
@pytest.mark.parametrize("mix", [(), ("curve",), ("size", "smooth")], ids="*".join)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_the_lower_triangle_agrees_with_the_loop_where_nothing_is_shared(design, mix, n):
    model = a_model(design, mix)
    gen = generator(3)
    theta = some_theta(model, gen)
    check_lower(model, theta, rows_of(uniform(gen, n, model.d), uniform(gen, n, model.m), gen))


@each_design
@pytest.mark.parametrize("mix", [("freeze_thaw",), ("curve", "data_size")], ids="*".join)
def test_one_row_many_times_shares_all_but_its_noise(design, mix):
    model = a_model(design, mix)
    gen = generator(4)
    theta = some_theta(model, gen)
    rows = rows_of(uniform(gen, 1, model.d).repeat(6, 1), uniform(gen, 1, model.m).repeat(6, 1), gen)
    check_lower(model, theta, rows)
    lower = np.tril(Tables.of(model, rows).lower_covariance(theta).numpy(), -1)
    assert len(np.unique(lower[0])) == 2  # zeros above, and one covariance below


@each_design
@pytest.mark.parametrize("trend_dims", [(1,), (2, 0)])
@pytest.mark.parametrize("mean_var", [0.0, 0.7])
def test_the_trend_adds_a_constant_and_a_slope_in_each_of_its_dimensions(design, trend_dims, mean_var):
    gen = generator(5)
    for mix in ((), ("size", "curve")):
        model = a_model(design, mix, mean_var=mean_var, trend_dims=trend_dims, slope_var=2.6)
        check_lower(model, some_theta(model, gen), traces(model, gen))


def test_rows_without_noise_have_the_variance_of_the_prior():
    model = a_model("matern52", ("curve", "smooth"))
    gen = generator(6)
    theta = some_theta(model, gen)
    rows = traces(model, gen)
    noise_scale = torch.where(torch.arange(len(rows)) % 3 == 0, 0.0, rows.noise_scale)
    check_lower(model, theta, replace(rows, noise_scale=noise_scale))


@pytest.mark.parametrize("kind", ["data_size", "size"])
def test_the_lower_triangle_is_the_same_with_and_without_autograd(kind):
    """Without it, powers of 1 - s are taken another way, and 1 - s is 0 in some rows."""
    model = a_model("squared_exponential", (kind, "freeze_thaw"))
    gen = generator(7)
    theta = some_theta(model, gen)
    rows = traces(model, gen)
    assert (rows.s[:, 0] == 1).any()
    expected = dense_lower(model, theta, rows)
    for is_enabled in (True, False):
        with torch.set_grad_enabled(is_enabled):
            K = Tables.of(model, rows).lower_covariance(theta)
        np.testing.assert_allclose(np.tril(K.numpy()), expected, rtol=1e-12)


def test_the_same_tables_serve_one_sample_after_another():
    model = a_model("matern52", ("curve", "size"), trend_dims=(0,), slope_var=1.8)
    gen = generator(8)
    rows = traces(model, gen)
    tables = Tables.of(model, rows)
    theta = some_theta(model, gen, H=5)
    found = [tables.lower_covariance(theta.part(slice(h, h + 1))) for h in (3, 0, 4, 3)]
    expected = dense_lower(model, theta, rows)
    for K, h in zip(found, (3, 0, 4, 3), strict=True):
        np.testing.assert_allclose(np.tril(K[0].numpy()), expected[h], rtol=1e-12)


def test_shuffling_rows_shuffles_the_covariance():
    model = a_model("matern52", ("curve", "smooth", "size"))
    gen = generator(9)
    theta = some_theta(model, gen)
    rows = traces(model, gen)
    order = torch.randperm(len(rows), generator=gen)
    whole, mixed = (np.tril(Tables.of(model, one).lower_covariance(theta).numpy()) for one in (rows, rows[order]))
    whole = whole + np.tril(whole, -1).swapaxes(-2, -1)
    np.testing.assert_allclose(mixed, np.tril(whole[:, order][:, :, order]), rtol=1e-13)


# The covariance of the rows with candidates


@each_design
@each_mix
def test_the_covariance_with_candidates_agrees_with_the_loop(design, mix):
    model = a_model(design, mix)
    gen = generator(10)
    theta = some_theta(model, gen)
    x, s = some_candidates(model, gen)
    is_new = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=torch.float64)
    check_with(model, theta, traces(model, gen), x, OWNER, s, is_new)


@each_design
@pytest.mark.parametrize("mix", [("curve",), ("size", "smooth")], ids="*".join)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_the_covariance_with_candidates_agrees_with_the_loop_where_nothing_is_shared(design, mix, n):
    model = a_model(design, mix)
    gen = generator(11)
    theta = some_theta(model, gen)
    rows = rows_of(uniform(gen, n, model.d), uniform(gen, n, model.m), gen)
    x, s = some_candidates(model, gen)
    check_with(model, theta, rows, x, OWNER, s, torch.ones(3, 4, dtype=torch.float64))


@each_design
@pytest.mark.parametrize("owner", [[0], [0, 0, 0], [2, 0, 1], [1, 1, 1, 0, 2, 2, 0]])
@pytest.mark.parametrize("B", [1, 4])
def test_a_value_is_one_of_the_evaluation_that_owns_it(design, owner, B):
    model = a_model(design, ("size", "curve"), d=2)
    gen = generator(12)
    theta = some_theta(model, gen, H=2)
    x, s = some_candidates(model, gen, B=B, q=1 + max(owner), r=len(owner))
    is_new = torch.ones(B, len(owner), dtype=torch.float64)
    check_with(model, theta, traces(model, gen), x, torch.tensor(owner), s, is_new)


@each_design
@each_mix
def test_candidates_may_repeat_rows_and_lie_at_the_ends_of_the_fidelities(design, mix):
    model = a_model(design, mix)
    gen = generator(13)
    theta = some_theta(model, gen)
    rows = traces(model, gen)
    x, s = rows.x[:6].reshape(3, 2, -1), rows.s[:12].reshape(3, 4, -1).clone()
    s[0], s[1, :2] = 1.0, 0.0
    is_new = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.float64)
    with torch.no_grad():
        check_with(model, theta, rows, x, OWNER, s, is_new)
    check_with(model, theta, rows, x, OWNER, s, is_new)


def test_without_an_unknown_mean_nothing_is_added():
    model = a_model("matern52", ("curve", "smooth"), mean_var=0.0)
    gen = generator(14)
    theta = some_theta(model, gen)
    x, s = some_candidates(model, gen)
    check_with(model, theta, traces(model, gen), x, OWNER, s, torch.ones(3, 4, dtype=torch.float64))


@each_design
def test_a_column_that_is_not_new_is_zero_and_nothing_depends_on_it(design):
    model = a_model(design, ("curve", "size"))
    gen = generator(15)
    theta = some_theta(model, gen)
    x, s = differentiable(*some_candidates(model, gen))
    is_new = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.float64)
    K = Tables.of(model, traces(model, gen)).covariance_with(theta, x, OWNER, s, is_new)
    assert (K[..., is_new == 0] == 0).all()
    assert (K[..., is_new == 1] > 0).all()
    by_x, by_s = torch.autograd.grad(K.square().sum(), (x, s))
    assert (by_s[is_new == 0] == 0).all()
    assert (by_s[is_new == 1] != 0).all()
    # Evaluation 1 of the first candidate and both of the last have no new value.
    assert (by_x[0, 1] == 0).all() and (by_x[2] == 0).all()
    assert (by_x[0, 0] != 0).all() and (by_x[1] != 0).all()


def test_candidates_may_be_views_that_share_memory():
    model = a_model("matern52", ("size", "curve"))
    gen = generator(16)
    theta = some_theta(model, gen)
    x = uniform(gen, 2, 3, model.d).movedim(0, 1)  # (B, q, d)
    s = uniform(gen, 1, 4, model.m).expand(3, 4, model.m)
    is_new = torch.tensor([[1, 0, 1, 1]], dtype=torch.float64).expand(3, 4)
    check_with(model, theta, traces(model, gen), x, OWNER, s, is_new)


def test_two_threads_may_use_the_same_tables():
    model = a_model("squared_exponential", ("curve", "size"))
    gen = generator(17)
    theta = some_theta(model, gen)
    x, s = some_candidates(model, gen, B=64)
    is_new = torch.ones(64, 4, dtype=torch.float64)
    tables = Tables.of(model, traces(model, gen, n=60, u=20))
    whole = tables.covariance_with(theta, x, OWNER, s, is_new)
    parts = [slice(i, i + 8) for i in range(0, 64, 8)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda b: tables.covariance_with(theta, x[b], OWNER, s[b], is_new[b]), parts)
        torch.testing.assert_close(torch.cat(list(found), dim=2), whole, rtol=1e-13, atol=0)


# Gradients by candidates


def central_differences(function, z, h=1e-5):
    """Gradient of a function of an array."""
    out = np.empty_like(z)
    for index in np.ndindex(z.shape):
        step = np.zeros_like(z)
        step[index] = h
        out[index] = (function(z + step) - function(z - step)) / (2 * h)
    return out


@each_design
@each_mix
def test_gradients_agree_with_central_differences_of_the_loop(design, mix):
    model = a_model(design, mix, d=2)
    gen = generator(18)
    theta = some_theta(model, gen, H=2)
    rows = traces(model, gen, n=5, u=3)
    x, s = differentiable(*some_candidates(model, gen, B=2))
    is_new = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.float64)
    weight = torch.randn(2, 5, 2, 4, generator=gen, dtype=torch.float64)
    K = Tables.of(model, rows).covariance_with(theta, x, OWNER, s, is_new)
    by_x, by_s = torch.autograd.grad((K * weight).sum(), (x, s))

    def weighted(x, s):
        return (dense_with(model, theta, rows, x, OWNER.numpy(), s, is_new.numpy()) * weight.numpy()).sum()

    at_x, at_s = x.detach().numpy(), s.detach().numpy()
    np.testing.assert_allclose(by_x, central_differences(lambda x: weighted(x, at_s), at_x), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(by_s, central_differences(lambda s: weighted(at_x, s), at_s), rtol=1e-6, atol=1e-8)


@each_design
@pytest.mark.parametrize(
    "mix", [("freeze_thaw",), ("data_size",), ("curve", "size"), ("smooth", "data_size", "curve")], ids="*".join
)
@pytest.mark.parametrize("end", [None, 0.0, 1.0])
def test_each_entry_has_its_gradient_also_at_repeated_points_and_at_the_ends(design, mix, end):
    model = a_model(design, mix, d=2)
    gen = generator(19)
    theta = some_theta(model, gen, H=2)
    # delta > 1: beyond the kink at s = 1 a central difference errs by (1 - s)^delta = 1e-6^delta only.
    theta = replace(theta, fidelity=tuple(tuple(p + 1.1 for p in parameters) for parameters in theta.fidelity))
    rows = traces(model, gen, n=5, u=2)
    x, s = some_candidates(model, gen, B=2)
    x[0, 0], s[0, 1], s[1, 2] = rows.x[1], rows.s[1], rows.s[2]
    s = s if end is None else torch.full_like(s, end)
    is_new = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1]], dtype=torch.float64)
    tables = Tables.of(model, rows)
    assert gradcheck(
        lambda x, s: tables.covariance_with(theta, x, OWNER, s, is_new),
        differentiable(x, s),
        eps=1e-6,
        atol=1e-7,
        rtol=1e-6,
    )


def test_a_gradient_by_x_or_by_s_alone_is_that_of_both():
    model = a_model("matern52", ("curve", "size", "smooth"))
    gen = generator(20)
    theta = some_theta(model, gen)
    tables = Tables.of(model, traces(model, gen))
    x, s = differentiable(*some_candidates(model, gen))
    is_new = torch.ones(3, 4, dtype=torch.float64)

    def loss(x, s):
        return tables.covariance_with(theta, x, OWNER, s, is_new).sum()  # whose derivative by K is one number, expanded

    by_x, by_s = torch.autograd.grad(loss(x, s), (x, s))
    assert torch.equal(torch.autograd.grad(loss(x, s.detach()), x)[0], by_x)
    assert torch.equal(torch.autograd.grad(loss(x.detach(), s), s)[0], by_s)
    assert not loss(x.detach(), s.detach()).requires_grad
    with torch.no_grad():
        assert not loss(x, s).requires_grad


def test_a_gradient_can_be_taken_again_from_what_was_kept():
    model = a_model("squared_exponential", ("size", "curve"))
    gen = generator(21)
    theta = some_theta(model, gen)
    x, s = differentiable(*some_candidates(model, gen))
    K = Tables.of(model, traces(model, gen)).covariance_with(theta, x, OWNER, s, torch.ones(3, 4).double())
    first = torch.autograd.grad(K.square().sum(), (x, s), retain_graph=True)
    again = torch.autograd.grad(K.square().sum(), (x, s))
    assert all(map(torch.equal, first, again))
