"""Problems whose low fidelity lies: how they lie, and that the target is what it should be."""

import pytest
import torch
from scipy.optimize import minimize

from takg.errors import InputError
from takg.problems import PROBLEMS
from takg.problems.catalogue import GROUPS, find_problem
from takg.problems.lying import LYING
from takg.problems.noisy import function_sd, noisy

each_problem = pytest.mark.parametrize("problem", LYING.values(), ids=LYING.keys())


def sobol(problem, n, seed=0):
    return torch.quasirandom.SobolEngine(problem.d, scramble=True, seed=seed).draw(n, dtype=torch.float64)


def at(problem, *levels):
    return torch.tensor(levels if levels else [1.0] * problem.fidelities.m, dtype=torch.float64)


def lowest(problem, s, n=2**13):
    points = sobol(problem, n)
    values = problem.evaluate(points, s)
    return points[torch.where(values.isnan(), torch.inf, values).argmin()]


@each_problem
def test_the_minimisers_attain_the_minimum_and_nothing_is_lower(problem):
    for x in torch.tensor(problem.minimisers, dtype=torch.float64):
        value = problem.evaluate(problem.to_unit(x), at(problem))
        assert value.item() == pytest.approx(problem.minimum, abs=1e-12)
    values = problem.evaluate(sobol(problem, 2**13), at(problem))
    assert values[values.isfinite()].min() >= problem.minimum

    def value_at(x):
        return float(problem.evaluate(torch.tensor(x).clamp(0, 1), at(problem)).nan_to_num(1e3))

    found = minimize(value_at, lowest(problem, at(problem)).numpy(), method="Nelder-Mead", options={"fatol": 1e-12})
    assert found.fun == pytest.approx(problem.minimum, abs=1e-5)
    assert found.fun >= problem.minimum - 1e-12


@pytest.mark.parametrize("s", [0.0, 1 / 27, 0.1])
def test_mute_is_a_constant_up_to_a_tenth(s):
    values = LYING["mute"].evaluate(sobol(LYING["mute"], 100), at(LYING["mute"], s))
    assert values.std() == pytest.approx(0.0, abs=1e-12)


def test_mute_ranks_designs_as_the_target_does_beyond_a_tenth():
    points = sobol(LYING["mute"], 100)
    early, late = (LYING["mute"].evaluate(points, at(LYING["mute"], s)) for s in (0.11, 1.0))
    assert torch.equal(early.argsort(), late.argsort())


def test_static_is_noise_at_zero_and_none_at_one():
    problem = LYING["static"]
    points = sobol(problem, 2000)
    beside = (points + 1e-3).clamp(0, 1)
    far, near = problem.evaluate(points, at(problem, 0.0)), problem.evaluate(beside, at(problem, 0.0))
    assert abs(torch.corrcoef(torch.stack([far, near]))[0, 1]) < 4 / 2000**0.5
    target = problem.evaluate(points, at(problem))
    assert abs(torch.corrcoef(torch.stack([far, target]))[0, 1]) < 4 / 2000**0.5


@pytest.mark.parametrize(("name", "rest"), [("misleading", ()), ("misleading-data", (1.0,))])
def test_misleading_has_its_minimum_elsewhere_until_one_half(name, rest):
    problem = LYING[name]
    truth = torch.tensor(problem.minimisers[0], dtype=torch.float64)
    for s in (0.0, 0.2, 0.45):
        assert torch.dist(lowest(problem, at(problem, s, *rest)), truth) > 0.5
    for s in (0.55, 0.8, 1.0):
        assert torch.dist(lowest(problem, at(problem, s, *rest)), truth) < 0.2


def test_crossing_curves_rank_designs_in_reverse_at_first():
    problem = LYING["crossing"]
    x = torch.tensor([[0.15, 0.6, 0.35], [0.9, 0.6, 0.35]], dtype=torch.float64)  # slow and good; fast and bad
    early, late = problem.evaluate(x, at(problem, 0.1)), problem.evaluate(x, at(problem, 1.0))
    assert early[0] > early[1]
    assert late[0] < late[1]


def test_diverging_runs_stay_diverged_and_do_so_the_earlier_the_larger_the_rate():
    problem = LYING["diverging"]
    s = torch.linspace(0, 1, 28, dtype=torch.float64)[:, None]
    x = torch.tensor([[0.6, 0.5, 0.5], [0.79, 0.5, 0.5], [0.95, 0.5, 0.5]], dtype=torch.float64)
    is_nan = problem.evaluate(x[:, None], s).isnan()  # (3, 28)
    assert (is_nan[:, 1:] >= is_nan[:, :-1]).all()
    assert is_nan.sum(1).tolist() == [0, 9, 23]


def test_two_fidelities_are_among_them():
    assert {problem.fidelities.m for problem in LYING.values()} == {1, 2}


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_noise_is_a_share_of_the_sd_and_leaves_the_function_alone(share):
    problem = PROBLEMS["hartmann3"]
    other = noisy(problem, share)
    assert other.noise_sd == pytest.approx(share * function_sd(problem))
    assert other.name == f"hartmann3-noise-{share}"
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(other.evaluate(points, at(other)), problem.evaluate(points, at(problem)))


def test_the_sd_of_a_function_agrees_with_its_mean_square():
    problem = PROBLEMS["branin"]
    points = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = problem.evaluate(points, at(problem))
    assert function_sd(problem) == pytest.approx(float((values**2).mean() - values.mean() ** 2) ** 0.5, rel=0.02)


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan")])
def test_a_share_that_makes_no_noise_is_an_error(share):
    with pytest.raises(InputError, match=r"share=.*; expected a number > 0"):
        noisy(PROBLEMS["branin"], share)


def test_every_synthetic_problem_is_found_by_the_name_it_has():
    for group in ("paper", "noisy", "bias", "lying"):
        for name in GROUPS[group]:
            assert find_problem(name).name == name
    assert len(GROUPS["noisy"]) == 8


def test_an_unknown_problem_is_an_error_that_lists_the_known():
    with pytest.raises(InputError, match=r"problem 'brain' is unknown; expected one of branin"):
        find_problem("brain")


def test_a_measured_problem_without_data_says_how_to_give_them():
    with pytest.raises(InputError, match=r"needs measured curves: give their directory with --data or TAKG_DATA"):
        find_problem("taskset-0")
