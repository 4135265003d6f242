"""Cholesky factors that survive singular matrices and say what it took."""

from typing import NamedTuple

import torch
from torch import Tensor

from takg.errors import NumericsError

# Relative to the mean of the diagonal. The first is near the rounding error of a few hundred rows;
# a matrix that needs more than the last is not a covariance matrix.
_JITTERS = tuple(10.0**exponent for exponent in range(-12, -2))


class Factor(NamedTuple):
    """A lower Cholesky factor of A + jitter I, and the jitter that was needed (0 where none was)."""

    L: Tensor  # (..., n, n)
    jitter: Tensor  # (...,)


def jittered_cholesky(A: Tensor, *, diagonal: Tensor | None = None, out: Tensor | None = None) -> Factor:
    """Factor each matrix of a batch, adding to the diagonal of those that are not positive definite.

    Jitter grows by tens until the factorisation succeeds; matrices that succeed keep jitter 0. A pivot below
    the rounding error of its diagonal entry is a failure too: it is noise, and solving would divide by it.

    Args:
        A: (..., n, n), symmetric; only its lower triangle is read.
        diagonal: (..., n), the diagonal before something was subtracted, if A is such a difference: that sets
            its rounding error. By default the diagonal of A.
        out: where to put the factor; not for derivatives.
    Returns:
        The factor and the jitter of each matrix, in the units of A.
    """
    place = None if out is None else (out, torch.empty(A.shape[:-2], dtype=torch.int32))
    L, info = torch.linalg.cholesky_ex(A, out=place)
    jitter = A.new_zeros(A.shape[:-2])
    diagonal = _diagonal(A) if diagonal is None else diagonal.detach()
    failed = _is_broken(L, info, diagonal)
    if not failed.any():
        return Factor(L, jitter)
    if not A.isfinite().all():
        raise NumericsError(
            f"a covariance matrix of size {A.shape[-1]} has {int((~A.isfinite()).sum())} entries that are "
            "not finite; look for overflowing hyperparameters or inputs"
        )
    size = diagonal.mean(-1).clamp_min(torch.finfo(A.dtype).tiny)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for relative in _JITTERS:
        jitter = torch.where(failed, relative * size, jitter)
        L, info = torch.linalg.cholesky_ex(A + jitter[..., None, None] * eye, out=place)
        # Jitter never shrinks: what a matrix has been given it keeps, so the loop ends.
        failed = _is_broken(L, info, diagonal)
        if not failed.any():
            return Factor(L, jitter)
    raise NumericsError(
        f"{int(failed.sum())} of {failed.numel()} covariance matrices of size {A.shape[-1]} stay singular with "
        f"a jitter of {_JITTERS[-1]:g} of their diagonal; they are not positive semi-definite"
    )


def extended_factor(L: Tensor, cross: Tensor, block: Tensor) -> Factor:
    """Append rows to a Cholesky factor in O(n^2) a row; only the new block can need jitter.

    Args:
        L: (..., n, n), the factor of the matrix so far.
        cross: (..., n, r), the covariance of old and new rows.
        block: (..., r, r), that of the new rows, noise included.
    Returns:
        The (n + r)-row factor and the jitter that the new block needed.
    """
    n, r = cross.shape[-2:]
    B = torch.linalg.solve_triangular(L, cross, upper=False)  # (..., n, r)
    corner = jittered_cholesky(block - B.mT @ B, diagonal=_diagonal(block))
    longer = L.new_zeros(*L.shape[:-2], n + r, n + r)
    longer[..., :n, :n] = L
    longer[..., n:, :n] = B.mT
    longer[..., n:, n:] = corner.L
    return Factor(longer, corner.jitter)


def _diagonal(A: Tensor) -> Tensor:
    return A.detach().diagonal(dim1=-2, dim2=-1)


def _is_broken(L: Tensor, info: Tensor, diagonal: Tensor) -> Tensor:
    pivots = _diagonal(L) ** 2
    # LAPACK lets NaN and infinity through without a word, hence the second look.
    is_sound = pivots.isfinite() & (pivots >= torch.finfo(L.dtype).eps * diagonal)
    return (info > 0) | ~is_sound.all(-1)
