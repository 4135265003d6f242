"""A Gaussian process in plain NumPy, entry by entry, and generic inputs to compare it on.

Nothing here calls takg: its dataclasses are read as records of numbers.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from takg.gp import Hyperparameters, Rows

N_PARAMETERS = {"freeze_thaw": 3, "data_size": 2, "smooth": 1, "curve": 6, "size": 5}
WITHOUT_DOUBT = {"curve": "freeze_thaw", "size": "data_size"}
DESIGNS = ("squared_exponential", "matern52")
# Every product of up to three of the plain fidelities, in every order, and some with those that have a doubt.
MIXES = [mix for m in range(4) for mix in product(("freeze_thaw", "data_size", "smooth"), repeat=m)]
MIXES += [("curve",), ("size",), ("size", "curve"), ("curve", "smooth", "size")]


@dataclass(frozen=True)
class Sample:
    """One of the H hyperparameter samples, as NumPy numbers."""

    signal_var: float
    lengthscale: np.ndarray
    fidelity: tuple[tuple[float, ...], ...]
    noise_var: float
    gradient_noise_var: float
    quirk_var: float = 0.0
    low_noise_var: float = 0.0


@dataclass(frozen=True)
class Row:
    x: np.ndarray
    s: np.ndarray
    part: int
    noise_scale: float


def samples_of(theta):
    return [
        Sample(
            float(theta.signal_var[h]),
            theta.lengthscale[h].detach().numpy(),
            tuple(tuple(float(p[h]) for p in parameters) for parameters in theta.fidelity),
            float(theta.noise_var[h]),
            float(theta.gradient_noise_var[h]),
            0.0 if theta.quirk_var is None else float(theta.quirk_var[h]),
            0.0 if theta.low_noise_var is None else float(theta.low_noise_var[h]),
        )
        for h in range(len(theta.signal_var))
    ]


def rows_of(rows):
    """Unbatched rows as a list."""
    x, s = rows.x.detach().numpy(), rows.s.detach().numpy()
    return [Row(x[i], s[i], int(rows.part[i]), float(rows.noise_scale[i])) for i in range(len(x))]


def member(rows, index, batch):
    """The rows at one index of their batch dimensions, after these were broadcast to `batch`."""
    return Rows(
        x=rows.x.expand(*batch, *rows.x.shape[-2:])[index],
        s=rows.s.expand(*batch, *rows.s.shape[-2:])[index],
        part=rows.part,
        noise_scale=rows.noise_scale,
    )


def share_there(s, onset):
    """Of what designs differ by at the target."""
    return (s + 0.001) / (s + 0.001 + onset) * (1.001 + onset) / 1.001


def fidelity_factor(kind, s, t, parameters):
    if kind == "freeze_thaw":
        w, beta, alpha = parameters
        return w + beta**alpha / (s + t + beta) ** alpha
    if kind == "data_size":
        c, delta = parameters
        return c + ((1 - s) * (1 - t)) ** (1 + delta)
    if kind in WITHOUT_DOUBT:
        *known, doubt, reach, onset = parameters
        factor = fidelity_factor(WITHOUT_DOUBT[kind], s, t, known) + doubt * np.exp(-((s - t) ** 2) / (2 * reach**2))
        return factor * share_there(s, onset) * share_there(t, onset)
    (lengthscale,) = parameters
    return np.exp(-((s - t) ** 2) / (2 * lengthscale**2))


def design_value(kind, lengthscale, x, y):
    r = np.sqrt((((x - y) / lengthscale) ** 2).sum(-1))
    if kind == "squared_exponential":
        return np.exp(-(r**2) / 2)
    return (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r)


def value(model, p, x, s, y, t):
    """Covariance of g(x, s) and g(y, t); x and y may be complex, and everything broadcasts."""
    k = p.signal_var * design_value(model.design_kernel, p.lengthscale, x, y)
    for j, kind in enumerate(model.fidelity_kernels):
        k = k * fidelity_factor(kind, s[..., j], t[..., j], p.fidelity[j])
    trend = model.mean_var + sum(model.slope_var * x[..., k] * y[..., k] for k in model.trend_dims)
    return k + trend + np.where((x == y).all(-1), p.quirk_var * (1 - s.prod(-1)) * (1 - t.prod(-1)), 0.0)


def design_entry(kind, lengthscale, a, b):
    """Closed forms of k_x and its derivatives by a component of either argument."""
    gap, k, l = (a.x - b.x) / lengthscale**2, a.part - 1, b.part - 1
    r = np.sqrt((((a.x - b.x) / lengthscale) ** 2).sum())
    same = (k == l) / lengthscale[k] ** 2
    if kind == "squared_exponential":
        e = np.exp(-(r**2) / 2)
        by_one, by_both = e, e * (same - gap[k] * gap[l])
    else:
        e = 5 / 3 * np.exp(-(5**0.5) * r)
        by_one, by_both = e * (1 + 5**0.5 * r), e * ((1 + 5**0.5 * r) * same - 5 * gap[k] * gap[l])
    if a.part and b.part:
        return by_both
    if a.part or b.part:
        return -by_one * gap[k] if a.part else by_one * gap[l]
    return design_value(kind, lengthscale, a.x, b.x)


def entry(model, p, a, b):
    k = p.signal_var * design_entry(model.design_kernel, p.lengthscale, a, b)
    for j, kind in enumerate(model.fidelity_kernels):
        k *= fidelity_factor(kind, a.s[j], b.s[j], p.fidelity[j])

    def basis(row):
        if not row.part:
            return np.array([model.mean_var**0.5, *(model.slope_var**0.5 * row.x[k] for k in model.trend_dims)])
        return np.array([0.0, *(model.slope_var**0.5 * (row.part == k + 1) for k in model.trend_dims)])

    k += basis(a) @ basis(b)
    if a.part == 0 and b.part == 0 and a.noise_scale > 0 and b.noise_scale > 0 and all(a.x == b.x):
        k += p.quirk_var * (1 - np.prod(a.s)) * (1 - np.prod(b.s))
    return k


def covariance(model, p, a, b):
    return np.array([[entry(model, p, i, j) for j in rows_of(b)] for i in rows_of(a)]).reshape(len(a), len(b))


def noise(p, rows):
    def of_one(row):
        low = p.low_noise_var * (1 - np.prod(row.s))
        return row.noise_scale * (p.gradient_noise_var if row.part else p.noise_var + low)

    return np.diag([of_one(row) for row in rows_of(rows)])


def posterior(model, p, rows, y, query):
    """Mean and covariance at query given y at rows, from one dense solve."""
    K = covariance(model, p, rows, rows) + noise(p, rows)
    cross = covariance(model, p, query, rows)
    solved = np.linalg.solve(K, np.column_stack([y.numpy(), cross.T]))
    return cross @ solved[:, 0], covariance(model, p, query, query) - cross @ solved[:, 1:]


def stacked(a, b):
    """Unbatched rows one after the other."""
    return Rows(**{name: torch.cat([getattr(a, name), getattr(b, name)]) for name in Rows.__slots__})


def generator(seed):
    return torch.Generator().manual_seed(seed)


def uniform(gen, *shape, low=0.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, generator=gen, dtype=torch.float64)


def some_theta(model, gen, *, H=3):
    """H samples with nothing at 0 or 1, each different."""
    return Hyperparameters(
        signal_var=uniform(gen, H, low=0.4, high=2.3),
        lengthscale=uniform(gen, H, model.d, low=0.3, high=1.4),
        fidelity=tuple(
            tuple(uniform(gen, H, low=0.3, high=1.9) for _ in range(N_PARAMETERS[kind]))
            for kind in model.fidelity_kernels
        ),
        noise_var=uniform(gen, H, low=0.02, high=0.2),
        gradient_noise_var=uniform(gen, H, low=0.3, high=0.7),
        quirk_var=uniform(gen, H, low=0.3, high=1.6) if model.has_quirks else None,
        low_noise_var=uniform(gen, H, low=0.1, high=0.4) if model.has_quirks else None,
    )


def some_rows(model, gen, r, *batch, gradients=False):
    """Rows in general position, values and derivatives mixed if asked for, each with its own noise scale."""
    part = torch.randint(0, model.d + 1, (r,), generator=gen) if gradients else torch.zeros(r, dtype=torch.long)
    return Rows(
        x=uniform(gen, *batch, r, model.d),
        s=uniform(gen, *batch, r, model.m),
        part=part,
        noise_scale=uniform(gen, r, low=0.4, high=1.7),
    )


def some_y(gen, n):
    return 1.3 * torch.randn(n, generator=gen, dtype=torch.float64)
