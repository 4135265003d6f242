"""The batched minimiser against exhaustive search over active sets, known optima and its own single runs."""

from itertools import product

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.numerics import minimise
from takg.numerics._minimise import _bfgs_update

laws = settings(deadline=None, derandomize=True, max_examples=60)


def differentiated(value):
    """An objective whose gradient is autograd's; value takes points (b, p) and indices (b,)."""

    def objective(x, index):
        x = x.detach().clone().requires_grad_()
        f = value(x, index)
        (g,) = torch.autograd.grad(f.sum(), x)
        return f, g

    return objective


def rosenbrock(x, index):
    return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(-1)


class Quadratics:
    """B convex quadratics 0.5 x'Ax - b'x + c, and boxes."""

    def __init__(self, B, p, *, seed, condition=30.0):
        gen = torch.Generator().manual_seed(seed)
        Q, _ = torch.linalg.qr(torch.randn(B, p, p, generator=gen, dtype=torch.float64))
        eigenvalues = condition ** torch.rand(B, p, generator=gen, dtype=torch.float64)
        self.A = (Q * eigenvalues[:, None, :]) @ Q.mT
        self.b = 9 * torch.randn(B, p, generator=gen, dtype=torch.float64)
        self.c = torch.randn(B, generator=gen, dtype=torch.float64)
        self.lower = -1 - torch.rand(B, p, generator=gen, dtype=torch.float64)
        self.upper = 0.3 + torch.rand(B, p, generator=gen, dtype=torch.float64)
        self.start = 2 * torch.randn(B, p, generator=gen, dtype=torch.float64)  # many outside the box

    def __call__(self, x, index):
        Ax = (self.A[index] @ x[..., None])[..., 0]
        return (x * (0.5 * Ax - self.b[index])).sum(-1) + self.c[index], Ax - self.b[index]

    def exact(self, i):
        """Each component free, low or high: the best feasible stationary point of all 3^p choices."""
        A, b, c = self.A[i].numpy(), self.b[i].numpy(), self.c[i].item()
        lower, upper = self.lower[i].numpy(), self.upper[i].numpy()
        best, best_value = None, np.inf
        for sides in product((-1, 0, 1), repeat=len(b)):
            sides = np.array(sides)
            x = np.where(sides < 0, lower, upper)
            free, held = sides == 0, sides != 0
            x[free] = np.linalg.solve(A[np.ix_(free, free)], b[free] - A[np.ix_(free, held)] @ x[held])
            value = 0.5 * x @ A @ x - b @ x + c
            if (x >= lower).all() and (x <= upper).all() and value < best_value:
                best, best_value = x, value
        return best, best_value


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_convex_quadratics_in_boxes_end_where_exhaustive_search_ends(p):
    B = 25
    problem = Quadratics(B, p, seed=p)
    result = minimise(problem, problem.start, problem.lower, problem.upper)
    exact = [problem.exact(i) for i in range(B)]
    assert result.converged.all()
    np.testing.assert_allclose(result.x, [x for x, _ in exact], rtol=0, atol=1e-7)
    np.testing.assert_allclose(result.value, [value for _, value in exact], rtol=1e-12, atol=1e-12)
    on_face = (result.x == problem.lower) | (result.x == problem.upper)
    assert on_face.any()
    assert not on_face.all()


