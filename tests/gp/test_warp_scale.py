"""The learned scale of the log warp, against evidence in NumPy and losses whose turning point is known."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from takg.gp import Chains, Model, Rows, fit, fit_outcome, learn_warp_scale, value_rows

FACTOR = 3.0  # between neighbouring scales
LINE = Model(d=1)
# (median, sd) of the log-normal priors on signal_var, the length scale and noise_var, as docs/paper.md states them.
PRIORS = np.array([(1.0, 1.0), (0.5, 1.0), (1e-4, 2.5)])
NOISE_FLOOR = 1e-6


def tensor(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def rows_on(x: np.ndarray) -> Rows:
    return value_rows(tensor(x[:, None]), torch.empty(len(x), 0, dtype=torch.float64))


def smooth_path(seed: int, x: np.ndarray, *, sd: float, length: float) -> np.ndarray:
    """A sum of random waves, nearly a Gaussian process, whose least value at x is 0."""
    rng = np.random.default_rng(seed)
    waves = rng.standard_normal(40) / length
    path = sd * (np.cos(np.outer(x, waves) + rng.uniform(0, 2 * np.pi, 40)) * math.sqrt(2 / 40)).sum(-1)
    return path - path.min()


def made_losses(seed: int, *, turn: float, best: float, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Designs, and losses best + turn * sinh(smooth): under a log warp of the scale `turn` they are smooth again."""
    x = np.random.default_rng([seed, 1]).permutation((np.arange(n) + 0.5) / n)
    return x, best + turn * np.sinh(smooth_path(seed, x, sd=1.6, length=0.12))


def guessed(y: np.ndarray) -> float:
    return fit_outcome(tensor(y), warp="log").scale


def evidence(x: np.ndarray, y: np.ndarray, scale: float) -> float:
    """log density of finite losses inside all fences under the best hyperparameters, up to a constant."""
    u = (y - y.min()) / scale
    w = np.arcsinh(u)
    z = (w - w.mean()) / w.std()
    log_slope = -np.log(w.std() * scale * np.sqrt(1 + u**2)).sum()
    distance = (x[:, None] - x[None, :]) ** 2

    def negative(t: np.ndarray) -> float:
        signal_var, length, noise_var = PRIORS[:, 0] * np.exp(PRIORS[:, 1] * t)
        K = signal_var * np.exp(-distance / (2 * length**2)) + 1.0 + (noise_var + NOISE_FLOOR) * np.eye(len(x))
        return float(t @ t + np.linalg.slogdet(K)[1] + z @ np.linalg.solve(K, z)) / 2

    starts = ([0.0, 0.0, 0.0], [0.5, -1.2, 0.0])
    return float(log_slope - min(scipy.optimize.minimize(negative, t, method="Nelder-Mead").fun for t in starts))


def learned(x: np.ndarray, y: np.ndarray, **given: object) -> float:
    return learn_warp_scale(LINE, rows_on(x), tensor(y), **given)


# ---------------- which scale is found


@pytest.mark.parametrize("seed", [2, 4])
@pytest.mark.parametrize("power", [0, 1, 2])
def test_the_scale_at_which_the_losses_turn_is_found_as_by_evidence_in_numpy(power, seed):
    x, y = made_losses(seed, turn=0.7, best=0.7 / FACTOR**power)
    guess = guessed(y)
    assert guess * FACTOR**power == pytest.approx(0.7)
    scales = [guess, FACTOR * guess, FACTOR**2 * guess]
    by_numpy = [evidence(x, y, scale) for scale in scales]
    assert np.argmax(by_numpy) == power
    assert np.diff(np.sort(by_numpy))[-1] > 10  # clear by a wide margin
    assert learned(x, y) == pytest.approx(0.7)


def test_the_nearest_scale_is_found_where_the_losses_turn_between_two():
    x, y = made_losses(2, turn=0.7, best=0.7 / 3.6)
    assert learned(x, y) == pytest.approx(FACTOR * 0.7 / 3.6)


