"""Simulated losses against exact expectations in NumPy, and what the simulator says of itself.

Statistical tests compare the mean of 50 estimates with the truth in units of their standard error. With 49 degrees of
freedom, 4 of them are exceeded with a probability of 2e-4 in each comparison. All seeds are fixed.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_loss import (
    DESIGNS,
    Dense,
    a_posterior,
    generator,
    grid,
    loss,
    points_of,
    some_cost,
    target_sd,
    tensor,
    uniform,
    value_of_information,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import takg.acquisition._loss
from takg.acquisition import KnowledgeGradient, LossSimulator, TaKG, TaKGZero, TaKGZeroAsPrinted
from takg.errors import InputError
from takg.gp import Model, Rows, condition, value_rows

ESTIMATES = 50
each_design = pytest.mark.parametrize("design", DESIGNS)
METHODS = ("monte_carlo", "sobol")
each_method = pytest.mark.parametrize("method", METHODS)
laws = settings(deadline=None, derandomize=True, max_examples=40)

TRACES = {
    (): (),
    ("freeze_thaw",): (0,),
    ("data_size", "freeze_thaw"): (1,),
    ("smooth", "freeze_thaw"): (0, 1),
    ("size", "curve"): (1,),
}
"""Fidelity kernels and which of them are traces."""


def an_acquisition(kind, post, **choices):
    choices = {"cost": some_cost, "trace_dims": TRACES[post.model.fidelity_kernels], "seed": 0} | choices
    return kind(post, **choices)


def estimates(acquisition, x, S, *, count=ESTIMATES):
    """Values of information under `count` independent sets of draws, (count, B); x (B, q, d), S (B, q, l, m)."""
    # Seeds apart, as a simulator with pending evaluations uses the next one too.
    return torch.stack([acquisition.redrawn(1000 + 10 * k).gain(x, S).value for k in range(count)])


def assert_unbiased(draws, truth):
    """Each column has its mean within 4 standard errors of the truth.

    1e-4 of the truth is allowed for its own error, and for what happens too rarely to show in a standard error.
    """
    error = draws.mean(0).numpy() - truth
    standard_error = draws.std(0).numpy() / len(draws) ** 0.5
    assert (abs(error) < 4 * standard_error + 1e-4 * abs(np.asarray(truth))).all(), (error, standard_error)


def some_pending(post, count=1, *, seed=7):
    gen = generator(seed)
    return value_rows(uniform(gen, count, post.model.d), uniform(gen, count, post.model.m))


# Against exact expectations


def assert_estimates_are_unbiased(acquisition, x, S, truth):
    """With either kind of draws, Sobol's last."""
    for method in METHODS:
        acquisition.simulator.method = method
        assert_unbiased(estimates(acquisition, x, S), truth)


@each_design
@pytest.mark.parametrize("mix", TRACES, ids="*".join)
def test_a_single_observation_gives_the_exact_expectation_over_a_finite_set(mix, design):
    post = a_posterior(mix, d=2, design=design, n=7, seed=4)
    gen = generator(11)
    x, S = uniform(gen, 12, 1, 2), uniform(gen, 12, 1, 1, len(mix))
    # With the minimisers of the mean in it, polishing the benchmark adds nothing to the set.
    lowest = an_acquisition(TaKG, post).simulator.minimisers.reshape(-1, 2)
    candidates = torch.cat([uniform(gen, 15, 2), lowest])
    acquisition = an_acquisition(TaKG, post, candidates=candidates, draws=128, polish=0)
    truth = np.array([value_of_information(post, x[i], S[i], candidates.numpy(), with_own=True) for i in range(12)])
    best = truth.argsort()[-3:].copy()
    assert truth[best].min() > 3e-3
    assert_estimates_are_unbiased(acquisition, x[best], S[best], truth[best])


