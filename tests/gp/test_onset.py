"""What the data say about the onset: from where on designs differ as they do at the target."""

import numpy as np
import pytest
import torch

from takg.gp import Model, fit, value_rows

LOW = 0.05


def losses(x, s, *, is_mute):
    """At the target a wave; at low fidelity the same, a little higher, or a constant."""
    wave = np.sin(9 * x) + 0.4 * np.cos(4 * x)
    return np.where(s < 1, 0.9 if is_mute else wave + 0.3, wave)


def fitted(kind, *, is_mute, seed):
    """Twenty designs at low fidelity, the seven of them on the left at the target as well."""
    x = np.concatenate([low := (np.arange(20) + 0.5) / 20, low[:7]])
    s = np.concatenate([np.full(20, LOW), np.ones(7)])
    y = losses(x, s, is_mute=is_mute)
    rows = value_rows(torch.from_numpy(x[:, None]), torch.from_numpy(s[:, None]))
    z = torch.from_numpy((y - y.mean()) / y.std())
    return fit(Model(d=1, fidelity_kernels=(kind,), has_quirks=True), rows, z, seed=seed).posterior


def sds_on_the_right(post):
    """At the target, in units of the outputs' sd, for designs that were seen at low fidelity only."""
    x = torch.tensor([[0.625], [0.775], [0.925]], dtype=torch.float64)
    return post.variance(post.target_rows(x)).mean(0).sqrt()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["curve", "size"])
def test_low_fidelity_is_believed_only_where_it_tells_designs_apart(kind, seed):
    mute, telling = (fitted(kind, is_mute=flag, seed=seed) for flag in (True, False))
    assert sds_on_the_right(mute).min() > 1
    assert (sds_on_the_right(telling) < 0.3 * sds_on_the_right(mute)).all()
    assert mute.theta.fidelity[0][-1].median() > LOW > telling.theta.fidelity[0][-1].median()
