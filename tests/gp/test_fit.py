"""Sampling the hyperparameters, against quadrature and importance sampling of a density written in NumPy.

Error probabilities: a correct sampler fails each statistical test here with probability at most
`ERROR_PROBABILITY`, shared equally among the hyperparameters that one test looks at (Bonferroni).

Independence: the ensemble's stationary law is a product, so walkers of one ensemble are independent draws.
Ensembles of successive fits are not; they are thinned by twice their measured autocorrelation time, which
leaves a correlation of about exp(-4) between the ones that are kept.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import scipy.stats
import torch
from torch import Tensor

from takg.errors import InputError, NumericsError
from takg.gp import Chains, Fit, Model, Rows, condition, fit, value_rows

ERROR_PROBABILITY = 1e-4

NOISE_FLOOR = 1e-6  # added to the noise variance, which is log-normal above it
# (median, sd) of the log-normal priors, as docs/paper.md states them; not read from the source.
FIDELITY_PRIORS = {
    None: [],
    "smooth": [(1.0, 1.0)],
    "data_size": [(1.0, 1.0), (1.0, 0.7)],
    "freeze_thaw": [(1.0, 1.0), (1.0, 1.0), (1.0, 0.7)],
    "size": [(1.0, 1.0), (1.0, 0.7), (0.3, 0.7), (0.7, 0.7), (0.003, 2.0)],
    "curve": [(1.0, 1.0), (1.0, 1.0), (1.0, 0.7), (0.3, 0.7), (0.7, 0.7), (0.003, 2.0)],
}


def priors(kind: str | None) -> np.ndarray:
    """Of signal_var, the one length scale, the fidelity's parameters and noise_var: (p, 2)."""
    return np.array([(1.0, 1.0), (0.5, 1.0), *FIDELITY_PRIORS[kind], (1e-4, 2.5)])


def hyperparameters(kind: str | None, z: np.ndarray) -> np.ndarray:
    table = priors(kind)
    values = table[:, 0] * np.exp(table[:, 1] * z)
    values[..., -1] += NOISE_FLOOR
    return values


@dataclass(frozen=True)
class Problem:
    """Observations over one design dimension and at most one fidelity."""

    kind: str | None
    x: np.ndarray  # (n,)
    s: np.ndarray  # (n,)
    y: np.ndarray  # (n,)

    @property
    def model(self) -> Model:
        return Model(d=1, fidelity_kernels=() if self.kind is None else (self.kind,))

    @property
    def rows(self) -> Rows:
        s = self.s[:, None] if self.kind else np.empty((len(self.s), 0))
        return value_rows(torch.from_numpy(self.x[:, None]), torch.from_numpy(s))

    def fit(self, **settings: object) -> Fit:
        return fit(self.model, self.rows, torch.from_numpy(self.y), **settings)

    def without_last(self) -> "Problem":
        return Problem(self.kind, self.x[:-1], self.s[:-1], self.y[:-1])


