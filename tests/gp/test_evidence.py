"""The density of the hyperparameters, against SciPy's normal density of a covariance written entry by entry."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
import torch

from takg.gp import Model, Rows
from takg.gp import _evidence as evidence
from takg.gp._evidence import LogDensity

# name -> (median, sd) of log-normal priors, as docs/paper.md states them; not read from the source.
PRIORS = {
    "signal_var": (1.0, 1.0),
    "noise_var": (1e-4, 2.5),
    "gradient_noise_var": (1e-3, 2.5),
    "w": (1.0, 1.0),
    "beta": (1.0, 1.0),
    "alpha": (1.0, 0.7),
    "c": (1.0, 1.0),
    "delta": (1.0, 0.7),
    "s_lengthscale": (1.0, 1.0),
    "doubt": (0.3, 0.7),
    "reach": (0.7, 0.7),
    "onset": (0.003, 2.0),
}
NOISE_FLOOR = 1e-6  # added to both noise variances
PARAMETERS = {
    "freeze_thaw": ("w", "beta", "alpha"),
    "data_size": ("c", "delta"),
    "smooth": ("s_lengthscale",),
    "curve": ("w", "beta", "alpha", "doubt", "reach", "onset"),
    "size": ("c", "delta", "doubt", "reach", "onset"),
}

MODELS = {
    "plain": Model(d=1, mean_var=0.7),
    "without_mean": Model(d=2, mean_var=0.0),
    "matern": Model(d=3, design_kernel="matern52", mean_var=1.6),
    "freeze_thaw": Model(d=2, fidelity_kernels=("freeze_thaw",)),
    "data_size": Model(d=2, fidelity_kernels=("data_size",), mean_var=0.3),
    "smooth": Model(d=1, fidelity_kernels=("smooth",), design_kernel="matern52"),
    "mixed": Model(d=2, fidelity_kernels=("data_size", "freeze_thaw", "smooth"), mean_var=0.8),
    "curve": Model(d=1, fidelity_kernels=("curve",), mean_var=0.9),
    "size_and_curve": Model(d=2, fidelity_kernels=("size", "curve"), design_kernel="matern52"),
    "trend": Model(d=3, trend_dims=(0, 2), slope_var=1.9, mean_var=0.4),
    "gradients": Model(d=2, fidelity_kernels=("freeze_thaw",), has_gradients=True, mean_var=0.6),
    "matern_gradients": Model(d=3, fidelity_kernels=("smooth",), design_kernel="matern52", has_gradients=True),
}
ALL_MODELS = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


@dataclass(frozen=True)
class Data:
    x: np.ndarray
    s: np.ndarray
    part: np.ndarray
    noise_scale: np.ndarray
    y: np.ndarray

    @property
    def rows(self) -> Rows:
        return Rows(**{k: torch.from_numpy(getattr(self, k)) for k in ("x", "s", "part", "noise_scale")})

    def density(self, model: Model) -> LogDensity:
        return LogDensity(model=model, rows=self.rows, y=torch.from_numpy(self.y))


def random_data(model: Model, seed: int, *, n: int = 7) -> Data:
    """Values, derivatives if the model takes them, and noise of different size in each row."""
    rng = np.random.default_rng(seed)
    part = np.zeros(n, dtype=np.int64)
    if model.has_gradients:
        part = rng.permutation(np.arange(n) % (model.d + 1))
    x, s = rng.uniform(size=(n, model.d)), rng.uniform(size=(n, model.m))
    x[-1] = x[0]  # a repeated design, which for derivatives is the kernel at distance 0
    y = 1.4 * rng.standard_normal(n)
    y[-1] = y[0] + 0.06  # which must have nearly repeated its outcome, for the density not to be tiny
    return Data(x, s, part, rng.uniform(0.4, 2.3, n), y)


def random_z(model: Model, seed: int, count: int) -> np.ndarray:
    """Generic hyperparameters, with enough noise that rounding stays far below the tolerances here."""
    rng = np.random.default_rng([seed, 1])
    z = rng.uniform(-1.7, 1.7, (count, len(priors(model))))
    noises = 1 + model.has_gradients
    z[:, -noises:] = rng.uniform(0.4, 2.1, (count, noises))
    return z


# ---------------- the oracle: loops over pairs of rows


def priors(model: Model) -> list[tuple[float, float]]:
    table = [PRIORS["signal_var"]] + [(0.5 * math.sqrt(model.d), 1.0)] * model.d
    table += [PRIORS[name] for kind in model.fidelity_kernels for name in PARAMETERS[kind]]
    table += [PRIORS["noise_var"]]
    return table + [PRIORS["gradient_noise_var"]] * model.has_gradients


def fidelity_factor(kind: str, s: float, t: float, p: list[float]) -> float:
    if kind in ("curve", "size"):
        *rest, doubt, reach, onset = p
        known = fidelity_factor("freeze_thaw" if kind == "curve" else "data_size", s, t, rest)
        growth = math.prod((1 + onset / 1.001) / (1 + onset / (one + 0.001)) for one in (s, t))
        return growth * (known + doubt * math.exp(-((s - t) ** 2) / (2 * reach**2)))
    if kind == "freeze_thaw":
        w, beta, alpha = p
        return w + beta**alpha / (s + t + beta) ** alpha
    if kind == "data_size":
        c, delta = p
        return c + (1 - s) ** (1 + delta) * (1 - t) ** (1 + delta)
    return math.exp(-((s - t) ** 2) / (2 * p[0] ** 2))


def design_factor(kind: str, a: np.ndarray, b: np.ndarray, i: int, j: int, length: np.ndarray) -> float:
    """k(a, b), or its derivative by a_i (i >= 1) and by b_j (j >= 1), in closed form."""
    q = (a - b) / length**2
    r = math.sqrt((((a - b) / length) ** 2).sum())
    same = float(i == j) / length[i - 1] ** 2 if i and j else 0.0
    if kind == "squared_exponential":
        k = math.exp(-(r**2) / 2)
        if i and j:
            return k * (same - q[i - 1] * q[j - 1])
        return -k * q[i - 1] if i else k * q[j - 1] if j else k
    r *= math.sqrt(5)
    e = math.exp(-r)
    if i and j:
        return 5 / 3 * e * ((1 + r) * same - 5 * q[i - 1] * q[j - 1])
    if i or j:
        return 5 / 3 * e * (1 + r) * (-q[i - 1] if i else q[j - 1])
    return e * (1 + r + r**2 / 3)


def oracle(model: Model, data: Data, z: np.ndarray) -> float:
    """log N(y; 0, K + noise) + log prior(z), without the prior's constant."""
    values = [median * math.exp(sd * z_k) for (median, sd), z_k in zip(priors(model), z, strict=True)]
    signal_var, length = values[0], np.array(values[1 : 1 + model.d])
    rest = values[1 + model.d :]
    shares: list[list[float]] = []
    for kind in model.fidelity_kernels:
        size = len(PARAMETERS[kind])
        shares.append(rest[:size])
        rest = rest[size:]
    noise = NOISE_FLOOR + np.array([rest[0], rest[-1]])  # of values and of derivatives

    n = len(data.y)
    K = np.empty((n, n))
    for a in range(n):
        for b in range(n):
            i, j = data.part[a], data.part[b]
            k = signal_var * design_factor(model.design_kernel, data.x[a], data.x[b], i, j, length)
            for f, kind in enumerate(model.fidelity_kernels):
                k *= fidelity_factor(kind, data.s[a, f], data.s[b, f], shares[f])
            if i == 0 and j == 0:
                k += model.mean_var + sum(model.slope_var * data.x[a, t] * data.x[b, t] for t in model.trend_dims)
            K[a, b] = k + (a == b) * noise[int(i > 0)] * data.noise_scale[a]
    log_prior = scipy.stats.norm.logpdf(z).sum() + len(z) / 2 * math.log(2 * math.pi)
    return float(scipy.stats.multivariate_normal.logpdf(data.y, np.zeros(n), K) + log_prior)


