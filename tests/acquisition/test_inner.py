"""Sums of kernels against their plain formulas, and their minima against dense grids."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_loss import DESIGNS, generator, tensor, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.acquisition._inner import KernelSums

each_design = pytest.mark.parametrize("design", DESIGNS)
with_or_without_gradients = pytest.mark.parametrize("gradients", [False, True])
laws = settings(deadline=None, derandomize=True, max_examples=40)
H, P = 2, 3


def normal(gen, *shape):
    return torch.randn(*shape, generator=gen, dtype=torch.float64)


def some_sums(design, *, d=2, u=5, q=2, P=P, gradients=False, own_gradients=None, seed=0):
    """Centres in general position; several minima in the cube and at its edge."""
    gen = generator(seed)
    own_gradients = gradients if own_gradients is None else own_gradients
    return KernelSums(
        kernel=design,
        lengthscale=uniform(gen, H, d, low=0.15, high=0.5),
        shared=uniform(gen, u, d),
        shared_weights=normal(gen, H, P, u),
        shared_gradients=0.1 * normal(gen, H, P, u, d) if gradients else None,
        own=uniform(gen, P, q, d),
        own_weights=normal(gen, H, P, q),
        own_gradients=0.1 * normal(gen, H, P, q, d) if own_gradients else None,
        offset=normal(gen, H, P),
    )


def kernel(design, lengthscale, x, c):
    scaled = (x - c) / lengthscale
    square = (scaled * scaled).sum(-1)
    if design == "squared_exponential":
        return (-square / 2).exp()
    r = (5 * square).sqrt()
    return (1 + r + r * r / 3) * (-r).exp()


def plain(sums, h, p):
    """f as its docstring has it, one problem at a time; derivatives by c are autograd's."""
    centres = torch.cat([sums.shared, sums.own[p]])
    weights = torch.cat([sums.shared_weights[h, p], sums.own_weights[h, p]])
    none = torch.zeros_like(centres)
    parts = (
        (sums.shared_gradients, none[: len(sums.shared)]),
        (sums.own_gradients, none[len(sums.shared) :]),
    )
    gradient_weights = torch.cat([empty if part is None else part[h, p] for part, empty in parts])

    def f(x):
        # weights k + gradient_weights . dk/dc is the directional derivative of the sum along the gradient weights.
        at = lambda c: kernel(sums.kernel, sums.lengthscale[h], x, c)  # noqa: E731
        k, along = torch.func.jvp(at, (centres,), (gradient_weights,))
        return (weights * k + along).sum() + sums.offset[h, p]

    return f


CASES = pytest.mark.parametrize(
    ("gradients", "own_gradients"), [(False, False), (True, True), (False, True), (True, False)]
)


