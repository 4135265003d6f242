"""The expected loss in plain NumPy, and generic posteriors to compare it on.

Nothing here calls takg but to build what is compared: its dataclasses are read as records of numbers. The process
is solved densely for each hyperparameter sample. Expectations of a minimum over finitely many x' are exact in one
direction of W (Frazier, Powell and Dayanik 2009) and by quadrature in the others.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from takg.gp import Hyperparameters, Model, Rows, condition

N_PARAMETERS = {"freeze_thaw": 3, "data_size": 2, "smooth": 1, "curve": 6, "size": 5}
DESIGNS = ("squared_exponential", "matern52")


# Generic posteriors


def generator(seed):
    return torch.Generator().manual_seed(seed)


def uniform(gen, *shape, low=0.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, generator=gen, dtype=torch.float64)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def some_theta(model, gen, *, H=2):
    """H samples with nothing at 0 or 1, short enough in length for several local minima."""
    return Hyperparameters(
        signal_var=uniform(gen, H, low=0.8, high=2.3),
        lengthscale=uniform(gen, H, model.d, low=0.15, high=0.45),
        fidelity=tuple(
            tuple(uniform(gen, H, low=0.4, high=1.7) for _ in range(N_PARAMETERS[kind]))
            for kind in model.fidelity_kernels
        ),
        noise_var=uniform(gen, H, low=0.02, high=0.2),
        gradient_noise_var=uniform(gen, H, low=0.3, high=0.7),
        quirk_var=uniform(gen, H, low=0.3, high=1.6) if model.has_quirks else None,
    )


def a_posterior(
    mix=("freeze_thaw",),
    *,
    d=1,
    design="squared_exponential",
    H=2,
    n=6,
    seed=0,
    gradients=False,
    data_gradients=False,
    quirks=False,
):
    """n rows in general position; values and derivatives mixed with `data_gradients`, one of each at least.

    With `quirks` the second half of the rows is at the x of the first.
    """
    model = Model(
        d=d,
        fidelity_kernels=mix,
        design_kernel=design,
        has_gradients=gradients or data_gradients,
        mean_var=0.6,
        has_quirks=quirks,
    )
    gen = generator(seed)
    part = torch.arange(n) % (d + 1) if data_gradients else torch.zeros(n, dtype=torch.long)
    rows = Rows(
        x=uniform(gen, n, d), s=uniform(gen, n, model.m), part=part, noise_scale=uniform(gen, n, low=0.4, high=1.7)
    )
    if quirks:
        rows.x[n // 2 :] = rows.x[: n - n // 2]
    y = 1.3 * torch.randn(n, generator=gen, dtype=torch.float64)
    return condition(model, some_theta(model, gen, H=H), rows, y)


def some_cost(x, s):
    """Depends on every component, nowhere constant."""
    return 0.13 + 0.21 * x.sum(-1) + s.mul(0.9).add(0.1).prod(-1) if s.shape[-1] else 0.7 + 0.21 * x.sum(-1)


def grid(points):
    """Equally spaced x' in one dimension, (points, 1)."""
    return np.linspace(0.0, 1.0, points)[:, None]


# A dense Gaussian process


@dataclass(frozen=True)
class Points:
    """Rows as arrays."""

    x: np.ndarray
    s: np.ndarray
    part: np.ndarray
    noise_scale: np.ndarray

    def __len__(self):
        return len(self.part)


def points_of(rows):
    return Points(*(getattr(rows, name).detach().numpy() for name in ("x", "s", "part", "noise_scale")))


def values_at(x, s, noise_scale=1.0):
    """g at paired x (r, d) and s (r, m)."""
    return Points(x, s, np.zeros(len(x), dtype=int), np.full(len(x), noise_scale))


def chained(*points):
    names = ("x", "s", "part", "noise_scale")
    return Points(*(np.concatenate([getattr(one, name) for one in points]) for name in names))


