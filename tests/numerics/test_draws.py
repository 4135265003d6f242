"""Draws: their distribution, that they can be repeated, and what scrambled Sobol points gain."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from takg.errors import InputError
from takg.numerics import DRAW_METHODS, normal_draws, sobol_points

each_method = pytest.mark.parametrize("method", DRAW_METHODS)


@each_method
@pytest.mark.parametrize(("batch", "n", "dims"), [(1, 1, 1), (3, 8, 2), (2, 5, 7)])
def test_draws_have_their_shape_and_are_finite(method, batch, n, dims):
    draws = normal_draws(batch, n, dims, seed=1, method=method)
    assert draws.shape == (batch, n, dims)
    assert draws.dtype == torch.float64
    assert draws.isfinite().all()


@each_method
def test_no_dimensions_are_no_draws(method):
    assert normal_draws(3, 5, 0, seed=1, method=method).shape == (3, 5, 0)
    assert sobol_points(5, 0, seed=1).shape == (5, 0)


@each_method
def test_moments_are_those_of_independent_standard_normals(method):
    """Over independent seeds, each within 4 standard errors: 6e-5 for each of 24 comparisons."""
    means, seconds = [], []
    for seed in range(200):
        draws = normal_draws(2, 16, 3, seed=seed, method=method)
        means.append(draws.mean(1))
        seconds.append(torch.einsum("bni,bnj->bij", draws, draws) / 16)
    for estimates, truth in ((means, torch.zeros(2, 3)), (seconds, torch.eye(3).expand(2, 3, 3))):
        estimates = torch.stack(estimates)
        standard_error = estimates.std(0) / len(estimates) ** 0.5
        assert ((estimates.mean(0) - truth).abs() < 4 * standard_error).all()


@each_method
def test_a_single_draw_of_any_index_is_standard_normal(method):
    """Kolmogorov and Smirnov with an error probability of 1e-4 for each of four indices."""
    draws = torch.stack([normal_draws(2, 4, 2, seed=seed, method=method) for seed in range(600)]).numpy()
    for b, i, k in ((0, 0, 0), (0, 3, 1), (1, 0, 1), (1, 2, 0)):
        assert stats.kstest(draws[:, b, i, k], "norm").pvalue > 1e-4


@each_method
def test_sets_of_a_batch_are_not_correlated(method):
    """Means of the two sets over 400 seeds: |r| > 4 / sqrt(400) has a probability of 6e-5."""
    means = np.array([normal_draws(2, 8, 1, seed=seed, method=method).mean(1)[:, 0].numpy() for seed in range(400)])
    assert abs(np.corrcoef(means.T)[0, 1]) < 4 / 400**0.5
    one = normal_draws(2, 8, 1, seed=0, method=method)
    assert not torch.allclose(one[0], one[1])


@each_method
def test_the_same_seed_gives_the_same_draws_and_another_does_not(method):
    one, again, other = (normal_draws(2, 8, 3, seed=seed, method=method) for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@each_method
def test_the_global_random_state_is_neither_used_nor_changed(method):
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    one = normal_draws(2, 8, 3, seed=5, method=method)
    sobol_points(8, 3, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()
    torch.rand(17)
    assert torch.equal(normal_draws(2, 8, 3, seed=5, method=method), one)


@pytest.mark.parametrize("dims", [1, 2, 4])
def test_sobol_draws_integrate_a_smooth_function_with_less_variance(dims):
    """Unbiased (4 standard errors of 100 seeds, 1e-4), and of a variance at least five times below plain ones."""
    slopes = torch.linspace(0.3, 0.7, dims, dtype=torch.float64)
    truth = math.exp(0.5 * float(slopes.square().sum()))
    estimates = {
        method: torch.stack(
            [(normal_draws(1, 64, dims, seed=seed, method=method) @ slopes).exp().mean() for seed in range(100)]
        )
        for method in DRAW_METHODS
    }
    for values in estimates.values():
        assert abs(values.mean() - truth) < 4 * values.std() / 10
    assert estimates["sobol"].var() < 0.2 * estimates["monte_carlo"].var()


def test_sobol_is_the_default():
    assert torch.equal(normal_draws(2, 8, 3, seed=5), normal_draws(2, 8, 3, seed=5, method="sobol"))


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match=r"method='latin': expected one of \('monte_carlo', 'sobol'\)"):
        normal_draws(2, 8, 3, seed=5, method="latin")


@pytest.mark.parametrize("dims", [1, 3])
def test_sobol_points_fill_the_cube_evenly(dims):
    points = sobol_points(64, dims, seed=3)
    assert points.shape == (64, dims)
    assert points.dtype == torch.float64
    assert ((points >= 0) & (points < 1)).all()
    for k in range(dims):  # one in each of 64 equal intervals
        assert sorted((64 * points[:, k]).long().tolist()) == list(range(64))
    assert torch.equal(points, sobol_points(64, dims, seed=3))
    assert not torch.equal(points, sobol_points(64, dims, seed=4))
