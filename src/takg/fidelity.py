"""Sets of fidelities as tensors: B(s), C(S), max S; knows no model.

A fidelity s is a row of m controls in [0, 1], the target being all ones. Controls in `trace_dims` reveal
their lower values on the way up, the others are fixed for the whole evaluation, so the members of one
evaluation's S agree in every non-trace component. Functions meant to run inside an optimiser
(`max_fidelity`, `zeroed`, `first_occurrence`) trust their arguments; the others check them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError, SpaceError

__all__ = [
    "FidelitySpace",
    "check_fidelities",
    "first_occurrence",
    "in_trace",
    "max_fidelity",
    "trace",
    "zero_avoiding_set",
    "zeroed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelitySpace:
    """m controls in [0, 1], target at 1; dims in `trace_dims` reveal their lower values on the way up.

    docs/paper.md#problem-setting. With no names at all (m = 0) every evaluation is one at the target.
    """

    names: tuple[str, ...]
    trace_dims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple):
            raise SpaceError(
                f"names={self.names!r} is a {type(self.names).__name__}; expected a tuple of names: "
                "write ('epochs',) for a single one"
            )
        if repeated := _repeated(self.names):
            raise SpaceError(f"names={self.names}: {repeated} more than once; give each fidelity its own name")
        if not isinstance(self.trace_dims, tuple):
            raise SpaceError(
                f"trace_dims={self.trace_dims!r} is a {type(self.trace_dims).__name__}; expected a tuple of "
                f"indices into names={self.names}: write (0,) for a single one"
            )
        _check_trace_dims(self.trace_dims, self.m, f"names={self.names}")

    @property
    def m(self) -> int:
        """How many fidelities there are."""
        return len(self.names)

    @property
    def non_trace_dims(self) -> tuple[int, ...]:
        """The dims whose value is fixed for the whole evaluation, ascending."""
        return _others(self.trace_dims, self.m)


def check_fidelities(name: str, s: Tensor, m: int | None = None) -> None:
    """Raise InputError unless `s` is a float tensor (..., m) of finite values in [0, 1].

    Args:
        name: what the caller calls `s`, for the message.
        s: (..., m).
        m: the number of fidelities expected; None takes any.
    """
    if not isinstance(s, Tensor) or not s.is_floating_point():
        came = f"a tensor of {s.dtype}" if isinstance(s, Tensor) else f"a {type(s).__name__}"
        raise InputError(f"{name} is {came}; expected a float tensor: pass torch.as_tensor(..., dtype=torch.float64)")
    _check_last_dim(name, s, m)
    bad = s[~((s >= 0) & (s <= 1))]  # NaN fails both comparisons
    if bad.numel():
        raise InputError(
            f"{name} holds {bad[0].item()!r} ({bad.numel()} of {s.numel()} values are bad); expected finite "
            "values in [0, 1]: scale each fidelity so that 0 is its lowest value and 1 its target"
        )


def max_fidelity(S: Tensor) -> Tensor:
    """max S, the cheapest fidelity whose trace shows all of S; docs/paper.md#takg.

    Args:
        S: (..., l, m), l >= 1.
    Returns:
        (..., m), the elementwise maximum over the members; tied members share the gradient equally.
    """
    return S.amax(dim=-2)


def in_trace(S: Tensor, s: Tensor, trace_dims: Sequence[int], *, tol: float = 1e-9) -> Tensor:
    """Whether S is part of B(s); docs/paper.md#problem-setting.

    Args:
        S: (..., l, m), any values: one that lies outside B(s) is answered with False, not with an error.
        s: (..., m), its batch dims broadcast with those of S.
        trace_dims: the dims that reveal their lower values.
        tol: slack of every comparison.
    Returns:
        bool (...,): trace components in [0, s_j], the others equal to s_j, and none of them below 0.
    """
    _check_last_dim("s", s, None)
    m = s.shape[-1]
    _check_last_dim("S", S, m, members=True)
    _check_batch_dims("S", S.shape[:-2], "s", s.shape[:-1])
    _check_trace_dims(trace_dims, m, f"the {m} fidelities of s")
    gap = s.unsqueeze(-2) - S  # (..., l, m), how far each member lies below s
    is_trace = torch.tensor([j in trace_dims for j in range(m)], dtype=torch.bool, device=S.device)
    inside = torch.where(is_trace, gap >= -tol, gap.abs() <= tol) & S.ge(-tol)
    return inside.all(dim=-1).all(dim=-1)


def trace(s: Tensor, trace_dims: Sequence[int], *, points: int) -> Tensor:
    """A grid of B(s), all of it observed by one evaluation at s; docs/paper.md#problem-setting.

    Args:
        s: (..., m).
        trace_dims: the dims that reveal their lower values; the last one given varies fastest.
        points: how many equally spaced levels, from 0 to s_j, each trace dim gets; 1 gives s alone.
    Returns:
        (..., b, m) with b = points ** len(trace_dims); the last row is s. Differentiable in s.
    """
    check_fidelities("s", s)
    _check_trace_dims(trace_dims, s.shape[-1], f"the {s.shape[-1]} fidelities of s")
    if points < 1:
        raise InputError(f"points={points}; expected at least 1, which gives s alone")
    levels = torch.linspace(0, 1, points, dtype=s.dtype, device=s.device) if points > 1 else s.new_ones(1)
    row = torch.arange(points ** len(trace_dims), device=s.device)
    share = s.new_ones(len(row), s.shape[-1])  # (b, m), as a fraction of s
    for place, j in enumerate(reversed(trace_dims)):
        share[:, j] = levels[row // points**place % points]  # digit `place` of the row number in base `points`
    return s.unsqueeze(-2) * share


def zeroed(S: Tensor, trace_dims: Sequence[int]) -> Tensor:
    """C(S) for the S of one evaluation: its members with one component at zero; docs/paper.md#takg-zero.

    Members of S differ in trace components only. Where zeroing component j leaves none of those (j is the
    only trace dim, or there is none), all members give the same point and it is returned once. What is left
    is free of duplicates unless values coincide by accident; `first_occurrence` finds those.

    Args:
        S: (..., l, m), non-trace components shared by all l members.
        trace_dims: the dims that reveal their lower values.
    Returns:
        (..., k, m), component 0 zeroed first, members in the order of S; k = m l with two or more trace dims,
        1 + (m - 1) l with one, and m with none.
    """
    keep = 1.0 - torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)  # row j drops component j
    blocks = [
        (S if any(i != j for i in trace_dims) else S[..., :1, :]) * row  # (..., l or 1, m)
        for j, row in enumerate(keep)
    ]
    return torch.cat([S[..., :0, :], *blocks], dim=-2)  # the empty block is all there is when m = 0


def first_occurrence(points: Tensor) -> Tensor:
    """Which points are not exact repeats of an earlier one in their set.

    Selecting with it keeps each distinct point once. Given C(S) followed by S, it also tells which members
    of S are new, as members with a zero component are in C(S) already.

    Args:
        points: (..., k, m).
    Returns:
        bool (..., k).
    """
    equal = (points.unsqueeze(-2) == points.unsqueeze(-3)).all(dim=-1)  # (..., k, k)
    order = torch.arange(points.shape[-2], device=points.device)
    is_earlier = order < order.unsqueeze(-1)  # (k, k); a mask, as tril wakes the thread pool for any size
    return ~(equal & is_earlier).any(dim=-1)


def zero_avoiding_set(S: Tensor, trace_dims: Sequence[int]) -> Tensor:
    """Exactly C(S), for one S: each distinct point once, by first occurrence; docs/paper.md#takg-zero.

    Args:
        S: (l, m), the fidelities retained from one evaluation, l >= 1.
        trace_dims: the dims that reveal their lower values.
    Returns:
        (k, m), in the order of `zeroed`; k depends on the values, so there is no batched form.
    """
    check_fidelities("S", S)
    if S.ndim != 2 or len(S) == 0:
        raise InputError(
            f"S has shape {tuple(S.shape)}; expected (l, m) with l >= 1: for a batch use zeroed and first_occurrence"
        )
    if not in_trace(S, max_fidelity(S), trace_dims):
        fixed = _others(trace_dims, S.shape[-1])
        raise InputError(
            f"S={S.tolist()} has members that differ in the non-trace components {fixed}; expected the "
            "fidelities of one evaluation, which share them: pass one S per evaluation"
        )
    C = zeroed(S, trace_dims)
    return C[first_occurrence(C)]


def _others(dims: Sequence[int], m: int) -> tuple[int, ...]:
    return tuple(j for j in range(m) if j not in dims)


def _repeated(values: Sequence[object]) -> list[object]:
    return [value for i, value in enumerate(values) if value in values[:i]]


def _check_trace_dims(trace_dims: Sequence[int], m: int, owner: str) -> None:
    if outside := [j for j in trace_dims if j not in range(m)]:
        allowed = f"use 0..{m - 1}" if m else "leave trace_dims empty"
        raise SpaceError(f"trace_dims={tuple(trace_dims)}: {outside} outside the index range of {owner}; {allowed}")
    if repeated := _repeated(trace_dims):
        raise SpaceError(f"trace_dims={tuple(trace_dims)}: {repeated} more than once; list each trace dim once")


def _check_last_dim(name: str, s: Tensor, m: int | None, *, members: bool = False) -> None:
    wanted = f"(..., {'l, ' if members else ''}{'m' if m is None else m})"
    if s.ndim < 1 + members or (m is not None and s.shape[-1] != m):
        raise InputError(
            f"{name} has shape {tuple(s.shape)}; expected {wanted}: the last dimension holds the fidelities"
        )


def _check_batch_dims(name_a: str, a: torch.Size, name_b: str, b: torch.Size) -> None:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        raise InputError(
            f"{name_a} has batch dims {tuple(a)} and {name_b} has {tuple(b)}; expected dims that broadcast: "
            "reshape one of them"
        ) from None
