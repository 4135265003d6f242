"""What an evaluation costs: the issue's error bar, a NumPy regression as oracle, and sums done by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from takg.errors import InputError
from takg.gp import CostFit, LearnedCost, cold_start_costs, continuation_cost, fit_cost, given_cost


def tensor(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def learn(x: np.ndarray, s: np.ndarray, cost: np.ndarray, *, seed: int = 0, **settings: object) -> CostFit:
    return fit_cost(tensor(x), tensor(s), tensor(cost), seed=seed, **settings)


def noisy(rng: np.random.Generator, cost: np.ndarray) -> np.ndarray:
    """With 10 % of log-normal noise."""
    return cost * np.exp(0.1 * rng.standard_normal(cost.shape))


SHAPES = {
    "steep": lambda x: np.exp(1.2 * x[:, 0] - 0.7 * x[:, -1]),
    "wavy": lambda x: 1 + 0.6 * np.sin(5 * x[:, 0]),
    "bowl": lambda x: 0.3 + 4 * (x[:, 0] - 0.4) ** 2,
}


def example(seed: int, *, d: int = 2, m: int = 2, n: int = 15) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, d, m])
    x, s = rng.uniform(size=(n, d)), rng.uniform(0.03, 1, size=(n, m))
    return x, s, noisy(rng, 0.3 + 2.2 * s.prod(axis=1) * SHAPES["steep"](x))


@pytest.fixture(scope="module")
def cost() -> LearnedCost:
    return learn(*example(1), seed=1).cost


# ---------------- how well it predicts


def median_relative_error(seed: int, s: np.ndarray, a: float, b: float, shape: str, d: int) -> float:
    """At new points with s in [0.05, 1], after learning from one noisy observation at each of the given s."""
    rng = np.random.default_rng([seed, *s.shape, d])

    def truth(x: np.ndarray, s: np.ndarray) -> np.ndarray:
        return a + b * s.prod(axis=1) * SHAPES[shape](x)

    x = rng.uniform(size=(len(s), d))
    learned = learn(x, s, noisy(rng, truth(x, s)), seed=seed).cost
    x_new, s_new = rng.uniform(size=(400, d)), rng.uniform(0.05, 1, size=(400, s.shape[1]))
    return float(np.median(np.abs(learned(tensor(x_new), tensor(s_new)).numpy() / truth(x_new, s_new) - 1)))


COSTS = pytest.mark.parametrize(
    ("a", "b", "shape", "d"), [(0.05, 1.3, "steep", 2), (3.0, 40.0, "wavy", 3), (0.2, 0.7, "bowl", 1)]
)


@COSTS
@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_from_40_noisy_observations_the_median_relative_error_is_under_15_percent(seed, m, a, b, shape, d):
    s = np.random.default_rng([seed, 9]).uniform(0.05, 1, size=(40, m))
    assert median_relative_error(seed, s, a, b, shape, d) < 0.15


@COSTS
def test_observations_mostly_at_low_values_of_one_fidelity_are_enough(a, b, shape, d):
    s = 0.02 ** np.random.default_rng(3).uniform(size=(40, 1))
    assert median_relative_error(3, s, a, b, shape, d) < 0.15


@pytest.mark.parametrize("overhead", [0.0, 0.01, 0.1])
def test_from_a_few_short_evaluations_long_ones_are_predicted_to_a_factor_of_two(overhead):
    # With a prior of 1 +- 0.5 on the slope of log cost the median factor was 1.8 to 2.0, and the worst 10 to 22.
    factors = []
    for seed in range(30):
        rng = np.random.default_rng([seed, 77])
        x, s = rng.uniform(size=(8, 4)), rng.integers(1, 3, size=(8, 1)) / 27
        spread = np.exp(0.4 * rng.standard_normal(8))  # what of a design's cost x does not say
        learned = learn(x, s, spread * (overhead + s[:, 0]), seed=seed).cost
        predicted = learned(tensor(rng.uniform(size=(50, 4))), tensor(np.ones((50, 1)))).numpy()
        factors.append(np.exp(np.median(np.abs(np.log(predicted / (1 + overhead))))))
    assert np.median(factors) < 1.6
    assert max(factors) < 6


@pytest.mark.parametrize("overhead", [0.02, 0.1, 0.5])
def test_the_overhead_is_found(overhead):
    rng = np.random.default_rng(5)
    x, s = rng.uniform(size=(30, 2)), rng.uniform(0.02, 1, size=(30, 1))
    learned = learn(x, s, 7 * noisy(rng, (overhead + s[:, 0]) * SHAPES["steep"](x))).cost
    assert 0.5 < learned.overhead / overhead < 2


def regression_by_numpy(
    learned: LearnedCost, data: tuple[np.ndarray, np.ndarray, np.ndarray], x_new: np.ndarray, s_new: np.ndarray
) -> np.ndarray:
    """Log cost with its expected slope of 1 taken off, standardised, regressed with a normal prior on the rest.

    The rest is a constant with variance 1, a slope in log(s + overhead) with sd 0.15 about the expected one,
    and a squared-exponential process over (x, log s scaled to [0, 1]).
    """
    x, s, paid = data
    theta, soft = learned.mean.theta, learned.overhead
    span = math.log((1 + soft) / soft)
    logs, logs_new = np.log(s + soft), np.log(s_new + soft)
    rest = np.log(paid) - logs.sum(axis=1)
    centre, scale = rest.mean(), max(rest.std(ddof=1), 0.05)
    middle = logs.mean(axis=0)
    z, z_new = np.hstack([x, logs / span]), np.hstack([x_new, logs_new / span])

    def kernel(h: int, a: np.ndarray, b: np.ndarray, log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
        gap = (a[:, None] - b[None, :]) / theta.lengthscale[h].numpy()
        process = float(theta.signal_var[h]) * np.exp(-(gap**2).sum(-1) / 2)
        return process + 1 + (0.15 / scale) ** 2 * (log_a - middle) @ (log_b - middle).T

    means = []
    for h in range(theta.H):
        K = kernel(h, z, z, logs, logs) + float(theta.noise_var[h]) * np.eye(len(x))
        means.append(kernel(h, z_new, z, logs_new, logs) @ np.linalg.solve(K, (rest - centre) / scale))
    return np.exp(centre + scale * np.mean(means, axis=0) + logs_new.sum(axis=1))


@pytest.mark.parametrize("m", [0, 1, 2, 3])
def test_the_prediction_is_that_of_a_regression_written_in_numpy(m):
    data = example(3, m=m)
    learned = learn(*data, seed=5, draws=4).cost
    rng = np.random.default_rng(4)
    x_new, s_new = rng.uniform(size=(30, 2)), rng.uniform(size=(30, m))
    s_new[:3], s_new[3:6] = 0.0, 1.0
    expected = regression_by_numpy(learned, data, x_new, s_new)
    np.testing.assert_allclose(learned(tensor(x_new), tensor(s_new)).numpy(), expected, rtol=1e-6)


def test_costs_in_another_unit_give_predictions_in_that_unit():
    x, s, paid = example(2)
    rng = np.random.default_rng(2)
    x_new, s_new = tensor(rng.uniform(size=(20, 2))), tensor(rng.uniform(size=(20, 2)))
    in_hours, in_seconds = learn(x, s, paid, seed=3).cost, learn(x, s, 3600 * paid, seed=3).cost
    torch.testing.assert_close(in_seconds(x_new, s_new), 3600 * in_hours(x_new, s_new), rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", range(4))
def test_along_a_fidelity_that_was_never_varied_cost_is_taken_to_be_proportional(seed):
    rng = np.random.default_rng(seed)
    x, s = rng.uniform(size=(20, 2)), rng.uniform(0.02, 1, size=(20, 2))
    s[:, 1] = 0.2
    learned = learn(x, s, noisy(rng, 5 * s[:, 0] * SHAPES["steep"](x)), seed=seed).cost
    x_new, at_data = (
        tensor(rng.uniform(size=(60, 2))),
        tensor(np.column_stack([rng.uniform(size=60), np.full(60, 0.2)])),
    )
    at_target = at_data.clone()
    at_target[:, 1] = 1.0
    slope = (learned(x_new, at_target) / learned(x_new, at_data)).log()
    slope = slope / math.log((1 + learned.overhead) / (0.2 + learned.overhead))
    assert abs(float(slope.median()) - 1) < 0.1
    assert float((slope - 1).abs().max()) < 0.4


def test_one_observation_is_met_and_continued_in_proportion_to_each_fidelity():
    learned = learn(np.array([[0.3, 0.7]]), np.array([[0.4, 0.15]]), np.array([12.5])).cost
    x_new = tensor([[0.3, 0.7], [0.9, 0.1], [0.3, 0.7]])
    s_new = np.array([[0.4, 0.15], [0.4, 0.15], [0.8, 1.0]])
    grown = ((s_new + learned.overhead) / (np.array([0.4, 0.15]) + learned.overhead)).prod(axis=1)
    np.testing.assert_allclose(learned(x_new, tensor(s_new)).numpy(), 12.5 * grown, rtol=1e-9)


@pytest.mark.parametrize("m", [0, 1, 2])
def test_costs_that_never_change_are_predicted_to_stay(m):
    rng = np.random.default_rng(6)
    x, s = rng.uniform(size=(25, 2)), rng.uniform(size=(25, m))
    learned = learn(x, s, np.full(25, 7.3)).cost
    predicted = learned(tensor(rng.uniform(size=(40, 2))), tensor(rng.uniform(size=(40, m))))
    np.testing.assert_allclose(predicted.numpy(), 7.3, rtol=0.03)


def test_without_fidelities_cost_is_learned_over_designs():
    rng = np.random.default_rng(8)
    x, x_new = rng.uniform(size=(40, 1)), rng.uniform(size=(200, 1))
    learned = learn(x, np.empty((40, 0)), noisy(rng, 3 * SHAPES["wavy"](x))).cost
    predicted = learned(tensor(x_new), tensor(np.empty((200, 0)))).numpy()
    assert np.median(np.abs(predicted / (3 * SHAPES["wavy"](x_new)) - 1)) < 0.1


def test_evaluations_at_fidelity_zero_are_data_like_any_other():
    x, s, _ = example(9)
    s[:4] = 0.0
    learned = learn(x, s, 0.5 + s.prod(axis=1)).cost
    at_zero = learned(tensor(x), tensor(np.zeros_like(s)))
    np.testing.assert_allclose(at_zero.numpy(), 0.5, rtol=0.1)


def test_evaluations_at_fidelity_zero_alone_give_a_finite_cost():
    x = example(9)[0]
    learned = learn(x, np.zeros((15, 1)), np.full(15, 2.0)).cost
    np.testing.assert_allclose(learned(tensor(x), torch.zeros(15, 1, dtype=torch.float64)).numpy(), 2.0, rtol=1e-3)
    assert learned(tensor(x), torch.ones(15, 1, dtype=torch.float64)).isfinite().all()


def test_a_cost_fit_continues_its_chains_after_one_more_evaluation():
    x, s, paid = example(4)
    before = learn(x[:-1], s[:-1], paid[:-1], seed=1)
    after, again = (learn(x, s, paid, seed=2, chains=before.chains, draws=6) for _ in range(2))
    assert after.diagnostics.was_warm and not before.diagnostics.was_warm
    assert after.cost.mean.theta.H == 6
    assert after.chains == again.chains
    assert torch.equal(after.cost(tensor(x), tensor(s)), again.cost(tensor(x), tensor(s)))


# ---------------- positive and differentiable


def test_predicted_cost_is_positive_up_to_the_corners_of_the_cube(cost):
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)] * 4)
    predicted = cost(corners[:, :2], corners[:, 2:])
    assert predicted.shape == (81,)
    assert (predicted > 0).all() and predicted.isfinite().all()


@pytest.mark.parametrize("costs", [np.geomspace(1e-9, 1e9, 15), np.geomspace(1e-300, 1e-290, 15)])
def test_costs_of_any_magnitude_give_positive_predictions(costs):
    x, s, _ = example(5)
    predicted = learn(x, s, costs).cost(tensor(x), tensor(s))
    assert (predicted > 0).all() and predicted.isfinite().all()


@pytest.mark.parametrize(
    ("x", "s"),
    [
        ([0.31, 0.77], [0.42, 0.13]),
        ([0.31, 0.77], [0.0, 0.6]),
        ([0.31, 0.77], [0.0, 0.0]),
        ([0.0, 1.0], [1.0, 1.0]),
        (None, None),  # on a data point
    ],
)
def test_predicted_cost_is_differentiable_in_x_and_s(cost, x, s):
    data = example(1)
    x = tensor(data[0][2] if x is None else x).clone().requires_grad_()
    s = tensor(data[1][2] if s is None else s).clone().requires_grad_()
    assert torch.autograd.gradcheck(cost, (x, s))


def test_predicted_cost_broadcasts_designs_against_fidelities(cost):
    rng = np.random.default_rng(1)
    x, s = tensor(rng.uniform(size=(5, 2))), tensor(rng.uniform(size=(3, 2)))
    pairs = torch.stack([torch.stack([cost(x[i], s[j]) for j in range(3)]) for i in range(5)])
    for many in (cost(x[:, None], s), cost(x[:, None].expand(5, 3, 2), s.expand(5, 3, 2))):
        torch.testing.assert_close(many, pairs, rtol=1e-10, atol=0)
    torch.testing.assert_close(cost(x, s[1]), pairs[:, 1], rtol=1e-10, atol=0)
    torch.testing.assert_close(cost(x[2], s), pairs[2], rtol=1e-10, atol=0)
    assert cost(x[0], s[0]).shape == ()


# ---------------- a cost that is given


def proportional(x: Tensor, s: Tensor) -> Tensor:
    return 0.01 + 1.7 * s.prod(-1) * (1 + x[..., 0])


def test_a_given_cost_is_the_function_itself_gradients_included():
    rng = np.random.default_rng(3)
    x, s = (tensor(rng.uniform(size=(4, 2))).requires_grad_() for _ in range(2))
    given = given_cost(proportional)
    torch.testing.assert_close(given(x, s), proportional(x, s), rtol=0, atol=0)
    assert given(x[0], s).shape == given(x[:, None], s[0]).squeeze(-1).shape == (4,)
    assert torch.autograd.gradcheck(given, (x, s))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, s: s, r"cost returned shape \(3, 2\); expected \(3,\)"),
        (lambda x, s: s.sum(), r"cost returned shape \(\); expected \(3,\)"),
        (lambda x, s: s[..., 0] - 0.5, "cost returned -0.3; expected finite values > 0"),
        (lambda x, s: 0 * s[..., 0], "cost returned 0; expected finite values > 0"),
        (lambda x, s: 1 / (s[..., 0] - 0.6).clamp_min(0), "cost returned inf; expected finite values > 0"),
        (lambda x, s: s[..., 0] * math.nan, "cost returned nan; expected finite values > 0"),
    ],
)
def test_a_given_cost_that_is_none_is_refused_when_it_is_called(function, message):
    x, s = tensor(np.full((3, 2), 0.5)), tensor([[0.7, 0.1], [0.2, 0.9], [0.6, 0.6]])
    with pytest.raises(InputError, match=message):
        given_cost(function)(x, s.requires_grad_())


# ---------------- continuing


def test_continuing_costs_the_difference_of_two_cold_starts():
    x, s, s_from = tensor([[0.4], [0.9]]), tensor([[0.8, 0.5], [1.0, 0.3]]), tensor([[0.2, 0.5], [0.7, 0.3]])
    extra = continuation_cost(given_cost(proportional), x, s, s_from)
    by_hand = [1.7 * 1.4 * 0.5 * (0.8 - 0.2), 1.7 * 1.9 * 0.3 * (1.0 - 0.7)]
    np.testing.assert_allclose(extra.numpy(), by_hand, rtol=1e-12)


def test_a_whole_cost_that_is_known_is_not_asked_for_again():
    x, s, s_from = tensor([[0.4]]), tensor([[0.8, 0.5]]), tensor([[0.2, 0.5]])
    asked = []

    def counted(x, s):
        asked.append(s)
        return proportional(x, s)

    extra = continuation_cost(counted, x, s, s_from, whole=proportional(x, s))
    assert len(asked) == 1 and torch.equal(asked[0], s_from)
    assert torch.equal(extra, continuation_cost(proportional, x, s, s_from))


def test_continuing_never_costs_less_than_a_share_of_the_whole():
    x, s = tensor([0.4]), tensor([0.8, 0.5])
    whole = 0.01 + 1.7 * 0.4 * 1.4
    behind, nearby = tensor([0.9, 0.5]), tensor([0.799, 0.5])
    for s_from in (s, behind, nearby):
        assert float(continuation_cost(proportional, x, s, s_from)) == pytest.approx(0.01 * whole, rel=1e-12)
        wider = continuation_cost(proportional, x, s, s_from, least_share=0.23)
        assert float(wider) == pytest.approx(0.23 * whole, rel=1e-12)


def test_continuing_is_differentiable_where_the_difference_and_where_the_floor_counts(cost):
    x = tensor([0.3, 0.6]).requires_grad_()
    s_from = tensor([0.2, 0.5])
    for s in ([0.9, 0.5], [0.2001, 0.5]):
        assert torch.autograd.gradcheck(
            lambda x, s: continuation_cost(cost, x, s, s_from), (x, tensor(s).clone().requires_grad_())
        )


def test_continuing_under_a_learned_cost_is_positive_and_no_dearer_than_starting_again(cost):
    rng = np.random.default_rng(5)
    x, s_from = tensor(rng.uniform(size=(300, 2))), tensor(rng.uniform(size=(300, 2)))
    s = s_from + tensor(rng.uniform(size=(300, 2))) * (1 - s_from)
    s[:50] = s_from[:50]
    extra, whole = continuation_cost(cost, x, s, s_from), cost(x, s)
    assert (extra > 0).all()
    assert (extra <= whole).all()
    torch.testing.assert_close(extra[:50], 0.01 * whole[:50], rtol=1e-12, atol=0)


def test_legs_are_summed_along_each_branch_of_checkpoints():
    #   0: 3.0 ── 1: 2.0 ── 3: 1.25        4: 4.0 (from a cold start) ── 6: 0.5
    #         └── 2: 5.5 ── 5: 0.25
    paid = [3.0, 2.0, 5.5, 1.25, 4.0, 0.25, 0.5]
    continues = [None, 0, 0, 1, None, 2, 4]
    assert cold_start_costs(paid, continues) == [3.0, 5.0, 8.5, 6.25, 4.0, 8.75, 4.5]


def test_legs_from_cold_starts_cost_what_was_paid():
    assert cold_start_costs([2.5, 0.125], [None, None]) == [2.5, 0.125]
    assert cold_start_costs([], []) == []


def test_the_cost_of_continuing_is_recovered_from_legs():
    """Runs in two legs each: the summed legs teach the cold-start cost, whose difference is the second leg."""
    rng = np.random.default_rng(7)
    x, stop = rng.uniform(size=(30, 1)), rng.uniform(0.1, 0.5, size=30)
    full = 0.2 + 4.0 * SHAPES["wavy"](x)
    first = 0.2 + 4.0 * stop * SHAPES["wavy"](x)
    paid = [*first, *(full - first)]
    totals = cold_start_costs(paid, [None] * 30 + list(range(30)))
    s = np.concatenate([stop, np.ones(30)])[:, None]
    learned = learn(np.concatenate([x, x]), s, np.array(totals)).cost
    extra = continuation_cost(learned, tensor(x), torch.ones(30, 1, dtype=torch.float64), tensor(stop[:, None]))
    assert np.median(np.abs(extra.numpy() / (full - first) - 1)) < 0.1


# ---------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros(4)}, r"x has shape \(4,\); expected \(n, d\) with n >= 1"),
        ({"x": np.zeros((0, 2))}, r"x has shape \(0, 2\); expected \(n, d\) with n >= 1"),
        ({"s": np.full((3, 1), 0.5)}, r"s has shape \(3, 1\); expected \(4, m\), one row for each row of x"),
        ({"s": np.full(4, 0.5)}, r"s has shape \(4,\); expected \(4, m\)"),
        ({"s": np.full((4, 1), 1.2)}, r"s holds 1.2 .*expected finite values in"),
        ({"s": np.full((4, 1), math.nan)}, r"s holds nan .*expected finite values in"),
        ({"cost": np.ones(3)}, r"cost has shape \(3,\); expected \(4,\)"),
        ({"cost": np.ones((4, 1))}, r"cost has shape \(4, 1\); expected \(4,\)"),
        ({"cost": [1.0, 0.0, 2.0, 1.0]}, "cost has a value of 0; expected finite costs > 0"),
        ({"cost": [1.0, -2.5, 2.0, 1.0]}, "cost has a value of -2.5; expected finite costs > 0"),
        ({"cost": [1.0, math.inf, 2.0, 1.0]}, "cost has a value of inf; expected finite costs > 0"),
        ({"cost": [1.0, math.nan, 2.0, 1.0]}, "cost has a value of nan; expected finite costs > 0"),
        ({"x": np.full((4, 2), math.nan)}, "x has 8 entries that are not finite"),
    ],
)
def test_data_that_make_no_sense_are_refused(change, message):
    data = {"x": np.full((4, 2), 0.5), "s": np.full((4, 1), 0.5), "cost": np.ones(4)} | change
    with pytest.raises(InputError, match=message):
        fit_cost(**{name: tensor(values) for name, values in data.items()}, seed=0)


@pytest.mark.parametrize("name", ["x", "s", "cost"])
def test_data_in_single_precision_are_refused(name):
    data = {"x": tensor(np.full((4, 2), 0.5)), "s": tensor(np.full((4, 1), 0.5)), "cost": tensor(np.ones(4))}
    data[name] = data[name].float()
    with pytest.raises(InputError, match=rf"^{name} has dtype torch.float32; expected torch.float64"):
        fit_cost(**data, seed=0)


def test_chains_of_a_cost_over_other_dimensions_are_refused():
    chains = learn(*example(1, d=1), steps=2).chains
    with pytest.raises(InputError, match=r"chains are of .*start without chains"):
        learn(*example(1, d=2), chains=chains)


@pytest.mark.parametrize(
    ("paid", "continues", "message"),
    [
        ([1.0, 2.0], [None], "continues has 1 entries; expected 2"),
        ([1.0, 0.0], [None, None], r"leg_costs\[1\] is 0.0; expected a finite cost > 0"),
        ([-1.0], [None], r"leg_costs\[0\] is -1.0; expected a finite cost > 0"),
        ([1.0, math.inf], [None, 0], r"leg_costs\[1\] is inf; expected a finite cost > 0"),
        ([math.nan], [None], r"leg_costs\[0\] is nan; expected a finite cost > 0"),
        ([1.0, 2.0], [None, 1], r"continues\[1\] is 1; expected None or the index of an earlier leg"),
        ([1.0, 2.0], [1, None], r"continues\[0\] is 1; expected None or the index of an earlier leg"),
        ([1.0, 2.0], [None, -1], r"continues\[1\] is -1; expected None or the index of an earlier leg"),
    ],
)
def test_legs_that_make_no_sense_are_refused(paid, continues, message):
    with pytest.raises(InputError, match=message):
        cold_start_costs(paid, continues)
