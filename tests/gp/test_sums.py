"""Sums of kernels in a compiled loop, against the formula in NumPy."""

import numpy as np
import pytest

from takg.gp._sums import fill_sums


def sums_by_numpy(is_matern, points, centres, scale, weights):
    r = np.sqrt((((points[None, :, None, :] - centres) / scale[:, None, None, :]) ** 2).sum(-1))  # (H, P, u)
    k = (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r) if is_matern else np.exp(-(r**2) / 2)
    return (k * weights[:, None, :]).sum(-1)


@pytest.mark.parametrize("is_matern", [False, True])
@pytest.mark.parametrize(("H", "P", "u", "d"), [(2, 37, 53, 4), (1, 1, 1, 1), (3, 0, 5, 2)])
def test_the_sums_are_those_of_the_formula(is_matern, H, P, u, d):
    random = np.random.default_rng(17 + d)
    points, centres = random.random((P, d)), random.random((u, d))
    points[: P // 5] = centres[: P // 5]  # a kernel of no distance among them
    scale, weights = random.uniform(0.05, 2.0, (H, d)), random.standard_normal((H, u))
    found = np.full((H, P), np.nan)
    fill_sums(is_matern, points, centres, scale, weights, found)
    expected = sums_by_numpy(is_matern, points, centres, scale, weights)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14 * np.abs(weights).sum(-1).max())