CASES = {
    "one": (TaKG, [[0.3]], None),
    "two": (TaKG, [[0.25], [0.85]], None),
    "one beside its zero": (TaKGZero, [[0.3]], 0.0),
    "two beside their zero": (TaKGZero, [[0.25], [0.85]], 0.0),
    "one beside its noisy zero": (TaKGZeroAsPrinted, [[0.3]], 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("design", "data_gradients", "at"), [("squared_exponential", False, [0.15, 0.45]), ("matern52", True, [0.15, 0.65])]
)
def test_estimates_over_the_whole_line_are_unbiased_and_precise(case, design, data_gradients, at):
    """In the mean of many estimates to their standard error, and with many draws to 1e-3 of the posterior sd."""
    kind, S, zeros = CASES[case]
    post = a_posterior(design=design, seed=7, n=8, data_gradients=data_gradients)
    x, S = tensor(at)[:, None, None], tensor(S).expand(2, 1, -1, 1)
    truth = [value_of_information(post, x[i], S[i], grid(201), zeros=zeros) for i in range(2)]
    assert min(truth) > 3e-3
    acquisition = an_acquisition(kind, post, draws=32, polish=8)
    assert_estimates_are_unbiased(acquisition, x, S, truth)
    precise = torch.stack([acquisition.redrawn(k, draws=1024).gain(x, S).value for k in range(2)]).mean(0)
    for i in range(2):
        assert abs(precise[i] - truth[i]) < 1e-3 * target_sd(post, x[i, 0])


@pytest.mark.parametrize(("kind", "zeros"), [(TaKG, None), (TaKGZero, 0.0)])
def test_two_fidelities_with_one_trace_are_unbiased(kind, zeros):
    """C(S) of a single s has two members, so that taKG-zero integrates over three dimensions."""
    post = a_posterior(("data_size", "freeze_thaw"), n=8, seed=7)
    x, S = tensor([[[0.15]]]), tensor([[[[0.45, 0.6]]]])
    truth = value_of_information(post, x[0], S[0], grid(201), zeros=zeros)
    assert_estimates_are_unbiased(an_acquisition(kind, post, draws=32, polish=8), x, S, truth)


@each_design
def test_gradients_in_the_observations_are_unbiased(design):
    post = a_posterior(design=design, seed=7, n=8, data_gradients=True)
    x, S = tensor([0.15, 0.55])[:, None, None], tensor([[0.4]]).expand(2, 1, 1, 1)
    truth = [value_of_information(post, x[i], S[i], grid(201), gradients=True) for i in range(2)]
    without = [value_of_information(post, x[i], S[i], grid(201)) for i in range(2)]
    assert all(truth > 1.01 * np.array(without))
    acquisition = an_acquisition(TaKG, post, gradients=True, draws=32, polish=8)
    assert_estimates_are_unbiased(acquisition, x, S, truth)


def test_pairs_of_evaluations_are_unbiased():
    post = a_posterior(seed=5)
    x, S = tensor([[[0.05], [0.95]]]), tensor([[[[0.7]], [[0.4]]]])
    truth = value_of_information(post, x[0], S[0], grid(401))
    assert_estimates_are_unbiased(an_acquisition(TaKG, post, draws=32, polish=8), x, S, truth)


@pytest.mark.slow
def test_pairs_of_evaluations_beside_their_zeros_are_unbiased():
    post = a_posterior(seed=5)
    x, S = tensor([[[0.05], [0.95]]]), tensor([[[[0.7]], [[0.4]]]])
    truth = value_of_information(post, x[0], S[0], grid(101), zeros=0.0)  # four dimensions, known to about 1e-4
    acquisition = an_acquisition(TaKGZero, post, draws=8, polish=8)
    draws = estimates(acquisition, x, S)
    assert draws.std() / ESTIMATES**0.5 > 2e-4
    assert_unbiased(draws, truth)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "zeros"), [(TaKG, None), (TaKGZero, 0.0)])
def test_outcomes_of_pending_evaluations_are_integrated_over(kind, zeros):
    post = a_posterior(seed=5)
    pending = value_rows(tensor([[0.08]]), tensor([[0.9]]))
    x, S = tensor([0.04, 0.93])[:, None, None], tensor([[0.6]]).expand(2, 1, 1, 1)
    truth, alone = (
        np.array([value_of_information(post, x[i], S[i], grid(201), zeros=zeros, pending=rows) for i in range(2)])
        for rows in (pending, None)
    )
    assert (abs(truth - alone) > 0.1 * alone).any()
    acquisition = an_acquisition(kind, post, pending=pending, draws=32, polish=8)
    assert_estimates_are_unbiased(acquisition, x, S, truth)


