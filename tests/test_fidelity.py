"""Sets of fidelities against brute force on Python sets of tuples."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.autograd.functional import jacobian

from takg.errors import InputError, SpaceError
from takg.fidelity import (
    FidelitySpace,
    check_fidelities,
    first_occurrence,
    in_trace,
    max_fidelity,
    trace,
    zero_avoiding_set,
    zeroed,
)

SPACES = [(m, dims) for m in range(5) for m1 in range(m + 1) for dims in combinations(range(m), m1)]
each_space = pytest.mark.parametrize(("m", "trace_dims"), SPACES)
laws = settings(deadline=None, derandomize=True, max_examples=60)


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def members(points):
    """A (k, m) tensor as a set of tuples."""
    return {tuple(row) for row in points.tolist()}


def brute_force_C(S):
    return {
        tuple(0.0 if i == j else value for i, value in enumerate(member))
        for member in S.tolist()
        for j in range(len(member))
    }


def generic_S(*batch, n_members, m, trace_dims, seed=0):
    """Random members strictly inside the cube that share their non-trace components.  (*batch, l, m)"""
    gen = torch.Generator().manual_seed(seed)
    S = 0.05 + 0.9 * torch.rand(*batch, n_members, m, generator=gen, dtype=torch.float64)
    for j in set(range(m)) - set(trace_dims):
        S[..., j] = S[..., :1, j]
    return S


@st.composite
def evaluations(draw, *, batch=()):
    """(S, trace_dims) with values that often coincide, S of shape (*batch, l, m)."""
    m = draw(st.integers(1, 4))
    trace_dims = tuple(draw(st.permutations(range(m)))[: draw(st.integers(0, m))])
    n_members = draw(st.integers(1, 4))
    value = st.one_of(st.sampled_from([0.0, 0.25, 0.7, 1.0]), st.floats(0, 1))
    n_sets = torch.Size(batch).numel()
    flat = draw(st.lists(value, min_size=n_sets * n_members * m, max_size=n_sets * n_members * m))
    S = tensor(flat).reshape(*batch, n_members, m)
    for j in set(range(m)) - set(trace_dims):
        S[..., j] = S[..., :1, j]
    return S, trace_dims


class TestFidelitySpace:
    def test_it_tells_trace_dims_from_the_others(self):
        space = FidelitySpace(names=("data", "epochs", "width", "folds"), trace_dims=(3, 1))
        assert (space.m, space.trace_dims, space.non_trace_dims) == (4, (3, 1), (0, 2))

    def test_it_may_be_empty(self):
        space = FidelitySpace(names=())
        assert (space.m, space.trace_dims, space.non_trace_dims) == (0, (), ())

    def test_equal_spaces_are_equal_keys(self):
        one, other = (FidelitySpace(names=("a", "b"), trace_dims=(1,)) for _ in range(2))
        assert {one: "found"}[other] == "found"

    def test_a_name_given_twice_is_an_error(self):
        with pytest.raises(SpaceError, match=r"names=\('a', 'b', 'a'\): \['a'\] more than once"):
            FidelitySpace(names=("a", "b", "a"))

    def test_a_single_string_is_not_taken_for_its_letters(self):
        with pytest.raises(SpaceError, match=r"names='epochs' is a str.*\('epochs',\)"):
            FidelitySpace(names="epochs")

    def test_a_list_of_dims_is_an_error(self):
        with pytest.raises(SpaceError, match=r"trace_dims=\[0\] is a list; expected a tuple"):
            FidelitySpace(names=("epochs",), trace_dims=[0])

    @pytest.mark.parametrize("bad", [2, -1])
    def test_a_trace_dim_out_of_range_is_an_error(self, bad):
        with pytest.raises(SpaceError, match=rf"\[{bad}\] outside .*names=\('a', 'b'\); use 0..1"):
            FidelitySpace(names=("a", "b"), trace_dims=(0, bad))

    def test_a_trace_dim_of_an_empty_space_is_an_error(self):
        with pytest.raises(SpaceError, match=r"\[0\] outside .*names=\(\); leave trace_dims empty"):
            FidelitySpace(names=(), trace_dims=(0,))

    def test_a_trace_dim_given_twice_is_an_error(self):
        with pytest.raises(SpaceError, match=r"trace_dims=\(1, 0, 1\): \[1\] more than once"):
            FidelitySpace(names=("a", "b"), trace_dims=(1, 0, 1))


class TestCheckFidelities:
    @pytest.mark.parametrize("shape", [(2,), (5, 2), (3, 5, 2), (0, 2)])
    def test_values_in_the_cube_pass_in_any_batch(self, shape):
        check_fidelities("s", torch.linspace(0, 1, torch.Size(shape).numel()).reshape(shape), 2)

    def test_no_fidelity_at_all_passes(self):
        check_fidelities("s", torch.empty(3, 0), 0)

    @pytest.mark.parametrize(
        ("s", "message"),
        [
            ([0.5, 0.2], r"start_s is a list; expected a float tensor"),
            (torch.tensor([1, 0]), r"start_s is a tensor of torch.int64; expected a float tensor"),
            (torch.tensor(0.4), r"start_s has shape \(\); expected \(\.\.\., 2\)"),
            (torch.full((4, 3), 0.4), r"start_s has shape \(4, 3\); expected \(\.\.\., 2\)"),
            (tensor([0.5, 1.25]), r"start_s holds 1\.25 \(1 of 2 values are bad\).*\[0, 1\]: scale"),
            (tensor([[-0.5, 0.3], [0.2, -0.1]]), r"start_s holds -0\.5 \(2 of 4 values are bad\)"),
            (tensor([0.5, float("nan")]), r"start_s holds nan"),
            (tensor([float("inf"), 0.1]), r"start_s holds inf"),
        ],
    )
    def test_the_error_names_what_came_and_what_was_expected(self, s, message):
        with pytest.raises(InputError, match=message):
            check_fidelities("start_s", s, 2)


class TestMaxFidelity:
    def test_it_is_the_maximum_of_each_component(self):
        S = generic_S(3, 2, n_members=4, m=3, trace_dims=(0, 1, 2))
        expected = [[[max(c) for c in zip(*rows, strict=True)] for rows in batch] for batch in S.tolist()]
        assert max_fidelity(S).tolist() == expected

    def test_it_is_the_one_member_of_a_single_set(self):
        S = generic_S(5, n_members=1, m=2, trace_dims=(0,))
        assert torch.equal(max_fidelity(S), S[:, 0])

    @given(evaluations())
    @laws
    def test_its_trace_holds_the_set(self, evaluation):
        S, trace_dims = evaluation
        assert in_trace(S, max_fidelity(S), trace_dims)

    @pytest.mark.parametrize("shared", [0.0, 0.37, 1.0])
    def test_the_gradient_reaches_shared_non_trace_components_whole(self, shared):
        def of_parameters(top, lower, non_trace):
            S = torch.stack([torch.stack([top, non_trace]), torch.stack([lower, non_trace])])
            return max_fidelity(S)

        parameters = [tensor(v).requires_grad_() for v in (1.0, 0.3, shared)]
        assert gradcheck(of_parameters, parameters)


class TestInTrace:
    s = tensor([0.6, 0.3, 0.8])

    @pytest.mark.parametrize(
        ("member", "inside"),
        [
            ([0.6, 0.3, 0.8], True),
            ([0.0, 0.3, 0.45], True),
            ([0.6, 0.3, 0.81], False),  # trace above s
            ([0.2, 0.29, 0.8], False),  # non-trace below s
            ([0.2, 0.31, 0.8], False),  # non-trace above s
            ([-0.01, 0.3, 0.8], False),  # below the cube
            ([0.2, float("nan"), 0.8], False),
        ],
    )
    def test_one_bad_member_decides(self, member, inside):
        S = tensor([[0.4, 0.3, 0.1], member])
        assert in_trace(S, self.s, (0, 2)).item() is inside

    def test_a_negative_non_trace_component_is_outside_even_where_it_equals_s(self):
        assert not in_trace(tensor([[0.2, -0.5]]), tensor([0.4, -0.5]), (0,))

    @pytest.mark.parametrize(("shift", "inside"), [(0.5e-3, True), (2e-3, False)])
    @pytest.mark.parametrize("direction", [[1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    def test_tol_is_the_slack_of_every_comparison(self, direction, shift, inside):
        S = (self.s + shift * tensor(direction)).unsqueeze(-2)
        assert in_trace(S, self.s, (0, 2), tol=1e-3).item() is inside

    def test_batch_dims_broadcast(self):
        S = generic_S(4, n_members=2, m=3, trace_dims=(0,))
        s = S[:, 0].clone()
        answers = in_trace(S, s.unsqueeze(1), (0,))  # s against every set
        loop = [[in_trace(S[j], s[i], (0,)).item() for j in range(4)] for i in range(4)]
        assert answers.tolist() == loop
        assert answers.diagonal().tolist() == [bool(S[i, 1, 0] <= S[i, 0, 0]) for i in range(4)]

    def test_without_fidelities_everything_is_inside(self):
        assert in_trace(torch.empty(5, 2, 0), torch.empty(5, 0), ()).tolist() == [True] * 5

    @pytest.mark.parametrize(
        ("S_shape", "s_shape", "message"),
        [
            ((2, 3), (), r"s has shape \(\); expected \(\.\.\., m\)"),
            ((3,), (3,), r"S has shape \(3,\); expected \(\.\.\., l, 3\)"),
            ((2, 4), (3,), r"S has shape \(2, 4\); expected \(\.\.\., l, 3\)"),
            ((5, 2, 3), (4, 3), r"S has batch dims \(5,\) and s has \(4,\); expected dims that broadcast"),
        ],
    )
    def test_shapes_that_do_not_fit_are_errors(self, S_shape, s_shape, message):
        with pytest.raises(InputError, match=message):
            in_trace(torch.zeros(S_shape), torch.zeros(s_shape), (0,))

    def test_a_trace_dim_out_of_range_is_an_error(self):
        with pytest.raises(SpaceError, match=r"trace_dims=\(3,\): \[3\] outside .*the 3 fidelities of s"):
            in_trace(torch.zeros(2, 3), self.s, (3,))


class TestTrace:
    @each_space
    @pytest.mark.parametrize("points", [1, 2, 4])
    def test_it_is_the_cross_product_of_the_levels(self, m, trace_dims, points):
        s = generic_S(n_members=1, m=m, trace_dims=())[0]
        levels = [
            [s[j].item() * i / (points - 1) for i in range(points)] if j in trace_dims and points > 1 else [s[j].item()]
            for j in range(m)
        ]
        expected = tensor(list(product(*levels)))  # (b, m); trace_dims ascend, so the orders agree
        torch.testing.assert_close(trace(s, trace_dims, points=points), expected, rtol=1e-15, atol=0)

    def test_the_last_trace_dim_given_varies_fastest(self):
        B = trace(tensor([0.8, 0.6]), (1, 0), points=2)
        assert B.tolist() == [[0.0, 0.0], [0.8, 0.0], [0.0, 0.6], [0.8, 0.6]]

    @given(evaluations(batch=(3,)), st.integers(1, 5))
    @laws
    def test_every_point_is_in_the_trace_and_the_last_is_s_itself(self, evaluation, points):
        S, trace_dims = evaluation
        s = S[:, 0]
        B = trace(s, trace_dims, points=points)
        assert B.shape == (3, points ** len(trace_dims), s.shape[-1])
        assert in_trace(B, s, trace_dims, tol=0.0).all()
        assert torch.equal(B[:, -1], s)

    @given(evaluations(batch=(3, 2)))
    @laws
    def test_a_batch_equals_a_loop(self, evaluation):
        S, trace_dims = evaluation  # S serves as a batch of s
        loop = [trace(s, trace_dims, points=3) for s in S.flatten(0, -2)]
        assert torch.equal(trace(S, trace_dims, points=3).flatten(0, -3), torch.stack(loop))

    def test_its_gradient_is_right_inside_the_cube(self):
        s = generic_S(n_members=2, m=3, trace_dims=(0, 1, 2)).requires_grad_()
        assert gradcheck(lambda s: trace(s, (0, 2), points=3), [s])

    @pytest.mark.parametrize("s", [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    def test_its_gradient_at_the_bounds_is_the_share_of_s(self, s):
        # Differences would leave the cube, where trace refuses to answer; the map is linear.
        J = jacobian(lambda s: trace(s, (0,), points=3), tensor(s))  # (b, m, m)
        assert J.tolist() == [[[share, 0.0], [0.0, 1.0]] for share in (0.0, 0.5, 1.0)]

    @pytest.mark.parametrize("points", [0, -2])
    def test_fewer_than_one_point_is_an_error(self, points):
        with pytest.raises(InputError, match=rf"points={points}; expected at least 1"):
            trace(tensor([0.5]), (0,), points=points)

    def test_fidelities_outside_the_cube_are_an_error(self):
        with pytest.raises(InputError, match=r"s holds 20\.0 .*scale each fidelity"):
            trace(tensor([20.0]), (0,), points=3)

    def test_a_trace_dim_given_twice_is_an_error(self):
        with pytest.raises(SpaceError, match=r"trace_dims=\(0, 0\): \[0\] more than once"):
            trace(tensor([0.5, 0.5]), (0, 0), points=3)


class TestZeroed:
    def test_it_gives_the_example_of_the_paper(self):
        S = tensor([[0.5, 1.0], [1.0, 1.0]])
        assert zeroed(S, (0,)).tolist() == [[0.0, 1.0], [0.5, 0.0], [1.0, 0.0]]

    @each_space
    @pytest.mark.parametrize("n_members", [1, 2, 3])
    def test_it_is_C_without_duplicates_where_no_values_coincide(self, m, trace_dims, n_members):
        S = generic_S(n_members=n_members, m=m, trace_dims=trace_dims)
        C = zeroed(S, trace_dims)
        assert members(C) == brute_force_C(S)
        assert len(C) == len(brute_force_C(S))

    @each_space
    @pytest.mark.parametrize("n_members", [1, 3])
    def test_its_size_is_the_one_documented(self, m, trace_dims, n_members):
        k = {0: m, 1: 1 + (m - 1) * n_members}.get(len(trace_dims), m * n_members)
        assert zeroed(torch.rand(2, 5, n_members, m), trace_dims).shape == (2, 5, k, m)

    @given(evaluations())
    @laws
    def test_it_misses_nothing_where_values_coincide(self, evaluation):
        S, trace_dims = evaluation
        assert members(zeroed(S, trace_dims)) == brute_force_C(S)

    @given(evaluations(batch=(2, 3)))
    @laws
    def test_a_batch_equals_a_loop(self, evaluation):
        S, trace_dims = evaluation
        loop = torch.stack([zeroed(one, trace_dims) for one in S.flatten(0, 1)])
        assert torch.equal(zeroed(S, trace_dims).flatten(0, 1), loop)

    @pytest.mark.parametrize("trace_dims", [(), (1,), (0, 2), (0, 1, 2)])
    @pytest.mark.parametrize("value", [0.0, 0.43, 1.0])
    def test_its_gradient_is_right_also_at_the_bounds_and_at_repeated_points(self, trace_dims, value):
        S = torch.full((2, 3, 3), value, dtype=torch.float64).requires_grad_()
        assert gradcheck(lambda S: zeroed(S, trace_dims), [S])


class TestFirstOccurrence:
    @given(evaluations())
    @laws
    def test_it_marks_what_a_walk_through_the_points_has_not_seen(self, evaluation):
        S, trace_dims = evaluation
        points = torch.cat([zeroed(S, trace_dims), S])
        rows = [tuple(row) for row in points.tolist()]
        assert first_occurrence(points).tolist() == [row not in rows[:i] for i, row in enumerate(rows)]

    @given(evaluations(batch=(2, 3)))
    @laws
    def test_a_batch_equals_a_loop(self, evaluation):
        S, _ = evaluation
        loop = torch.stack([first_occurrence(one) for one in S.flatten(0, 1)])
        assert torch.equal(first_occurrence(S).flatten(0, 1), loop)

    def test_only_exact_repeats_count(self):
        points = tensor([[0.3, 0.0], [0.3 + 1e-15, 0.0], [0.3, -0.0], [0.3, 0.0]])
        assert first_occurrence(points).tolist() == [True, True, False, False]

    def test_points_without_components_are_all_the_same(self):
        assert first_occurrence(torch.empty(2, 3, 0)).tolist() == [[True, False, False]] * 2

    def test_an_empty_set_has_an_empty_answer(self):
        assert first_occurrence(torch.empty(4, 0, 2)).shape == (4, 0)


class TestZeroAvoidingSet:
    @given(evaluations())
    @laws
    def test_it_is_C_with_each_point_once(self, evaluation):
        S, trace_dims = evaluation
        C = zero_avoiding_set(S, trace_dims)
        assert members(C) == brute_force_C(S)
        assert len(C) == len(brute_force_C(S))

    @given(evaluations())
    @laws
    def test_every_row_has_a_zero(self, evaluation):
        assert (zero_avoiding_set(*evaluation) == 0).any(dim=-1).all()

    @given(evaluations(), st.data())
    @laws
    def test_it_holds_S_where_max_S_has_a_zero(self, evaluation, data):
        S, trace_dims = evaluation
        S[:, data.draw(st.integers(0, S.shape[-1] - 1))] = 0.0
        assert members(S) <= members(zero_avoiding_set(S, trace_dims))

    @given(evaluations())
    @laws
    def test_it_shares_no_point_with_an_S_without_zeros(self, evaluation):
        S, trace_dims = evaluation
        S = 0.1 + 0.9 * S
        assert not members(S) & members(zero_avoiding_set(S, trace_dims))

    @given(evaluations(), st.randoms(use_true_random=False))
    @laws
    def test_shuffling_S_changes_nothing(self, evaluation, random):
        S, trace_dims = evaluation
        order = list(range(len(S)))
        random.shuffle(order)
        assert members(zero_avoiding_set(S[order], trace_dims)) == members(zero_avoiding_set(S, trace_dims))

    @given(evaluations())
    @laws
    def test_repeating_a_member_changes_nothing(self, evaluation):
        S, trace_dims = evaluation
        twice = torch.cat([S, S])
        assert torch.equal(zero_avoiding_set(twice, trace_dims), zero_avoiding_set(S, trace_dims))

    def test_points_come_by_first_occurrence(self):
        S = tensor([[0.4, 0.2, 0.9], [0.7, 0.2, 0.9], [0.4, 0.6, 0.9]])
        expected = [
            [0.0, 0.2, 0.9],
            [0.0, 0.6, 0.9],
            [0.4, 0.0, 0.9],
            [0.7, 0.0, 0.9],
            [0.4, 0.2, 0.0],
            [0.7, 0.2, 0.0],
            [0.4, 0.6, 0.0],
        ]
        assert zero_avoiding_set(S, (0, 1)).tolist() == expected

    def test_without_fidelities_it_is_empty(self):
        assert zero_avoiding_set(torch.empty(3, 0), ()).shape == (0, 0)

    def test_it_is_differentiable(self):
        S = generic_S(n_members=2, m=3, trace_dims=(0,)).requires_grad_()
        C = zero_avoiding_set(S, (0,))
        (grad,) = torch.autograd.grad(C.sum(), S)
        # Component 0 survives in the 2 zeroings of the others, the first member alone in the zeroing of 0.
        assert grad.tolist() == [[2.0, 2.0, 2.0], [2.0, 1.0, 1.0]]

    def test_members_of_different_evaluations_are_an_error(self):
        message = r"S=\[\[0\.5, 0\.25\], \[0\.5, 0\.75\]\] has members that differ in the .*\(1,\)"
        with pytest.raises(InputError, match=message):
            zero_avoiding_set(tensor([[0.5, 0.25], [0.5, 0.75]]), (0,))

    @pytest.mark.parametrize("shape", [(2,), (4, 3, 2), (0, 2)])
    def test_anything_but_one_set_is_an_error(self, shape):
        with pytest.raises(InputError, match=r"S has shape \(.*\); expected \(l, m\) with l >= 1"):
            zero_avoiding_set(torch.full(shape, 0.5), (0,))

    def test_fidelities_outside_the_cube_are_an_error(self):
        with pytest.raises(InputError, match=r"S holds 1\.5"):
            zero_avoiding_set(tensor([[1.5]]), (0,))
