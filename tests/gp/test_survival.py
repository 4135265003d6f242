"""Where trainings diverge: against a dense Gaussian process on the labels, and on an edge that is known."""

import dense_gp
import numpy as np
import pytest
import torch
from scipy.stats import norm

from takg.errors import InputError
from takg.gp import Model, Survival, condition, fit_survival, value_rows


def labelled(count, seed=0):
    """Trainings of two hyperparameters that diverge from s = (1 - x_1) / 0.4 on, so never below x_1 = 0.6."""
    gen = dense_gp.generator(seed)
    x, s = dense_gp.uniform(gen, count, 2), dense_gp.uniform(gen, count, 1)
    return x, s, s[:, 0] <= (1 - x[:, 0]) / 0.4


def seven_labels(gen):
    """Under two samples of the hyperparameters; and their means, covariances and noise at some rows, by NumPy."""
    model = Model(d=3, design_kernel="matern52")
    theta = dense_gp.some_theta(model, gen, H=2)
    rows = value_rows(dense_gp.uniform(gen, 7, 3), torch.empty(7, 0, dtype=torch.float64))
    y = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0], dtype=torch.float64)

    def moments_of(query):
        samples = dense_gp.samples_of(theta)
        return [(*dense_gp.posterior(model, one, rows, y, query), one.noise_var) for one in samples]

    return Survival(posterior=condition(model, theta, rows, y)), moments_of


def test_it_is_the_probability_of_a_label_above_0():
    gen = dense_gp.generator(5)
    survival, moments_of = seven_labels(gen)
    x, s = dense_gp.uniform(gen, 4, 2), dense_gp.uniform(gen, 4, 1)
    query = value_rows(torch.cat([x, s], dim=-1), torch.empty(4, 0, dtype=torch.float64))
    chances = [norm.cdf(mean / noise_var**0.5) for mean, _, noise_var in moments_of(query)]
    expected = np.clip(np.mean(chances, axis=0), 0.01, 0.99)
    assert expected.min() < 0.4 < 0.6 < expected.max()
    np.testing.assert_allclose(survival(x, s).numpy(), expected, rtol=1e-9)
    with torch.no_grad():
        np.testing.assert_allclose(survival(x, s).numpy(), expected, rtol=1e-9)


def test_certainty_counts_what_is_not_known_of_the_label():
    gen = dense_gp.generator(6)
    survival, moments_of = seven_labels(gen)
    x = torch.cat([dense_gp.uniform(gen, 4, 2), survival.posterior.rows.x[:1, :2]])
    query = value_rows(torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], dim=-1), torch.empty(5, 0).double())
    sure = [norm.cdf(mean / np.diagonal(covariance) ** 0.5) for mean, covariance, _ in moments_of(query)]
    expected = np.mean(sure, axis=0)
    np.testing.assert_allclose(survival.certainty(x).numpy(), expected, rtol=1e-8)
    assert survival.certainty(x[:, None]).shape == (5, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_edge_is_learned_from_sixty_trainings(seed):
    survival = fit_survival(*labelled(60, seed), seed=seed).survival
    x, s, is_sound = labelled(2000, seed=99)
    with torch.no_grad():
        agrees = (survival(x, s) >= 0.5) == is_sound
        far = ((1 - x[:, 0]) / 0.4 - s[:, 0]).abs() > 0.25
    assert agrees.double().mean() > 0.93  # 22 % of them diverge
    assert agrees[far].double().mean() > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_was_trained_for_short_only_is_not_taken_to_diverge_in_the_end(seed):
    """Half of the designs above x_1 = 0.85 diverge at once, and all labels at s = 1 are theirs."""
    gen = dense_gp.generator(seed)
    x, s = dense_gp.uniform(gen, 60, 3), 0.04 + 0.06 * dense_gp.uniform(gen, 60, 1)
    has_diverged = (x[:, 0] > 0.85) & (dense_gp.uniform(gen, 60) < 0.5)
    bad = x[has_diverged]
    assert 2 <= len(bad) <= 9
    s[has_diverged] = 0.04
    survival = fit_survival(
        torch.cat([x, bad]),
        torch.cat([s, torch.ones(len(bad), 1, dtype=torch.float64)]),
        torch.cat([~has_diverged, torch.zeros(len(bad), dtype=torch.bool)]),
        seed=seed,
    ).survival
    others = dense_gp.uniform(gen, 500, 3)
    assert survival.is_safe(others[others[:, 0] < 0.6]).double().mean() > 0.9
    assert not survival.is_safe(bad).any()


def test_probabilities_are_differentiable_and_never_certain():
    survival = fit_survival(*labelled(30), seed=0, steps=4).survival
    gen = dense_gp.generator(3)
    x, s = dense_gp.uniform(gen, 5, 2).requires_grad_(), dense_gp.uniform(gen, 5, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, s: survival(x, s), (x, s))
    everywhere = survival(dense_gp.uniform(gen, 500, 2), dense_gp.uniform(gen, 500, 1))
    assert everywhere.min() >= 0.01 and everywhere.max() <= 0.99
    assert survival(x[:, None], torch.ones(3, 1, dtype=torch.float64)).shape == (5, 3)


def test_chains_go_on():
    data = labelled(30)
    first = fit_survival(*data, seed=0, steps=4)
    again = fit_survival(*data, seed=1, steps=2, chains=first.chains)
    assert again.chains != first.chains and again.chains.names == first.chains.names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", torch.zeros(3, dtype=torch.float64)),
        ("x", torch.zeros(3, 2)),
        ("s", torch.zeros(2, 1, dtype=torch.float64)),
        ("survived", torch.ones(3, dtype=torch.float64)),
        ("survived", torch.ones(2, dtype=torch.bool)),
    ],
)
def test_what_does_not_fit_is_named(name, value):
    given = {
        "x": torch.zeros(3, 2, dtype=torch.float64),
        "s": torch.zeros(3, 1, dtype=torch.float64),
        "survived": torch.ones(3, dtype=torch.bool),
    }
    with pytest.raises(InputError, match=f"{name} has"):
        fit_survival(**{**given, name: value}, seed=0)