def slopes(model: Model, data: Data, z: np.ndarray, h: float = 2e-3) -> np.ndarray:
    """Gradient of the oracle by five-point differences, error O(h^4)."""
    steps = h * np.eye(len(z))
    f = lambda v: oracle(model, data, v)  # noqa: E731
    return np.array([(8 * (f(z + e) - f(z - e)) - (f(z + 2 * e) - f(z - 2 * e))) / (12 * h) for e in steps])


# ---------------- values and gradients


@ALL_MODELS
def test_the_density_is_scipys_normal_times_a_standard_normal_prior(model):
    data, z = random_data(model, 11), random_z(model, 11, 6)
    values = data.density(model)(torch.from_numpy(z))
    expected = [oracle(model, data, one) for one in z]
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-9)


@ALL_MODELS
def test_the_gradient_agrees_with_finite_differences(model):
    data, z = random_data(model, 23), random_z(model, 23, 3)
    values, gradients = data.density(model).negative_with_gradient(torch.from_numpy(z))
    np.testing.assert_allclose(values.numpy(), [-oracle(model, data, one) for one in z], rtol=1e-9)
    expected = -np.array([slopes(model, data, one) for one in z])
    np.testing.assert_allclose(gradients.numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["mixed", "size_and_curve"])
def test_the_gradient_holds_at_the_ends_of_the_fidelities_and_at_repeated_rows(name):
    model = MODELS[name]
    data, z = random_data(model, 5), random_z(model, 5, 2)
    data.s[:3] = 0.0
    data.s[3:6] = 1.0
    data.x[1] = data.x[0]
    data.y[1] = data.y[0] + 0.04  # a repeated row must repeat its outcome, but for the noise
    _, gradients = data.density(model).negative_with_gradient(torch.from_numpy(z))
    expected = -np.array([slopes(model, data, one) for one in z])
    np.testing.assert_allclose(gradients.numpy(), expected, rtol=1e-6, atol=1e-7)


