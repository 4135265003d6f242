"""The variables of the maximiser: what a point of the cube stands for, checked in plain NumPy."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from takg.errors import InputError
from takg.optim import Choice, Region, Runs

laws = settings(deadline=None, derandomize=True, max_examples=200)
ROUNDING = 1e-12


@st.composite
def regions(draw, max_m=3):
    m = draw(st.integers(0, max_m))
    trace_dims = tuple(j for j in range(m) if draw(st.booleans()))
    s_min = tuple(draw(st.floats(0, 0.9)) for _ in range(m)) if draw(st.booleans()) else None
    return Region(d=draw(st.integers(1, 3)), m=m, trace_dims=trace_dims, retained=draw(st.integers(1, 3)), s_min=s_min)


@st.composite
def problems(draw):
    """A region, B candidates of q evaluations each, some new and some continued, and a point of the cube for each."""
    region = draw(regions())
    B, q = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    is_old = rng.random((B, q, 1)) < 0.5
    x = np.where(is_old, rng.random((B, q, region.d)), np.nan)
    s = np.where(is_old, rng.random((B, q, region.m)), np.nan)
    z = rng.random((B, q * region.p))
    z[rng.random(z.shape) < 0.15] = 0.0
    z[rng.random(z.shape) < 0.15] = 1.0
    runs = Runs(torch.from_numpy(x), torch.from_numpy(s))
    return region, runs, torch.from_numpy(z).clamp(*region.bounds(runs))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def two_runs(d=2, m=3):
    """A new run and one to be continued, as one candidate of two evaluations."""
    x, s = torch.full((1, 2, d), torch.nan, dtype=torch.float64), torch.full((1, 2, m), torch.nan, dtype=torch.float64)
    x[0, 1], s[0, 1] = tensor([0.31, 0.77][:d]), tensor([0.23, 0.41, 0.17][:m])
    return Runs(x, s)


def members(region, runs, choice):
    """(x, S, where it starts from or None) of every evaluation, as arrays."""
    for b, i in itertools.product(*map(range, choice.x.shape[:2])):
        is_old = not bool(runs.x[b, i].isnan().any())
        start = (runs.x[b, i].numpy(), runs.s[b, i].numpy()) if is_old else None
        yield choice.x[b, i].numpy(), choice.S[b, i].numpy(), start


# What every point of the cube stands for


@laws
@given(problem=problems())
def test_every_point_of_the_cube_is_an_evaluation_whose_kept_fidelities_lie_on_its_trace(problem):
    region, runs, z = problem
    l = region.retained if region.trace_dims else 1
    for x, S, _ in members(region, runs, region.decode(z, runs)):
        assert x.shape == (region.d,)
        assert S.shape == (l, region.m)
        assert ((x >= 0) & (x <= 1)).all()
        top = S[-1]
        assert ((top >= 0) & (top <= 1)).all()
        for j in range(region.m):
            if j in region.trace_dims:
                assert (S[:, j] >= 0).all()
                assert (S[:, j] <= top[j]).all()
            else:
                assert (S[:, j] == top[j]).all()


@laws
@given(problem=problems())
def test_a_continued_run_keeps_its_x_and_its_non_trace_fidelities_and_only_grows(problem):
    region, runs, z = problem
    for x, S, start in members(region, runs, region.decode(z, runs)):
        if start is None:
            continue
        x_j, s_j = start
        assert (x == x_j).all()
        assert (s_j <= S).all()
        others = [j for j in range(region.m) if j not in region.trace_dims]
        assert (S[:, others] == s_j[others]).all()


@laws
@given(problem=problems())
def test_a_new_run_never_asks_for_less_than_the_least_fidelity(problem):
    region, runs, z = problem
    least = np.array(region.s_min or [0.0] * region.m)
    for _, S, start in members(region, runs, region.decode(z, runs)):
        if start is None:
            assert (S[-1] >= least - ROUNDING).all()


@laws
@given(region=regions(), q=st.integers(1, 2))
def test_the_corners_of_the_cube_reach_the_least_fidelity_and_the_target_exactly(region, q):
    runs = region.new_runs(1, q)
    ends = [region.decode(torch.full((1, q * region.p), corner, dtype=torch.float64), runs) for corner in (0.0, 1.0)]
    least = tensor(region.s_min or [0.0] * region.m)
    for choice, x, s in zip(ends, (0.0, 1.0), (least, torch.ones(region.m, dtype=torch.float64)), strict=True):
        assert (choice.x == x).all()
        torch.testing.assert_close(choice.S[:, :, -1], s.expand(1, q, -1), rtol=0, atol=ROUNDING)


def test_a_continued_run_can_stay_where_it_is_or_go_on_to_the_target():
    region = Region(d=2, m=3, trace_dims=(0, 2))
    runs = two_runs()
    lowest, highest = (region.decode(bound, runs).S[0, 1, -1] for bound in region.bounds(runs))
    assert lowest.tolist() == runs.s[0, 1].tolist()
    assert highest.tolist() == [1.0, 0.41, 1.0]


@laws
@given(region=regions())
def test_there_are_as_many_variables_as_in_the_paper(region):
    traces = len(region.trace_dims)
    l = region.retained if traces else 1
    assert region.p == region.d + l * traces + (region.m - traces)
    lower, upper = region.bounds(region.new_runs(4, 2))
    assert lower.shape == upper.shape == (4, 2 * region.p)
    assert (lower == 0).all()
    assert (upper == 1).all()


def test_every_variable_counts():
    region = Region(d=2, m=3, trace_dims=(0, 2), retained=3)
    runs = region.new_runs(1, 2)
    z = tensor([[0.31 + 0.03 * k for k in range(2 * region.p)]])

    def flat(z):
        choice = region.decode(z, runs)
        return torch.cat([choice.x.flatten(), choice.S.flatten()])

    slopes = torch.autograd.functional.jacobian(flat, z)[:, 0]
    assert torch.linalg.matrix_rank(slopes) == 2 * region.p


def test_without_a_trace_a_single_fidelity_is_kept_whatever_was_asked_for():
    region = Region(d=1, m=2, retained=3)
    assert region.kept == 1
    assert region.p == 3
    S = region.decode(tensor([[0.3, 0.4, 0.6]]), region.new_runs(1, 1)).S
    assert S.shape == (1, 1, 1, 2)


def test_without_fidelities_only_x_is_chosen():
    region = Region(d=2, m=0)
    choice = region.decode(tensor([[0.3, 0.4]]), region.new_runs(1, 1))
    assert region.p == 2
    assert choice.x.tolist() == [[[0.3, 0.4]]]
    assert choice.S.shape == (1, 1, 1, 0)


@laws
@given(problem=problems())
def test_kept_fidelities_of_a_trace_are_distinct_from_the_one_run_to(problem):
    region, runs, z = problem
    for _, S, start in members(region, runs, region.decode(z, runs)):
        low = np.zeros(region.m) if start is None else start[1]
        for j in region.trace_dims:
            if S[-1, j] - low[j] > 1e-6:
                assert (S[:-1, j] < S[-1, j]).all()


@laws
@given(problem=problems())
def test_evaluations_of_a_batch_do_not_depend_on_each_other(problem):
    region, runs, z = problem
    B, q, _ = runs.x.shape
    whole = region.decode(z, runs)
    for i in range(q):
        part = Runs(runs.x[:, i : i + 1], runs.s[:, i : i + 1])
        alone = region.decode(z.reshape(B, q, -1)[:, i], part)
        assert torch.equal(whole.x[:, i], alone.x[:, 0])
        assert torch.equal(whole.S[:, i], alone.S[:, 0])


# There and back


@laws
@given(problem=problems())
def test_decoding_what_was_encoded_gives_the_same_evaluation(problem):
    region, runs, z = problem
    choice = region.decode(z, runs)
    back = region.decode(region.encode(choice, runs), runs)
    assert torch.equal(back.x, choice.x)
    torch.testing.assert_close(back.S, choice.S, rtol=0, atol=1e-9)


@pytest.mark.parametrize("l", [1, 2, 3])
@pytest.mark.parametrize("trace_dims", [(), (1,), (2, 0), (0, 1, 2)])
def test_encoding_what_was_decoded_gives_the_same_point(trace_dims, l):
    region = Region(d=2, m=3, trace_dims=trace_dims, retained=l, s_min=(0.05, 0.0, 0.11))
    gen = torch.Generator().manual_seed(7)
    z = 0.1 + 0.8 * torch.rand(5, 2 * region.p, generator=gen, dtype=torch.float64)
    runs = region.new_runs(5, 2)
    torch.testing.assert_close(region.encode(region.decode(z, runs), runs), z, rtol=0, atol=1e-9)


def test_an_evaluation_in_natural_terms_is_found_again():
    region = Region(d=2, m=3, trace_dims=(0, 2), retained=3)
    runs = two_runs()
    x = tensor([[[0.13, 0.92], [0.31, 0.77]]])
    S = tensor(
        [[[[0.2, 0.6, 0.1], [0.5, 0.6, 0.7], [0.8, 0.6, 0.9]], [[0.3, 0.41, 0.2], [0.25, 0.41, 0.6], [0.9, 0.41, 0.7]]]]
    )
    back = region.decode(region.encode(Choice(x, S), runs), runs)
    torch.testing.assert_close(back.x, x)
    torch.testing.assert_close(back.S, S)


def test_an_evaluation_outside_the_region_is_encoded_as_the_nearest_inside():
    region = Region(d=1, m=2, trace_dims=(0,), retained=2, s_min=(0.2, 0.3))
    runs = region.new_runs(1, 1)
    outside = Choice(tensor([[[0.5]]]), tensor([[[[0.15, 0.1], [0.15, 0.1]]]]))
    z = region.encode(outside, runs)
    assert ((z >= 0) & (z <= 1)).all()
    inside = region.decode(z, runs).S[0, 0]
    torch.testing.assert_close(inside[-1], tensor([0.2, 0.3]))
    assert 0.15 <= float(inside[0, 0]) <= 0.2


# Derivatives


@pytest.mark.parametrize("edge", [None, 0.0, 1.0])
@pytest.mark.parametrize("l", [1, 3])
def test_an_evaluation_is_differentiable_in_the_variables(l, edge):
    region = Region(d=2, m=3, trace_dims=(0, 2), retained=l, s_min=(0.05, 0.0, 0.11))
    runs = two_runs()
    gen = torch.Generator().manual_seed(3)
    z = torch.rand(1, 2 * region.p, generator=gen, dtype=torch.float64)
    if edge is not None:
        z[:, ::2] = edge
    z = z.clamp(*region.bounds(runs)).requires_grad_()
    assert gradcheck(lambda z: tuple(region.decode(z, runs)), (z,))


# Bad input


def test_nothing_kept_is_an_error():
    with pytest.raises(InputError, match="retained=0"):
        Region(d=1, m=1, trace_dims=(0,), retained=0)


@pytest.mark.parametrize("trace_dims", [(2,), (-1,), (0, 5)])
def test_trace_dims_outside_the_fidelities_are_an_error(trace_dims):
    with pytest.raises(InputError, match="trace_dims="):
        Region(d=1, m=2, trace_dims=trace_dims)


def test_a_trace_fidelity_given_twice_is_an_error():
    with pytest.raises(InputError, match="trace_dims="):
        Region(d=1, m=2, trace_dims=(1, 1))


@pytest.mark.parametrize("s_min", [(0.1,), (0.1, 0.2, 0.3), (-0.1, 0.2), (0.1, 1.2), (float("nan"), 0.2)])
def test_a_least_fidelity_of_wrong_length_or_beyond_the_target_is_an_error(s_min):
    with pytest.raises(InputError, match="s_min="):
        Region(d=1, m=2, s_min=s_min)


@pytest.mark.parametrize(("d", "m", "name"), [(0, 1, "d=0"), (1, -1, "m=-1")])
def test_a_region_without_design_variables_or_with_fewer_than_no_fidelities_is_an_error(d, m, name):
    with pytest.raises(InputError, match=name):
        Region(d=d, m=m)


def test_a_run_is_continued_by_a_share_of_what_it_has_or_to_the_end():
    region = Region(d=1, m=2, trace_dims=(1,), growth=0.25)
    runs = Runs(tensor([[[0.3]], [[0.7]]]), tensor([[[0.6, 0.4]], [[0.2, 0.9]]]))
    lowest = region.decode(torch.zeros(2, region.p, dtype=torch.float64), runs).S[:, 0, -1]
    torch.testing.assert_close(lowest, tensor([[0.6, 0.5], [0.2, 1.0]]))
    new = region.decode(torch.zeros(1, region.p, dtype=torch.float64), region.new_runs(1, 1)).S[0, 0, -1]
    assert torch.equal(new, tensor([0.0, 0.0]))


@pytest.mark.parametrize("growth", [-0.1, float("nan"), float("inf")])
def test_a_growth_that_is_no_share_is_an_error(growth):
    with pytest.raises(InputError, match=r"growth=.*: expected a share >= 0"):
        Region(d=1, m=1, trace_dims=(0,), growth=growth)