def test_the_scale_is_found_along_training_curves():
    rng = np.random.default_rng(3)
    x, s = rng.permutation((np.arange(50) + 0.5) / 50), rng.uniform(0.1, 1.0, 50)
    x, s = np.append(x, 0.31), np.append(s, 1.0)
    smooth = smooth_path(4, x, sd=1.6, length=0.15) + 1.4 / (1 + 4 * s)
    y = 0.7 / FACTOR + 0.7 * np.sinh(smooth - smooth.min())
    rows = value_rows(tensor(x[:, None]), tensor(s[:, None]))
    assert guessed(y) == pytest.approx(0.7 / FACTOR)
    assert learn_warp_scale(Model(d=1, fidelity_kernels=("curve",)), rows, tensor(y)) == pytest.approx(0.7)


@pytest.mark.parametrize("seed", [0, 6, 9, 11])
def test_the_scale_is_found_where_designs_have_quirks(seed):
    """Modes without quirks are local ones here; were one scale's evidence taken from such, others would seem better."""
    rng = np.random.default_rng(seed)
    x, s = rng.permutation((np.arange(24) + 0.5) / 24).repeat(3), np.tile([0.1, 0.3, 1.0], 24)
    smooth = smooth_path(seed + 1, x, sd=1.6, length=0.15) + rng.standard_normal(24).repeat(3) * (1 - s)
    y = 0.7 / FACTOR + 0.7 * np.sinh(smooth - smooth.min())
    rows = value_rows(tensor(x[:, None]), tensor(s[:, None]))
    assert guessed(y) == pytest.approx(0.7 / FACTOR)
    model = Model(d=1, fidelity_kernels=("curve",), has_quirks=True)
    for scale in (None, 0.7 / FACTOR, 0.7, 0.7 * FACTOR):
        assert learn_warp_scale(model, rows, tensor(y), scale=scale) == pytest.approx(0.7)


@pytest.mark.parametrize("n", [151, 320])
def test_with_many_rows_the_scale_is_found_from_some(n):
    x, y = made_losses(4, turn=0.7, best=0.7 / FACTOR, n=n)
    # The best is looked at, whichever are chosen.
    order = np.argsort(y)
    assert learned(x[order], y[order]) == pytest.approx(0.7)


def test_diverged_runs_do_not_hide_the_scale():
    x, y = made_losses(4, turn=0.7, best=0.7 / FACTOR)
    y[np.argsort(y)[-3:]] = [math.nan, math.inf, math.nan]
    assert learned(x, y) == pytest.approx(0.7)


# ---------------- with a scale that was found before


@pytest.mark.parametrize(("before", "after"), [(-1, 0), (0, 0), (1, 0), (-2, -1)])
def test_a_scale_moves_one_step_towards_a_clearly_better_one(before, after):
    x, y = made_losses(2, turn=0.7, best=0.7 / FACTOR**2)
    found = learned(x, y, scale=0.7 * FACTOR**before)
    assert found == pytest.approx(0.7 * FACTOR**after)


def test_a_scale_stays_where_another_is_only_a_little_better():
    x, y = made_losses(1, turn=0.7, best=0.7 / FACTOR, n=6)
    guess = guessed(y)
    scales = [guess, FACTOR * guess, FACTOR**2 * guess]
    by_numpy = np.array([evidence(x, y, scale) for scale in scales])
    best = int(by_numpy.argmax())
    assert np.diff(np.sort(by_numpy))[-1] > 0.1
    assert np.ptp(by_numpy) < 2.5
    assert learned(x, y) == pytest.approx(scales[best])
    for scale in scales:
        assert learned(x, y, scale=scale) == scale


@pytest.mark.parametrize("power", [-2, -1, 3, 4])
def test_a_scale_stays_near_the_guess_where_the_losses_turn_elsewhere(power):
    turn = 0.7
    x, y = made_losses(2, turn=turn, best=turn / FACTOR**power, n=120)
    guess = guessed(y)
    scale = None
    for _ in range(4):
        scale = learned(x, y, scale=scale)
        assert guess / FACTOR <= scale <= guess * FACTOR**2 * (1 + 1e-12)