def test_without_any_noise_on_some_rows_the_density_is_that_of_exact_observations():
    model = MODELS["plain"]
    data, z = random_data(model, 2, n=4), random_z(model, 2, 3)
    data.x[-1] = 0.97  # no repeated row: that would have no density
    data.noise_scale[1:3] = 0.0
    values = data.density(model)(torch.from_numpy(z))
    np.testing.assert_allclose(values.numpy(), [oracle(model, data, one) for one in z], rtol=1e-8)


def test_only_derivative_rows_feel_the_gradient_noise():
    model = MODELS["gradients"]
    data = random_data(model, 3)
    data.part[:] = 0
    z = torch.from_numpy(random_z(model, 3, 1)).repeat(2, 1)
    z[1, -1] += 1.3  # gradient_noise_var
    values = data.density(model)(z)
    prior_alone = -0.5 * (z[1].square().sum() - z[0].square().sum())
    torch.testing.assert_close(values[1] - values[0], prior_alone, rtol=1e-10, atol=1e-10)


def test_the_order_of_the_rows_does_not_matter():
    model = MODELS["gradients"]
    data, z = random_data(model, 8), torch.from_numpy(random_z(model, 8, 4))
    order = np.random.default_rng(8).permutation(len(data.y))
    shuffled = Data(*(getattr(data, k)[order] for k in ("x", "s", "part", "noise_scale", "y")))
    torch.testing.assert_close(shuffled.density(model)(z), data.density(model)(z), rtol=1e-10, atol=0)


def test_a_density_built_under_autograd_leaves_no_graph_behind():
    model = MODELS["plain"]
    z = torch.from_numpy(random_z(model, 1, 2)).requires_grad_()
    density = random_data(model, 1).density(model)
    assert not density(z).requires_grad
    assert not any(result.requires_grad for result in density.negative_with_gradient(z))
    assert z.grad is None


# ---------------- where there is no density

HUGE_MEAN = Model(d=1, mean_var=1e12)  # its rounding error swallows the smallest noise, not the larger ones


