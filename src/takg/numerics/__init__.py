"""Linear algebra and optimisation on batches of small problems; tensors and callables only."""

from takg.numerics._linalg import Factor, extended_factor, jittered_cholesky
from takg.numerics._minimise import Minimum, minimise
from takg.numerics._threads import threads_for

__all__ = ["Factor", "Minimum", "extended_factor", "jittered_cholesky", "minimise", "threads_for"]
