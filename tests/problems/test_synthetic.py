"""The synthetic functions against plain NumPy, BoTorch, and a search for anything lower."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.autograd import gradcheck

from takg.errors import InputError
from takg.fidelity import in_trace, trace
from takg.problems import PROBLEMS, branin

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing it runs torch.jit.script
    from botorch.test_functions import Branin, Hartmann, Rosenbrock
    from botorch.test_functions.multi_fidelity import AugmentedBranin, AugmentedHartmann, AugmentedRosenbrock

each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numpy_branin(x, s, bias=0.1):
    b, c, r, t = 5.1 / (4 * np.pi**2) - bias * (1 - s[0]), 5 / np.pi, 6, 1 / (8 * np.pi)
    return (x[1] - b * x[0] ** 2 + c * x[0] - r) ** 2 + 10 * (1 - t) * np.cos(x[0]) + 10


def numpy_rosenbrock3(x, s):
    return sum(
        100 * (x[i + 1] - x[i] ** 2 + 0.1 * (1 - s[0])) ** 2 + (x[i] - 1 + 0.1 * (1 - s[1]) ** 2) ** 2 for i in range(2)
    )


def numpy_hartmann(x, s):
    alpha = [1.0 - 0.1 * (1 - s[0]), 1.2, 3.0, 3.2]
    A, P = {3: (A3, P3), 6: (A6, P6)}[len(x)]
    return -sum(
        alpha[i] * math.exp(-sum(A[i][j] * (x[j] - P[i][j] / 1e4) ** 2 for j in range(len(x)))) for i in range(4)
    )


# Surjanovic and Bingham, Virtual Library of Simulation Experiments.
A3 = [[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]]
P3 = [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
A6 = [
    [10, 3, 17, 3.5, 1.7, 8],
    [0.05, 10, 17, 0.1, 8, 14],
    [3, 3.5, 1.7, 10, 17, 8],
    [17, 8, 0.05, 10, 0.1, 14],
]
P6 = [
    [1312, 1696, 5569, 124, 8283, 5886],
    [2329, 4135, 8307, 3736, 1004, 9991],
    [2348, 1451, 3522, 2883, 3047, 6650],
    [4047, 8828, 8732, 5743, 1091, 381],
]
PLAIN = {
    "branin": numpy_branin,
    "rosenbrock3": numpy_rosenbrock3,
    "hartmann3": numpy_hartmann,
    "hartmann6": numpy_hartmann,
}
AT_TARGET = {
    "branin": Branin(),
    "rosenbrock3": Rosenbrock(dim=3),
    "hartmann3": Hartmann(dim=3),
    "hartmann6": Hartmann(dim=6),
}


def in_user_units(problem, x_unit):
    lower, upper = np.array(problem.lower), np.array(problem.upper)
    return lower + x_unit.numpy() * (upper - lower)


@each_problem
def test_it_agrees_with_the_formula_in_plain_numpy(problem):
    x, s = uniform(50, problem.d, seed=1), uniform(50, problem.fidelities.m, seed=2)
    pairs = zip(in_user_units(problem, x), s.numpy(), strict=True)
    expected = [PLAIN[problem.name](*pair) for pair in pairs]
    torch.testing.assert_close(
        problem.evaluate(x, s), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("bias", [0.01, 0.037])
def test_the_bias_of_branin_is_a_parameter(bias):
    problem = branin(bias=bias)
    x, s = uniform(20, 2, seed=3), uniform(20, 1, seed=4)
    pairs = zip(in_user_units(problem, x), s.numpy(), strict=True)
    expected = torch.tensor([numpy_branin(*pair, bias) for pair in pairs], dtype=torch.float64)
    torch.testing.assert_close(problem.evaluate(x, s), expected, rtol=1e-12, atol=1e-12)
    assert problem.name == f"branin-bias-{bias}"


@pytest.mark.parametrize("bias", [float("nan"), float("inf")])
def test_a_bias_that_is_no_number_is_an_error(bias):
    with pytest.raises(InputError, match=r"bias=(nan|inf); expected a finite number"):
        branin(bias=bias)


@each_problem
def test_at_the_target_it_agrees_with_botorch(problem):
    peer = AT_TARGET[problem.name]
    x = uniform(200, problem.d, seed=5)
    values = problem.evaluate(x, torch.ones(problem.fidelities.m, dtype=torch.float64))
    # BoTorch keeps Hartmann's constants in single precision.
    rtol = 1e-5 if problem.name.startswith("hartmann") else 1e-11
    torch.testing.assert_close(values, peer(torch.tensor(in_user_units(problem, x))), rtol=rtol, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("branin", AugmentedBranin()),
        ("rosenbrock3", AugmentedRosenbrock(dim=5)),
        ("hartmann6", AugmentedHartmann()),
    ],
)
def test_below_the_target_it_agrees_with_botorch(name, peer):
    problem = PROBLEMS[name]
    x, s = uniform(200, problem.d, seed=6), uniform(200, problem.fidelities.m, seed=7)
    joint = torch.cat([torch.tensor(in_user_units(problem, x)), s], dim=-1)
    rtol = 1e-5 if name == "hartmann6" else 1e-11
    torch.testing.assert_close(problem.evaluate(x, s), peer(joint), rtol=rtol, atol=1e-9)


@each_problem
def test_the_minimisers_attain_the_minimum_to_double_precision(problem):
    for x in problem.minimisers:
        value = PLAIN[problem.name](np.array(x), np.ones(problem.fidelities.m))
        assert value == pytest.approx(problem.minimum, rel=1e-14, abs=1e-25)
        x_unit = problem.to_unit(torch.tensor(x, dtype=torch.float64))
        at_target = problem.evaluate(x_unit, torch.ones(problem.fidelities.m, dtype=torch.float64))
        assert at_target.item() == pytest.approx(problem.minimum, rel=1e-14, abs=1e-25)


@each_problem
def test_the_minimisers_are_stationary_and_strict(problem):
    target = torch.ones(problem.fidelities.m, dtype=torch.float64)
    for x in torch.tensor(problem.minimisers, dtype=torch.float64):
        x_unit = problem.to_unit(x).requires_grad_()

        def value(x_unit):
            return problem.formula(problem.from_unit(x_unit), target)

        (gradient,) = torch.autograd.grad(value(x_unit), x_unit)
        hessian = torch.autograd.functional.hessian(value, x_unit.detach())
        newton_step = torch.linalg.solve(hessian, gradient)
        assert torch.linalg.eigvalsh(hessian).min() > 0
        assert newton_step.abs().max() < 1e-13  # further polishing moves nothing


@each_problem
def test_a_search_from_many_starts_finds_nothing_lower_and_no_other_minimiser(problem):
    target = torch.ones(problem.fidelities.m, dtype=torch.float64)
    grid = torch.quasirandom.SobolEngine(problem.d, scramble=True, seed=8).draw(2**15, dtype=torch.float64)
    values = problem.evaluate(grid, target)
    assert values.min() >= problem.minimum
    promising = grid[values.argsort()[:20]]
    starts = torch.cat([promising, uniform(10, problem.d, seed=9)])  # and some with no bias to the best well

    def value_and_gradient(x):
        x = torch.tensor(x, requires_grad=True)
        value = problem.formula(problem.from_unit(x), target)
        (gradient,) = torch.autograd.grad(value, x)
        return value.item(), gradient.numpy()

    options = {"ftol": 1e-15, "maxiter": 500}
    box = [(0, 1)] * problem.d
    found = [
        minimize(value_and_gradient, start.numpy(), jac=True, bounds=box, method="SLSQP", options=options)
        for start in starts
    ]
    best = [result.x for result in found if result.fun < problem.minimum + 1e-9]
    assert min(result.fun for result in found) >= problem.minimum - 1e-14
    known = problem.to_unit(torch.tensor(problem.minimisers, dtype=torch.float64)).numpy()
    distance = np.linalg.norm(np.array(best)[:, None] - known, axis=-1)  # (found, known)
    assert distance.min(axis=1).max() < 1e-3  # each one found is known
    assert distance.min(axis=0).max() < 1e-3  # each one known is found


@each_problem
def test_the_cost_is_a_fixed_price_plus_the_product_of_the_fidelities(problem):
    x, s = uniform(7, problem.d), uniform(7, problem.fidelities.m, seed=10)
    expected = [0.01 + math.prod(row) for row in s.tolist()]
    assert problem.cost(x, s).tolist() == pytest.approx(expected, rel=1e-14)


@each_problem
def test_batch_dims_of_x_and_s_broadcast(problem):
    x, s = uniform(4, 1, problem.d), uniform(3, problem.fidelities.m, seed=11)
    for function in (problem.evaluate, problem.cost):
        loop = torch.stack([torch.stack([function(x[i, 0], s[j]) for j in range(3)]) for i in range(4)])
        torch.testing.assert_close(function(x, s), loop, rtol=1e-13, atol=1e-13)


@each_problem
def test_a_whole_trace_is_evaluated_at_once(problem):
    x, s = uniform(5, problem.d), uniform(5, problem.fidelities.m, seed=12)
    trace_dims = problem.fidelities.trace_dims
    B = trace(s, trace_dims, points=6)
    values = problem.evaluate(x.unsqueeze(-2), B)
    assert in_trace(B, s, trace_dims).all()
    assert values.shape == (5, 6)
    assert torch.equal(values[:, -1], problem.evaluate(x, s))


@each_problem
@pytest.mark.parametrize("level", [0.0, 0.41, 1.0])
def test_gradients_are_right_also_at_the_lowest_fidelity_and_the_target(problem, level):
    x = problem.from_unit(uniform(3, problem.d, seed=13)).requires_grad_()
    s = torch.full((problem.fidelities.m,), level, dtype=torch.float64, requires_grad=True)
    assert gradcheck(problem.formula, [x, s])


@each_problem
@pytest.mark.parametrize("level", [0.0, 0.41, 1.0])
def test_the_gradient_of_the_cost_is_the_product_of_the_other_fidelities(problem, level):
    m = problem.fidelities.m
    s = torch.full((m,), level, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(problem.cost(uniform(problem.d), s), s)
    assert gradient.tolist() == pytest.approx([level ** (m - 1)] * m)


@each_problem
@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=30)
def test_units_convert_back_and_forth(problem, data):
    x_unit = torch.tensor(
        data.draw(st.lists(st.floats(0, 1), min_size=problem.d, max_size=problem.d)), dtype=torch.float64
    )
    x = problem.from_unit(x_unit)
    assert (torch.tensor(problem.lower) <= x).all()
    assert (x <= torch.tensor(problem.upper)).all()
    torch.testing.assert_close(problem.to_unit(x), x_unit, rtol=1e-14, atol=1e-15)


def test_the_fidelities_are_those_of_the_paper():
    dims = {name: (p.fidelities.m, p.fidelities.trace_dims, p.d) for name, p in PROBLEMS.items()}
    assert dims == {
        "branin": (1, (0,), 2),
        "rosenbrock3": (2, (1,), 3),  # data is fixed for a run, iterations are a trace
        "hartmann3": (1, (0,), 3),
        "hartmann6": (1, (0,), 6),
    }


def test_the_table_of_problems_cannot_be_changed():
    with pytest.raises(TypeError, match="does not support item assignment"):
        PROBLEMS["branin"] = branin(bias=0.01)


@pytest.mark.parametrize("method", ["evaluate", "cost"])
@pytest.mark.parametrize(
    ("x", "s", "message"),
    [
        ([0.5, 0.5], torch.ones(1), r"x_unit is list; expected a float tensor \(\.\.\., 2\)"),
        (torch.zeros(4, 3), torch.ones(1), r"x_unit is torch.float32 \(4, 3\); expected .* \(\.\.\., 2\)"),
        (torch.tensor([1, 0]), torch.ones(1), r"x_unit is torch.int64 \(2,\); expected a float tensor"),
        (
            torch.tensor([0.5, 12.25]),
            torch.ones(1),
            r"x_unit holds 12\.25; .*convert user units with to_unit",
        ),
        (torch.tensor([float("nan"), 0.5]), torch.ones(1), r"x_unit holds nan; expected finite values"),
        (torch.zeros(2), torch.ones(2), r"s has shape \(2,\); expected \(\.\.\., 1\)"),
        (torch.zeros(2), torch.full((1,), 1.5), r"s holds 1\.5"),
        (torch.zeros(4, 2), torch.ones(3, 1), r"x_unit has shape \(4, 2\) and s has \(3, 1\); .*broadcast"),
    ],
)
def test_bad_arguments_are_errors_that_name_them(method, x, s, message):
    with pytest.raises(InputError, match=message):
        getattr(PROBLEMS["branin"], method)(x, s)
