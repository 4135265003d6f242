"""Newton's method for thousands of small problems, one after the other, in loops compiled by Numba.

Tensor operations would pass over all kernels of all problems a dozen times; here they stay in the first cache, and a
problem that is solved is left alone. Arrays only: `_inner.py` says what they mean.
"""

import math

import numpy as np

from takg.numerics.compiled import compiled, decay

_SQRT5 = math.sqrt(5.0)
_TINY = 2.2250738585072014e-308
_ENOUGH = 0.1  # share of a plain gradient step's gain below which a Newton step that the box has cut is not taken


@compiled
def polished(  # type: ignore[no-untyped-def]
    is_matern,
    shared,
    own,
    scale,
    weights,
    own_weights,
    offset,
    start,
    passes,
    radius,
    tolerance,
    converged,
    x,
    value,
    is_solved,
    features,
):
    """Where P functions under each of H samples are smallest, from a start each.

    Args:
        shared, own: (u, d) and (P, q, d), centres of all functions and of each.
        scale: (H, d), length scales.
        weights, own_weights, offset: (H, P, u), (H, P, q) and (H, P), of the centres, and a constant.
        start: (H, P, d), in the unit cube.
        passes: evaluations beside the first; one that does not lower the function halves its step.
        radius, tolerance, converged: longest step, gain that is worth no step, and gain that counts as solved.
        x, value, is_solved, features: to be filled with minimisers (H, P, d), values (H, P), whether they are solved
            (H, P), k(x, shared) there (H, P, u).
    """
    H, P, d = start.shape
    u, q = shared.shape[0], own.shape[1]
    centres, centre = np.empty((d, u)), np.empty((q, d))
    spare, a, b, t = np.empty(u), np.empty(u), np.empty(u), np.empty(u)
    y, trial, upper, move, plain = np.empty(d), np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    g, A, h, is_held = np.empty(d), np.empty((d, d)), np.empty((d, d)), np.empty(d, dtype=np.bool_)
    for s in range(H):
        for i in range(d):
            upper[i] = 1 / scale[s, i]
            for j in range(u):
                centres[i, j] = shared[j, i] / scale[s, i]
        for p in range(P):
            w, v, k = weights[s, p], own_weights[s, p], features[s, p]
            for i in range(d):
                y[i] = min(max(start[s, p, i] / scale[s, i], 0.0), upper[i])
                for j in range(q):
                    centre[j, i] = own[p, j, i] / scale[s, i]
            f = _value(is_matern, y, centres, w, centre, v, k, a, b, t)
            _derivatives(is_matern, y, centres, centre, v, a, b, g, h)
            gain = _newton(y, g, h, upper, radius, A, is_held, move, plain)
            length = 1.0
            for left in range(passes - 1, -1, -1):
                if gain <= tolerance:
                    break
                for i in range(d):
                    trial[i] = y[i] + length * move[i]
                f_new = _value(is_matern, trial, centres, w, centre, v, spare, a, b, t)
                if f_new < f:
                    f, length = f_new, 1.0
                    y[:] = trial
                    k[:] = spare
                    if left:  # derivatives at the last point would serve no further step
                        _derivatives(is_matern, y, centres, centre, v, a, b, g, h)
                        gain = _newton(y, g, h, upper, radius, A, is_held, move, plain)
                else:
                    length *= 0.5
            value[s, p] = f + offset[s, p]
            is_solved[s, p] = gain <= converged
            for i in range(d):
                x[s, p, i] = min(max(y[i] * scale[s, i], 0.0), 1.0)


@compiled
def _value(is_matern, y, centres, w, own, v, k, a, b, t):  # type: ignore[no-untyped-def]
    """f without its constant; fills k, and a and b with what multiplies differences, and their products, below."""
    d, u = centres.shape
    for j in range(u):
        t[j] = 0.0
    for i in range(d):
        for j in range(u):
            e = y[i] - centres[i, j]
            t[j] += e * e
    f = 0.0
    if is_matern:
        for j in range(u):
            t[j] = _SQRT5 * math.sqrt(t[j])
        decay(t, k)
        for j in range(u):
            a[j] = w[j] * k[j] * (1 + t[j]) * (-5.0 / 3.0)
            b[j] = w[j] * k[j] * (25.0 / 3.0)
            k[j] *= 1 + t[j] + t[j] * t[j] / 3
            f += w[j] * k[j]
    else:
        for j in range(u):
            t[j] *= 0.5
        decay(t, k)
        for j in range(u):
            b[j] = w[j] * k[j]
            a[j] = -b[j]
            f += b[j]
    for c in range(own.shape[0]):
        f += v[c] * _profile(is_matern, _square(y, own[c]))[0]
    return f


