"""The posterior against dense solves in NumPy, refitting, GPyTorch and finite differences."""

from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from dense_gp import (
    DESIGNS,
    covariance,
    generator,
    member,
    noise,
    posterior,
    samples_of,
    some_rows,
    some_theta,
    some_y,
    stacked,
    uniform,
    value,
)
from torch.autograd import gradcheck

from takg.gp import (
    Model,
    Posterior,
    Rows,
    condition,
    folded_target_mean,
    joined,
    rows_at,
    sigma_tilde,
    value_rows,
)

H = 3
each_design = pytest.mark.parametrize("design", DESIGNS)
FEW_MIXES = [(), ("freeze_thaw",), ("data_size", "freeze_thaw"), ("size", "curve")]
MIXES = [*FEW_MIXES, ("smooth", "data_size", "freeze_thaw")]
each_mix = pytest.mark.parametrize("mix", MIXES, ids="*".join)
with_or_without_gradients = pytest.mark.parametrize("gradients", [False, True])


def a_posterior(design, mix, *, gradients, n=12, d=2, seed=1, **settings):
    """Data in general position, value and derivative rows mixed, under H different samples."""
    model = Model(
        d=d, fidelity_kernels=mix, design_kernel=design, has_gradients=gradients, **{"mean_var": 0.6} | settings
    )
    gen = generator(seed)
    rows = some_rows(model, gen, n, gradients=gradients)
    return condition(model, some_theta(model, gen, H=H), rows, some_y(gen, n)), gen


def dense(post, query):
    """Mean (H, r) and covariance (H, r, r) at unbatched rows, from scratch for each sample."""
    each = [posterior(post.model, p, post.rows, post.y, query) for p in samples_of(post.theta)]
    return tuple(map(np.stack, zip(*each, strict=True)))


def at_target(post, x_new):
    """The rows (x_new, 1)."""
    c = len(x_new)
    return Rows(
        x=x_new,
        s=torch.ones(c, post.model.m, dtype=torch.float64),
        part=torch.zeros(c, dtype=torch.long),
        noise_scale=torch.full((c,), 0.9, dtype=torch.float64),
    )


def assert_factor_is_that_of_the_data(post, *, atol=1e-13):
    """L L' is covariance plus noise plus exactly the jitter that was reported."""
    for h, p in enumerate(samples_of(post.theta)):
        K = covariance(post.model, p, post.rows, post.rows) + noise(p, post.rows)
        L = post.L[h].numpy()
        np.testing.assert_allclose(L @ L.T, K + post.jitter[h].item() * np.eye(post.n), rtol=1e-13, atol=atol)


# Against a dense solve


