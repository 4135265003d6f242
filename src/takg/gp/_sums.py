"""Sums of design kernels at many points, in a loop compiled by Numba.

Tensor operations would pass over all kernels of all points half a dozen times; here those of a point stay in the first
cache.
"""

import math

import numpy as np

from takg.numerics.compiled import compiled, decay

_SQRT5 = math.sqrt(5.0)


@compiled
def fill_sums(is_matern, points, centres, scale, weights, out):  # type: ignore[no-untyped-def]
    """out[h, p] = sum_j weights[h, j] k(points[p], centres[j]) with length scales scale[h].

    Args:
        points, centres: (P, d) and (u, d).
        scale, weights: (H, d) and (H, u).
        out: (H, P).
    """
    (H, u), (P, d) = weights.shape, points.shape
    scaled, t, k = np.empty((d, u)), np.empty(u), np.empty(u)
    for h in range(H):
        w = weights[h]
        for i in range(d):
            for j in range(u):
                scaled[i, j] = centres[j, i] / scale[h, i]
        for p in range(P):
            for j in range(u):
                t[j] = 0.0
            for i in range(d):
                y = points[p, i] / scale[h, i]
                for j in range(u):
                    e = y - scaled[i, j]
                    t[j] += e * e
            total = 0.0
            if is_matern:
                for j in range(u):
                    t[j] = _SQRT5 * math.sqrt(t[j])
                decay(t, k)
                for j in range(u):
                    total += w[j] * k[j] * (1 + t[j] + t[j] * t[j] / 3)
            else:
                for j in range(u):
                    t[j] *= 0.5
                decay(t, k)
                for j in range(u):
                    total += w[j] * k[j]
            out[h, p] = total