def test_sobol_estimates_with_pending_evaluations_converge_like_others():
    """Draws of pending and of new outcomes fill their common space, though they come from two sequences."""
    post = a_posterior(seed=5)
    x, S = tensor([[[0.05]]]), tensor([[[[0.6]]]])
    acquisition = an_acquisition(TaKGZero, post, pending=value_rows(tensor([[0.08]]), tensor([[0.9]])), polish=4)
    few, many = (
        torch.stack([acquisition.redrawn(10 * k, draws=draws).gain(x, S).value for k in range(30)]).std()
        for draws in (16, 1024)
    )
    # Independent draws give 1/8; the ratio of two standard deviations of 30 draws is known to a factor 2.1 (p = 1e-4).
    assert many < 2.1 / 8 * few


def test_hyperparameter_samples_count_equally():
    post = a_posterior(H=3, seed=6)
    x, S = tensor([[[0.1]]]), tensor([[[[0.5]]]])
    acquisition = an_acquisition(TaKG, post, draws=2048, polish=8)
    gain = acquisition.gain(x, S)
    for h in range(3):
        theta = type(post.theta)(
            signal_var=post.theta.signal_var[h : h + 1],
            lengthscale=post.theta.lengthscale[h : h + 1],
            fidelity=tuple(tuple(p[h : h + 1] for p in parameters) for parameters in post.theta.fidelity),
            noise_var=post.theta.noise_var[h : h + 1],
            gradient_noise_var=post.theta.gradient_noise_var[h : h + 1],
        )
        one = condition(post.model, theta, post.rows, post.y)
        truth = value_of_information(one, x[0], S[0], grid(401))
        assert abs(gain.reduction[h, 0].mean() - truth) < 2e-3 * target_sd(one, x[0, 0])
    torch.testing.assert_close(gain.value, gain.reduction.mean(dim=(0, 2)))


# The loss without the observations


@each_design
@pytest.mark.parametrize("data_gradients", [False, True])
def test_the_current_loss_is_the_smallest_mean(design, data_gradients):
    post = a_posterior(design=design, seed=5, data_gradients=data_gradients)
    simulator = LossSimulator(post, seed=0)
    assert abs(simulator.current_loss - loss(post, points_of(some_pending(post, 0)), grid(2001))) < 1e-5
    assert simulator.minimisers.shape == (2, 1, 1)
    for h in range(2):
        dense = Dense(post, h)
        mean = dense.mean(dense.at_target(grid(2001)))
        assert abs(simulator.minimisers[h, 0, 0] - grid(2001)[mean.argmin(), 0]) < 1e-3


@each_method
def test_the_current_loss_counts_on_pending_observations(method):
    post = a_posterior(seed=5)
    pending = value_rows(tensor([[0.08], [0.2]]), tensor([[0.9], [0.5]]))  # not independent of each other
    simulator = LossSimulator(post, seed=0, pending=pending, draws=32, method=method)
    assert simulator.minimisers.shape == (2, 32, 1)
    draws = torch.stack([simulator.redrawn(10 * k).current_loss for k in range(ESTIMATES)])
    assert_unbiased(draws, loss(post, points_of(pending), grid(401)))
    assert draws.mean() < LossSimulator(post, seed=0).current_loss - 0.01


@pytest.mark.parametrize("n_pending", [0, 2])
def test_the_benchmark_of_takg_is_the_current_loss(n_pending):
    post = a_posterior(seed=5)
    acquisition = an_acquisition(TaKG, post, polish=8, pending=some_pending(post, n_pending))
    gain = acquisition.gain(tensor([[[0.04]]]), tensor([[[[0.7]]]]))
    torch.testing.assert_close(gain.benchmark.mean(), acquisition.simulator.current_loss, rtol=0, atol=1e-8)


# Every draw gains