@each_design
@each_mix
@with_or_without_gradients
def test_mean_and_covariances_are_those_of_a_dense_solve(design, mix, gradients):
    post, gen = a_posterior(design, mix, gradients=gradients)
    query = some_rows(post.model, gen, 7, gradients=True)
    mean, K_n = dense(post, query)
    assert (post.jitter == 0).all()
    np.testing.assert_allclose(post.mean(query), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(post.covariance(query), K_n, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(post.variance(query), K_n.diagonal(axis1=1, axis2=2), rtol=1e-9, atol=1e-10)
    noises = np.stack([noise(p, query) for p in samples_of(post.theta)])
    np.testing.assert_allclose(post.observation_covariance(query), K_n + noises, rtol=1e-9, atol=1e-10)
    other = some_rows(post.model, gen, 4, gradients=True)
    _, K_both = dense(post, stacked(query, other))
    np.testing.assert_allclose(post.covariance(query, other), K_both[:, :7, 7:], rtol=1e-9, atol=1e-10)


@each_design
@pytest.mark.parametrize("trend_dims", [(1,), (0, 2)])
def test_a_trend_is_integrated_out(design, trend_dims):
    post, gen = a_posterior(
        design, ("freeze_thaw",), gradients=False, d=3, trend_dims=trend_dims, slope_var=2.7, mean_var=1.9
    )
    query = some_rows(post.model, gen, 5, gradients=True)
    mean, K_n = dense(post, query)
    np.testing.assert_allclose(post.mean(query), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(post.covariance(query), K_n, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(post.variance(query), K_n.diagonal(axis1=1, axis2=2), rtol=1e-9, atol=1e-10)


@each_design
def test_weights_factor_and_size_belong_to_the_data(design):
    post, _ = a_posterior(design, ("freeze_thaw",), gradients=True)
    assert post.n == 12
    assert_factor_is_that_of_the_data(post)
    for h, p in enumerate(samples_of(post.theta)):
        K = covariance(post.model, p, post.rows, post.rows) + noise(p, post.rows)
        np.testing.assert_allclose(K @ post.weights[h].numpy(), post.y, rtol=1e-10, atol=1e-11)


@each_design
@each_mix
def test_the_target_mean_is_read_at_the_fidelity_one(design, mix):
    post, gen = a_posterior(design, mix, gradients=True)
    x_new = uniform(gen, 5, 2)
    mean, _ = dense(post, at_target(post, x_new))
    np.testing.assert_allclose(post.target_mean(x_new), mean, rtol=1e-9, atol=1e-10)
    batched = post.target_mean(x_new.reshape(5, 1, 1, 2).expand(5, 4, 1, 2))
    assert batched.shape == (H, 5, 4, 1)
    np.testing.assert_allclose(batched[:, :, 2, 0], mean, rtol=1e-9, atol=1e-10)


# Against GPyTorch


class FreezeThaw(gpytorch.kernels.Kernel):
    """w + (beta / (s + s' + beta))^alpha for one column s."""

    def __init__(self, w, beta, alpha, **settings):
        super().__init__(**settings)
        self.w, self.beta, self.alpha = w, beta, alpha

    def forward(self, a, b, diag=False, **_):
        total = a[..., 0] + b[..., 0] if diag else a + b.mT
        return self.w + (self.beta / (total + self.beta)) ** self.alpha


class Exact(gpytorch.models.ExactGP):
    """Zero mean; with tasks > 1 the kernel gives a value and a gradient for each point."""

    def __init__(self, x, y, likelihood, kernel, tasks=1):
        super().__init__(x, y, likelihood)
        self.kernel, self.tasks = kernel, tasks

    def forward(self, x):
        if self.tasks == 1:
            return gpytorch.distributions.MultivariateNormal(torch.zeros(len(x)).to(x), self.kernel(x))
        zero = torch.zeros(len(x), self.tasks).to(x)
        return gpytorch.distributions.MultitaskMultivariateNormal(zero, self.kernel(x))


def predicted(gp, x):
    gp.eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        prediction = gp(x)
        return prediction.mean.reshape(-1), prediction.covariance_matrix


@each_design
@pytest.mark.parametrize("mix", [(), ("freeze_thaw",)], ids="*".join)
def test_values_give_the_posterior_of_gpytorch(design, mix):
    post, gen = a_posterior(design, mix, gradients=False, mean_var=0.0)
    query = some_rows(post.model, gen, 6)
    for h in range(H):
        kernel = (
            gpytorch.kernels.RBFKernel(ard_num_dims=2, active_dims=(0, 1))
            if design == "squared_exponential"
            else gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2, active_dims=(0, 1))
        ).double()
        kernel.lengthscale = post.theta.lengthscale[h]
        if mix:
            kernel = kernel * FreezeThaw(*(p[h] for p in post.theta.fidelity[0]), active_dims=(2,))
        kernel = gpytorch.kernels.ScaleKernel(kernel).double()
        kernel.outputscale = post.theta.signal_var[h]
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(
            noise=post.theta.noise_var[h] * post.rows.noise_scale
        )
        gp = Exact(torch.cat([post.rows.x, post.rows.s], -1), post.y, likelihood, kernel)
        mean, K_n = predicted(gp, torch.cat([query.x, query.s], -1))
        torch.testing.assert_close(post.mean(query)[h], mean, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(post.covariance(query)[h], K_n, rtol=1e-8, atol=1e-9)


@each_design
def test_values_with_gradients_give_the_posterior_of_gpytorch(design):
    d, n = 2, 6
    model = Model(d=d, design_kernel=design, has_gradients=True, mean_var=0.0)
    gen = generator(21)
    theta = some_theta(model, gen, H=H)
    x, x_new, none = uniform(gen, n, d), uniform(gen, 4, d), torch.empty(1, 0, dtype=torch.float64)
    rows, query = (joined([rows_at(point, none, gradients=True) for point in z]) for z in (x, x_new))
    y = some_y(gen, n * (1 + d))
    post = condition(model, theta, rows, y)
    kind = gpytorch.kernels.RBFKernelGrad if design == "squared_exponential" else gpytorch.kernels.Matern52KernelGrad
    for h in range(H):
        kernel = gpytorch.kernels.ScaleKernel(kind(ard_num_dims=d)).double()
        kernel.outputscale, kernel.base_kernel.lengthscale = theta.signal_var[h], theta.lengthscale[h]
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=1 + d, has_global_noise=False)
        likelihood.double().task_noises = torch.stack([theta.noise_var[h], *[theta.gradient_noise_var[h]] * d])
        mean, K_n = predicted(Exact(x, y.reshape(n, 1 + d), likelihood, kernel, tasks=1 + d), x_new)
        torch.testing.assert_close(post.mean(query)[h], mean, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(post.covariance(query)[h], K_n, rtol=1e-7, atol=1e-8)


# Batches


@each_design
@with_or_without_gradients
@pytest.mark.parametrize("batch", [(3,), (2, 3), (1,)])
def test_a_batched_query_is_a_loop_of_queries(design, gradients, batch):
    post, gen = a_posterior(design, ("data_size", "freeze_thaw"), gradients=gradients)
    query = some_rows(post.model, gen, 4, *batch, gradients=gradients)
    mean, K_n = post.mean(query), post.covariance(query)
    variance, observed = post.variance(query), post.observation_covariance(query)
    assert mean.shape == variance.shape == (H, *batch, 4)
    assert K_n.shape == observed.shape == (H, *batch, 4, 4)
    for index in np.ndindex(batch):
        one = member(query, index, batch)
        at = (slice(None), *index)
        expected_mean, expected = dense(post, one)
        np.testing.assert_allclose(mean[at], expected_mean, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(K_n[at], expected, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(variance[at], post.variance(one), rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(observed[at], post.observation_covariance(one), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("batches", [((), (H,)), ((H,), ()), ((2, 1), (H,)), ((H,), (2, 1)), ((1,), (H,))])
def test_covariances_broadcast_over_batches_and_never_mix_them_with_the_samples(batches):
    post, gen = a_posterior("matern52", ("freeze_thaw",), gradients=True)
    a = some_rows(post.model, gen, 3, *batches[0], gradients=True)
    b = some_rows(post.model, gen, 2, *batches[1], gradients=True)
    K_n = post.covariance(a, b)
    batch = np.broadcast_shapes(*batches)
    assert K_n.shape == (H, *batch, 3, 2)
    for index in np.ndindex(batch):
        _, expected = dense(post, stacked(member(a, index, batch), member(b, index, batch)))
        np.testing.assert_allclose(K_n[(slice(None), *index)], expected[:, :3, 3:], rtol=1e-9, atol=1e-10)


def test_one_fidelity_set_serves_a_batch_of_points():
    post, gen = a_posterior("squared_exponential", ("freeze_thaw",), gradients=True)
    x, S = uniform(gen, H, 2), uniform(gen, 2, 1)
    mean = post.mean(rows_at(x, S, gradients=True))
    for i in range(H):
        expected, _ = dense(post, rows_at(x[i], S, gradients=True))
        np.testing.assert_allclose(mean[:, i], expected, rtol=1e-9, atol=1e-10)


# sigma_tilde


def refitted(post, x_new, rows, W):
    """The target mean after seeing mu_n + D W at rows, from scratch, and the mean before.  (H, c) each"""
    before, after = [], []
    target = at_target(post, x_new)
    for p in samples_of(post.theta):
        mean, K_n = posterior(post.model, p, post.rows, post.y, rows)
        y = mean + np.linalg.cholesky(K_n + noise(p, rows)) @ W.numpy()
        both = torch.cat([post.y, torch.from_numpy(y)])
        before.append(posterior(post.model, p, post.rows, post.y, target)[0])
        after.append(posterior(post.model, p, stacked(post.rows, rows), both, target)[0])
    return np.stack(before), np.stack(after)


@each_design
@each_mix
@pytest.mark.parametrize("kind", ["values", "gradients", "noise-free"])
def test_sigma_tilde_agrees_with_refitting_the_gp(design, mix, kind):
    post, gen = a_posterior(design, mix, gradients=True)
    rows = some_rows(post.model, gen, 4, gradients=kind == "gradients")
    if kind == "noise-free":
        rows = replace(rows, noise_scale=torch.zeros(4, dtype=torch.float64))
    x_new = uniform(gen, 5, 2)
    W = torch.randn(4, generator=gen, dtype=torch.float64)
    shift = sigma_tilde(post, x_new, rows)
    before, after = refitted(post, x_new, rows, W)
    assert shift.shape == (H, 5, 4)
    np.testing.assert_allclose(before + (shift @ W).numpy(), after, rtol=1e-8, atol=1e-9)


def test_sigma_tilde_of_one_evaluation_with_its_gradient_agrees_with_refitting_the_gp():
    post, gen = a_posterior("squared_exponential", ("freeze_thaw",), gradients=True)
    x, S, x_new = uniform(gen, 2), uniform(gen, 2, 1), uniform(gen, 3, 2)
    noisy = rows_at(x, S, gradients=True, noise_scale=1.4)
    free = rows_at(x, torch.zeros(1, 1, dtype=torch.float64), noise_scale=0.0)
    rows = joined([free, noisy])  # C(S) without noise, then S
    W = torch.randn(len(rows), generator=gen, dtype=torch.float64)
    before, after = refitted(post, x_new, rows, W)
    shift = sigma_tilde(post, x_new, rows)
    np.testing.assert_allclose(before + (shift @ W).numpy(), after, rtol=1e-8, atol=1e-9)
    # The leading block is the shift by the leading rows alone: one factor serves both terms of VOI-zero.
    torch.testing.assert_close(shift[..., :1], sigma_tilde(post, x_new, free), rtol=1e-10, atol=1e-12)


@with_or_without_gradients
@pytest.mark.parametrize("batches", [((2,), (2,)), ((H,), ()), ((), (H,)), ((2, 1), (H,)), ((H,), (2, 1))])
def test_sigma_tilde_of_a_batch_agrees_with_refitting_each_member(gradients, batches):
    post, gen = a_posterior("matern52", ("data_size", "freeze_thaw"), gradients=True)
    x_new = uniform(gen, *batches[0], 4, 2)
    rows = some_rows(post.model, gen, 3, *batches[1], gradients=gradients)
    shift = sigma_tilde(post, x_new, rows)
    batch = np.broadcast_shapes(*batches)
    assert shift.shape == (H, *batch, 4, 3)
    for index in np.ndindex(batch):
        W = torch.randn(3, generator=gen, dtype=torch.float64)
        x_one = x_new.expand(*batch, 4, 2)[index]
        before, after = refitted(post, x_one, member(rows, index, batch), W)
        moved = (shift[(slice(None), *index)] @ W).numpy()
        np.testing.assert_allclose(before + moved, after, rtol=1e-8, atol=1e-9)


@each_design
def test_sigma_tilde_squared_is_the_variance_that_the_rows_take_away(design):
    post, gen = a_posterior(design, ("freeze_thaw", "smooth"), gradients=True)
    rows, x_new = some_rows(post.model, gen, 5, gradients=True), uniform(gen, 3, 2)
    shift = sigma_tilde(post, x_new, rows)
    target, y = at_target(post, x_new), some_y(gen, 5)
    _, before = dense(post, target)
    _, after = dense(replace(post, rows=stacked(post.rows, rows), y=torch.cat([post.y, y])), target)
    np.testing.assert_allclose((shift @ shift.mT).numpy(), before - after, rtol=1e-8, atol=1e-9)


# Growing a posterior


@each_design
@pytest.mark.parametrize("mix", FEW_MIXES, ids="*".join)
@with_or_without_gradients
@pytest.mark.parametrize("steps", [[5], [1, 1, 1, 1, 1], [2, 3]])
def test_an_extended_posterior_is_that_of_all_the_data(design, mix, gradients, steps):
    whole, gen = a_posterior(design, mix, gradients=gradients, n=13)

    def part(low, high):
        return Rows(**{name: getattr(whole.rows, name)[low:high] for name in Rows.__slots__})

    post = condition(whole.model, whole.theta, part(0, 8), whole.y[:8])
    for r in steps:
        post = post.extended(part(post.n, post.n + r), whole.y[post.n : post.n + r])
    query = some_rows(whole.model, gen, 6, gradients=gradients)
    assert post.n == 13
    assert torch.equal(post.y, whole.y)
    assert torch.equal(post.rows.part, whole.rows.part)
    assert (post.jitter == 0).all()
    torch.testing.assert_close(post.L, whole.L, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(post.weights, whole.weights, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(post.mean(query), whole.mean(query), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(post.covariance(query), whole.covariance(query), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(post.mean(query), dense(whole, query)[0], rtol=1e-8, atol=1e-10)


def test_extending_leaves_the_shorter_posterior_as_it_was():
    post, gen = a_posterior("matern52", ("freeze_thaw",), gradients=True)
    before = [post.L.clone(), post.weights.clone(), post.y.clone(), post.rows.x.clone()]
    post.extended(some_rows(post.model, gen, 3, gradients=True), some_y(gen, 3))
    assert all(map(torch.equal, before, [post.L, post.weights, post.y, post.rows.x]))


def test_the_order_of_the_data_does_not_matter():
    post, gen = a_posterior("squared_exponential", ("data_size", "freeze_thaw"), gradients=True)
    order = torch.randperm(post.n, generator=gen)
    shuffled = Rows(**{name: getattr(post.rows, name)[order] for name in Rows.__slots__})
    other = condition(post.model, post.theta, shuffled, post.y[order])
    query = some_rows(post.model, gen, 5, gradients=True)
    torch.testing.assert_close(other.mean(query), post.mean(query), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(other.covariance(query), post.covariance(query), rtol=1e-9, atol=1e-11)


# Derivatives


@each_design
@pytest.mark.parametrize(("gradients", "trend_dims"), [(False, ()), (True, ()), (False, (1,))])
def test_gradient_rows_are_the_slopes_of_the_posterior_mean(design, gradients, trend_dims):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=gradients, d=3, trend_dims=trend_dims)
    x, S, h = uniform(gen, 3), uniform(gen, 2, 1), 1e-5
    slopes = post.mean(rows_at(x, S, gradients=True)).reshape(H, 2, 4)[:, :, 1:]
    for k, e in enumerate(h * torch.eye(3, dtype=torch.float64)):
        central = (post.mean(rows_at(x + e, S)) - post.mean(rows_at(x - e, S))) / (2 * h)
        torch.testing.assert_close(slopes[:, :, k], central, rtol=1e-7, atol=1e-8)


@each_design
@with_or_without_gradients
@pytest.mark.parametrize("place", ["general", "s = 0", "s = 1", "repeated x"])
def test_gradients_of_every_posterior_quantity_are_right(design, gradients, place):
    post, gen = a_posterior(design, ("freeze_thaw", "data_size"), gradients=True, n=6)
    # delta > 1, so that a central difference across the kink of data_size at s = 1 means something
    w_beta_alpha, (c, delta) = post.theta.fidelity
    theta = replace(post.theta, fidelity=(w_beta_alpha, (c, delta + 1.1)))
    post = condition(post.model, theta, post.rows, post.y)
    x, S, x_new = uniform(gen, 2), uniform(gen, 2, 2), uniform(gen, 2, 2)
    if place == "repeated x":
        x = post.rows.x[1].clone()
        x_new[0] = x
    elif place != "general":
        S[0] = float(place[-1])
    x, S, x_new = (tensor.requires_grad_() for tensor in (x, S, x_new))

    def quantities(x, S, x_new):
        rows = rows_at(x, S, gradients=gradients, noise_scale=0.8)
        return (
            post.mean(rows),
            post.variance(rows),
            post.target_mean(x_new),
            sigma_tilde(post, x_new, rows),
            folded_target_mean(post)(x_new),
        )

    assert gradcheck(quantities, (x, S, x_new), eps=1e-6, atol=1e-6, rtol=1e-5)


# The folded mean


def traces(model, gen, *, gradients):
    """Four configurations, each seen at several fidelities; the last one differs from the first by one component."""
    x = uniform(gen, 4, model.d)
    x[3, 1:] = x[0, 1:]
    rows = joined([rows_at(point, uniform(gen, 3, model.m), gradients=gradients) for point in x])
    return replace(rows, noise_scale=uniform(gen, len(rows), low=0.5, high=1.6)), x


@each_design
@pytest.mark.parametrize("mix", FEW_MIXES, ids="*".join)
@with_or_without_gradients
def test_the_folded_mean_is_the_target_mean(design, mix, gradients):
    model = Model(d=3, fidelity_kernels=mix, design_kernel=design, has_gradients=True, mean_var=0.8)
    gen = generator(41)
    rows, x = traces(model, gen, gradients=gradients)
    post = condition(model, some_theta(model, gen, H=H), rows, some_y(gen, len(rows)))
    folded = folded_target_mean(post)
    x_new = uniform(gen, 2, 5, 3)
    x_new[0, :4] = x  # also at the centres themselves
    assert folded.centres.shape == (4, 3)
    assert folded.weights.shape == (H, 4)
    assert (folded.gradient_weights is not None) == gradients
    mean = folded(x_new)
    assert mean.shape == (H, 2, 5)
    torch.testing.assert_close(mean, post.target_mean(x_new), rtol=1e-10, atol=1e-10)
    expected, _ = dense(post, at_target(post, x_new.reshape(10, 3)))
    np.testing.assert_allclose(mean.reshape(H, 10), expected, rtol=1e-9, atol=1e-9)


@each_design
def test_derivative_rows_of_one_component_fold_into_that_component(design):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=True, n=9, d=3)
    rows = replace(post.rows, part=torch.tensor([0, 3, 3, 0, 1, 0, 0, 3, 1]))
    rows.x[6:] = rows.x[:3]
    post = condition(post.model, post.theta, rows, post.y)
    folded, x_new = folded_target_mean(post), uniform(gen, 5, 3)
    assert folded.centres.shape == (6, 3)
    assert (folded.gradient_weights[..., 1] == 0).all()
    torch.testing.assert_close(folded(x_new), post.target_mean(x_new), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("trend_dims", [(1,), (0, 2)])
def test_a_trend_that_varies_with_x_folds_into_slopes(trend_dims):
    post, gen = a_posterior("matern52", (), gradients=False, n=9, d=3, trend_dims=trend_dims)
    folded, x_new = folded_target_mean(post), uniform(gen, 2, 5, 3)
    assert [k for k in range(3) if folded.slopes[:, k].any()] == list(trend_dims)
    expected, _ = dense(post, at_target(post, x_new.reshape(10, 3)))
    np.testing.assert_allclose(folded(x_new).reshape(post.theta.H, 10), expected, rtol=1e-9, atol=1e-9)


def test_without_such_a_trend_there_are_no_slopes():
    post, _ = a_posterior("matern52", (), gradients=False)
    assert folded_target_mean(post).slopes is None


# Numerical trouble


def assert_all_finite(post: Posterior, gen):
    """Every result is a number, also at the data, with variances >= 0."""
    x_new = torch.cat([uniform(gen, 2, post.model.d), post.rows.x[:2]])
    rows = value_rows(x_new, torch.cat([uniform(gen, 2, post.model.m), post.rows.s[:2]]))
    for result in (
        post.L,
        post.weights,
        post.jitter,
        post.mean(rows),
        post.covariance(rows),
        post.target_mean(x_new),
        folded_target_mean(post)(x_new),
        sigma_tilde(post, x_new, rows),
        sigma_tilde(post, x_new, replace(rows, noise_scale=0 * rows.noise_scale)),
    ):
        assert result.isfinite().all()
    assert (post.variance(rows) >= 0).all()


def with_noise(theta, *noise_var):
    noise_var = torch.tensor(noise_var, dtype=torch.float64)
    return replace(theta, noise_var=noise_var, gradient_noise_var=noise_var)


@each_design
def test_duplicate_rows_get_jitter_only_under_samples_without_noise(design):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=False, n=6)
    rows = stacked(post.rows, stacked(post.rows, post.rows))
    y = post.y.repeat(3)
    post = condition(post.model, with_noise(post.theta, 0.05, 0.0, 0.3), rows, y)
    assert (post.jitter > 0).tolist() == [False, True, False]
    assert_factor_is_that_of_the_data(post, atol=2e-14)
    assert_all_finite(post, gen)
    at_data = post.mean(rows)[1]
    torch.testing.assert_close(at_data, y, rtol=1e-6, atol=1e-6)  # no noise: interpolation


@each_design
def test_duplicates_that_contradict_each_other_without_noise_give_their_average(design):
    post, _ = a_posterior(design, (), gradients=False, n=4)
    rows = stacked(post.rows, post.rows)
    post = condition(post.model, with_noise(post.theta, 0.0, 0.0, 0.0), rows, torch.cat([post.y, -2.6 * post.y]))
    assert (post.jitter > 0).all()
    assert_factor_is_that_of_the_data(post, atol=2e-14)
    # The weights differ by y / jitter, so that rounding is worth 1e-16 / 1e-12 of y, and a few times that.
    torch.testing.assert_close(post.mean(rows)[:, :4], (-0.8 * post.y[:4]).expand(H, 4), rtol=0, atol=1e-2)


@each_design
@with_or_without_gradients
@pytest.mark.parametrize("noise_var", [0.0, 1e-12, 1e-6])
def test_rows_that_almost_coincide_are_survived(design, gradients, noise_var):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=gradients, n=8)
    close = replace(post.rows, x=post.rows.x + 1e-9 * uniform(gen, 8, 2, low=-1), s=(post.rows.s - 1e-9).clamp_min(0))
    rows, y = stacked(post.rows, close), post.y.repeat(2)
    post = condition(post.model, with_noise(post.theta, *[noise_var] * H), rows, y)
    assert_factor_is_that_of_the_data(post, atol=1e-12 if gradients else 1e-13)
    assert_all_finite(post, gen)
    if noise_var == 0.0:
        assert (post.jitter > 0).all()
    if noise_var == 1e-6:
        assert (post.jitter == 0).all()


@each_design
def test_almost_no_noise_on_a_dense_line_is_survived(design):
    model = Model(d=1, design_kernel=design, mean_var=0.6)
    gen = generator(51)
    x = torch.linspace(0.0, 1.0, 60, dtype=torch.float64)[:, None]
    rows = value_rows(x, torch.empty(60, 0, dtype=torch.float64))
    post = condition(model, with_noise(some_theta(model, gen, H=H), *[1e-12] * H), rows, (2.3 * x[:, 0]).sin())
    assert_factor_is_that_of_the_data(post)
    assert_all_finite(post, gen)
    middle = x[:-1] + 0.4 / 59
    torch.testing.assert_close(post.target_mean(middle), (2.3 * middle[:, 0]).sin().expand(H, 59), rtol=0, atol=1e-4)


@each_design
def test_constant_outcomes_are_explained_by_the_mean(design):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=False, mean_var=50.0)
    post = condition(post.model, post.theta, post.rows, torch.full((12,), 0.7, dtype=torch.float64))
    assert (post.jitter == 0).all()
    assert_all_finite(post, gen)
    query = some_rows(post.model, gen, 4)
    np.testing.assert_allclose(post.mean(query), dense(post, query)[0], rtol=1e-9)
    torch.testing.assert_close(post.mean(query), torch.full((H, 4), 0.7, dtype=torch.float64), rtol=0.1, atol=0)
    zero = condition(post.model, post.theta, post.rows, torch.zeros(12, dtype=torch.float64))
    assert (zero.mean(query) == 0).all()


@each_design
def test_one_row_shrinks_the_mean_towards_zero_by_the_closed_form(design):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=False, n=1)
    assert_all_finite(post, gen)
    w, beta, alpha = post.theta.fidelity[0]
    signal = post.theta.signal_var * (w + (beta / (beta + 2 * post.rows.s[0, 0])) ** alpha) + 0.6
    noise_var = post.theta.noise_var * post.rows.noise_scale
    torch.testing.assert_close(post.mean(post.rows)[:, 0], post.y * signal / (signal + noise_var), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        post.variance(post.rows)[:, 0], signal * noise_var / (signal + noise_var), rtol=1e-10, atol=0
    )


@each_design
@pytest.mark.parametrize("copies", [[0], [0, 3], [2, 2, 5]])
def test_extending_by_rows_that_are_known_exactly_is_survived(design, copies):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=True, n=7)
    rows = replace(post.rows, noise_scale=0 * post.rows.noise_scale)
    post = condition(post.model, post.theta, rows, post.y)
    again = Rows(**{name: getattr(rows, name)[copies] for name in Rows.__slots__})
    grown = post.extended(again, post.y[copies])
    assert_all_finite(grown, gen)
    query = some_rows(post.model, gen, 5, gradients=True)
    torch.testing.assert_close(grown.mean(query), post.mean(query), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grown.covariance(query), post.covariance(query), rtol=1e-6, atol=1e-6)


@each_design
def test_the_variance_of_what_is_known_exactly_is_zero_and_never_less(design):
    post, _ = a_posterior(design, ("freeze_thaw",), gradients=True, n=40)
    rows = replace(post.rows, noise_scale=0 * post.rows.noise_scale)
    variance = condition(post.model, post.theta, rows, post.y).variance(rows)
    assert (variance >= 0).all()
    assert variance.max() < 1e-8


def test_a_healthy_extension_does_not_hide_earlier_jitter():
    post, gen = a_posterior("matern52", ("freeze_thaw",), gradients=False, n=5)
    post = condition(
        post.model, with_noise(post.theta, 0.0, 0.04, 0.0), stacked(post.rows, post.rows), post.y.repeat(2)
    )
    grown = post.extended(some_rows(post.model, gen, 2), some_y(gen, 2))
    assert (post.jitter > 0).tolist() == [True, False, True]
    assert torch.equal(grown.jitter, post.jitter)


@each_design
@pytest.mark.parametrize("gradients", [False, True])
def test_evaluations_that_are_known_exactly_shift_nothing(design, gradients):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=True, n=9)
    part = torch.tensor([0, 1, 2] * 3 if gradients else [0] * 9)
    rows = replace(post.rows, noise_scale=0 * post.rows.noise_scale, part=part)
    post = condition(post.model, post.theta, rows, post.y)
    for known in ([0], [4], [0, 1, 2]):
        again = Rows(**{name: getattr(rows, name)[known] for name in Rows.__slots__})
        shift = sigma_tilde(post, uniform(gen, 4, 2), again)
        assert shift.isfinite().all()
        assert shift.abs().max() < 1e-4


@each_design
@pytest.mark.parametrize("part", [0, 2])
def test_a_row_with_enormous_noise_changes_nothing(design, part):
    post, gen = a_posterior(design, ("freeze_thaw",), gradients=True)
    drowned = replace(
        some_rows(post.model, gen, 1),
        part=torch.tensor([part]),
        noise_scale=torch.tensor([1e14], dtype=torch.float64),
    )
    rows, y = stacked(post.rows, drowned), torch.cat([post.y, torch.tensor([37.0], dtype=torch.float64)])
    query = some_rows(post.model, gen, 6, gradients=True)
    for other in (condition(post.model, post.theta, rows, y), post.extended(drowned, y[-1:])):
        assert (other.jitter == 0).all()
        torch.testing.assert_close(other.mean(query), post.mean(query), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(other.covariance(query), post.covariance(query), rtol=1e-9, atol=1e-9)
    assert sigma_tilde(post, query.x, drowned).abs().max() < 1e-5


@pytest.mark.slow
@each_design
def test_two_thousand_rows_are_solved_as_numpy_solves_them(design):
    model = Model(d=3, fidelity_kernels=("freeze_thaw",), design_kernel=design, mean_var=0.6)
    gen = generator(61)
    theta = some_theta(model, gen, H=2)
    rows = some_rows(model, gen, 2000)
    y = (5 * rows.x).sin().sum(-1) + 0.1 * some_y(gen, 2000)
    post = condition(model, theta, rows, y)
    query = some_rows(model, gen, 5)
    assert (post.jitter == 0).all()
    x, s, x_q, s_q = (t.numpy() for t in (rows.x, rows.s, query.x, query.s))
    for h, p in enumerate(samples_of(theta)):
        K = value(model, p, x[:, None], s[:, None], x, s) + np.diag(p.noise_var * rows.noise_scale.numpy())
        cross = value(model, p, x_q[:, None], s_q[:, None], x, s)
        solved = np.linalg.solve(K, np.column_stack([y.numpy(), cross.T]))
        np.testing.assert_allclose(post.mean(query)[h], cross @ solved[:, 0], rtol=1e-7, atol=1e-8)
        K_n = value(model, p, x_q[:, None], s_q[:, None], x_q, s_q) - cross @ solved[:, 1:]
        np.testing.assert_allclose(post.covariance(query)[h], K_n, rtol=1e-6, atol=1e-9)
