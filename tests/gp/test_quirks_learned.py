"""What is learned of the deviations of single designs from data; fixed seeds, and each test says what others gave."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
import torch

from takg.gp import Model, fit, value_rows


@dataclass(frozen=True)
class Forecast:
    """Of g(x, 1) at new x, standardised with the data."""

    rmse: float
    log_density: float  # of the truth, on average
    quirk_var: float  # median over the samples; 0 without quirks


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(7 * x) + 0.7 * np.cos(3 * x)


def a_smooth_picture(x: np.ndarray) -> np.ndarray:
    return np.cos(4 * x) + 0.5 * x


def forecast(kind: str, seed: int, *, is_erratic: bool, has_quirks: bool) -> Forecast:
    """From s truth(x) + (1 - s) picture(x) at s = 0.2 and 0.9 of each of 20 x."""
    rng, s = np.random.default_rng(seed), np.array([0.2, 0.9])
    x, x_new = rng.uniform(size=20), np.linspace(0.05, 0.95, 61)
    picture = rng.standard_normal(20) if is_erratic else a_smooth_picture(x)
    y = (s * truth(x)[:, None] + (1 - s) * picture[:, None]).ravel()
    rows = value_rows(torch.from_numpy(np.repeat(x, 2)[:, None]), torch.from_numpy(np.tile(s, 20)[:, None]))
    model = Model(d=1, fidelity_kernels=(kind,), has_quirks=has_quirks)
    post = fit(model, rows, torch.from_numpy((y - y.mean()) / y.std()), seed=seed).posterior
    target = post.target_rows(torch.from_numpy(x_new[:, None]))
    mean, sd = post.mean(target).numpy(), post.variance(target).sqrt().numpy()  # (H, 61)
    g = (truth(x_new) - y.mean()) / y.std()
    density = scipy.stats.norm.pdf(g, mean, sd).mean(0)
    quirk_var = 0.0 if post.theta.quirk_var is None else post.theta.quirk_var.median().item()
    return Forecast(np.sqrt(np.square(mean.mean(0) - g).mean()), np.log(density).mean(), quirk_var)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["curve", "size"])
def test_where_low_fidelity_is_erratic_quirks_forecast_the_target_better(kind):
    """Of other sets of eight seeds 0.3 % do not pass."""
    erratic, plain = (
        [forecast(kind, seed, is_erratic=True, has_quirks=flag) for seed in range(8)] for flag in (True, False)
    )
    ratios = [math.log(one.rmse / other.rmse) for one, other in zip(erratic, plain, strict=True)]
    gains = [one.log_density - other.log_density for one, other in zip(erratic, plain, strict=True)]
    assert np.mean(ratios) < math.log(0.75)
    assert np.mean(gains) > 0.4
    assert sum(one.quirk_var > 0.1 for one in erratic) >= 3  # about 1 / Var y in truth


@pytest.mark.parametrize("kind", ["curve", "size"])
def test_where_low_fidelity_is_smooth_quirks_are_small(kind):
    """In 80 other fits the largest median was 7e-7."""
    assert all(forecast(kind, seed, is_erratic=False, has_quirks=True).quirk_var < 1e-3 for seed in range(3))


def test_quirks_are_found_whatever_the_seed():
    """The density has a second mode, without them, whose peak lies lower by a factor of exp(28)."""
    rng, s = np.random.default_rng(0), np.array([0.2, 0.9])
    x = rng.uniform(size=(20, 2))
    g = np.sin(3 * x[:, 0]) + 2 * (x[:, 1] - 0.4) ** 2 - 0.8 * np.cos(4 * x[:, 0] * x[:, 1])
    y = (s * g[:, None] + (1 - s) * rng.standard_normal((20, 1))).ravel()
    rows = value_rows(torch.from_numpy(np.repeat(x, 2, axis=0)), torch.from_numpy(np.tile(s, 20)[:, None]))
    model = Model(d=2, fidelity_kernels=("curve",), has_quirks=True)
    y = torch.from_numpy((y - y.mean()) / y.std())
    medians = [fit(model, rows, y, seed=seed).posterior.theta.quirk_var.median().item() for seed in range(5)]
    assert min(medians) > 0.1, medians
