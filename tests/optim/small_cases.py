"""Small posteriors and costs to maximise on; nothing here calls takg.optim."""

import random
from contextlib import contextmanager

import numpy as np
import torch

from takg.gp import Hyperparameters, Model, Rows, condition

N_PARAMETERS = {"freeze_thaw": 3, "data_size": 2, "smooth": 1}


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
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    yield
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert random.getstate() == states[2]
