"""How many threads a computation deserves, and what becomes of memory between its steps.

Two threads halve the time of a large factorisation. On small matrices they gain little, and when other work,
such as the training that is being tuned, keeps the cores busy, each of thousands of small steps then waits for
a thread that is not scheduled: a slowdown of ten times and more was measured.
"""

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH_THREADS = 3000  # rows of a covariance matrix
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT, _LARGE = 2**28, 2**25  # bytes


@contextmanager
def threads_for(n: int) -> Iterator[None]:
    """Use one thread within the block if its matrices have fewer rows than pay for more."""
    _keep_freed_memory()
    before = torch.get_num_threads()
    if n >= _WORTH_THREADS or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _keep_freed_memory() -> None:
    """Let the allocator keep what a step frees for the next one: getting it anew took a quarter of the time."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
