"""How many threads a computation deserves.

Two threads halve the time of a large factorisation. On small matrices they gain little, and when other work,
such as the training that is being tuned, keeps the cores busy, each of thousands of small steps then waits for
a thread that is not scheduled: a slowdown of ten times and more was measured.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH_THREADS = 300  # rows of a covariance matrix


@contextmanager
def threads_for(n: int) -> Iterator[None]:
    """Use one thread within the block if its matrices have fewer rows than pay for more."""
    before = torch.get_num_threads()
    if n >= _WORTH_THREADS or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