@laws
@given(
    seed=st.integers(0, 2**20),
    kind=st.sampled_from([TaKG, TaKGZero, TaKGZeroAsPrinted]),
    mix=st.sampled_from([mix for mix in TRACES if mix]),
    design=st.sampled_from(DESIGNS),
    data_gradients=st.booleans(),
    q=st.integers(1, 2),
    polish=st.integers(0, 3),
    has_candidates=st.booleans(),
    n_pending=st.integers(0, 2),
)
def test_no_pair_of_outcomes_loses(seed, kind, mix, design, data_gradients, q, polish, has_candidates, n_pending):
    post = a_posterior(mix, d=2, design=design, n=6, seed=seed, data_gradients=data_gradients)
    gen = generator(seed + 1)
    acquisition = an_acquisition(
        kind,
        post,
        polish=polish,
        draws=4,
        candidates=uniform(gen, 4, 2) if has_candidates else None,
        pending=some_pending(post, n_pending, seed=seed),
        gradients=data_gradients,
    )
    S = uniform(gen, 3, q, 1, len(mix)).repeat(1, 1, 2, 1)
    for j in TRACES[mix]:
        S[..., 0, j] *= 0.4
    gain = acquisition.gain(uniform(gen, 3, q, 2), S)
    assert gain.reduction.min() >= -1e-12
    assert gain.value.isfinite().all()


# Draws


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    post = a_posterior(seed=5)
    x, S = tensor([[[0.04]]]), tensor([[[[0.7]]]])
    one = an_acquisition(TaKGZero, post, seed=3)
    again = an_acquisition(TaKGZero, post, seed=3)
    other = one.redrawn(4)
    assert torch.equal(one.gain(x, S).reduction, again.gain(x, S).reduction)
    assert torch.equal(one.gain(x, S).reduction, other.redrawn(3).gain(x, S).reduction)
    assert not torch.equal(one.gain(x, S).reduction, other.gain(x, S).reduction)


def test_no_global_random_state_is_touched():
    state = torch.get_rng_state()
    post = a_posterior(seed=5)
    an_acquisition(TaKGZero, post, pending=some_pending(post)).gain(tensor([[[0.04]]]), tensor([[[[0.7]]]]))
    assert torch.equal(torch.get_rng_state(), state)


def test_redrawing_changes_draws_and_polish_on_request_and_draws_pending_outcomes_anew():
    post = a_posterior(seed=5)
    x, S = tensor([[[0.04]]]), tensor([[[[0.7]]]])
    acquisition = an_acquisition(TaKG, post, draws=4, polish=0, pending=some_pending(post))
    assert acquisition.gain(x, S).reduction.shape == (2, 1, 4)
    more = acquisition.redrawn(0, draws=9, polish=5)
    assert more.gain(x, S).reduction.shape == (2, 1, 9)
    assert (more.simulator.polish, acquisition.simulator.polish) == (5, 0)
    assert not torch.equal(acquisition.redrawn(5).gain(x, S).benchmark, acquisition.gain(x, S).benchmark)
    same = an_acquisition(TaKG, post, draws=9, polish=5, pending=some_pending(post))
    torch.testing.assert_close(more.gain(x, S).value, same.gain(x, S).value)


@pytest.mark.parametrize("n_pending", [0, 1])
def test_a_thinned_acquisition_keeps_the_first_samples(n_pending):
    post = a_posterior(H=3, seed=5)
    x, S = tensor([[[0.04]]]), tensor([[[[0.7]]]])
    acquisition = an_acquisition(TaKGZero, post, draws=16, polish=5, pending=some_pending(post, n_pending))
    thinned = acquisition.thinned(slice(2), draws=4, polish=3)
    assert thinned.gain(x, S).reduction.shape == (2, 1, 4)
    assert (thinned.post.theta.H, acquisition.post.theta.H) == (2, 3)
    assert (thinned.simulator.polish, acquisition.simulator.polish) == (3, 5)
    assert torch.equal(thinned.simulator.candidates, acquisition.simulator.candidates)
    precise = acquisition.thinned(slice(2), draws=1024, polish=5).gain(x, S)
    pending = some_pending(post, n_pending)
    truth = value_of_information(post.part(slice(2)), x[0], S[0], grid(201), zeros=0.0, pending=pending)
    assert abs(precise.value - truth) < 4 * precise.standard_error + 1e-4


