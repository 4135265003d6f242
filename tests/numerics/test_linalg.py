"""Cholesky factors against NumPy's, and what is done to matrices that have none."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from takg.errors import NumericsError
from takg.numerics import extended_factor, jittered_cholesky

laws = settings(deadline=None, derandomize=True, max_examples=60)


def positive_definite(*batch, n, seed=0, scale=1.7):
    gen = torch.Generator().manual_seed(seed)
    M = torch.randn(*batch, n, n + 3, generator=gen, dtype=torch.float64)
    return scale * (M @ M.mT)


def duplicated_rows(n=4, seed=3):
    """Integer products of integer factors: the third pivot is 0 without any rounding."""
    gen = torch.Generator().manual_seed(seed)
    L = torch.randint(-3, 4, (n, n), generator=gen).double().tril(-1) + 2.0 * torch.eye(n, dtype=torch.float64)
    L[2] = L[1]
    return L @ L.mT


def with_smallest_eigenvalue(value, *, n=5, seed=5):
    """A symmetric matrix whose diagonal has the mean 1 and whose smallest eigenvalue is given."""
    gen = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(n, n, generator=gen, dtype=torch.float64))
    others = 0.4 + torch.rand(n - 1, generator=gen, dtype=torch.float64)
    others = others * (n - value) / others.sum()
    return Q @ torch.cat([torch.tensor([value], dtype=torch.float64), others]).diag() @ Q.mT


def reconstruction(factor):
    return (factor.L @ factor.L.mT).numpy()


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_positive_definite_matrices_get_numpys_factor_and_no_jitter(n, batch):
    A = positive_definite(*batch, n=n)
    factor = jittered_cholesky(A)
    np.testing.assert_allclose(factor.L.numpy(), np.linalg.cholesky(A.numpy()), rtol=1e-11, atol=1e-12)
    assert factor.jitter.shape == batch
    assert (factor.jitter == 0).all()


@pytest.mark.parametrize("is_by_columns", [True, False])
def test_a_factor_is_put_where_it_is_wanted_with_jitter_if_need_be(is_by_columns):
    A = torch.stack([torch.eye(4, dtype=torch.float64), torch.ones(4, 4, dtype=torch.float64)])
    room = torch.full((2, 4, 4), 7.0, dtype=torch.float64)
    out = room.mT if is_by_columns else room
    found = jittered_cholesky(A, out=out)
    expected = jittered_cholesky(A)
    assert torch.equal(out, expected.L) and torch.equal(found.L, out)
    assert torch.equal(found.jitter, expected.jitter) and (found.jitter > 0).tolist() == [False, True]


def test_only_the_lower_triangle_is_read():
    A = positive_definite(3, n=6)
    scribbled = A + torch.full_like(A, 37.0).triu(1)
    assert torch.equal(jittered_cholesky(scribbled).L, jittered_cholesky(A).L)


def test_jitter_goes_only_to_the_members_of_a_batch_that_need_it():
    healthy = positive_definite(n=4, seed=11)
    A = torch.stack([healthy, duplicated_rows(4), 1e-3 * healthy, with_smallest_eigenvalue(-3e-8, n=4)])
    factor = jittered_cholesky(A.reshape(2, 2, 4, 4))
    assert (factor.jitter > 0).tolist() == [[False, True], [False, True]]
    np.testing.assert_allclose(factor.L[0, 0], np.linalg.cholesky(healthy.numpy()), rtol=1e-12)
    np.testing.assert_allclose(factor.L[1, 0], np.linalg.cholesky(1e-3 * healthy.numpy()), rtol=1e-12)


@pytest.mark.parametrize("A", [duplicated_rows(3), duplicated_rows(8), torch.full((3, 3), 4.0).double()])
def test_a_singular_matrix_gets_the_smallest_jitter_there_is(A):
    factor = jittered_cholesky(A)
    size = A.numpy().diagonal().mean()
    assert 0 < factor.jitter <= 1e-10 * size
    expected = A.numpy() + factor.jitter.item() * np.eye(len(A))
    np.testing.assert_allclose(reconstruction(factor), expected, rtol=1e-13, atol=1e-15 * size)


@pytest.mark.parametrize("value", [-2e-11, -3e-9, -4e-7, -6e-5])
def test_a_slightly_indefinite_matrix_gets_no_more_than_ten_times_the_jitter_it_needs(value):
    A = with_smallest_eigenvalue(value)
    factor = jittered_cholesky(A)
    needed = -np.linalg.eigvalsh(A.numpy())[0]
    assert 0.999 * needed < factor.jitter.item() <= 10.001 * needed
    expected = A.numpy() + factor.jitter.item() * np.eye(len(A))
    np.testing.assert_allclose(reconstruction(factor), expected, rtol=1e-12, atol=1e-15)


def test_a_zero_matrix_is_factored():
    factor = jittered_cholesky(torch.zeros(2, 3, 3, dtype=torch.float64))
    assert factor.L.isfinite().all()
    assert (factor.jitter > 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [(0, 0), (2, 1), (3, 3)])
def test_entries_that_are_not_finite_raise(bad, where):
    A = positive_definite(3, n=4)
    i, j = where
    A[1, i, j] = A[1, j, i] = bad
    n_bad = 1 if i == j else 2
    with pytest.raises(NumericsError, match=rf"size 4 has {n_bad} entries that are not finite"):
        jittered_cholesky(A)


def test_a_matrix_that_is_truly_indefinite_raises():
    A = torch.stack([positive_definite(n=5), with_smallest_eigenvalue(-0.3), positive_definite(n=5, seed=2)])
    with pytest.raises(NumericsError, match=r"1 of 3 covariance matrices of size 5 stay singular"):
        jittered_cholesky(A)


@laws
@given(seed=st.integers(0, 2**20), exponent=st.integers(-60, 60), n=st.integers(1, 6), rank=st.integers(1, 6))
def test_rescaling_a_matrix_rescales_factor_and_jitter(seed, exponent, n, rank):
    gen = torch.Generator().manual_seed(seed)
    M = torch.randn(n, rank, generator=gen, dtype=torch.float64)
    A = M @ M.mT  # singular if rank < n
    one, scaled = jittered_cholesky(A), jittered_cholesky(A * 4.0**exponent)  # powers of two round nothing
    torch.testing.assert_close(scaled.L, one.L * 2.0**exponent, rtol=1e-14, atol=0)
    torch.testing.assert_close(scaled.jitter, one.jitter * 4.0**exponent, rtol=1e-14, atol=0)


@laws
@given(seed=st.integers(0, 2**20), n=st.integers(1, 7), copies=st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_copies_of_rows_leave_no_pivot_that_is_mere_rounding_error(seed, n, copies):
    A = positive_definite(n=n, seed=seed)
    copies = [i % n for i in copies]
    order = [*range(n), *copies]
    whole = A[order][:, order]
    eps = np.finfo(np.float64).eps
    for factor in (jittered_cholesky(whole), extended_factor(torch.linalg.cholesky(A), A[:, copies], whole[n:, n:])):
        assert (factor.L.diagonal() ** 2 >= eps * whole.diagonal()).all()
        np.testing.assert_allclose(reconstruction(factor), whole, rtol=0, atol=1e-10 * whole.diagonal().max())


def test_a_small_matrix_that_nothing_was_taken_from_needs_no_jitter():
    A = 1e-17 * positive_definite(n=4)
    assert jittered_cholesky(A).jitter == 0
    left = jittered_cholesky(A, diagonal=torch.full((4,), 3.7, dtype=torch.float64))  # 3.7 less 3.7
    assert 0 < left.jitter < 1e-10


def test_gradients_flow_through_a_batch_of_factors():
    gen = torch.Generator().manual_seed(7)
    M = torch.randn(2, 3, 3, generator=gen, dtype=torch.float64, requires_grad=True)
    eye = torch.eye(3, dtype=torch.float64)
    assert gradcheck(lambda M: jittered_cholesky(M @ M.mT + 0.6 * eye).L, M)


def test_the_gradient_of_a_jittered_factor_is_that_of_the_factor_of_the_jittered_matrix():
    A = with_smallest_eigenvalue(-3e-5).requires_grad_()
    factor = jittered_cholesky(A)
    weights = positive_definite(n=5, seed=9)
    (ours,) = torch.autograd.grad((factor.L * weights).sum(), A)
    jittered = A.detach() + factor.jitter.detach() * torch.eye(5, dtype=torch.float64)
    jittered.requires_grad_()
    (expected,) = torch.autograd.grad((torch.linalg.cholesky(jittered) * weights).sum(), jittered)
    assert factor.jitter > 0
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize(("n", "r"), [(1, 1), (5, 1), (5, 4), (2, 7), (40, 3)])
def test_an_extended_factor_is_the_factor_of_the_whole_matrix(n, r, batch):
    A = positive_definite(*batch, n=n + r, seed=n + r)
    L = torch.from_numpy(np.linalg.cholesky(A[..., :n, :n].numpy()))
    factor = extended_factor(L, A[..., :n, n:], A[..., n:, n:])
    np.testing.assert_allclose(factor.L.numpy(), np.linalg.cholesky(A.numpy()), rtol=1e-10, atol=1e-11)
    assert factor.jitter.shape == batch
    assert (factor.jitter == 0).all()


def test_a_factor_grown_row_by_row_is_the_factor_of_the_whole_matrix():
    A = positive_definite(2, n=9, seed=4)
    L = A[..., :1, :1].sqrt()
    for n in range(1, 9):
        L = extended_factor(L, A[..., :n, n : n + 1], A[..., n : n + 1, n : n + 1]).L
    np.testing.assert_allclose(L.numpy(), np.linalg.cholesky(A.numpy()), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-7, 1.3, 1e9])
@pytest.mark.parametrize("copied", range(6))
def test_appending_a_copy_of_a_row_never_fails(copied, scale):
    A = positive_definite(n=6, seed=8, scale=scale)
    L = torch.linalg.cholesky(A)
    factor = extended_factor(L, A[:, copied : copied + 1], A[copied : copied + 1, copied : copied + 1])
    order = [*range(6), copied]
    whole = A.numpy()[np.ix_(order, order)]
    assert factor.jitter < 1e-9 * A[copied, copied]
    np.testing.assert_allclose(reconstruction(factor), whole, rtol=1e-9, atol=1e-12 * scale)


def test_jitter_of_an_extension_goes_only_to_the_members_that_need_it():
    A = positive_definite(n=4, seed=1)
    singular = A.clone()
    singular[:, 3], singular[3, :] = A[:, 2], A[2, :]
    singular[3, 3] = A[2, 2] - 1e-9  # the copy of row 2, short of a little variance
    both = torch.stack([singular, A])
    L = torch.linalg.cholesky(both[:, :3, :3])
    factor = extended_factor(L, both[:, :3, 3:], both[:, 3:, 3:])
    assert (factor.jitter > 0).tolist() == [True, False]
    np.testing.assert_allclose(factor.L[1].numpy(), np.linalg.cholesky(A.numpy()), rtol=1e-11, atol=1e-12)


def test_gradients_flow_through_an_extended_factor():
    gen = torch.Generator().manual_seed(17)
    M = torch.randn(2, 5, 5, generator=gen, dtype=torch.float64, requires_grad=True)

    def grown(M):
        A = M @ M.mT + 0.7 * torch.eye(5, dtype=torch.float64)
        return extended_factor(torch.linalg.cholesky(A[..., :3, :3]), A[..., :3, 3:], A[..., 3:, 3:]).L

    assert gradcheck(grown, M)
