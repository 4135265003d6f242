"""Products of table entries, in loops compiled by Numba; `_tables.py` says what they mean.

A symmetric table holds its lower triangle, row by row: entry (a, b) with a >= b stands at a (a + 1) / 2 + b.
"""

from typing import Any

from numba import njit

_compiled: Any = njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def fill_lower(design, which, factors, places, constant, K):  # type: ignore[no-untyped-def]
    """K[h, i, j] = design[h, (which[i], which[j])] times the factors of their places, + constant, for j <= i.

    Above that 0. The design's table is symmetric, those of the factors, of which there has to be one, are square.
    """
    for h in range(K.shape[0]):
        entries = design[h]
        for i in range(K.shape[1]):
            row, a = K[h, i], which[i]
            begin = a * (a + 1) // 2
            for j in range(i + 1):
                b = which[j]
                row[j] = entries[begin + b] if b <= a else entries[b * (b + 1) // 2 + a]
            for f in range(len(factors)):
                factor, place = factors[f][h, places[f, i]], places[f]
                for j in range(i + 1):
                    row[j] *= factor[place[j]]
            for j in range(i + 1):
                row[j] += constant
            for j in range(i + 1, K.shape[2]):
                row[j] = 0.0


@_compiled
def fill_product(design, which, owner, factors, places, constant, K):  # type: ignore[no-untyped-def]
    """K[h, i, b, c] = design[h, which[i], b, owner[c]] prod_j factors[j][h, places[j, i], b, c] + constant[b, c]."""
    H, n, B, r = K.shape
    for h in range(H):
        for i in range(n):
            row, x = K[h, i], design[h, which[i]]
            for b in range(B):
                for c in range(r):
                    row[b, c] = x[b, owner[c]]
            for j in range(len(factors)):
                f = factors[j][h, places[j, i]]
                for b in range(B):
                    for c in range(r):
                        row[b, c] *= f[b, c]
            for b in range(B):
                for c in range(r):
                    row[b, c] += constant[b, c]


@_compiled
def pull_back(grad, design, which, owner, factors, places, out, outs):  # type: ignore[no-untyped-def]
    """Add to `out` and `outs` what the derivative of a sum by K, `grad`, makes those by design and by factors."""
    H, n, B, r = grad.shape
    for h in range(H):
        for i in range(n):
            g, x, to = grad[h, i], design[h, which[i]], out[h, which[i]]
            for b in range(B):
                for c in range(r):
                    whole = g[b, c]
                    for j in range(len(factors)):
                        whole *= factors[j][h, places[j, i], b, c]
                    to[b, owner[c]] += whole
            for k in range(len(factors)):
                f = outs[k][h, places[k, i]]
                for b in range(B):
                    for c in range(r):
                        part = g[b, c] * x[b, owner[c]]
                        for j in range(len(factors)):
                            if j != k:
                                part *= factors[j][h, places[j, i], b, c]
                        f[b, c] += part