@pytest.mark.parametrize("p", [8, 20])
def test_larger_quadratics_in_boxes_end_where_scipy_ends(p):
    problem = Quadratics(4, p, seed=p)
    result = minimise(problem, problem.start, problem.lower, problem.upper)
    assert result.converged.all()
    for i in range(4):
        A, b = problem.A[i].numpy(), problem.b[i].numpy()
        box = list(zip(problem.lower[i].tolist(), problem.upper[i].tolist(), strict=True))
        other = scipy.optimize.minimize(
            lambda x, A=A, b=b: 0.5 * x @ A @ x - b @ x,
            np.zeros(p),
            jac=lambda x, A=A, b=b: A @ x - b,
            bounds=box,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert result.value[i] <= other.fun + problem.c[i] + 1e-9
        np.testing.assert_allclose(result.x[i], other.x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("p", [2, 3, 5, 10])
def test_rosenbrocks_valley_is_followed_to_its_end(p):
    gen = torch.Generator().manual_seed(p)
    start = 2.5 * torch.rand(6, p, generator=gen, dtype=torch.float64)
    result = minimise(differentiated(rosenbrock), start, -2.0, 3.0, max_passes=1000)
    assert result.converged.all()
    assert result.passes < 400
    np.testing.assert_allclose(result.x, np.ones((6, p)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.value, np.zeros(6), rtol=0, atol=1e-12)


def test_a_face_that_cuts_rosenbrocks_valley_holds_the_minimum():
    start = torch.tensor([[-0.7, 1.3], [0.2, -0.9], [0.6, 2.9]], dtype=torch.float64)
    upper = torch.tensor([[0.6, 3.0]], dtype=torch.float64)
    result = minimise(differentiated(rosenbrock), start, -2.0, upper)
    assert result.converged.all()
    np.testing.assert_allclose(result.x, [[0.6, 0.36]] * 3, rtol=0, atol=1e-9)
    np.testing.assert_allclose(result.value, [0.4**2] * 3, rtol=1e-10)


def test_a_linear_function_is_lowest_in_a_corner():
    slope = torch.tensor([[0.3, -2.0, 1e-3], [-40.0, 0.07, 5.0]], dtype=torch.float64)
    lower, upper = torch.tensor([[-0.2, 0.4, -3.0], [0.9, 0.7, 8.0]], dtype=torch.float64)
    start = torch.tensor([[0.1, 0.5, 2.0]], dtype=torch.float64).repeat(2, 1)
    result = minimise(lambda x, i: ((slope[i] * x).sum(-1), slope[i]), start, lower, upper)
    assert result.x.tolist() == [[-0.2, 0.7, -3.0], [0.9, 0.4, -3.0]]
    assert result.converged.all()
    assert (result.gradient_norm == 0).all()


def test_a_start_in_the_wrong_corner_leaves_it():
    centre = torch.tensor([[0.4, 0.35, 0.8]], dtype=torch.float64)
    corners = torch.tensor(list(product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    skew = torch.tensor([[2.0, 1.1, -0.4], [1.1, 3.0, 0.9], [-0.4, 0.9, 1.5]], dtype=torch.float64)

    def objective(x, index):
        pull = (x - centre) @ skew
        return 0.5 * (pull * (x - centre)).sum(-1), pull

    result = minimise(objective, corners, 0.0, 1.0)
    assert result.converged.all()
    np.testing.assert_allclose(result.x, centre.expand(8, 3), rtol=0, atol=1e-8)


def test_starts_outside_the_box_are_projected_and_no_evaluation_leaves_it():
    problem = Quadratics(12, 4, seed=41)
    seen = []

    def watched(x, index):
        seen.append(((x >= problem.lower[index]) & (x <= problem.upper[index])).all())
        return problem(x, index)

    far = 50 * problem.start
    result = minimise(watched, far, problem.lower, problem.upper)
    assert all(seen)
    assert len(seen) == result.passes
    inside = minimise(problem, far.clamp(problem.lower, problem.upper), problem.lower, problem.upper)
    assert torch.equal(result.x, inside.x)


def barrier(x, index):
    """a x - log x, not a number for x < 0, infinite at 0; lowest at 1 / a."""
    a = torch.tensor([0.8, 2.5, 7.0, 0.2], dtype=torch.float64)[index, None]
    return (a * x - x.log()).sum(-1)


def test_regions_without_a_finite_value_are_avoided():
    start = torch.tensor([[4.0, 0.1], [4.5, 3.0], [0.9, 4.9], [0.3, 0.3]], dtype=torch.float64)
    result = minimise(differentiated(barrier), start, -30.0, 6.0, first_step=20.0)
    assert result.converged.all()
    np.testing.assert_allclose(result.x, [[1.25] * 2, [0.4] * 2, [1 / 7] * 2, [5.0] * 2], rtol=0, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("slope", [0.0, 0.7, float("nan")])
def test_a_start_without_a_finite_value_stays_put_unconverged_and_harms_no_other(bad, slope):
    def objective(x, index):
        is_bad = x[:, 0] < 0
        f = torch.where(is_bad, bad, ((x - 0.6) ** 2).sum(-1))
        g = torch.where(is_bad[:, None], slope, 2 * (x - 0.6))
        return f, g

    start = torch.tensor([[-0.5, 0.2], [0.9, 0.1]], dtype=torch.float64)
    result = minimise(objective, start, -1.0, 1.0)
    assert result.converged.tolist() == [False, True]
    assert torch.equal(result.x[0], start[0])
    np.testing.assert_allclose(result.x[1], [0.6, 0.6], rtol=0, atol=1e-8)


def test_a_step_to_a_point_without_a_finite_gradient_is_refused():
    def objective(x, index):
        g = 2 * (x - 0.2)
        return ((x - 0.2) ** 2).sum(-1), torch.where(x < 0.1, float("nan"), g)

    result = minimise(objective, torch.tensor([[0.9]], dtype=torch.float64), 0.0, 1.0, first_step=0.85)
    assert result.converged.all()
    np.testing.assert_allclose(result.x, [[0.2]], rtol=0, atol=1e-8)


def test_a_batch_ends_where_its_members_end_alone():
    problem = Quadratics(7, 4, seed=6, condition=300.0)
    together = minimise(problem, problem.start, problem.lower, problem.upper)
    for i in range(7):
        one = torch.tensor([i])
        alone = minimise(
            lambda x, index, one=one: problem(x, one.expand_as(index)),
            problem.start[one],
            problem.lower[one],
            problem.upper[one],
        )
        assert alone.passes <= together.passes
        torch.testing.assert_close(together.x[one], alone.x, rtol=0, atol=1e-9)
        torch.testing.assert_close(together.value[one], alone.value, rtol=1e-13, atol=1e-13)


def test_the_index_tells_the_problems_of_a_batch_apart_and_finished_ones_are_left_alone():
    targets = torch.tensor([[0.3, 0.1], [0.8, 0.6], [0.5, 0.9]], dtype=torch.float64)
    asked = []

    def objective(x, index):
        asked.append(index.tolist())
        f = ((x - targets[index]) ** 2).sum(-1) + (index == 1) * rosenbrock(3 * x, index)
        g = 2 * (x - targets[index])
        xx = (3 * x).detach().requires_grad_()
        (r,) = torch.autograd.grad(rosenbrock(xx, index).sum(), xx)
        return f, g + 3 * r * (index == 1)[:, None]

    start = targets.clone()
    start[1:] = 0.45
    result = minimise(objective, start, 0.0, 1.0)
    assert result.converged.all()
    np.testing.assert_allclose(result.x[[0, 2]], targets[[0, 2]], rtol=0, atol=1e-8)
    assert asked[0] == [0, 1, 2]
    assert all(0 not in pass_ for pass_ in asked[1:])  # already at its optimum
    assert asked[-1] == [1]  # the hard one keeps nobody waiting
    assert len(asked) == result.passes


@pytest.mark.parametrize("max_passes", [1, 2, 7])
def test_running_out_of_passes_is_reported(max_passes):
    start = torch.tensor([[-1.2, 1.0], [1.0, 1.0]], dtype=torch.float64)
    objective = differentiated(rosenbrock)
    result = minimise(objective, start, -2.0, 2.0, max_passes=max_passes)
    assert result.passes == max_passes
    assert result.converged.tolist() == [False, True]
    assert result.gradient_norm[0] > 1e-8
    assert result.value[0] <= objective(start, None)[0][0]


def test_a_start_with_a_zero_gradient_is_left_where_it_is():
    def saddle(x, index):
        return x[:, 0] ** 2 - x[:, 1] ** 2, torch.stack([2 * x[:, 0], -2 * x[:, 1]], -1)

    result = minimise(saddle, torch.zeros(1, 2, dtype=torch.float64), -1.3, 0.7)
    assert result.passes == 1
    assert result.converged.all()
    assert torch.equal(result.x, torch.zeros(1, 2, dtype=torch.float64))


def test_a_start_that_is_the_optimum_costs_one_pass():
    problem = Quadratics(5, 3, seed=13)
    exact = torch.tensor(np.stack([problem.exact(i)[0] for i in range(5)]))
    result = minimise(problem, exact, problem.lower, problem.upper)
    assert result.passes == 1
    assert result.converged.all()
    assert torch.equal(result.x, exact)
    _, g = problem(exact, torch.arange(5))
    assert g.abs().max() > 0.1  # on a face the gradient itself is not zero


def test_a_box_of_one_point_is_a_solved_problem():
    point = torch.tensor([[0.3, 0.9]], dtype=torch.float64)
    result = minimise(differentiated(rosenbrock), torch.zeros_like(point), point, point)
    assert result.passes == 1
    assert result.converged.all()
    assert torch.equal(result.x, point)


def test_neither_the_start_nor_the_bounds_are_changed():
    problem = Quadratics(3, 2, seed=19)
    before = [tensor.clone() for tensor in (problem.start, problem.lower, problem.upper)]
    minimise(problem, problem.start, problem.lower, problem.upper)
    assert all(map(torch.equal, before, (problem.start, problem.lower, problem.upper)))


@laws
@given(seed=st.integers(0, 2**20), p=st.integers(1, 6), B=st.integers(1, 5), width=st.floats(0.05, 4.0))
def test_a_wavy_function_is_never_left_higher_and_the_report_is_true(seed, p, B, width):
    gen = torch.Generator().manual_seed(seed)
    waves = 5 * torch.randn(B, 4, p, generator=gen, dtype=torch.float64)
    phase = 6 * torch.rand(B, 4, generator=gen, dtype=torch.float64)
    start = width * (2 * torch.rand(B, p, generator=gen, dtype=torch.float64) - 1)

    def wavy(x, index):
        return ((waves[index] @ x[..., None])[..., 0] + phase[index]).sin().sum(-1) + 0.1 * (x**2).sum(-1)

    objective = differentiated(wavy)
    result = minimise(objective, start, -width, width)
    everyone = torch.arange(B)
    f, g = objective(result.x, everyone)
    assert (result.x.abs() <= width).all()
    assert (result.value <= objective(start, everyone)[0] + 1e-12).all()
    torch.testing.assert_close(result.value, f.detach(), rtol=1e-12, atol=1e-12)
    projected = np.clip(result.x.numpy() - g.numpy(), -width, width) - result.x.numpy()
    np.testing.assert_allclose(result.gradient_norm, np.abs(projected).max(-1), rtol=1e-6, atol=1e-12)
    assert torch.equal(result.converged, result.gradient_norm <= 1e-8)
    # Values of size 4 hide what a gradient of (2 * curvature * 4 eps)^0.5 can still gain.
    assert (result.gradient_norm < 1e-6).all()


@pytest.mark.parametrize("shrunk", [0.0, 1e-310, -1e-12])
def test_curvature_that_was_lost_to_rounding_is_built_anew(shrunk):
    """H without any extent along the change, or with a negative one, once grew without limit and became NaN."""
    H = torch.tensor([[[shrunk, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    moved = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    change = torch.tensor([[6.0, 0.0]], dtype=torch.float64)
    updated = _bfgs_update(H, moved, change, torch.tensor([False]))[0]
    assert updated.isfinite().all()
    assert (torch.linalg.eigvalsh(updated) > 0).all()
    torch.testing.assert_close(updated @ change[0], moved[0])  # the secant equation