@compiled
def _derivatives(is_matern, y, centres, own, v, a, b, g, h):  # type: ignore[no-untyped-def]
    """Gradient and Hessian (its lower triangle) of f at y, from the a and b that `_value` left."""
    d, u = centres.shape
    total = 0.0
    for j in range(u):
        total += a[j]
    for i in range(d):
        slope = 0.0
        for j in range(u):
            slope += a[j] * (y[i] - centres[i, j])
        g[i] = slope
        for l in range(i + 1):
            bend = 0.0
            for j in range(u):
                bend += b[j] * (y[i] - centres[i, j]) * (y[l] - centres[l, j])
            h[i, l] = bend
        h[i, i] += total
    for c in range(own.shape[0]):
        _, slope, bend = _profile(is_matern, _square(y, own[c]))
        for i in range(d):
            e = y[i] - own[c, i]
            g[i] += 2 * v[c] * slope * e
            for l in range(i + 1):
                h[i, l] += 4 * v[c] * bend * e * (y[l] - own[c, l])
            h[i, i] += 2 * v[c] * slope


@compiled
def _newton(y, g, h, upper, radius, A, is_held, move, plain):  # type: ignore[no-untyped-def]
    """The step of `takg.numerics.newton_step` in the box [0, upper]; fills move and returns its gain."""
    d = len(y)
    for i in range(d):
        is_held[i] = (y[i] <= 0.0 and g[i] > 0) or (y[i] >= upper[i] and g[i] < 0)
        move[i] = 0.0 if is_held[i] else -g[i]  # the right-hand side, for now
    _filled(A, h, is_held, 0.0)
    lowest, largest = math.inf, _TINY  # Gershgorin's bound on the eigenvalues, and the largest entry
    for i in range(d):
        total = 0.0
        for l in range(d):
            entry = abs(A[i, l] if l <= i else A[l, i])
            total += entry
            largest = max(largest, entry)
        lowest = min(lowest, A[i, i] + abs(A[i, i]) - total)
        plain[i] = total
    if not _is_factorised(A):
        _filled(A, h, is_held, 1e-3 * largest - min(lowest, 0.0))
        _is_factorised(A)
    for i in range(d):  # forwards and backwards through the factor
        for l in range(i):
            move[i] -= A[i, l] * move[l]
        move[i] /= A[i, i]
    for i in range(d - 1, -1, -1):
        for l in range(i + 1, d):
            move[i] -= A[l, i] * move[l]
        move[i] /= A[i, i]
    longest = radius
    for i in range(d):
        longest = max(longest, abs(move[i]))
    gain, plain_gain = 0.0, 0.0
    for i in range(d):
        slope = 0.0 if is_held[i] else g[i]
        move[i] = min(max(y[i] + move[i] * (radius / longest), 0.0), upper[i]) - y[i]
        gain -= slope * move[i]
        step = min(max(-slope / max(plain[i], _TINY), -radius), radius)
        plain[i] = min(max(y[i] + step, 0.0), upper[i]) - y[i]
        plain_gain -= slope * plain[i]
    if gain < _ENOUGH * plain_gain:
        move[:] = plain
        return plain_gain
    return gain


@compiled
def _filled(A, h, is_held, shift):  # type: ignore[no-untyped-def]
    """The lower triangle of h, rows and columns that are held replaced by those of the identity, plus a shift."""
    for i in range(len(A)):
        for l in range(i + 1):
            A[i, l] = 0.0 if is_held[i] or is_held[l] else h[i, l]
        A[i, i] += (1.0 if is_held[i] else 0.0) + shift


@compiled
def _is_factorised(A):  # type: ignore[no-untyped-def]
    """Put the Cholesky factor in place of the lower triangle; False if there is none."""
    for i in range(len(A)):
        for l in range(i + 1):
            total = A[i, l]
            for c in range(l):
                total -= A[i, c] * A[l, c]
            if l < i:
                A[i, l] = total / A[l, l]
            elif total > 0:
                A[i, i] = math.sqrt(total)
            else:
                return False
    return True


@compiled
def _square(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(x)):
        total += (x[i] - y[i]) ** 2
    return total


@compiled
def _profile(is_matern, square):  # type: ignore[no-untyped-def]
    """phi and its first two derivatives by the squared distance."""
    if is_matern:
        r = math.sqrt(5 * square)
        e = math.exp(-r)
        return (1 + r + r * r / 3) * e, -(5.0 / 6.0) * (1 + r) * e, (25.0 / 12.0) * e
    e = math.exp(-0.5 * square)
    return e, -0.5 * e, 0.25 * e
