"""Pools: members against brute force, JSON, and what is not in them."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.errors import SpaceError
from takg.space import Categorical, Float, Int, Pool, Space

PARAMETERS = {
    "lr": Float(1e-4, 1.0, log=True),
    "net": {"layers": Int(1, 5), "kind": Categorical(["mlp", "cnn"]), "kernel": Int(3, 7, when={"kind": "cnn"})},
}
WHOLE = Space(PARAMETERS)
CONFIGS = [
    {"lr": 0.1 / 3, "net": {"layers": 2, "kind": "mlp"}},
    {"lr": 0.001, "net": {"layers": 2, "kind": "cnn", "kernel": 3}},
    {"lr": 0.001, "net": {"layers": 5, "kind": "cnn", "kernel": 7}},
    {"lr": 0.9, "net": {"layers": 1, "kind": "mlp"}},
    {"lr": 0.0005, "net": {"layers": 4, "kind": "mlp"}},
]
POOL = Pool(PARAMETERS, CONFIGS)
units = st.lists(st.floats(0, 1), min_size=WHOLE.d, max_size=WHOLE.d)
laws = settings(deadline=None, derandomize=True, max_examples=100)


def test_its_points_are_the_coordinates_of_its_configurations_each_once():
    twice = Pool(PARAMETERS, [*CONFIGS, *CONFIGS])
    assert POOL.points == twice.points == tuple(WHOLE.to_unit(config) for config in CONFIGS)
    assert (POOL.d, POOL.names) == (WHOLE.d, WHOLE.names)


@laws
@given(units)
def test_a_point_means_the_nearest_configuration(u):
    nearest = min(CONFIGS, key=lambda config: math.dist(WHOLE.to_unit(config), u))
    assert math.dist(POOL.snapped(u), u) == pytest.approx(math.dist(WHOLE.to_unit(nearest), u))
    assert POOL.to_unit(POOL.from_unit(u)) == POOL.snapped(u)
    assert POOL.from_unit(u) in CONFIGS


@laws
@given(units, st.integers(1, 8))
def test_neighbours_are_the_nearest(u, limit):
    found = POOL.neighbours(u, limit)
    assert [math.dist(p, u) for p in found] == pytest.approx(sorted(math.dist(p, u) for p in POOL.points)[:limit])
    assert len(set(found)) == min(limit, len(CONFIGS))


def test_a_configuration_comes_back_as_it_was_given_and_can_be_changed_without_harm():
    for config, point in zip(CONFIGS, POOL.points, strict=True):
        handed_out = POOL.from_unit(point)
        assert handed_out == config
        handed_out["net"]["layers"] = 99
        assert POOL.from_unit(point) == config


def test_samples_are_configurations_and_all_come_up():
    generator = random.Random(3)
    drawn = [POOL.sample(generator) for _ in range(200)]  # misses one of five with a probability below 1e-18
    assert all(config in drawn for config in CONFIGS) and all(config in CONFIGS for config in drawn)


def test_json_tells_all_of_it():
    again = Pool.from_json(json.loads(json.dumps(POOL.to_json())))
    assert again == POOL and hash(again) == hash(POOL)
    assert again.points == POOL.points and again.from_unit(POOL.points[0]) == CONFIGS[0]
    assert Pool(PARAMETERS, CONFIGS[:3]) != POOL and POOL != WHOLE and WHOLE != POOL
    assert "5 configurations" in repr(POOL)


@pytest.mark.parametrize("data", [{}, {"parameters": []}, {"configs": 3, "parameters": []}, [1]])
def test_json_without_configurations_is_an_error(data):
    with pytest.raises(SpaceError, match="configs"):
        Pool.from_json(data)


def test_what_is_not_in_the_pool_is_refused():
    other = {"lr": 0.5, "net": {"layers": 2, "kind": "mlp"}}
    WHOLE.check(other)
    with pytest.raises(SpaceError, match="not in the pool; expected one of its 5"):
        POOL.check(other)
    POOL.check(CONFIGS[3])


@pytest.mark.parametrize("configs", [[], CONFIGS[:1], [CONFIGS[0]] * 3])
def test_there_have_to_be_two(configs):
    with pytest.raises(SpaceError, match=r"configs has [01] distinct configurations; expected at least 2"):
        Pool(PARAMETERS, configs)


def test_a_bad_configuration_is_named():
    with pytest.raises(SpaceError, match=r"configs\[1\]: .*lr.* is missing"):
        Pool(PARAMETERS, [CONFIGS[0], {"net": {"layers": 2, "kind": "mlp"}}])
    with pytest.raises(SpaceError, match="limit=0"):
        POOL.neighbours((0.5,) * POOL.d, 0)
