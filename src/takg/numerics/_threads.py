"""How many threads a computation deserves, what becomes of memory between its steps, and of numbers next to 0.

Two threads halve the time of a large factorisation. On small matrices they gain little, and when other work,
such as the training that is being tuned, keeps the cores busy, each of thousands of small steps then waits for
a thread that is not scheduled: a slowdown of ten times and more was measured.

Kernels of points that are many length scales apart are so small that they have no full precision left, and processors
take a hundred times as long for such numbers. They count as 0 here.
"""

import ctypes
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Result = TypeVar("Result")

_WORTH_THREADS = 3000  # rows of a covariance matrix
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT, _LARGE = 2**27, 2**24  # bytes
_MOST_SIDES = 4
_TINY = 5e-324  # the smallest float above 0

_allowed: ContextVar[int] = ContextVar("_allowed", default=1)  # threads that the process would use outside of a block


@contextmanager
def threads_for(n: int) -> Iterator[None]:
    """Use one thread within the block if its matrices have fewer rows than pay for more.

    `side_by_side` may use the others there.
    """
    _keep_freed_memory()
    before, keeps_tiny = torch.get_num_threads(), _keeps_tiny_numbers()
    is_narrow = n < _WORTH_THREADS and before > 1
    torch.set_flush_denormal(True)
    token = _allowed.set(before) if is_narrow else None
    if is_narrow:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if token is not None:
            _allowed.reset(token)
            torch.set_num_threads(before)
        if keeps_tiny:
            torch.set_flush_denormal(False)


def _keeps_tiny_numbers() -> bool:
    return bool(torch.tensor(_TINY, dtype=torch.float64) * 1.0 != 0)


def side_by_side(work: Callable[[slice], Result], count: int) -> list[Result]:
    """Work on 0..count - 1, in as many slices as there are threads to spare within `threads_for`, in their order.

    It has to take milliseconds and let go of the interpreter, as compiled loops and large tensor operations do.
    """
    sides = max(1, min(_allowed.get(), count, _MOST_SIDES))
    cuts = [round(i * count / sides) for i in range(sides + 1)]
    first, *rest = (slice(begin, end) for begin, end in itertools.pairwise(cuts))
    others = [_pool().submit(work, one) for one in rest]
    try:
        mine = work(first)
    finally:
        wait(others)  # they may write where nobody would look for them any more
    return [mine, *(other.result() for other in others)]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    # Where threads inherit the context of their maker, work within work would wait for its own pool.
    return ThreadPoolExecutor(_MOST_SIDES - 1, thread_name_prefix="takg", initializer=_set_up_thread)


def _set_up_thread() -> None:
    _allowed.set(1)
    torch.set_flush_denormal(True)


if hasattr(os, "register_at_fork"):  # a fork has the pool, but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


@functools.cache
def _keep_freed_memory() -> None:
    """Let the allocator keep what a step frees for the next one: getting it anew took a quarter of the time."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
