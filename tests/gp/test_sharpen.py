"""Which samples lose their noise, by the density of the data in NumPy."""

import dataclasses

import dense_gp
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from takg.gp import Hyperparameters, Model, condition, fit, noise_variance, value_rows
from takg.gp._sharpen import sharpened

LEAST = 1e-8
MODEL = Model(d=1, fidelity_kernels=("smooth",), has_quirks=True)


def theta_of(lengthscales, noise_var):
    one = torch.ones(len(lengthscales), dtype=torch.float64)
    return Hyperparameters(
        signal_var=1.3 * one,
        lengthscale=torch.tensor(lengthscales, dtype=torch.float64)[:, None],
        fidelity=((0.9 * one,),),
        noise_var=noise_var * one,
        gradient_noise_var=0.2 * one,
        quirk_var=1e-6 * one,
    )


def drawn(noise_var, *, n=24, seed=0):
    """Rows, and outputs of a Gaussian process with the length scale 0.3, with noise."""
    gen = dense_gp.generator(seed)
    rows = value_rows(dense_gp.uniform(gen, n, 1), dense_gp.uniform(gen, n, 1))
    (true,) = dense_gp.samples_of(theta_of([0.3], noise_var))
    K = dense_gp.covariance(MODEL, true, rows, rows) + dense_gp.noise(true, rows)
    return rows, torch.from_numpy(np.linalg.cholesky(K) @ np.random.default_rng(seed).standard_normal(n))


def log_densities(theta, rows, y):
    return [
        multivariate_normal.logpdf(
            y.numpy(), cov=dense_gp.covariance(MODEL, p, rows, rows) + dense_gp.noise(p, rows), allow_singular=True
        )
        for p in dense_gp.samples_of(theta)
    ]


@pytest.mark.parametrize(("noise_var", "expected"), [(1e-9, [True, True, False, False]), (1e-3, [False] * 4)])
def test_samples_under_which_the_data_are_likelier_without_noise_lose_it(noise_var, expected):
    rows, y = drawn(noise_var)
    theta = theta_of([0.3, 0.2, 0.6, 1.2], 1e-5)
    with_noise, without = log_densities(theta, rows, y), log_densities(theta_of([0.3, 0.2, 0.6, 1.2], LEAST), rows, y)
    assert [b > a for a, b in zip(with_noise, without, strict=True)] == expected
    post = sharpened(condition(MODEL, theta, rows, y))
    assert post.theta.noise_var.tolist() == [LEAST if sharp else 1e-5 for sharp in expected]
    assert torch.equal(post.theta.gradient_noise_var, theta.gradient_noise_var)


def test_the_posterior_is_that_under_the_noise_it_says():
    rows, y = drawn(1e-9)
    post = sharpened(condition(MODEL, theta_of([0.3, 0.6], 1e-5), rows, y))
    assert post.theta.noise_var.unique().numel() == 2
    fresh = condition(MODEL, post.theta, rows, y)
    torch.testing.assert_close(post.L, fresh.L)
    torch.testing.assert_close(post.weights, fresh.weights)
    assert torch.equal(post.jitter, fresh.jitter)
    assert post.L.stride() == fresh.L.stride()  # or every solve would copy it first


@pytest.mark.parametrize(("quirk_var", "kept"), [(1e-6, 1e-9), (0.5, 1e-5 - LEAST)])
def test_low_fidelity_keeps_its_noise_where_designs_have_quirks(quirk_var, kept):
    rows, y = drawn(1e-9)
    theta = dataclasses.replace(theta_of([0.3], 1e-5), quirk_var=torch.tensor([quirk_var], dtype=torch.float64))
    post = sharpened(condition(MODEL, theta, rows, y))
    assert post.theta.noise_var.item() == LEAST
    assert post.theta.low_noise_var.item() == pytest.approx(kept)
    fidelities = torch.tensor([[0.0], [0.25], [1.0]], dtype=torch.float64)
    found = noise_variance(post.theta, value_rows(rows.x[:3], fidelities))
    assert found[0].tolist() == pytest.approx([LEAST + kept, LEAST + 0.75 * kept, LEAST])


def test_noise_that_is_less_already_stays():
    rows, y = drawn(1e-9)
    post = sharpened(condition(MODEL, theta_of([0.3], 1e-9), rows, y))
    assert post.theta.noise_var.item() == 1e-9


@pytest.mark.parametrize("most_rows", [320, 20])
def test_a_fit_sharpens_on_request_by_the_rows_it_learns_from(most_rows):
    rows, y = drawn(1e-9)
    y = (y - y.mean()) / y.std()
    plain = fit(MODEL, rows, y, seed=1, most_rows=most_rows)
    sharp = fit(MODEL, rows, y, seed=1, most_rows=most_rows, sharpen=True)
    assert (plain.posterior.theta.noise_var >= 1e-6).all()  # the floor that hyperparameters are learned with
    assert (sharp.posterior.theta.noise_var == LEAST).any()
    assert torch.equal(plain.posterior.theta.lengthscale, sharp.posterior.theta.lengthscale)
    assert sharp.posterior.n == len(rows)
    assert sharp.chains == plain.chains
    assert sharp.posterior.variance(rows).mean() < plain.posterior.variance(rows).mean()
