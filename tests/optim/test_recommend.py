"""The recommendation, against a dense grid of the averaged mean and NumPy and SciPy forms of the mixture.

Means of simulated losses are compared within 4 standard errors, which are exceeded with a probability of 6e-5;
quantiles by the share of simulated losses below them, with a binomial standard error. All seeds are fixed.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from small_cases import a_posterior, tensor, unchanged_randomness

from takg.errors import InputError
from takg.gp import Hyperparameters, Model, Rows, condition, fit_outcome, value_rows
from takg.optim import recommend

DRAWS = 400_000


def averaged_on_a_grid(post, points):
    """x (points^d, d) and the mean over samples of the posterior mean at the target."""
    axes = [torch.linspace(0, 1, points, dtype=torch.float64)] * post.model.d
    x = torch.cartesian_prod(*axes).reshape(-1, post.model.d)
    return x, torch.cat([post.target_mean(chunk).mean(0) for chunk in x.split(5000)])


def mixture(post, x):
    """Mean and sd of g(x, 1) under each sample, as arrays."""
    rows = post.target_rows(x[None])
    return post.mean(rows)[:, 0].numpy(), post.covariance(rows)[:, 0, 0].sqrt().numpy()


def simulated_losses(outcome, mu, sd, seed):
    """Losses of the mixture in the user's units, by the warp's formula."""
    rng = np.random.default_rng(seed)
    h = rng.integers(len(mu), size=DRAWS)
    w = outcome.mean + outcome.sd * rng.normal(mu[h], sd[h])
    u = np.where(w > 0, np.sinh(np.maximum(w, 0)), w) if outcome.warp == "log" else w
    return outcome.origin + outcome.scale * u


@pytest.mark.parametrize("data_gradients", [False, True])
@pytest.mark.parametrize(("d", "mix"), [(1, ("freeze_thaw",)), (2, ("data_size", "freeze_thaw")), (1, ())])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_recommendation_minimises_the_averaged_mean_at_the_target(d, mix, data_gradients, seed):
    post = a_posterior(mix, d=d, n=9, H=3, seed=seed, data_gradients=data_gradients)
    found = recommend(post, seed=5)
    _, means = averaged_on_a_grid(post, 4001 if d == 1 else 201)
    assert found.x.shape == (d,)
    assert ((found.x >= 0) & (found.x <= 1)).all()
    here = float(post.target_mean(found.x[None]).mean())
    assert here <= float(means.min()) + 1e-9
    assert found.mean == pytest.approx(here)
    assert found.is_converged


def falling_curve(*confirmed, lift=0.0):
    """A curve at x = 0.8 that falls and falls, beside a place that was seen to be good; and what confirms it."""
    model = Model(d=1, fidelity_kernels=("smooth",))
    one = tensor([1.0])
    theta = Hyperparameters(
        signal_var=4 * one,
        lengthscale=tensor([[0.1]]),
        fidelity=((0.8 * one,),),
        noise_var=1e-6 * one,
        gradient_noise_var=1e-6 * one,
    )
    seen = [(0.15, 1, 0.2), (0.2, 1, 0.0), (0.25, 1, 0.2)]
    seen += [(0.8, s, y + lift) for s, y in ((0.1, 3.0), (0.2, 2.1), (0.3, 1.1), (0.4, 0.1))]
    x, s, y = tensor([*seen, *confirmed]).unbind(-1)
    return condition(model, theta, value_rows(x[:, None], s[:, None]), y)


@pytest.mark.parametrize(("lift", "depth"), [(0.0, 2.0), (2.1, 0.2)])
def test_a_promise_below_all_that_was_seen_is_not_recommended_until_it_is_confirmed(lift, depth):
    post = falling_curve(lift=lift)
    x, means = averaged_on_a_grid(post, 401)
    assert x[means.argmin()].item() == pytest.approx(0.8, abs=0.02)
    assert means.min() < post.y.min() - depth  # and it is sure of that
    assert mixture(post, x[means.argmin()])[1].item() < 0.3
    assert recommend(post, seed=0, caution=0.5).x.item() == pytest.approx(0.2, abs=0.02)
    confirmed = falling_curve((0.8, 1.0, lift - 2.2), lift=lift)
    assert recommend(confirmed, seed=0, caution=0.5).x.item() == pytest.approx(0.8, abs=0.02)


def test_a_promise_at_which_most_of_the_data_lie_is_not_recommended_for_want_of_other_places():
    curve = ((0.1, 3.0), (0.2, 2.1), (0.3, 1.1))
    around = [(x, s, y + 20 * (x - 0.8) ** 2) for x in np.linspace(0.76, 0.84, 10) for s, y in curve]
    post = falling_curve(*around)
    x, means = averaged_on_a_grid(post, 401)
    assert (x[means.argsort()[:60]] > 0.6).all()  # the lowest means are all in this valley
    assert recommend(post, seed=0).x.item() == pytest.approx(0.2, abs=0.02)


def test_a_minimum_a_little_below_all_that_was_seen_is_recommended():
    post = falling_curve((0.18, 1.0, 0.05), (0.23, 1.0, 0.02))
    found = recommend(post, seed=0)
    assert found.mean < post.y.min()
    assert found.mean == pytest.approx(float(averaged_on_a_grid(post, 4001)[1][:2000].min()), abs=1e-5)


def test_few_starts_find_the_best_of_many_valleys():
    post = a_posterior(("freeze_thaw",), d=1, n=14, H=3, seed=4, lengthscale=(0.04, 0.08))
    x, means = averaged_on_a_grid(post, 4001)
    inner = means[1:-1]
    valleys = int(((inner < means[:-2]) & (inner < means[2:])).sum())
    assert valleys >= 4
    assert recommend(post, seed=0, restarts=4).x.item() == pytest.approx(x[means.argmin()].item(), abs=2e-3)


def test_the_minimum_of_the_averaged_mean_is_not_that_of_a_single_sample():
    post = a_posterior(("freeze_thaw",), d=1, n=9, H=3, seed=1)
    points = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    each = points[post.target_mean(points).argmin(-1), 0]
    found = recommend(post, seed=0)
    assert (each - found.x).abs().min() > 1e-4


@pytest.mark.parametrize("data_gradients", [False, True])
def test_mean_sd_and_quantiles_are_those_of_the_mixture_over_samples(data_gradients):
    post = a_posterior(("freeze_thaw",), d=2, n=8, H=4, seed=3, data_gradients=data_gradients)
    found = recommend(post, seed=0, probabilities=(0.05, 0.31, 0.5, 0.95))
    mu, sd = mixture(post, found.x)
    assert mu.std() > 0.01  # the samples disagree, so that a mixture is not one of its members
    assert found.mean == pytest.approx(mu.mean())
    assert found.sd == pytest.approx(np.sqrt((sd**2 + mu**2).mean() - mu.mean() ** 2))
    assert list(found.quantiles) == [0.05, 0.31, 0.5, 0.95]
    for p, value in found.quantiles.items():
        exact = brentq(lambda y, p=p: norm.cdf(y, mu, sd).mean() - p, -20, 20, xtol=1e-13)
        assert value == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("warp", ["none", "log"])
def test_with_an_outcome_transform_the_same_x_is_valued_in_units_of_the_loss(warp):
    losses = 3.0 + np.random.default_rng(2).lognormal(sigma=1.5, size=9)
    outcome = fit_outcome(tensor(losses), warp=warp)
    post = a_posterior(("freeze_thaw",), d=1, n=9, H=3, seed=2, y=outcome.forward(tensor(losses)))
    plain, found = recommend(post, seed=0), recommend(post, seed=0, outcome=outcome)
    assert torch.equal(found.x, plain.x)
    mu, sd = mixture(post, found.x)
    simulated = simulated_losses(outcome, mu, sd, seed=11)
    assert abs(found.mean - simulated.mean()) < 4 * simulated.std() / DRAWS**0.5
    squares = (simulated - found.mean) ** 2
    assert abs(found.sd**2 - squares.mean()) < 4 * squares.std() / DRAWS**0.5
    for p, value in found.quantiles.items():
        assert abs((simulated < value).mean() - p) < 4 * (p * (1 - p) / DRAWS) ** 0.5


def test_rows_of_gradients_move_the_recommendation():
    """A valley between two equal values shows in the slopes only."""
    model = Model(d=1, fidelity_kernels=("freeze_thaw",), has_gradients=True, mean_var=0.6)
    theta = a_posterior(("freeze_thaw",), d=1, H=2, seed=0).theta
    x = tensor([[0.2], [0.2], [0.8], [0.8]])
    s = tensor([[1.0]] * 4)
    part = torch.tensor([0, 1, 0, 1])
    rows = Rows(x=x, s=s, part=part, noise_scale=torch.full((4,), 0.01, dtype=torch.float64))
    downwards = condition(model, theta, rows, tensor([0.3, -4.0, 0.3, 1.0]))
    upwards = condition(model, theta, rows, tensor([0.3, 4.0, 0.3, -1.0]))
    assert 0.2 < recommend(downwards, seed=0).x.item() < 0.8
    outside = recommend(upwards, seed=0).x.item()
    assert outside < 0.2 or outside > 0.8


def test_a_minimum_at_a_corner_of_the_cube_is_found_exactly():
    corner = tensor([1.0, 0.0])
    x = torch.cartesian_prod(*[torch.linspace(0, 1, 4, dtype=torch.float64)] * 2)
    y = (x - corner).abs().sum(-1) * 1.7
    post = a_posterior(("freeze_thaw",), d=2, n=16, H=2, seed=0, x=x, y=y, s=torch.ones(16, 1, dtype=torch.float64))
    found = recommend(post, seed=0)
    assert torch.equal(found.x, corner)
    assert found.is_converged


def test_the_same_seed_gives_the_same_recommendation_and_leaves_no_trace():
    post = a_posterior(("freeze_thaw",), d=2, n=9, H=3, seed=1)
    with unchanged_randomness():
        first, second = recommend(post, seed=3), recommend(post, seed=3)
    assert torch.equal(first.x, second.x)
    assert (first.mean, first.sd, first.quantiles) == (second.mean, second.sd, second.quantiles)
    assert recommend(post, seed=4).mean == pytest.approx(first.mean, abs=1e-6)  # another way to the same place
    assert not first.x.requires_grad


def test_the_number_of_threads_is_restored():
    post = a_posterior(("freeze_thaw",), d=1, n=5, H=2, seed=1)
    torch.set_num_threads(2)
    try:
        recommend(post, seed=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.2, float("nan")])
def test_a_probability_outside_0_and_1_is_an_error(p):
    with pytest.raises(InputError, match="p="):
        recommend(a_posterior(d=1), seed=0, probabilities=(0.5, p))


def test_out_of_some_designs_the_one_of_the_lowest_mean_is_recommended():
    plain = a_posterior(d=1)
    post = condition(plain.model, plain.theta, plain.rows, 0.03 * plain.y)  # none too low to believe
    some = torch.linspace(0.03, 0.97, 300, dtype=torch.float64)[:, None]
    mean = post.target_mean(some).mean(0)
    assert float(mean.min()) > float(post.y.min()) - 0.25
    found = recommend(post, seed=0, among=some)
    assert torch.equal(found.x, some[mean.argmin()])
    assert found.is_converged


@pytest.mark.parametrize("shape", [(0, 1), (3, 2), (3,)])
def test_designs_of_another_shape_are_an_error(shape):
    with pytest.raises(InputError, match="among has shape"):
        recommend(a_posterior(d=1), seed=0, among=torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("choices", [{"raw": 0}, {"restarts": 0}, {"restarts": -1}])
def test_no_starts_are_an_error(choices):
    ((name, value),) = choices.items()
    with pytest.raises(InputError, match=f"{name}={value}"):
        recommend(a_posterior(d=1), seed=0, **choices)


def test_a_trend_that_varies_with_x_is_followed():
    model = Model(d=1, fidelity_kernels=("freeze_thaw",), trend_dims=(0,), slope_var=0.1)
    plain = a_posterior(d=1)
    post = condition(model, plain.theta, plain.rows, 0.03 * plain.y)  # none too low to believe
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    mean = post.target_mean(grid).mean(0)
    found = recommend(post, seed=0)
    assert float(post.target_mean(found.x[None]).mean()) <= float(mean.min()) + 1e-9
    assert float(found.x) == pytest.approx(float(grid[mean.argmin()]), abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_where_some_designs_are_not_allowed_the_lowest_of_the_others_is_recommended(seed):
    plain = a_posterior(("freeze_thaw",), d=1, n=9, H=3, seed=seed)
    post = condition(plain.model, plain.theta, plain.rows, 0.03 * plain.y)  # none too low to believe
    x, means = averaged_on_a_grid(post, 4001)
    best = float(x[means.argmin()])

    def allowed(points):  # around the best one, nothing is
        return (points[..., 0] - best).abs() > 0.1

    found = recommend(post, seed=5, allowed=allowed)
    assert allowed(found.x)
    lowest = means[allowed(x)].min()
    assert float(post.target_mean(found.x[None]).mean()) <= float(lowest + 0.02 * (means.max() - means.min()))
    assert recommend(post, seed=5, allowed=lambda points: points[..., 0] > 2).mean == recommend(post, seed=5).mean


@pytest.mark.parametrize("caution", [0.0, 0.5])
def test_where_no_design_that_was_tried_is_allowed_another_is_recommended(caution):
    post = two_valleys()

    def allowed(points):
        return (points - post.rows.x[:, 0]).abs().amin(-1) > 0.05

    assert allowed(recommend(post, seed=0, allowed=allowed, caution=caution).x)


def test_out_of_some_designs_the_one_that_is_allowed_is_recommended():
    post = a_posterior(d=1)
    some = torch.linspace(0.03, 0.97, 300, dtype=torch.float64)[:, None]
    found = recommend(post, seed=0, among=some, allowed=lambda points: points[..., 0] == some[17, 0])
    assert torch.equal(found.x, some[17])


def two_valleys():
    """A lower one that was only seen from its sides, and one that was looked into."""
    model = Model(d=1)
    theta = Hyperparameters(
        signal_var=tensor([1.0]),
        lengthscale=tensor([[0.1]]),
        fidelity=(),
        noise_var=tensor([1e-4]),
        gradient_noise_var=tensor([1e-4]),
    )
    x = tensor([[0.0], [0.15], [0.35], [0.5], [0.74], [0.75], [0.76], [1.0]])
    y = tensor([0.5, -0.31, -0.31, 0.5, -0.39, -0.4, -0.39, 0.5])
    return condition(model, theta, value_rows(x, tensor([[]]).expand(8, 0)), y)


def test_with_caution_what_is_known_better_is_recommended_over_what_is_hardly_lower():
    post = two_valleys()
    sides, middle = (post.target_mean(tensor([[place]])) for place in (0.25, 0.75))
    assert float(sides) < float(middle) - 0.02  # but with many times its sd
    assert float(recommend(post, seed=0).x) == pytest.approx(0.25, abs=0.03)
    assert float(recommend(post, seed=0, caution=0.5).x) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_a_caution_that_means_nothing_is_an_error(bad):
    with pytest.raises(InputError, match="caution="):
        recommend(a_posterior(d=1), seed=0, caution=bad)
