"""Small posteriors and costs to maximise on; nothing here calls takg.optim."""

import random
from contextlib import contextmanager

import numpy as np
import torch

from takg.gp import Hyperparameters, Model, Rows, condition

N_PARAMETERS = {"freeze_thaw": 3, "data_size": 2, "smooth": 1, "curve": 6, "size": 5}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def uniform(gen, *shape, low=0.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, generator=gen, dtype=torch.float64)


def a_posterior(
    mix=("freeze_thaw",),
    *,
    d=1,
    H=2,
    n=6,
    seed=0,
    noise=(0.03, 0.08),
    lengthscale=(0.2, 0.4),
    data_gradients=False,
    x=None,
    s=None,
    y=None,
):
    """n rows in general position, or those given, under H samples with nothing at 0 or 1."""
    gen = torch.Generator().manual_seed(seed)
    model = Model(d=d, fidelity_kernels=mix, has_gradients=data_gradients, mean_var=0.6)
    theta = Hyperparameters(
        signal_var=uniform(gen, H, low=0.8, high=1.8),
        lengthscale=uniform(gen, H, d, low=lengthscale[0], high=lengthscale[1]),
        fidelity=tuple(tuple(uniform(gen, H, low=0.4, high=1.4) for _ in range(N_PARAMETERS[kind])) for kind in mix),
        noise_var=uniform(gen, H, low=noise[0], high=noise[1]),
        gradient_noise_var=uniform(gen, H, low=0.3, high=0.7),
    )
    own_x, own_s = uniform(gen, n, d), uniform(gen, n, len(mix))
    own_y = 1.3 * torch.randn(n, generator=gen, dtype=torch.float64)
    part = torch.arange(n) % (d + 1) if data_gradients else torch.zeros(n, dtype=torch.long)
    rows = Rows(
        x=own_x if x is None else x,
        s=own_s if s is None else s,
        part=part,
        noise_scale=torch.ones(n, dtype=torch.float64),
    )
    return condition(model, theta, rows, own_y if y is None else y)


@contextmanager
def unchanged_randomness():
    """Fails unless the block leaves all global random states as they were."""
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    yield
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]


def some_cost(x, s):
    """Grows with every component, nowhere constant, and has a price to start."""
    return 0.3 + 0.1 * x[..., 0] + s.prod(-1)


def with_run(post, x, s, values):
    """The posterior after a run at x showed values on its way up to s, equally spaced in every fidelity."""
    share = torch.arange(1, len(values) + 1, dtype=torch.float64)[:, None] / len(values)
    rows = Rows(
        x=x.expand(len(values), -1),
        s=s * share,
        part=torch.zeros(len(values), dtype=torch.long),
        noise_scale=torch.ones(len(values), dtype=torch.float64),
    )
    return post.extended(rows, tensor(values))


# Brute force for one design variable and one trace fidelity


def kept(s, fraction, low):
    """S (..., l, 1) of which the first members are `fraction` of the way from low to s; l = 1 without fractions."""
    return torch.stack([*(low + f * (s - low) for f in fraction), s], dim=-1)[..., None]


def on_a_grid(acquisition, x, s, fractions, *, s_from=None):
    """Best value on the grid of x, s and the kept fractions, and where: (value, x, s, fractions)."""
    X, tops, *F = (one.flatten() for one in torch.meshgrid(x, s, *fractions, indexing="ij"))
    S = kept(tops, F, s_from or 0.0)
    start = torch.full((len(X), 1), torch.nan if s_from is None else s_from, dtype=torch.float64)
    parts = zip(X[:, None].split(1000), S.split(1000), start.split(1000), strict=True)
    with torch.no_grad():
        values = torch.cat([acquisition(x, S, s_from=s_from) for x, S, s_from in parts])
    best = int(values.argmax())
    return float(values[best]), float(X[best]), float(tops[best]), [float(f[best]) for f in F]


def brute_force(acquisition, l, *, x=None, s_from=None, rounds=3, points=(21, 13, 7)):
    """The maximum over x, s and the kept fractions on a dense grid, which is then refined around its best point.

    Each round spans two steps of the grid before it either way.
    """
    spans = [(0.0, 1.0) if x is None else (x, x), (s_from or 0.0, 1.0), *[(0.0, 0.95)] * (l - 1)]
    counts = [points[0] if x is None else 1, points[1], *points[2:] * (l - 1)]
    limits = list(spans)
    found = None
    for _ in range(rounds):
        axes = [torch.linspace(*span, count, dtype=torch.float64) for span, count in zip(spans, counts, strict=True)]
        value, at_x, at_s, at_f = on_a_grid(acquisition, axes[0], axes[1], axes[2:], s_from=s_from)
        found = value, tensor([at_x]), kept(tensor(at_s), [tensor(f) for f in at_f], s_from or 0.0)
        reach = [2 * (high - low) / max(count - 1, 1) for (low, high), count in zip(spans, counts, strict=True)]
        spans = [
            (max(low, at - step), min(high, at + step))
            for (low, high), at, step in zip(limits, [at_x, at_s, *at_f], reach, strict=True)
        ]
    return found
