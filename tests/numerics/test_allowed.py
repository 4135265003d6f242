"""Steps that must not leave a set."""

import torch

from takg.numerics import allowed_part, furthest_allowed

DISC = 0.7


def in_disc(x):
    return x.norm(dim=-1) <= DISC


def test_ends_inside_are_reached_and_others_as_far_as_halving_finds():
    start = torch.zeros(2, 3, 2, dtype=torch.float64)
    way = torch.tensor([[0.6, 0.0], [0.0, 1.0], [3.0, 4.0]], dtype=torch.float64).expand(2, 3, 2)
    found = furthest_allowed(in_disc, start, way)
    assert in_disc(found).all()
    assert torch.equal(found[:, 0], way[:, 0])
    lengths = found.norm(dim=-1)[0]
    assert DISC - 1 / 16 <= lengths[1] <= DISC
    assert DISC - 5 / 16 <= lengths[2] <= DISC


def test_only_what_is_out_is_looked_at_again():
    asked = []

    def counted(x):
        asked.append(x.shape[:-1].numel())
        return in_disc(x)

    ends = torch.tensor([[0.6, 0.0], [0.0, 1.0], [0.1, 0.2]], dtype=torch.float64)
    found = furthest_allowed(counted, torch.zeros(2, dtype=torch.float64), ends)
    assert asked == [3, 1, 1, 1, 1]
    assert torch.equal(found[[0, 2]], ends[[0, 2]])


def test_where_only_the_start_is_allowed_one_stays_there():
    start = torch.tensor([[0.25, 0.5]], dtype=torch.float64)
    found = furthest_allowed(lambda x: (x == start).all(-1), start, start + 0.1)
    assert torch.equal(found, start)


def test_of_points_those_are_kept_that_are_allowed_and_all_if_none_is():
    points = torch.tensor([[0.1, 0.1], [0.9, 0.9]], dtype=torch.float64)
    assert torch.equal(allowed_part(in_disc, points), points[:1])
    assert torch.equal(allowed_part(in_disc, points[1:]), points[1:])
    assert allowed_part(None, points) is points