class Dense:
    """The posterior under sample h."""

    def __init__(self, post, h):
        self.model, theta = post.model, post.theta
        self.signal_var = theta.signal_var[h].item()
        self.lengthscale = theta.lengthscale[h].numpy()
        self.fidelity = [[parameter[h].item() for parameter in parameters] for parameters in theta.fidelity]
        self.noise_var = theta.noise_var[h].item()
        self.gradient_noise_var = theta.gradient_noise_var[h].item()
        self.quirk_var = 0.0 if theta.quirk_var is None else theta.quirk_var[h].item()
        self.low_noise_var = 0.0 if theta.low_noise_var is None else theta.low_noise_var[h].item()
        self.data, self.y = points_of(post.rows), post.y.numpy()
        self.inverse = np.linalg.inv(self.prior(self.data, self.data) + self.noise(self.data))

    def prior(self, a, b):
        gap = (a.x[:, None, :] - b.x[None, :, :]) / self.lengthscale**2
        r = np.sqrt((((a.x[:, None, :] - b.x[None, :, :]) / self.lengthscale) ** 2).sum(-1))
        is_a, is_b = (a.part > 0)[:, None], (b.part > 0)[None, :]
        k_a, k_b = np.broadcast_arrays(np.maximum(a.part, 1)[:, None] - 1, np.maximum(b.part, 1)[None, :] - 1)
        gap_a = np.take_along_axis(gap, k_a[..., None], -1)[..., 0]
        gap_b = np.take_along_axis(gap, k_b[..., None], -1)[..., 0]
        same = (k_a == k_b) / self.lengthscale[k_a] ** 2
        if self.model.design_kernel == "squared_exponential":
            k = by_one = np.exp(-(r**2) / 2)
            by_both = k * (same - gap_a * gap_b)
        else:
            decay = np.exp(-(5**0.5) * r)
            k = (1 + 5**0.5 * r + 5 * r**2 / 3) * decay
            by_one = 5 / 3 * (1 + 5**0.5 * r) * decay
            by_both = 5 / 3 * decay * ((1 + 5**0.5 * r) * same - 5 * gap_a * gap_b)
        k = np.where(is_a & is_b, by_both, np.where(is_a, -by_one * gap_a, np.where(is_b, by_one * gap_b, k)))
        k = k * self.signal_var
        for j, kind in enumerate(self.model.fidelity_kernels):
            s, t = a.s[:, None, j], b.s[None, :, j]
            if kind in ("freeze_thaw", "curve"):
                w, beta, alpha, *others = self.fidelity[j]
                factor = w + beta**alpha / (s + t + beta) ** alpha
            elif kind in ("data_size", "size"):
                c, delta, *others = self.fidelity[j]
                factor = c + ((1 - s) * (1 - t)) ** (1 + delta)
            else:
                factor, others = np.exp(-((s - t) ** 2) / (2 * self.fidelity[j][0] ** 2)), []
            if others:
                doubt, reach, onset = others
                factor = factor + doubt * np.exp(-((s - t) ** 2) / (2 * reach**2))
                for one in (s, t):
                    factor = factor * (1.001 + onset) / 1.001 / (1 + onset / (one + 0.001))
            k = k * factor
        is_same = (a.x[:, None, :] == b.x[None, :, :]).all(-1)
        is_same = is_same & (a.noise_scale > 0)[:, None] & (b.noise_scale > 0)
        quirk = self.quirk_var * is_same * (1 - a.s.prod(-1))[:, None] * (1 - b.s.prod(-1))[None, :]
        return k + (self.model.mean_var + quirk) * (~is_a & ~is_b)

    def noise(self, points):
        of_value = self.noise_var + self.low_noise_var * (1 - points.s.prod(-1))
        return np.diag(np.where(points.part == 0, of_value, self.gradient_noise_var) * points.noise_scale)

    def mean(self, points):
        return self.prior(points, self.data) @ self.inverse @ self.y

    def covariance(self, a, b):
        return self.prior(a, b) - self.prior(a, self.data) @ self.inverse @ self.prior(self.data, b)

    def at_target(self, x_new):
        return values_at(x_new, np.ones((len(x_new), self.model.m)))

    def shifts(self, x_new, points):
        """K_n((x', 1), points) D^-T: what the mean at x' (c, d) moves by for each unit of W, (c, r)."""
        D = np.linalg.cholesky(self.covariance(points, points) + self.noise(points))
        return np.linalg.solve(D, self.covariance(points, self.at_target(x_new))).T


# Expectations of a minimum


def expected_minimum_of_lines(a, b):
    """E min_i (a_i + b_i Z), Z ~ N(0, 1), exactly: the lower envelope of the lines, piece by piece."""
    order = np.lexsort((-a, -b))  # slopes falling; of parallel lines the lowest comes last and replaces the others
    pieces = []  # value at 0, slope, and where it begins to be the lowest
    for a_i, b_i in zip(a[order].tolist(), b[order].tolist(), strict=True):
        start = -np.inf
        while pieces:
            a_j, b_j, start_j = pieces[-1]
            # Beyond this, line i is lower than line j; if they are parallel, it is so everywhere.
            start = (a_i - a_j) / (b_j - b_i) if b_j > b_i else -np.inf
            if start > start_j:
                break
            pieces.pop()
            start = -np.inf
        pieces.append((a_i, b_i, start))
    a, b, starts = np.array(pieces).T
    edges = np.append(starts, np.inf)
    density = np.exp(-np.square(edges) / 2) / np.sqrt(2 * np.pi)
    return a @ np.diff(ndtr(edges)) - b @ np.diff(density)