@pytest.mark.parametrize("times", [0.02, 30.0])
def test_a_scale_that_new_losses_have_left_behind_comes_back(times):
    x, y = made_losses(2, turn=0.7, best=0.7 / FACTOR)
    guess, scale = guessed(y), times * guessed(y)
    by_numpy = [evidence(x, y, scale * factor) for factor in (1, 1 / FACTOR if times > 1 else FACTOR)]
    assert by_numpy[1] > by_numpy[0] + 10
    for _ in range(4):
        scale = learned(x, y, scale=scale)
    assert guess / FACTOR <= scale <= guess * FACTOR**2 * (1 + 1e-12)


@pytest.mark.parametrize(("turn", "stays"), [(0.7, True), (0.7 / FACTOR**3, False)])
def test_a_scale_beyond_the_range_stays_only_where_it_is_clearly_better_than_its_end(turn, stays):
    """As when the best loss falls: the usual scale falls with it, and how the other losses lie stays as it was."""
    x, y = made_losses(2, turn=turn, best=turn / FACTOR, n=60)
    if stays:
        near = np.linspace(0.001, 0.008, 6)
        x = np.append(x, x[y.argmin()] + near)
        y = np.append(y, turn / FACTOR**4 + near**2)
    highest = FACTOR**2 * guessed(y)
    assert 1.5 * highest < 0.7
    by_numpy = {scale: evidence(x, y, scale) for scale in (0.7, highest)}
    assert (by_numpy[0.7] > by_numpy[highest] + 10) is stays
    found = learned(x, y, scale=0.7)
    assert (found == 0.7) is stays
    assert stays or found <= highest * (1 + 1e-12)


def test_the_largest_scale_is_reached_in_any_unit():
    for unit in (1.0, 1.0685, 1.0822, 1.1918):
        x, y = made_losses(2, turn=0.7 * unit, best=0.7 * unit / FACTOR**2)
        assert learned(x, y, scale=FACTOR * guessed(y)) == pytest.approx(0.7 * unit)


# ---------------- laws


def chains_near(y: np.ndarray, x: np.ndarray) -> Chains:
    return fit(LINE, rows_on(x), fit_outcome(tensor(y), warp="log").forward(tensor(y)), seed=0, draws=2).chains


def test_the_result_is_the_same_again_and_reads_no_global_random_state():
    x, y = made_losses(5, turn=0.7, best=0.7 / FACTOR, n=25)
    before = torch.get_rng_state()
    first = learned(x, y)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    assert learned(x, y) == first
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)


def test_earlier_chains_only_say_where_to_look_first():
    x, y = made_losses(5, turn=0.7, best=0.7 / FACTOR, n=25)
    chains = chains_near(y, x)
    assert learned(x, y, chains=chains) == learned(x, y)
    assert learned(x, y, chains=chains, scale=guessed(y)) == learned(x, y, scale=guessed(y))


def test_the_unit_of_the_loss_and_the_order_of_rows_do_not_matter():
    x, y = made_losses(5, turn=0.7, best=0.7 / FACTOR, n=25)
    order = np.random.default_rng(0).permutation(25)
    assert learned(x, 2.0**20 * y) == 2.0**20 * learned(x, y)
    assert learned(x[order], y[order]) == learned(x, y)


def test_the_losses_are_left_as_they_were():
    x, y = made_losses(5, turn=0.7, best=0.7 / FACTOR, n=25)
    given = tensor(y.copy())
    learn_warp_scale(LINE, rows_on(x), given)
    assert torch.equal(given, tensor(y))


@pytest.mark.parametrize("y", [[0.4], [0.4] * 7, [math.nan, 0.4, math.inf], [0.4, 0.9]])
def test_losses_that_say_nothing_leave_the_guess(y):
    x = np.linspace(0.1, 0.9, len(y))
    guess = guessed(np.array(y))
    assert learned(x, np.array(y)) in (guess, FACTOR * guess, FACTOR**2 * guess)
    assert learned(x, np.array(y), scale=guess) == guess
