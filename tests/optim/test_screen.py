"""Starts of the search: what was good beside one known design is tried beside the others."""

import pytest
import torch
from small_cases import a_posterior

from takg.acquisition import TaKG
from takg.numerics import sobol_points
from takg.optim import Region
from takg.optim._screen import _LOWEST, _models_of_transplants, _transplants


@pytest.mark.parametrize("models", [1, 3, 8])
def test_transplants_are_as_far_from_other_known_designs_in_length_scales_and_keep_the_fidelities(models):
    post = a_posterior(d=2)
    acquisition = TaKG(post, cost=lambda x, s: 0.1 + s.prod(-1), trace_dims=(0,), seed=1)
    region = Region(d=2, m=post.model.m, trace_dims=(0,))
    known = post.rows.x.unique(dim=0)
    unit = post.theta.lengthscale.log().mean(0).exp().clamp_max(1.0)
    shape = (3 * len(known), region.p)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    good = sobol_points(models, region.p, seed=4)
    good[:, :2] = known[0] + 0.01 * unit * (good[:, :2] - 0.5)  # the lowest is the nearest to all of them
    chosen = _models_of_transplants(torch.arange(models), known, len(noise))
    found = _transplants(acquisition, region, good[chosen], known, noise)
    assert found.shape == shape and ((found >= 0) & (found <= 1)).all()
    lengths = ((good[:, :2] - known[0]) / unit).norm(dim=-1)
    served = set()
    for i, point in enumerate(found):
        j = i % min(len(known), _LOWEST)
        (which,) = (good[:, 2:] == point[2:]).all(-1).nonzero()[:, 0].tolist()
        served.add((j, which))
        distance = ((point[:2] - known[j]) / unit).norm()
        if ((point[:2] > 0) & (point[:2] < 1)).all():  # else the cube cut it off
            assert float(distance) == pytest.approx(float(lengths[which]), rel=1e-9)
        else:
            assert float(distance) <= float(lengths[which]) * (1 + 1e-9)
    assert {j for j, _ in served} == set(range(len(known)))
    assert models == 1 or len(served) > len(known)  # another model in every round