def test_pending_evaluations_can_be_added_one_after_the_other():
    post = a_posterior(seed=5, gradients=True)
    x, S = tensor([[[0.04]]]), tensor([[[[0.7]]]])
    first, second = tensor([[0.3]]), tensor([[0.9]])
    S_first, S_second = tensor([[[0.5], [0.8]]]), tensor([[[0.2], [0.6]]])
    acquisition = an_acquisition(TaKG, post, draws=64, polish=6, gradients=True)
    grown = acquisition.with_pending(first, S_first).with_pending(second, S_second)
    assert acquisition.simulator.pending is None
    assert grown.simulator.pending.x.flatten().tolist() == [0.3] * 4 + [0.9] * 4
    assert grown.simulator.pending.s.flatten().tolist() == [0.5, 0.5, 0.8, 0.8, 0.2, 0.2, 0.6, 0.6]
    assert grown.simulator.pending.part.tolist() == [0, 1] * 4
    assert (grown.simulator.pending.noise_scale == 1).all()
    at_once = an_acquisition(TaKG, post, draws=64, polish=6, gradients=True, pending=grown.simulator.pending)
    torch.testing.assert_close(grown.gain(x, S).value, at_once.gain(x, S).value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
def test_pending_nothing_changes_nothing(kind):
    post = a_posterior(seed=5)
    x, S = tensor([[[0.04]]]), tensor([[[[0.7]]]])
    without = an_acquisition(kind, post).gain(x, S)
    empty = an_acquisition(kind, post, pending=some_pending(post, 0)).gain(x, S)
    assert torch.equal(without.reduction, empty.reduction)


@each_method
def test_the_standard_error_is_that_of_independent_draws(method):
    post = a_posterior(H=3, seed=5)
    x, S = tensor([0.04, 0.9])[:, None, None], tensor([[0.7]]).expand(2, 1, 1, 1)
    acquisition = an_acquisition(TaKG, post, draws=16, polish=4, method=method)
    gains = [acquisition.redrawn(k).gain(x, S) for k in range(120)]
    spread = torch.stack([gain.value for gain in gains]).std(0)
    said = torch.stack([gain.standard_error for gain in gains]).square().mean(0).sqrt()
    if method == "monte_carlo":
        # A standard deviation of 120 draws is known to 7 %, with tails like these to 10 %; 4 of those.
        assert ((spread / said - 1).abs() < 0.4).all()
    else:
        assert (spread < said).all()
    assert not gains[0].standard_error.requires_grad


def test_one_draw_has_no_standard_error():
    post = a_posterior(seed=5)
    gain = an_acquisition(TaKG, post, draws=1).gain(tensor([[[0.04]]]), tensor([[[[0.7]]]]))
    assert gain.standard_error.tolist() == [float("inf")]


# Chunks


@pytest.mark.parametrize("entries", [1, 30_000])
@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
def test_results_do_not_depend_on_how_many_candidates_are_worked_on_at_once(monkeypatch, kind, entries):
    post = a_posterior(("data_size", "freeze_thaw"), d=2, seed=6, data_gradients=True)
    gen = generator(2)
    x, S = uniform(gen, 7, 2, 2), uniform(gen, 7, 2, 1, 2)
    acquisition = an_acquisition(kind, post, gradients=True, polish=3, pending=some_pending(post))

    def gain_and_gradient():
        leaves = x.clone().requires_grad_(), S.clone().requires_grad_()
        gain = acquisition.gain(*leaves)
        return gain, torch.autograd.grad(gain.value.sum(), leaves)

    whole, slopes = gain_and_gradient()
    monkeypatch.setattr(takg.acquisition._loss, "_ENTRIES_AT_ONCE", entries)
    parts, slopes_of_parts = gain_and_gradient()
    torch.testing.assert_close(parts.reduction, whole.reduction, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(parts.benchmark, whole.benchmark, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(slopes_of_parts, slopes, rtol=1e-6, atol=1e-8)
    assert (parts.unconverged, parts.problems) == (whole.unconverged, whole.problems)
    assert parts.jitter == pytest.approx(whole.jitter)


# Status


@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
def test_inner_problems_that_were_not_solved_are_counted(kind):
    post = a_posterior(d=2, n=8, seed=6)
    gen = generator(3)
    x, S = uniform(gen, 4, 1, 2), uniform(gen, 4, 1, 1, 1)
    candidates = uniform(gen, 6, 2)
    one = an_acquisition(kind, post, candidates=candidates, polish=1).gain(x, S)
    assert one.problems % (2 * 4 * 4) == 0
    assert 0 < one.unconverged <= one.problems
    many = an_acquisition(kind, post, candidates=candidates, polish=30).gain(x, S)
    assert many.unconverged == 0
    valuation = an_acquisition(kind, post, candidates=candidates, polish=1).evaluate_joint(x, S)
    assert (valuation.unconverged, valuation.problems) == (one.unconverged, one.problems)


def test_two_evaluations_with_a_common_zero_learn_it_once():
    """Seen twice without noise, it would make the covariance singular."""
    post = a_posterior(seed=5)
    x, S = tensor([[[0.3], [0.3]]]), tensor([[[[0.6]], [[0.6]]]])
    gain = an_acquisition(TaKGZero, post, draws=1024, polish=8).gain(x, S)
    zero = points_of(value_rows(tensor([[0.3]]), tensor([[0.0]]), noise_scale=0.0))
    all_three = points_of(
        Rows(
            x=tensor([[0.3]] * 3),
            s=tensor([[0.0], [0.6], [0.6]]),
            part=torch.zeros(3, dtype=torch.long),
            noise_scale=tensor([0.0, 1.0, 1.0]),
        )
    )
    truth = loss(post, zero, grid(201)) - loss(post, all_three, grid(201))
    assert abs(gain.value - truth) < 1e-3 * target_sd(post, [0.3])


def test_jitter_is_reported():
    """Under a mean of which nothing is known, what two nearly equal observations differ by is rounding error."""
    post = a_posterior(seed=5)
    vague = condition(replace(post.model, mean_var=1e12), post.theta, post.rows, post.y)
    x, S = tensor([[[0.3], [0.3]]]), tensor([[[[0.6]], [[0.6]]]])
    for flawless, kind in ((post, TaKG), (post, TaKGZero)):
        assert an_acquisition(kind, flawless).evaluate_joint(x, S).jitter < 1e-9
    gain = an_acquisition(TaKGZero, vague).gain(x, S)
    assert gain.jitter > 0
    assert gain.jitter == an_acquisition(TaKGZero, vague).evaluate_joint(x, S).jitter
    assert gain.value.isfinite().all()


# Bad input


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"draws": 0}, "draws=0: expected at least 1"),
        ({"draws": -3}, "draws=-3: expected at least 1"),
        ({"polish": -1}, "polish=-1: expected at least 0"),
        ({"method": "latin"}, r"method='latin': expected one of \('monte_carlo', 'sobol'\)"),
        ({"candidates": torch.rand(4, 3, dtype=torch.float64)}, r"candidates has shape \(4, 3\).*expected \(g, 2\)"),
        ({"candidates": torch.rand(2, dtype=torch.float64)}, r"candidates has shape \(2,\).*expected \(g, 2\)"),
        ({"candidates": torch.empty(0, 2, dtype=torch.float64)}, r"candidates has shape \(0, 2\).*g >= 1"),
        ({"candidates": torch.rand(4, 2)}, "candidates has.*float32.*expected.*float64"),
        ({"candidates": tensor([[0.3, 1.2], [0.1, 0.6]])}, r"candidates ranges over \[0.1, 1.2\].*unit cube"),
        ({"candidates": tensor([[0.3, float("nan")]])}, "candidates ranges over .*unit cube"),
    ],
)
@pytest.mark.parametrize("door", [LossSimulator, TaKG, KnowledgeGradient])
def test_settings_that_mean_nothing_are_refused(door, choices, message):
    post = a_posterior(d=2)
    needed = {"cost": some_cost, "trace_dims": (0,)} if door is TaKG else {}
    with pytest.raises(InputError, match=message):
        door(post, seed=0, **needed, **choices)


@pytest.mark.parametrize(
    ("choices", "message"), [({"draws": 0}, "draws=0: expected"), ({"polish": -2}, "polish=-2: expected")]
)
def test_redrawing_checks_its_settings_too(choices, message):
    acquisition = an_acquisition(TaKG, a_posterior())
    with pytest.raises(InputError, match=message):
        acquisition.redrawn(1, **choices)


def test_a_model_whose_trend_varies_is_refused():
    gen = generator(0)
    model = Model(d=1, trend_dims=(0,))
    rows = value_rows(uniform(gen, 4, 1), torch.empty(4, 0, dtype=torch.float64))
    theta = a_posterior(()).theta
    post = condition(model, theta, rows, uniform(gen, 4))
    with pytest.raises(InputError, match=r"post.model.trend_dims=\(0,\): expected a model with a constant trend"):
        LossSimulator(post, seed=0)