def twins(n: int = 4) -> Data:
    """One design observed n times: without noise its covariance has rank 1."""
    x = np.full((n, 1), 0.37)
    y = np.linspace(-1.0, 1.3, n)
    return Data(x, np.empty((n, 0)), np.zeros(n, dtype=np.int64), np.ones(n), y)


def noisy_vanishing_noisy() -> torch.Tensor:
    z = torch.full((3, 3), 0.4, dtype=torch.float64)
    z[:, -1] = torch.tensor([2.0, -5.0, 3.0])  # noise_var 1e-6 + 1e-4 exp(2.5 z): 0.015, 1e-6, 0.18
    return z


def test_a_covariance_without_a_factor_has_no_density_and_is_counted():
    density = twins().density(HUGE_MEAN)
    z = noisy_vanishing_noisy()
    values = density(z)
    assert values.isfinite().tolist() == [True, False, True]
    assert values[1] == -math.inf
    assert (density.failures, density.evaluations) == (1, 3)
    torch.testing.assert_close(values[[0, 2]], twins().density(HUGE_MEAN)(z[[0, 2]]), rtol=1e-12, atol=0)


def test_a_covariance_without_a_factor_has_an_infinite_negative_and_no_slope():
    density = twins().density(HUGE_MEAN)
    z = noisy_vanishing_noisy()
    values, gradients = density.negative_with_gradient(z)
    assert values[1] == math.inf
    assert gradients[1].tolist() == [0.0] * 3
    assert values[[0, 2]].isfinite().all() and gradients.isfinite().all()
    assert (density.failures, density.evaluations) == (1, 3)
    alone = twins().density(HUGE_MEAN).negative_with_gradient(z[[0, 2]])
    torch.testing.assert_close((values[[0, 2]], gradients[[0, 2]]), alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_prior_ends_five_standard_deviations_from_its_centre(sign):
    model = MODELS["plain"]
    density = random_data(model, 4, n=3).density(model)
    z = torch.full((3, 3), 0.2, dtype=torch.float64)
    z[:, 1] = sign * torch.tensor([5.0, 5.0 + 1e-9, 40.0], dtype=torch.float64)
    values, (negative, gradients) = density(z), density.negative_with_gradient(z)
    assert values[0].isfinite()
    assert values[1:].tolist() == [-math.inf] * 2
    assert negative[1:].tolist() == [math.inf] * 2
    assert (gradients[1:] == 0).all()
    assert density.failures == 0  # out of range is not a failure of the factorisation


def test_hyperparameters_that_overflow_have_no_density():
    model = MODELS["mixed"]
    density = random_data(model, 6).density(model)
    z = torch.zeros(2, len(priors(model)), dtype=torch.float64)
    z[1] = 1e3
    values, (negative, gradients) = density(z), density.negative_with_gradient(z)
    assert values[0].isfinite() and values[1] == -math.inf
    assert negative[0].isfinite() and negative[1] == math.inf
    assert gradients.isfinite().all()


# ---------------- batches


@ALL_MODELS
@pytest.mark.parametrize("at_once", [1, 2 * 7**2, 3 * 7**2 + 5])
def test_working_in_chunks_changes_nothing(model, at_once, monkeypatch):
    data, z = random_data(model, 31), torch.from_numpy(random_z(model, 31, 7))
    z[3, 0] = 5.5
    whole = data.density(model)
    expected, with_gradient = whole(z), whole.negative_with_gradient(z)
    monkeypatch.setattr(evidence, "_ENTRIES_AT_ONCE", at_once)
    chunked = data.density(model)
    torch.testing.assert_close(chunked(z), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(chunked.negative_with_gradient(z), with_gradient, rtol=1e-7, atol=1e-9)
    assert (chunked.failures, chunked.evaluations) == (whole.failures, whole.evaluations) == (0, 14)


def test_failures_are_counted_over_all_chunks(monkeypatch):
    monkeypatch.setattr(evidence, "_ENTRIES_AT_ONCE", 1)
    density = twins().density(HUGE_MEAN)
    density(noisy_vanishing_noisy().repeat(3, 1))
    assert (density.failures, density.evaluations) == (3, 9)
