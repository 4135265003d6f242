"""Newton steps in boxes against closed forms, SciPy's bounded minima, and the meaning of descent."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from takg.numerics import newton_step

laws = settings(deadline=None, derandomize=True, max_examples=100)
FAR = 1e3


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quadratics(seed, *batch, d):
    """A and b of f(x) = x'Ax/2 - b'x, positive definite with condition numbers up to about 1e3."""
    M = normal(seed, *batch, d, d + 1)
    return M @ M.mT + 0.05 * torch.eye(d, dtype=torch.float64), normal(seed + 1, *batch, d)


def box(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


@pytest.mark.parametrize("batch", [(), (3,), (2, 4)])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_one_step_ends_at_the_minimum_of_a_quadratic_inside_the_box(batch, d):
    A, b = quadratics(3, *batch, d=d)
    x = normal(9, *batch, d)
    gradient = (A @ x[..., None])[..., 0] - b
    step = newton_step(x, gradient, A, *box(-FAR, FAR), radius=FAR)
    minimum = np.linalg.solve(A.numpy(), b.numpy()[..., None])[..., 0]
    np.testing.assert_allclose(x + step.move, minimum, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(step.gain, -(gradient * step.move).sum(-1))


@pytest.mark.parametrize("d", [1, 3])
def test_one_step_is_exact_in_a_box_if_the_components_are_separate(d):
    curvature, b = normal(1, 20, d).abs() + 0.1, normal(2, 20, d)
    x = torch.rand(20, d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    lower, upper = box(0.0, 1.0)
    step = newton_step(x, curvature * x - b, curvature.diag_embed(), lower, upper, radius=FAR)
    torch.testing.assert_close(x + step.move, (b / curvature).clamp(0, 1))


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_repeated_steps_end_at_the_minimum_of_a_quadratic_in_a_box(d):
    """With a step halved where it does not lower f, as the inner problem does it."""
    A, b = quadratics(5, 40, d=d)
    lower, upper = box(0.0, 1.0)
    x = torch.rand(40, d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)

    def value(x):
        return 0.5 * (x * (A @ x[..., None])[..., 0]).sum(-1) - (b * x).sum(-1)

    length = torch.ones(40, dtype=torch.float64)
    for _ in range(200):
        step = newton_step(x, (A @ x[..., None])[..., 0] - b, A, lower, upper, radius=0.5)
        trial = x + length[:, None] * step.move
        is_better = value(trial) < value(x)
        x = torch.where(is_better[:, None], trial, x)
        length = torch.where(is_better, 1.0, 0.5 * length)
    for i in range(40):
        root = np.linalg.cholesky(A[i].numpy()).T  # |root x - root^-T b|^2 / 2 = f + constant
        exact = lsq_linear(root, np.linalg.solve(root.T, b[i].numpy()), bounds=(0, 1), method="bvls", tol=1e-14).x
        assert value(x)[i] <= float(0.5 * exact @ A[i].numpy() @ exact - b[i].numpy() @ exact) + 1e-8
    assert (newton_step(x, (A @ x[..., None])[..., 0] - b, A, lower, upper, radius=0.5).gain < 1e-6).all()


@laws
@given(
    seed=st.integers(0, 2**20),
    d=st.integers(1, 5),
    shift=st.floats(-5, 5),
    exponent=st.integers(-6, 3),
    edges=st.lists(st.sampled_from([None, 0.0, 1e-9, 1e-3, 1.0]), min_size=5, max_size=5),
)
def test_every_step_stays_in_the_box_and_the_radius_and_leads_down(seed, d, shift, exponent, edges):
    """Whatever the Hessian: indefinite, singular, tiny; also next to the edges of the box."""
    M = normal(seed, 8, d, d)
    hessian = 10.0**exponent * (M + M.mT + shift * torch.eye(d, dtype=torch.float64))
    gradient = normal(seed + 1, 8, d)
    x = torch.rand(8, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for k, edge in enumerate(edges[:d]):
        if edge is not None:
            x[:, k] = edge
    step = newton_step(x, gradient, hessian, *box(0.0, 1.0), radius=0.5)
    assert step.move.isfinite().all()
    assert ((x + step.move >= -1e-15) & (x + step.move <= 1 + 1e-15)).all()
    assert (step.move.abs() <= 0.5 + 1e-12).all()
    torch.testing.assert_close(step.gain, -(gradient * step.move).sum(-1), rtol=1e-9, atol=1e-12)
    is_held = ((x <= 0) & (gradient > 0)) | ((x >= 1) & (gradient < 0))
    is_stationary = is_held.all(-1)
    assert (step.gain[~is_stationary] > 0).all()
    assert (step.gain[is_stationary].abs() <= 1e-15).all()


def test_a_step_that_the_box_would_turn_uphill_still_leads_down():
    hessian = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    x, gradient = torch.tensor([[0.001, 0.5], [1.0, 0.5]]).double()
    step = newton_step(x, gradient, hessian, *box(0.0, 1.0), radius=0.5)
    assert step.gain > 0.05
    assert gradient @ step.move == pytest.approx(-float(step.gain))


def test_components_at_the_edge_are_held_only_if_they_would_leave():
    x = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.4], dtype=torch.float64)
    gradient = torch.tensor([2.0, -2.0, 2.0, -2.0, 0.6], dtype=torch.float64)
    step = newton_step(x, gradient, 4.0 * torch.eye(5, dtype=torch.float64), *box(0.0, 1.0), radius=FAR)
    torch.testing.assert_close(step.move, torch.tensor([0.0, 0.5, -0.5, 0.0, -0.15], dtype=torch.float64))


def test_a_stationary_point_has_nothing_to_gain():
    A, _ = quadratics(7, 4, d=3)
    x = torch.full((4, 3), 0.3, dtype=torch.float64)
    for hessian in (A, -A, torch.zeros_like(A)):
        step = newton_step(x, torch.zeros(4, 3, dtype=torch.float64), hessian, *box(0.0, 1.0), radius=0.5)
        assert (step.gain == 0).all()
        assert (step.move == 0).all()


def test_problems_of_a_batch_do_not_disturb_each_other():
    """Also where only some of them are indefinite."""
    M = normal(11, 12, 3, 3)
    hessian, gradient = M + M.mT, normal(12, 12, 3)
    x = torch.rand(12, 3, generator=torch.Generator().manual_seed(13), dtype=torch.float64)
    lowest = np.linalg.eigvalsh(hessian.numpy()).min(-1)
    hessian[0] += (1 - lowest.min()) * torch.eye(3, dtype=torch.float64)
    assert (lowest < 0).any()
    together = newton_step(x, gradient, hessian, *box(0.0, 1.0), radius=0.5)
    for i in range(12):
        alone = newton_step(x[i], gradient[i], hessian[i], *box(0.0, 1.0), radius=0.5)
        torch.testing.assert_close(alone.move, together.move[i])
        torch.testing.assert_close(alone.gain, together.gain[i])


def test_a_step_along_negative_curvature_is_as_long_as_the_radius_allows_or_the_gradient_asks():
    hessian = torch.tensor([[-1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    gradient = torch.tensor([0.5, 0.1], dtype=torch.float64)
    step = newton_step(torch.zeros(2, dtype=torch.float64), gradient, hessian, *box(-FAR, FAR), radius=0.25)
    assert step.move[0] == pytest.approx(-0.25)  # off the saddle, at full length
    assert step.gain > 0
