"""Acquisition functions where every design has a quirk of its own at low fidelity.

Means of 50 estimates exceed 4 of their standard errors with a probability of 2e-4. All seeds are fixed.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from dense_loss import (
    DESIGNS,
    a_posterior,
    generator,
    grid,
    some_cost,
    some_theta,
    tensor,
    uniform,
    value_of_information,
)
from torch import Tensor

from takg.acquisition import TaKG, TaKGZero, TaKGZeroAsPrinted
from takg.acquisition._takg import Acquisition
from takg.gp import Model, Posterior, condition, value_rows

ESTIMATES = 50
NEW, KNOWN = 0.15, None  # x in one dimension; what is known was seen at two fidelities
each_design = pytest.mark.parametrize("design", DESIGNS)


def an_acquisition(kind: type[Acquisition], post: Posterior, **choices: object) -> Acquisition:
    """All fidelities but data_size and size are traces."""
    kinds = post.model.fidelity_kernels
    dims = tuple(j for j, name in enumerate(kinds) if name not in ("data_size", "size"))
    return kind(post, **{"cost": some_cost, "trace_dims": dims, "seed": 0} | choices)


def at(post: Posterior, places: list[float | None]) -> Tensor:
    """x (1, q, d) of one candidate in one dimension."""
    return torch.stack([post.rows.x[2] if place is KNOWN else tensor([place]) for place in places])[None]


# Against exact expectations

CASES = {
    "a new x": (TaKG, [NEW], [[[0.4]]], {}),
    "a new x twice": (TaKG, [NEW], [[[0.25], [0.8]]], {"design": "matern52"}),
    "a new x beside its zero": (TaKGZero, [NEW], [[[0.4]]], {}),
    "a new x twice beside its zero": (TaKGZero, [NEW], [[[0.25], [0.8]]], {}),
    "a new x beside its noisy zero": (TaKGZeroAsPrinted, [NEW], [[[0.4]]], {"design": "matern52"}),
    "a known x": (TaKG, [KNOWN], [[[0.4]]], {"design": "matern52"}),
    "a known x twice": (TaKG, [KNOWN], [[[0.25], [0.8]]], {}),
    "a known x beside its zero": (TaKGZero, [KNOWN], [[[0.7]]], {}),
    "a known x twice beside its zero": (TaKGZero, [KNOWN], [[[0.25], [0.8]]], {"design": "matern52"}),
    "a known x with gradients in the data": (TaKG, [KNOWN], [[[0.4]]], {"data_gradients": True}),
    "a known x at the target": (TaKG, [KNOWN], [[[1.0]]], {}),
    "two kinds of fidelity": (TaKG, [KNOWN], [[[0.8, 0.7]]], {"mix": ("data_size", "freeze_thaw"), "seed": 5}),
    "a new x and a known one": (TaKG, [NEW, KNOWN], [[[0.4]], [[0.7]]], {}),
    "a new x in both evaluations": (TaKG, [NEW, NEW], [[[0.4]], [[0.7]]], {}),
}


def zeros_of(kind: type[Acquisition]) -> float | None:
    """The noise scale of C(S)."""
    return {TaKG: None, TaKGZero: 0.0, TaKGZeroAsPrinted: 1.0}[kind]


def assert_unbiased(acquisition: Acquisition, x: Tensor, S: Tensor, truth: float, other: float) -> None:
    """The mean estimate is within 4 standard errors of the truth, and could tell it from another value.

    1e-4 of the truth is allowed for its own error.
    """
    # Seeds apart, as a simulator with pending evaluations uses the next one too.
    draws = torch.cat([acquisition.redrawn(1000 + 10 * k).gain(x, S).value for k in range(ESTIMATES)])
    standard_error = float(draws.std()) / ESTIMATES**0.5
    error = float(draws.mean()) - truth
    assert truth > 3e-3
    assert abs(error) < 4 * standard_error + 1e-4 * truth, (error, standard_error, truth)
    assert abs(truth - other) > 8 * standard_error, (truth, other, standard_error)


@pytest.mark.parametrize("case", CASES)
def test_values_are_unbiased(case):
    kind, places, S, choices = CASES[case]
    post = a_posterior(**{"seed": 7, "n": 8, "quirks": True} | choices)
    plain = condition(post.model, replace(post.theta, quirk_var=None), post.rows, post.y)
    x, S = at(post, places), tensor([S])
    truth, without = (value_of_information(one, x[0], S[0], grid(201), zeros=zeros_of(kind)) for one in (post, plain))
    acquisition = an_acquisition(kind, post, draws=32, polish=8, candidates=torch.as_tensor(grid(101)))
    assert_unbiased(acquisition, x, S, truth, without)


@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
@pytest.mark.parametrize("place", [NEW, KNOWN])
def test_what_is_pending_has_the_quirk_of_its_continuation(kind, place):
    post = a_posterior(seed=7, n=8, quirks=True)
    x, S, s = at(post, [place]), tensor([[[[0.8]]]]), tensor([[0.6]])
    pending, next_to_it = value_rows(x[0], s), value_rows(x[0] + 1e-6, s)  # whose quirk is another one
    truth, other = (
        value_of_information(post, x[0], S[0], grid(201), zeros=zeros_of(kind), pending=rows)
        for rows in (pending, next_to_it)
    )
    candidates = torch.as_tensor(grid(101))
    acquisition = an_acquisition(kind, post, pending=pending, draws=32, polish=8, candidates=candidates)
    assert_unbiased(acquisition, x, S, truth, other)


def noisy_at_low_fidelity(post: Posterior) -> Posterior:
    theta = replace(post.theta, low_noise_var=tensor([0.31, 0.83]))
    return condition(post.model, theta, post.rows, post.y)


@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
@pytest.mark.parametrize("place", [NEW, KNOWN])
def test_noise_of_low_fidelities_is_simulated(kind, place):
    post = a_posterior(seed=7, n=8, quirks=True)
    noisy = noisy_at_low_fidelity(post)
    louder = replace(noisy.theta, low_noise_var=None, noise_var=noisy.theta.noise_var + noisy.theta.low_noise_var)
    everywhere = condition(post.model, louder, post.rows, post.y)
    x, S = at(post, [place]), tensor([[[[0.3], [0.9]]]])
    truth, other = (
        value_of_information(one, x[0], S[0], grid(201), zeros=zeros_of(kind)) for one in (noisy, everywhere)
    )
    acquisition = an_acquisition(kind, noisy, draws=32, polish=8, candidates=torch.as_tensor(grid(101)))
    assert_unbiased(acquisition, x, S, truth, other)


# Gradients


def assert_gradient_is_exact(acquisition: Acquisition, x: Tensor, S: Tensor, *, of_x: bool = True) -> None:
    """Theorem 1 against central differences of the value with the same draws, x (q, d), S (q, l, m).

    With steps of 1e-4 these err by 1e-8 of a third derivative, and by 1e-5 where an inner minimum is off by 1e-9:
    well below the 1e-3 of the largest slope that is allowed. Both hold where no outcome has two inner minima that are
    equally low to within a step.
    """
    h, sizes = 1e-4, (x.numel(), S.numel())
    flat = torch.cat([x.flatten(), S.flatten()])

    def value(flat: Tensor) -> Tensor:
        x_part, S_part = flat.split(sizes, dim=-1)
        places = x_part.reshape(-1, *x.shape), S_part.reshape(-1, *S.shape)
        return acquisition.gain(*places).value / acquisition.batch_cost(*places, None)

    leaf = flat.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(leaf).sum(), leaf)
    moves = h * torch.eye(len(flat), dtype=torch.float64)
    with torch.no_grad():
        expected = (value(flat + moves) - value(flat - moves)) / (2 * h)
    first = 0 if of_x else x.numel()
    assert expected[first:].abs().max() > 1e-3
    allowed = 1e-3 * float(expected[first:].abs().max())
    torch.testing.assert_close(slope[first:], expected[first:], rtol=1e-3, atol=allowed)


def a_precise_acquisition(kind: type[Acquisition], post: Posterior) -> Acquisition:
    candidates = torch.cartesian_prod(*[torch.linspace(0, 1, 31, dtype=torch.float64)] * 2)
    return an_acquisition(kind, post, draws=48, polish=15, candidates=candidates)


SETS = {
    ("freeze_thaw",): [[0.25], [0.7]],
    ("data_size", "freeze_thaw"): [[0.6, 0.25], [0.6, 0.7]],
}


@pytest.mark.parametrize("mix", SETS, ids="*".join)
@pytest.mark.parametrize(("kind", "design"), [(TaKG, "matern52"), (TaKGZero, "squared_exponential")])
def test_the_gradient_at_a_new_x_is_that_of_the_value(mix, kind, design):
    post = a_posterior(mix, d=2, design=design, n=8, seed=4, quirks=True)
    x = uniform(generator(0), 1, 2, low=0.1, high=0.9)
    assert_gradient_is_exact(a_precise_acquisition(kind, post), x, tensor([SETS[mix]]))


@pytest.mark.parametrize("mix", SETS, ids="*".join)
@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
@pytest.mark.parametrize("data_gradients", [False, True])
def test_the_gradient_by_fidelities_at_a_known_x_is_that_of_the_value(mix, kind, data_gradients):
    """By x there is none: the quirk of the next design is another one."""
    post = a_posterior(mix, d=2, design="matern52", n=8, seed=4, quirks=True, data_gradients=data_gradients)
    assert_gradient_is_exact(a_precise_acquisition(kind, post), post.rows.x[3:4], tensor([SETS[mix]]), of_x=False)


@pytest.mark.parametrize("mix", SETS, ids="*".join)
@pytest.mark.parametrize("kind", [TaKG, TaKGZero])
def test_the_gradient_knows_of_the_noise_of_low_fidelities(mix, kind):
    post = noisy_at_low_fidelity(a_posterior(mix, d=2, design="matern52", n=8, seed=4, quirks=True))
    assert_gradient_is_exact(a_precise_acquisition(kind, post), post.rows.x[3:4], tensor([SETS[mix]]), of_x=False)


# Laws


def a_quirk_free_past(design: str, quirk_var: float | None, *, H: int = 2) -> Posterior:
    """Data at the target only: what is believed of g(x, 1) is then the same whatever the quirks."""
    model = Model(d=2, fidelity_kernels=("curve",), design_kernel=design, mean_var=0.6, has_quirks=True)
    gen = generator(5)
    rows = value_rows(uniform(gen, 7, 2), torch.ones(7, 1, dtype=torch.float64))
    y = 1.3 * torch.randn(7, generator=gen, dtype=torch.float64)
    theta = some_theta(model, gen, H=H)
    quirks = None if quirk_var is None else torch.full((H,), quirk_var, dtype=torch.float64)
    return condition(model, replace(theta, quirk_var=quirks), rows, y)


@each_design
def test_the_larger_quirks_are_the_less_a_low_fidelity_is_worth_at_a_new_x(design):
    """It is an observation with more noise, and with the same draws each reduction falls: a minimum is concave.

    The 1e-6 is for inner minima, each solved to 1e-9 or better.
    """
    gen = generator(6)
    x, S = uniform(gen, 12, 1, 2), uniform(gen, 12, 1, 1, 1, low=0.05, high=0.4)
    candidates = uniform(gen, 200, 2)
    worth = []
    for quirk_var in (None, 0.1, 1.0, 10.0, 1e4):
        post = a_quirk_free_past(design, quirk_var)
        worth.append(an_acquisition(TaKG, post, draws=64, polish=12, candidates=candidates).gain(x, S).value)
    assert (worth[0] > 1e-3).sum() >= 6
    for larger, smaller in pairwise(worth):
        assert (smaller < larger + 1e-6).all()
    assert (worth[2] < 0.95 * worth[0])[worth[0] > 1e-3].all()
    assert (worth[-1] < 0.01 * worth[0])[worth[0] > 1e-3].all()


@each_design
def test_quirks_change_nothing_about_an_evaluation_at_the_target(design):
    gen = generator(7)
    x, S = uniform(gen, 8, 1, 2), torch.ones(8, 1, 1, 1, dtype=torch.float64)
    candidates = uniform(gen, 200, 2)
    plain, erratic = (
        an_acquisition(TaKG, a_quirk_free_past(design, quirk_var), candidates=candidates).gain(x, S).value
        for quirk_var in (None, 2.0)
    )
    assert (plain > 1e-3).sum() >= 4
    torch.testing.assert_close(erratic, plain, rtol=1e-9, atol=1e-12)


@each_design
def test_at_a_new_x_a_quirk_is_noise(design):
    """Value and gradient are those of a process without quirks whose noise has the sum of both variances."""
    s, quirk_var = 0.3, 0.9
    erratic = a_quirk_free_past(design, quirk_var, H=1)
    noise_var = erratic.theta.noise_var
    louder = replace(erratic.theta, quirk_var=None, noise_var=noise_var + quirk_var * (1 - s) ** 2)
    rows = replace(erratic.rows, noise_scale=erratic.rows.noise_scale * noise_var / louder.noise_var)
    noisy = condition(replace(erratic.model, has_quirks=False), louder, rows, erratic.y)
    gen = generator(8)
    x, S = uniform(gen, 10, 1, 2).requires_grad_(), torch.full((10, 1, 1, 1), s, dtype=torch.float64)
    candidates = uniform(gen, 200, 2)
    found = []
    for post in (erratic, noisy):
        value = an_acquisition(TaKG, post, draws=32, polish=12, candidates=candidates).gain(x, S).value
        found.append((value.detach(), torch.autograd.grad(value.sum(), x)[0]))
    assert (found[0][0] > 1e-3).sum() >= 5
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-9)


@each_design
def test_of_two_looks_at_one_x_both_are_worth_more_than_one(design):
    """Also where quirks are large: what two fidelities have in common then is known."""
    gen = generator(9)
    x, candidates = uniform(gen, 10, 1, 2), uniform(gen, 200, 2)
    post = a_quirk_free_past(design, 5.0)
    acquisition = an_acquisition(TaKG, post, draws=256, polish=8, candidates=candidates)
    # The single one is there twice, and observes nothing the second time, so that both see the same draws.
    once, both = (acquisition.gain(x, tensor([[[[a], [0.8]]]]).expand(10, 1, 2, 1)).reduction for a in (0.8, 0.2))
    more = (both - once).mean(dim=(0, 2))
    standard_error = ((both - once).var(-1) / 256).mean(0) ** 0.5 / post.theta.H**0.5
    # 4 standard errors are exceeded with a probability of 3e-5 in each of ten comparisons.
    assert (more > -4 * standard_error - 1e-9).all()
    assert (more > 4 * standard_error).any()


def test_values_do_not_depend_on_what_else_is_asked_for_at_once():
    """Known and new x side by side, of which only the former share a quirk with the data."""
    post = a_posterior(d=2, n=8, seed=4, quirks=True)
    gen = generator(10)
    x = torch.cat([post.rows.x[:3], uniform(gen, 3, 2)])[:, None]
    S = uniform(gen, 6, 1, 2, 1)
    for kind in (TaKG, TaKGZero):
        acquisition = an_acquisition(kind, post, draws=16, polish=8)
        together = acquisition.gain(x, S).value
        alone = torch.cat([acquisition.gain(x[i : i + 1], S[i : i + 1]).value for i in range(6)])
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
        assert np.isfinite(together.numpy()).all() and (together > 0).all()


@pytest.mark.parametrize(("shares", "most"), [([1.0], 0.1), ([0.5, 1.0], 0.3)])
def test_0_avoidance_is_not_fooled_by_quirks(shares, most):
    """The benchmark is told g at s = 0, and not what the quirk makes of it.

    Were it told the sum, a look at a low fidelity would be worth all that the two together tell of g without its quirk:
    more than the look itself is worth to somebody who knows nothing.
    """
    model = Model(d=1, fidelity_kernels=("curve",), has_quirks=True, mean_var=0.6)
    gen = generator(3)
    theta = replace(some_theta(model, gen), noise_var=tensor([1e-6, 2e-6]), quirk_var=tensor([4.0, 5.0]))
    rows = value_rows(uniform(gen, 5, 1), uniform(gen, 5, 1))
    post = condition(model, theta, rows, uniform(gen, 5, low=-1.3, high=1.3))
    for s in (0.1, 0.03, 0.01):
        plain, beyond_zero = (
            float(
                an_acquisition(kind, post, draws=256)
                .evaluate_joint(tensor([[NEW]]), s * tensor([[[share] for share in shares]]))
                .voi
            )
            for kind in (TaKG, TaKGZero)
        )
        assert 0 < beyond_zero < most * plain