def across_nodes(dims):
    """Nodes (c, dims) and weights for expectations under N(0, I): a fine lattice, Sobol points where that is too large.

    Gauss-Hermite nodes would be too far apart to see where the minimum jumps between two basins.
    """
    if dims > 2:
        points = qmc.Sobol(dims, seed=0).random_base2(12)
        return ndtri(points), np.full(len(points), 1 / len(points))
    step = (0.1, 0.3)[dims - 1]
    ticks = step * np.arange(-int(5.5 / step), int(5.5 / step) + 1)
    nodes = np.array([z for z in product(ticks, repeat=dims) if np.dot(z, z) < 5.5**2])  # all but 1e-6 of the mass
    weights = np.exp(-(nodes**2).sum(-1) / 2)
    return nodes, weights / weights.sum()


def expected_minimum(mean, shifts):
    """E min_i (mean_i + shifts_i W), W ~ N(0, I_r): exact along the widest direction, quadrature across it."""
    if shifts.shape[1] == 0:
        return mean.min()
    # What is common to all i has no part in the minimum. W is isotropic: the columns may be rotated.
    shifts = shifts - shifts.mean(0)
    _, _, V = np.linalg.svd(shifts, full_matrices=False)
    turned = shifts @ V.T  # widest first
    if turned.shape[1] == 1:
        return expected_minimum_of_lines(mean, turned[:, 0])
    nodes, weights = across_nodes(turned.shape[1] - 1)
    return weights @ [expected_minimum_of_lines(mean + turned[:, 1:] @ z, turned[:, 0]) for z in nodes]


# Losses and values of information


def retained(x, S, *, gradients=False, noise_scale=1.0):
    """Y(x, S): x (d,), S a set of fidelities, as tuples."""
    d, m = len(x), len(next(iter(S)))
    rows = [(s, part) for s in sorted(S) for part in range(d + 1 if gradients else 1)]
    return Points(
        np.tile(x, (len(rows), 1)),
        np.array([s for s, _ in rows], dtype=float).reshape(len(rows), m),
        np.array([part for _, part in rows], dtype=int),
        np.full(len(rows), noise_scale),
    )


def zero_set(S):
    """C(S) as a set of tuples: each member with one component replaced by 0."""
    return {tuple(0.0 if i == j else v for i, v in enumerate(s)) for s in S for j in range(len(s))}


def loss(post, points, x_new):
    """L_n of observing points, over the x' of the grid (c, d), averaged over the samples."""
    each = []
    for h in range(post.theta.H):
        dense = Dense(post, h)
        shifts = dense.shifts(x_new, points) if len(points) else np.empty((len(x_new), 0))
        each.append(expected_minimum(dense.mean(dense.at_target(x_new)), shifts))
    return np.mean(each)


def value_of_information(post, x, S, x_new, *, zeros=None, gradients=False, pending=None, with_own=False):
    """L_n(pending, C) - L_n(pending, C, S) for q evaluations x (q, d), S (q, l, m).

    Args:
        zeros: None for taKG; the noise scale of C(S) for taKG-zero.
        with_own: add the x of the evaluations to the grid.
    """
    x, S = np.asarray(x), np.asarray(S)
    x_new = np.concatenate([x_new, x]) if with_own else x_new
    known = [values_at(x[:0], S[0, :0]) if pending is None else points_of(pending)]
    seen = []
    for x_i, S_i in zip(x, S, strict=True):
        members = {tuple(s) for s in S_i}
        C = set() if zeros is None else zero_set(members)
        scale = 1.0 if zeros is None else zeros
        if C:
            known.append(retained(x_i, C, gradients=gradients, noise_scale=scale))
        if members - C:
            seen.append(retained(x_i, members - C, gradients=gradients))
    before, after = chained(*known), chained(*known, *seen)
    return loss(post, before, x_new) - loss(post, after, x_new)


def target_sd(post, x):
    """sqrt of the mean over the samples of Var_n g(x, 1), x (d,)."""
    variances = []
    for h in range(post.theta.H):
        dense = Dense(post, h)
        here = dense.at_target(np.asarray(x)[None])
        variances.append(dense.covariance(here, here)[0, 0])
    return np.mean(variances) ** 0.5