def with_doubt_and_onset(factor: np.ndarray, a: np.ndarray, b: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    if not parameters:
        return factor
    doubt, reach, onset = parameters
    growth = [(s + 0.001) / (s + 0.001 + onset) / (1.001 / (1.001 + onset)) for s in (a, b)]
    return (factor + doubt * np.exp(-((a - b) ** 2) / (2 * reach**2))) * growth[0] * growth[1]


def covariance(kind: str | None, x: np.ndarray, s: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Of noisy observations, for whitened hyperparameters (N, p): (N, n, n)."""
    v = hyperparameters(kind, z).T[..., None, None]  # (p, N, 1, 1)
    a, b = s[:, None], s[None, :]
    K = v[0] * np.exp(-(((x[:, None] - x[None, :]) / v[1]) ** 2) / 2)
    if kind == "smooth":
        K = K * np.exp(-(((a - b) / v[2]) ** 2) / 2)
    elif kind in ("data_size", "size"):
        K = K * with_doubt_and_onset(v[2] + ((1 - a) * (1 - b)) ** (1 + v[3]), a, b, *v[4:-1])
    elif kind in ("freeze_thaw", "curve"):
        K = K * with_doubt_and_onset(v[2] + v[3] ** v[4] / (a + b + v[3]) ** v[4], a, b, *v[5:-1])
    return K + 1.0 + v[-1] * np.eye(len(x))  # 1 for the unknown constant mean


def log_likelihood(problem: Problem, z: np.ndarray) -> np.ndarray:
    def part(z: np.ndarray) -> np.ndarray:
        L = np.linalg.cholesky(covariance(problem.kind, problem.x, problem.s, z))
        half = np.linalg.solve(L, np.broadcast_to(problem.y[:, None], (len(z), len(problem.y), 1)))[..., 0]
        return -(half**2).sum(-1) / 2 - np.log(np.diagonal(L, axis1=-2, axis2=-1)).sum(-1)

    return np.concatenate([part(chunk) for chunk in np.array_split(z, 1 + len(z) // 50_000)])


def walkers(result: Fit) -> np.ndarray:
    return np.array(result.chains.walkers)


def tensor(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


PROBLEMS = {
    kind: Problem(
        kind,
        x=np.array([0.08, 0.31, 0.47, 0.62, 0.83]),
        s=np.array([0.9, 0.25, 0.1, 0.7, 0.45]),
        y=np.array([-0.9, 0.35, 1.25, -0.4, -1.1]),
    )
    for kind in FIDELITY_PRIORS
}


# ---------------- the posterior is the right one


def autocorrelation_time(series: np.ndarray) -> float:
    """Integrated, with Sokal's window: the smallest M with M >= 5 tau(M)."""
    centred = series - series.mean()
    spectrum = np.abs(np.fft.rfft(centred, 2 * len(series))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(series)]
    tau = 2 * np.cumsum(correlation / correlation[0]) - 1
    wide_enough = np.arange(len(tau)) >= 5 * tau
    return float(tau[wide_enough.argmax() if wide_enough.any() else -1])


def nearly_independent_draws(problem: Problem, *, n_walkers: int, legs: int) -> np.ndarray:
    """Whitened hyperparameters from one chain continued `legs` times as a study does it: (draws, p)."""
    result = problem.fit(seed=0, draws=n_walkers, steps=200)
    ensembles = []
    for leg in range(legs):
        result = problem.fit(seed=1 + leg, draws=n_walkers, chains=result.chains)
        ensembles.append(walkers(result))
    z = np.stack(ensembles)  # (legs, W, p)
    means = [(z**power).mean(axis=1)[:, k] for power in (1, 2) for k in range(z.shape[-1])]
    thin = math.ceil(2 * max(1.0, *map(autocorrelation_time, means)))
    kept = z[thin - 1 :: thin]
    assert len(kept) >= 5, f"an autocorrelation time of {thin / 2} fits leaves {len(kept)} of {legs} ensembles"
    return kept.reshape(-1, z.shape[-1])


def marginals_on_a_grid(problem: Problem, axes: list[np.ndarray]) -> list[np.ndarray]:
    """Marginal densities of the whitened hyperparameters at the nodes of each axis, up to a factor."""
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    log_density = log_likelihood(problem, grid.reshape(-1, len(axes))) - (grid.reshape(-1, len(axes)) ** 2).sum(-1) / 2
    density = np.exp(log_density - log_density.max()).reshape(grid.shape[:-1])
    return [density.sum(axis=tuple(j for j in range(len(axes)) if j != k)) for k in range(len(axes))]


def marginals_by_quadrature(problem: Problem, *, points: int) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Distribution functions by the trapezoidal rule, on a coarse grid to find the mass and a fine one over it.

    The integrand is smooth and vanishes at the ends, where that rule converges faster than any power; refining
    the grids used below moves the functions by less than 0.003, a twentieth of the distance that is detected.
    """
    coarse = np.linspace(-5, 5, 17)
    axes = []
    for marginal in marginals_on_a_grid(problem, [coarse] * len(priors(problem.kind))):
        inside = np.flatnonzero(marginal > 1e-6 * marginal.max())
        axes.append(np.linspace(coarse[max(inside[0] - 1, 0)], coarse[min(inside[-1] + 1, 16)], points))
    functions = []
    for nodes, marginal in zip(axes, marginals_on_a_grid(problem, axes), strict=True):
        fine = np.linspace(nodes[0], nodes[-1], 2001)
        shape = np.exp(scipy.interpolate.CubicSpline(nodes, np.log(marginal))(fine))
        integral = scipy.interpolate.CubicSpline(fine, shape).antiderivative()(fine)
        functions.append(partial(np.interp, xp=fine, fp=integral / integral[-1]))
    return functions


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "points"), [(None, 61), ("smooth", 27)])
def test_continued_chains_sample_the_marginals_that_quadrature_gives(kind, points):
    problem = PROBLEMS[kind]
    z = nearly_independent_draws(problem, n_walkers=100, legs=120)
    for k, cdf in enumerate(marginals_by_quadrature(problem, points=points)):
        p_value = scipy.stats.ks_1samp(z[:, k], cdf).pvalue
        assert p_value > ERROR_PROBABILITY / z.shape[1], f"hyperparameter {k}, {len(z)} draws"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data_size", "freeze_thaw", "curve"])
def test_continued_chains_sample_the_marginals_that_importance_sampling_gives(kind):
    problem = PROBLEMS[kind]
    z = nearly_independent_draws(problem, n_walkers=100, legs=240 if kind == "curve" else 120)
    n, p = z.shape
    points = scipy.stats.qmc.Sobol(p, seed=7).random(2**17)
    prior = scipy.stats.norm.ppf(points.clip(1e-12, 1 - 1e-12))
    log_weight = log_likelihood(problem, prior)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    effective = 1 / (weight**2).sum()  # Kish; scrambled Sobol points do no worse than independent ones
    assert effective > 3 * n, "the reference is too coarse for the draws it judges"
    for k in range(p):
        order = prior[:, k].argsort()
        reference = np.concatenate([[0.0], weight[order].cumsum()])
        draws = np.sort(z[:, k])
        below = reference[np.searchsorted(prior[order, k], draws)]
        ranks = np.arange(n + 1) / n
        distance = max((ranks[1:] - below).max(), (below - ranks[:-1]).max())
        p_value = scipy.stats.kstwobign.sf(distance * math.sqrt(n * effective / (n + effective)))
        assert p_value > ERROR_PROBABILITY / p, f"hyperparameter {k}, {n} draws, reference worth {effective:.0f}"


@pytest.mark.slow
def test_chains_warm_from_one_row_less_reach_the_distribution_of_cold_starts():
    """Two-sample Kolmogorov-Smirnov; 250 steps are several autocorrelation times, repetitions independent."""
    problem = PROBLEMS["smooth"]
    cold = [walkers(problem.fit(seed=seed, draws=60, steps=250)) for seed in range(5)]
    warm = []
    for seed in range(100, 105):
        result = problem.without_last().fit(seed=seed, draws=60)
        for leg in range(4):
            result = problem.fit(seed=1000 * leg + seed, draws=60, chains=result.chains, steps=60)
            assert result.diagnostics.was_warm
        warm.append(walkers(result))
    cold, warm = np.concatenate(cold), np.concatenate(warm)
    for k in range(cold.shape[1]):
        p_value = scipy.stats.ks_2samp(cold[:, k], warm[:, k]).pvalue
        assert p_value > ERROR_PROBABILITY / cold.shape[1], f"hyperparameter {k}"


@pytest.mark.slow
def test_one_cold_fit_is_calibrated_on_data_drawn_from_the_prior():
    """Simulation-based calibration at the default steps.

    With hyperparameters drawn from the prior and data from them, the rank of each among its H posterior
    draws is uniform on 0..H, and so is the place of a further observation in its predictive distribution.
    """
    kind, n, draws, repetitions = "freeze_thaw", 8, 40, 70
    model = Model(d=1, fidelity_kernels=(kind,))
    table = priors(kind)
    ranks, places = [], []
    for repetition in range(repetitions):
        rng = np.random.default_rng([17, repetition])
        truth = rng.standard_normal(len(table))
        x, s = rng.uniform(size=n + 1), rng.uniform(size=n + 1)
        y = np.linalg.cholesky(covariance(kind, x, s, truth[None])[0]) @ rng.standard_normal(n + 1)
        rows = value_rows(tensor(x[:n, None]), tensor(s[:n, None]))
        result = fit(model, rows, tensor(y[:n]), seed=repetition, draws=draws)
        below = (walkers(result) < truth).sum(axis=0)
        ranks.append((below + rng.uniform(size=len(table))) / (draws + 1))  # spread within its step
        new = value_rows(tensor(x[n:, None]), tensor(s[n:, None]))
        mean = result.posterior.mean(new)[:, 0].numpy()
        variance = (result.posterior.variance(new)[:, 0] + result.posterior.theta.noise_var).numpy()
        places.append(scipy.stats.norm.cdf((y[n] - mean) / np.sqrt(variance)).mean())
    looks = len(table) + 2
    for k, column in enumerate(np.array(ranks).T):
        assert scipy.stats.kstest(column, "uniform").pvalue > ERROR_PROBABILITY / looks, f"hyperparameter {k}"
    assert scipy.stats.kstest(places, "uniform").pvalue > ERROR_PROBABILITY / looks
    covered = sum(0.05 < place < 0.95 for place in places)
    assert scipy.stats.binomtest(covered, repetitions, 0.9).pvalue > ERROR_PROBABILITY / looks


def test_walkers_fill_a_posterior_that_is_pressed_against_the_end_of_the_prior():
    """One value far too large presses the signal to z = 5; one row leaves the length scale to its prior."""
    problem = Problem(None, x=np.array([0.4]), s=np.zeros(1), y=np.array([45.0]))
    nodes = np.linspace(-5, 5, 401)
    grid = np.stack(np.meshgrid(nodes, [0.3], nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    log_density = (log_likelihood(problem, grid) - (grid[:, [0, 2]] ** 2).sum(-1) / 2).reshape(401, 401)
    assert nodes[np.unravel_index(log_density.argmax(), log_density.shape)[0]] == 5.0
    signal = np.exp(log_density - log_density.max()).sum(axis=1)
    noise = np.exp(log_density - log_density.max()).sum(axis=0)

    first = walkers(problem.fit(seed=2, draws=200, steps=2))[:, 0]
    assert first.std() > 0.5 * math.sqrt(np.cov(nodes, aweights=signal)), "walkers start too close to each other"
    z = walkers(problem.fit(seed=2, draws=200))
    for k, marginal in ((0, signal), (2, noise)):
        integral = scipy.integrate.cumulative_trapezoid(marginal, initial=0)
        cdf = partial(np.interp, xp=nodes, fp=integral / integral[-1])
        assert scipy.stats.ks_1samp(z[:, k], cdf).pvalue > ERROR_PROBABILITY / 3
    assert scipy.stats.ks_1samp(z[:, 1], scipy.stats.norm.cdf).pvalue > ERROR_PROBABILITY / 3


# ---------------- draws, chains and seeds


@pytest.mark.parametrize("kind", FIDELITY_PRIORS)
def test_the_draws_are_different_walkers_of_the_last_ensemble(kind):
    result = PROBLEMS[kind].fit(seed=4, draws=7)
    theta = result.posterior.theta
    drawn = torch.stack([theta.signal_var, theta.lengthscale[:, 0], *sum(theta.fidelity, ()), theta.noise_var], -1)
    ends = hyperparameters(kind, walkers(result))  # (W, p)
    gap = np.abs(np.log(drawn.numpy())[:, None] - np.log(ends)[None]).max(-1)  # (7, W)
    assert gap.min(axis=1).max() < 1e-12
    assert len(set(gap.argmin(axis=1))) == 7
    assert result.chains.names == tuple(PROBLEMS[kind].model.priors)


@pytest.mark.parametrize("draws", [1, 2, 10, 25])
def test_the_posterior_has_as_many_draws_as_were_asked_for(draws):
    problem = PROBLEMS["smooth"]
    cold = problem.fit(seed=1, draws=draws)
    warm = problem.fit(seed=2, draws=draws, chains=cold.chains)
    for result in (cold, warm):
        assert draws == result.posterior.theta.H
        assert len(set(result.posterior.theta.signal_var.tolist())) == draws
        assert len(result.chains.walkers) >= max(draws, 2 * 4 + 2)
        assert result.posterior.mean(problem.rows).shape == (draws, 5)


def test_chains_grow_and_shrink_with_the_number_of_draws():
    problem = PROBLEMS["smooth"]
    few = problem.fit(seed=1, draws=4).chains
    many = problem.fit(seed=2, draws=31, chains=few)
    assert len(few.walkers) == 10
    assert len(set(many.chains.walkers)) == 32
    assert many.posterior.theta.H == 31
    few_again = problem.fit(seed=3, draws=4, chains=many.chains)
    assert len(set(few_again.chains.walkers)) == 10


def test_chains_continue_after_one_more_row():
    problem = PROBLEMS["freeze_thaw"]
    before = problem.without_last().fit(seed=1)
    after = problem.fit(seed=2, chains=before.chains)
    assert after.posterior.n == before.posterior.n + 1
    assert after.diagnostics.was_warm and not before.diagnostics.was_warm
    assert after.diagnostics.steps < before.diagnostics.steps
    assert after.diagnostics.evaluations < before.diagnostics.evaluations
    assert np.isfinite(walkers(after)).all()
    assert not np.array_equal(walkers(after), walkers(before))


def erratic_curves() -> tuple[Model, Rows, Tensor]:
    """Designs with quirks, and few enough rows for a mode without any: a rough function of x."""
    rng = np.random.default_rng(0)
    x, s = np.linspace(0.02, 0.98, 24).repeat(3), np.tile([0.1, 0.3, 1.0], 24)
    y = np.sin(6 * x) + rng.standard_normal(24).repeat(3) * (1 - s)
    model = Model(d=1, fidelity_kernels=("curve",), has_quirks=True)
    return model, value_rows(tensor(x[:, None]), tensor(s[:, None])), tensor((y - y.mean()) / y.std())


def quirk_sds(result: Fit) -> np.ndarray:
    """sds of the quirks under each draw; 0.7 of the outputs' is the truth."""
    quirk_var = result.posterior.theta.quirk_var
    assert quirk_var is not None
    return np.sqrt(quirk_var.numpy())


def test_chains_in_a_lower_mode_give_way_where_they_look_again_and_only_there():
    model, rows, y = erratic_curves()
    cold = fit(model, rows, y, seed=0)
    names = cold.chains.names
    assert quirk_sds(cold).min() > 0.3
    stuck = np.array(cold.chains.walkers)
    stuck[:, names.index("quirk_var")] = -1.0
    stuck[:, names.index("lengthscale[0]")] = -3.0 + 0.01 * np.arange(len(stuck))
    chains = Chains(names=names, walkers=tuple(map(tuple, stuck)))
    warm, anew = (fit(model, rows, y, seed=1, chains=chains, look_again=again) for again in (False, True))
    assert (warm.diagnostics.was_warm, anew.diagnostics.was_warm) == (True, False)
    assert quirk_sds(warm).max() < 0.1 < 0.3 < quirk_sds(anew).min()


@pytest.mark.parametrize("seed", range(4))
def test_chains_at_the_highest_mode_go_on_when_they_look_again(seed):
    model, rows, y = erratic_curves()
    chains = fit(model, rows[torch.arange(len(y) - 3)], y[:-3], seed=seed).chains
    assert fit(model, rows, y, seed=seed, chains=chains, look_again=True).diagnostics.was_warm


def continued(n: int, **settings: object) -> Fit:
    """A fit to n rows from chains that are made up, around the centre of the prior."""
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(5 * x[:, 0]) + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    model = Model(d=1)
    names = tuple(model.priors)
    centre = 0.1 * torch.randn(10, len(names), generator=generator, dtype=torch.float64)
    chains = Chains(names=names, walkers=tuple(map(tuple, centre.tolist())))
    return fit(model, value_rows(x, x[:, :0]), y, seed=1, draws=4, chains=chains, **settings)


@pytest.mark.parametrize(("n", "steps"), [(1, 8), (12, 8), (100, 8), (101, 7), (150, 5), (200, 4), (300, 4)])
def test_continued_chains_move_less_often_with_more_rows(n, steps):
    found = continued(n)
    assert found.diagnostics.was_warm
    assert found.diagnostics.steps == steps
    assert math.isfinite(found.diagnostics.r_hat)


def test_continued_chains_move_as_often_as_the_rows_that_they_learn_from_allow():
    found = continued(200, most_rows=40)
    assert found.posterior.n == 200
    assert found.diagnostics.steps == 8


def test_continued_chains_move_as_often_as_was_asked_for():
    assert continued(200, steps=6).diagnostics.steps == 6


def same(a: Fit, b: Fit) -> bool:
    return (
        a.chains == b.chains
        and a.diagnostics == b.diagnostics
        and torch.equal(a.posterior.theta.signal_var, b.posterior.theta.signal_var)
        and torch.equal(a.posterior.weights, b.posterior.weights)
    )


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_seed_fixes_the_result_and_another_changes_it(is_warm):
    problem = PROBLEMS["data_size"]
    chains = problem.without_last().fit(seed=8).chains if is_warm else None
    first, again, other = (problem.fit(seed=seed, chains=chains) for seed in (5, 5, 6))
    assert same(first, again)
    assert not set(first.chains.walkers) & set(other.chains.walkers)
    assert not torch.equal(first.posterior.theta.noise_var, other.posterior.theta.noise_var)


@pytest.mark.parametrize("is_warm", [False, True])
def test_global_random_state_is_neither_read_nor_changed(is_warm):
    problem = PROBLEMS["smooth"]
    chains = problem.fit(seed=8).chains if is_warm else None
    old_numpy, old_torch = np.random.get_state(), torch.get_rng_state()
    try:
        results = []
        for global_seed in (1, 2):
            np.random.seed(global_seed)
            torch.manual_seed(global_seed)
            before_numpy, before_torch = np.random.get_state(), torch.get_rng_state()
            results.append(problem.fit(seed=5, chains=chains))
            after_numpy = np.random.get_state()
            assert np.array_equal(before_numpy[1], after_numpy[1])
            assert before_numpy[2:] == after_numpy[2:]
            assert torch.equal(before_torch, torch.get_rng_state())
        assert same(*results)
    finally:
        np.random.set_state(old_numpy)
        torch.set_rng_state(old_torch)


def test_the_number_of_threads_is_as_before_even_after_an_error():
    problem = PROBLEMS[None]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        problem.fit(seed=1, steps=2)
        assert torch.get_num_threads() == 2
        with pytest.raises(NumericsError, match="outputs are far from standardised"):
            fit(problem.model, problem.rows, tensor(problem.y * 1e170), seed=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_data_and_the_chains_are_left_as_they_were():
    problem = PROBLEMS["smooth"]
    rows, y = problem.rows, tensor(problem.y.copy())
    chains = problem.fit(seed=1).chains
    copy = Chains.from_json(chains.to_json())
    fit(problem.model, rows, y, seed=3, chains=chains)
    assert chains == copy
    assert torch.equal(rows.x, problem.rows.x) and torch.equal(rows.s, problem.rows.s)
    assert torch.equal(y, tensor(problem.y))


def test_chains_that_went_through_json_continue_identically():
    problem = PROBLEMS["freeze_thaw"]
    chains = problem.fit(seed=1).chains
    restored = Chains.from_json(json.loads(json.dumps(chains.to_json())))
    assert restored == chains
    assert same(problem.fit(seed=9, chains=restored), problem.fit(seed=9, chains=chains))


def test_the_order_of_magnitude_of_steps_shows_in_the_diagnostics():
    problem = PROBLEMS[None]
    for steps in (2, 3, 17):
        found = problem.fit(seed=1, steps=steps).diagnostics
        assert found.steps == steps
        assert found.evaluations >= 10 * steps
        assert found.failed_factorisations == 0
        assert 0 <= found.acceptance <= 1
        assert 1 <= found.r_hat < math.inf


@pytest.mark.slow
def test_a_long_run_accepts_some_moves_and_agrees_with_itself():
    found = PROBLEMS[None].fit(seed=1, steps=1200).diagnostics
    assert 0.15 < found.acceptance < 0.7
    assert 1 <= found.r_hat < 1.02


def test_halves_of_a_run_that_disagree_show_in_r_hat():
    problem = PROBLEMS[None]
    names = tuple(problem.model.priors)
    rng = np.random.default_rng(0)
    astray = np.array([0.0, 0.0, 4.5]) + 0.02 * rng.standard_normal((10, 3))  # far too much noise
    chains = Chains(names=names, walkers=tuple(map(tuple, astray.tolist())))
    settled = problem.fit(seed=1, steps=60).diagnostics.r_hat
    assert problem.fit(seed=1, steps=60, chains=chains).diagnostics.r_hat > 1 + 5 * (settled - 1)


def test_covariances_without_a_factor_are_counted_and_their_walkers_rejected():
    model = Model(d=1, mean_var=1e12)  # rounding swallows the noise that four equal outcomes call for
    x = np.full((4, 1), 0.37)
    result = fit(model, value_rows(tensor(x), tensor(np.empty((4, 0)))), tensor(np.ones(4)), seed=3)
    assert 0 < result.diagnostics.failed_factorisations < result.diagnostics.evaluations
    assert result.posterior.mean(value_rows(tensor(x), tensor(np.empty((4, 0))))).isfinite().all()


def test_chains_that_lost_their_density_are_brought_back():
    """Walkers beyond the end of the prior, as from an earlier version with a wider one."""
    problem = PROBLEMS["smooth"]
    names = tuple(problem.model.priors)
    wide = np.random.default_rng(1).uniform(-9, 9, (10, len(names)))
    result = problem.fit(seed=1, chains=Chains(names=names, walkers=tuple(map(tuple, wide.tolist()))))
    assert (np.abs(walkers(result)) <= 5).all()
    assert result.posterior.weights.isfinite().all()


# ---------------- data that are hard to fit


def hard_data(name: str) -> tuple[Model, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(12)
    model = Model(d=2, fidelity_kernels=("freeze_thaw", "data_size"))
    n = {"one_row": 1, "two_identical_rows": 1, "wide": 3}.get(name, 14)
    x, s, y = rng.uniform(size=(n, 2)), rng.uniform(size=(n, 2)), rng.standard_normal(n)
    if name == "two_identical_rows":
        x, s, y = x.repeat(2, axis=0), s.repeat(2, axis=0), y.repeat(2)
    elif name == "constant":
        y[:] = 0.83
    elif name == "zero":
        y[:] = 0.0
    elif name == "repeats_that_agree":
        x, s, y = x.repeat(3, axis=0), s.repeat(3, axis=0), y.repeat(3)
    elif name == "repeats_that_differ":
        x, s, y = x.repeat(3, axis=0), s.repeat(3, axis=0), rng.standard_normal(3 * n)
    elif name == "outlier":
        y[5] = 1e3
    elif name == "wide":
        return Model(d=12), rng.uniform(size=(3, 12)), np.empty((3, 0)), y
    elif name == "ends":
        s = (s > 0.5).astype(float)
    return model, x, s, y


HARD = [
    "one_row",
    "two_identical_rows",
    "constant",
    "zero",
    "repeats_that_agree",
    "repeats_that_differ",
    "outlier",
    "wide",
    "ends",
]


@pytest.mark.parametrize("name", HARD)
def test_hard_data_give_a_finite_posterior_cold_and_warm(name):
    model, x, s, y = hard_data(name)
    rows = value_rows(tensor(x), tensor(s))
    cold = fit(model, rows, tensor(y), seed=7)
    warm = fit(model, rows, tensor(y), seed=8, chains=cold.chains)
    rng = np.random.default_rng(3)
    new = value_rows(tensor(rng.uniform(size=(20, model.d))), tensor(rng.uniform(size=(20, model.m))))
    for result in (cold, warm):
        assert (np.abs(walkers(result)) <= 5).all()
        assert len(set(result.chains.walkers)) > 1
        assert result.posterior.mean(new).isfinite().all()
        assert result.posterior.variance(new).isfinite().all()
        assert result.posterior.mean(rows).isfinite().all()
        assert 0 < result.diagnostics.acceptance < 1
        assert math.isfinite(result.diagnostics.r_hat)


def test_an_outlier_leaves_the_other_predictions_on_their_scale():
    model, x, s, y = hard_data("outlier")
    result = fit(model, value_rows(tensor(x), tensor(s)), tensor(y), seed=7)
    others = np.arange(len(y)) != 5
    away = np.abs(result.posterior.mean(value_rows(tensor(x), tensor(s))).numpy()[:, others])
    assert np.median(away) < 100


# ---------------- what is refused


@pytest.mark.parametrize("steps", [1, 0, -3])
def test_too_few_steps_are_refused(steps):
    with pytest.raises(InputError, match=rf"steps={steps}: expected at least 2"):
        PROBLEMS[None].fit(seed=0, steps=steps)


@pytest.mark.parametrize("draws", [0, -1])
def test_too_few_draws_are_refused(draws):
    with pytest.raises(InputError, match=rf"draws={draws}: expected at least 1"):
        PROBLEMS[None].fit(seed=0, draws=draws)


@pytest.mark.parametrize("other", ["data_size", "freeze_thaw", "curve", None])
def test_chains_of_another_model_are_refused(other):
    chains = PROBLEMS[other].fit(seed=0, steps=2).chains
    with pytest.raises(InputError, match=r"chains are of \('signal_var'.*start without chains"):
        PROBLEMS["smooth"].fit(seed=0, chains=chains)


@pytest.mark.parametrize("missing", ["names", "walkers"])
def test_json_that_is_not_of_chains_is_refused(missing):
    data = PROBLEMS[None].fit(seed=0, steps=2).chains.to_json()
    del data[missing]
    with pytest.raises(InputError, match=rf"data has no \['{missing}'\]"):
        Chains.from_json(data)


def test_outputs_that_do_not_fit_the_rows_are_refused():
    problem = PROBLEMS[None]
    with pytest.raises(InputError, match=r"y has shape \(4,\).*expected \(5,\)"):
        fit(problem.model, problem.rows, tensor(problem.y[:4]), seed=0)


def test_outputs_that_are_not_finite_are_refused():
    problem = PROBLEMS[None]
    with pytest.raises(InputError, match="y has 1 entries that are not finite"):
        fit(problem.model, problem.rows, tensor([0.1, math.nan, 0.2, 0.3, 0.4]), seed=0)


@pytest.mark.parametrize("is_warm", [False, True])
def test_outputs_beyond_all_scales_are_refused_with_a_reason(is_warm):
    problem = PROBLEMS[None]
    chains = problem.fit(seed=0, steps=2).chains if is_warm else None
    with pytest.raises(NumericsError, match="outputs are far from standardised"):
        fit(problem.model, problem.rows, tensor(problem.y * 1e170), seed=0, chains=chains)


@pytest.mark.slow
def test_with_many_rows_hyperparameters_are_learned_from_some_and_the_posterior_knows_all():
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(120, 2, generator=generator, dtype=torch.float64)
    y = (3 * x[:, 0]).sin() + 0.1 * torch.randn(120, generator=generator, dtype=torch.float64)
    y = (y - y.mean()) / y.std()
    model, rows = Model(d=2), value_rows(x, x.new_empty(120, 0))
    few = fit(model, rows, y, seed=0, draws=4, most_rows=40)
    again = fit(model, rows, y, seed=0, draws=4, most_rows=40)
    every = fit(model, rows, y, seed=0, draws=4, most_rows=120)
    assert torch.equal(few.posterior.theta.lengthscale, again.posterior.theta.lengthscale)
    assert not torch.equal(few.posterior.theta.lengthscale, every.posterior.theta.lengthscale)
    assert few.posterior.n == every.posterior.n == 120
    direct = condition(model, few.posterior.theta, rows, y)
    torch.testing.assert_close(few.posterior.weights, direct.weights)
    # Forty rows tell the noise, whose share of the variance is about 0.01 / 0.5, to a factor of two.
    assert 0.5 < float(few.posterior.theta.noise_var.mean() / every.posterior.theta.noise_var.mean()) < 2


def test_a_number_of_rows_that_means_nothing_is_refused():
    x = torch.rand(3, 1, dtype=torch.float64)
    with pytest.raises(InputError, match="most_rows=0: expected at least 1"):
        fit(Model(d=1), value_rows(x, x[:, :0]), x[:, 0], seed=0, most_rows=0)


@pytest.mark.parametrize("count", [1, 5])
def test_walkers_that_were_left_behind_do_not_become_samples(count):
    """Far out in the prior, with no noise and tiny length scales: moves of a few steps hardly ever lead back."""
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    y = (3 * x[:, 0]).sin() + 0.2 * torch.randn(60, generator=generator, dtype=torch.float64)
    y = (y - y.mean()) / y.std()
    model, rows = Model(d=2), value_rows(x, x[:, :0])
    good = fit(model, rows, y, seed=0)
    absurd = tuple({"signal_var": 4.0, "noise_var": -4.0}.get(name, -4.0) for name in good.chains.names)
    spoiled = Chains(names=good.chains.names, walkers=(*good.chains.walkers[count:], *[absurd] * count))
    again = fit(model, rows, y, seed=1, chains=spoiled, draws=len(spoiled.walkers), steps=2)
    for name in ("signal_var", "noise_var"):
        sound, now = getattr(good.posterior.theta, name), getattr(again.posterior.theta, name)
        assert now.max() < 20 * sound.max()
        assert now.min() > 0.05 * sound.min()
    assert again.posterior.theta.lengthscale.min() > 0.2 * good.posterior.theta.lengthscale.min()