@each_design
@CASES
@pytest.mark.parametrize(("d", "q"), [(1, 0), (3, 2)])
def test_values_gradients_and_hessians_are_those_of_the_formula(design, gradients, own_gradients, d, q):
    sums = some_sums(design, d=d, q=q, gradients=gradients, own_gradients=own_gradients)
    scale = sums.lengthscale[:, None, :]
    x = uniform(generator(1), H, P, d)
    value, gradient, hessian, features = sums.second_order(x / scale)
    unmoved = sums.minimise(x, passes=0)
    torch.testing.assert_close(unmoved.value, value)
    torch.testing.assert_close(unmoved.features, features)
    torch.testing.assert_close(unmoved.x, x)
    for h in range(H):
        ell = sums.lengthscale[h]
        for p in range(P):
            f, at = plain(sums, h, p), x[h, p]
            torch.testing.assert_close(value[h, p], f(at), rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(gradient[h, p], torch.func.grad(f)(at) * ell, rtol=1e-8, atol=1e-9)
            curvature = torch.func.hessian(f)(at) * ell[:, None] * ell
            torch.testing.assert_close(hessian[h, p], curvature, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(features[h, p], kernel(design, ell, at, sums.shared), rtol=1e-9, atol=1e-10)


@each_design
@with_or_without_gradients
@pytest.mark.parametrize("which", ["shared", "own"])
def test_derivatives_at_a_centre_are_the_limits_of_those_around_it(design, gradients, which):
    """Where the distance is 0 and its root has no derivative."""
    sums = some_sums(design, gradients=gradients, q=1)
    scale = sums.lengthscale[:, None, :]
    x = sums.shared[2].expand(H, P, 2) if which == "shared" else sums.own[:, 0].expand(H, P, 2)
    at = sums.second_order(x / scale)
    assert all(part.isfinite().all() for part in at)
    step = 1e-5
    for k in range(2):
        move = step * torch.eye(2, dtype=torch.float64)[k]
        up, down = sums.second_order(x / scale + move), sums.second_order(x / scale - move)
        torch.testing.assert_close(at[1][..., k], (up[0] - down[0]) / (2 * step), rtol=1e-5, atol=1e-5)
        # Matern's third derivatives have a kink here: Hessians around it agree to first order only.
        torch.testing.assert_close(at[2][..., k], (up[1] - down[1]) / (2 * step), rtol=1e-3, atol=1e-3)


@each_design
def test_all_problems_are_independent_of_each_other(design):
    sums = some_sums(design, gradients=True)
    y = uniform(generator(2), H, P, 2) / sums.lengthscale[:, None, :]
    together = sums.second_order(y)
    for p in range(P):
        one = replace(
            sums,
            shared_weights=sums.shared_weights[:, p : p + 1],
            shared_gradients=sums.shared_gradients[:, p : p + 1],
            own=sums.own[p : p + 1],
            own_weights=sums.own_weights[:, p : p + 1],
            own_gradients=sums.own_gradients[:, p : p + 1],
            offset=sums.offset[:, p : p + 1],
        ).second_order(y[:, p : p + 1])
        for alone, part in zip(one, together, strict=True):
            torch.testing.assert_close(alone, part[:, p : p + 1])


# Minima


def values_on(sums, points):
    """f of every problem at points (c, d), through `second_order`, which is tested above: (H, P, c)."""
    c, P = len(points), len(sums.own)
    spread = replace(
        sums,
        **{
            name: None if getattr(sums, name) is None else getattr(sums, name).repeat_interleave(c, dim=1)
            for name in ("shared_weights", "shared_gradients", "own_weights", "own_gradients", "offset")
        },
        own=sums.own.repeat_interleave(c, dim=0),
    )
    y = points.repeat(P, 1) / sums.lengthscale[:, None, :]
    return spread.second_order(y)[0].reshape(H, P, c)


@each_design
@with_or_without_gradients
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("d", "coarse", "fine"), [(1, 33, 2001), (2, 17, 101)])
def test_from_the_best_of_a_coarse_grid_the_minimum_of_a_fine_one_is_found(design, gradients, seed, d, coarse, fine):
    sums = some_sums(design, d=d, gradients=gradients, seed=seed, P=6)
    ticks = [torch.linspace(0, 1, k, dtype=torch.float64) for k in (coarse, fine)]
    few, many = (torch.cartesian_prod(*[t] * d).reshape(-1, d) for t in ticks)
    start = few[values_on(sums, few).argmin(-1)]  # (H, P, d)
    found = sums.minimise(start, passes=40)
    on_grid = values_on(sums, many)
    assert found.converged.all()
    assert ((found.x >= 0) & (found.x <= 1)).all()
    assert (found.value <= on_grid.amin(-1) + 1e-9).all()
    scaled = found.x / sums.lengthscale[:, None, :]
    torch.testing.assert_close(found.value, sums.second_order(scaled)[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.features, sums.second_order(scaled)[3], rtol=1e-10, atol=1e-12)


def test_some_of_these_minima_lie_inside_and_some_on_the_boundary():
    ticks = torch.linspace(0, 1, 17, dtype=torch.float64)
    few = torch.cartesian_prod(ticks, ticks)
    is_edge = []
    for seed in range(3):
        sums = some_sums("squared_exponential", seed=seed, P=6)
        found = sums.minimise(few[values_on(sums, few).argmin(-1)], passes=40)
        is_edge.append(((found.x < 1e-12) | (found.x > 1 - 1e-12)).any(-1))
    is_edge = torch.stack(is_edge)
    assert is_edge.any()
    assert not is_edge.all()


@each_design
@pytest.mark.parametrize(("d", "q"), [(1, 1), (2, 0), (6, 2)])
@pytest.mark.parametrize("passes", [1, 4])
def test_compiled_loops_and_tensor_operations_take_the_same_steps(design, d, q, passes):
    """Also where the Hessian is indefinite, at faces of the cube, and where a step is too long."""
    sums = some_sums(design, d=d, q=q, P=40)
    start = uniform(generator(3), H, 40, d, low=-0.3, high=1.3).clamp(0, 1)
    with_tensors = sums._minimise_with_gradients(start, passes)
    compiled = sums.minimise(start, passes=passes)
    # A problem whose next step would gain less than 1e-9 is left alone, but not among tensors.
    torch.testing.assert_close(compiled.x, with_tensors.x, rtol=0, atol=1e-8 if passes == 1 else 1e-4)
    torch.testing.assert_close(compiled.value, with_tensors.value, rtol=0, atol=2e-9)
    torch.testing.assert_close(compiled.features, with_tensors.features, rtol=0, atol=1e-8 if passes == 1 else 1e-3)
    assert not torch.equal(compiled.x, start)


@laws
@given(seed=st.integers(0, 2**20), design=st.sampled_from(DESIGNS), d=st.integers(1, 4), passes=st.integers(0, 8))
def test_a_pass_never_makes_it_worse_nor_leaves_the_cube(seed, design, d, passes):
    sums = some_sums(design, d=d, seed=seed, gradients=bool(seed % 2))
    start = uniform(generator(seed + 1), H, P, d, low=-0.2, high=1.2).clamp(0, 1)
    before = sums.second_order(start / sums.lengthscale[:, None, :])[0]
    found = sums.minimise(start, passes=passes)
    assert (found.value <= before + 1e-12).all()
    assert ((found.x >= 0) & (found.x <= 1)).all()
    more = sums.minimise(start, passes=passes + 5)
    assert (more.value <= found.value + 1e-12).all()


@laws
@given(seed=st.integers(0, 2**20), design=st.sampled_from(DESIGNS), d=st.integers(1, 3))
def test_what_is_called_converged_is_a_stationary_point_of_the_box(seed, design, d):
    sums = some_sums(design, d=d, seed=seed)
    found = sums.minimise(uniform(generator(seed + 1), H, P, d), passes=60)
    assert found.converged.all()
    scale = sums.lengthscale[:, None, :]
    _, gradient, _, _ = sums.second_order(found.x / scale)
    is_held = ((found.x < 1e-12) & (gradient > 0)) | ((found.x > 1 - 1e-12) & (gradient < 0))
    # A slope g against a curvature of order 1 leaves g^2 / 2 to gain, of which 1e-6 is allowed.
    assert (gradient.masked_fill(is_held, 0.0).abs() < 1e-2).all()


def test_a_minimum_not_reached_is_said_so():
    sums = some_sums("squared_exponential", P=20)
    start = uniform(generator(3), H, 20, 2)
    assert not sums.minimise(start, passes=1).converged.all()
    assert sums.minimise(start, passes=60).converged.all()


def test_a_valley_that_runs_into_an_edge_at_an_angle_is_followed_to_its_end():
    """There a Newton step, cut at the edge, leads uphill."""
    centre = tensor([[-0.02, 0.25]])
    ridge = torch.stack([tensor([0.9, 0.7]), tensor([0.95, 0.75])])
    sums = KernelSums(
        kernel="squared_exponential",
        lengthscale=tensor([[0.3, 0.3]]),
        shared=torch.cat([centre, centre + 0.08, centre - 0.08, ridge]),
        shared_weights=tensor([[[-1.0, -0.9, -0.8, 0.1, 0.1]]]),
        shared_gradients=None,
        own=torch.empty(1, 0, 2, dtype=torch.float64),
        own_weights=torch.empty(1, 1, 0, dtype=torch.float64),
        own_gradients=None,
        offset=torch.zeros(1, 1, dtype=torch.float64),
    )
    ticks = torch.linspace(0, 1, 201, dtype=torch.float64)
    points = torch.cartesian_prod(ticks, ticks)
    y = points[None] / sums.lengthscale[:, None, :]
    many = replace(
        sums,
        shared_weights=sums.shared_weights.expand(1, len(points), 5),
        own=torch.empty(len(points), 0, 2, dtype=torch.float64),
        own_weights=torch.empty(1, len(points), 0, dtype=torch.float64),
        offset=torch.zeros(1, len(points), dtype=torch.float64),
    )
    lowest = many.second_order(y)[0].min()
    for first in (1e-4, 1e-3, 1e-2, 0.05):
        for second in np.linspace(0.1, 0.6, 11):
            found = sums.minimise(tensor([[[first, second]]]), passes=30)
            assert found.converged.all()
            assert found.value <= lowest + 1e-8


@each_design
def test_a_problem_that_is_not_a_number_is_said_to_be_unsolved_and_leaves_the_others_alone(design):
    sums = some_sums(design, d=2, q=1)
    start = uniform(generator(5), H, P, 2)
    spoilt = replace(sums, own=sums.own.clone())
    spoilt.own[1] = torch.nan
    found, sound = spoilt.minimise(start, passes=4), sums.minimise(start, passes=4)
    assert found.value[:, 1].isnan().all() and not found.converged[:, 1].any()
    others = [p for p in range(P) if p != 1]
    torch.testing.assert_close(found.x[:, others], sound.x[:, others])
