"""Spaces: names, conditions, coordinates, neighbours against brute force, JSON."""

import copy
import json
import math
import pickle
import random
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.errors import SpaceError
from takg.space import Categorical, Constant, Float, Int, Ordinal, Space

laws = settings(deadline=None, derandomize=True, max_examples=100)
OPTIMIZERS = ["sgd", "adam", "lamb"]
SPACE = Space(
    {
        "lr": Float(1e-6, 1.0, log=True),
        "optimizer": {
            "nesterov": Categorical([True, False], when={"optimizer.momentum": ["some", "much"]}),
            "momentum": Ordinal(["none", "some", "much"], when={"kind": "sgd"}),
            "kind": Categorical(OPTIMIZERS),
            "beta": Float(0.8, 0.999, default=0.9, when={"kind": ["adam", "lamb"]}),
        },
        "layers": Int(1, 4),
        "width": {"second": Int(8, 64, log=True, when={"layers": [2, 3, 4]}), "unit": "relu"},
        "warmup": Constant(5, when={"optimizer.kind": "lamb", "layers": 4}),
        "seed": 7,
    }
)
units = st.lists(st.floats(0, 1), min_size=SPACE.d, max_size=SPACE.d)


def test_the_coordinates_of_a_space_are_those_of_its_parameters_in_order() -> None:
    assert SPACE.d == 1 + (1 + 1 + 3 + 1) + 1 + 1
    assert SPACE.names == (
        *("lr", "optimizer.nesterov", "optimizer.momentum", "optimizer.kind", "optimizer.beta"),
        *("layers", "width.second", "width.unit", "warmup", "seed"),
    )
    assert SPACE.dims["optimizer.kind"] == range(3, 6)
    assert len(SPACE.dims["seed"]) == 0
    config = {
        "lr": 0.001,
        "optimizer": {"nesterov": False, "momentum": "some", "kind": "sgd"},
        "layers": 1,
        "width": {"unit": "relu"},
        "seed": 7,
    }
    u = SPACE.to_unit(config)
    assert round(math.sqrt(7.5 * 64.5)) == 22  # the middle of the second width, at its own coordinate
    second = math.log(21.5 * 22.5 / 7.5**2) / 2 / math.log(64.5 / 7.5)
    assert u == pytest.approx((0.5, 1.0, 0.5, 1.0, 0.0, 0.0, 0.1 / 0.199, 0.125, second), abs=1e-12)
    assert SPACE.from_unit(u) == config


def test_a_configuration_is_nested_like_the_definition_and_in_its_order() -> None:
    config = SPACE.from_unit([0.5, 0.1, 0.9, 0, 0, 1, 0.5, 1, 0.5])
    assert json.dumps(config) == json.dumps(
        {
            "lr": 0.001,
            "optimizer": {"kind": "lamb", "beta": 0.8995},
            "layers": 4,
            "width": {"second": 22, "unit": "relu"},
            "warmup": 5,
            "seed": 7,
        }
    )


def test_a_group_without_active_parameters_is_left_out() -> None:
    space = Space({"use": Categorical([False, True]), "more": {"deep": {"x": Float(0, 1, when={"use": True})}}})
    assert space.from_unit([0.0, 0.3]) == {"use": False}
    assert space.from_unit([1.0, 0.25]) == {"use": True, "more": {"deep": {"x": 0.25}}}
    assert space.to_unit({"use": False}) == (0.0, 0.5)


@laws
@given(units)
def test_parameters_are_active_exactly_if_their_conditions_hold(u) -> None:
    config = SPACE.from_unit(u)
    kind, momentum = config["optimizer"]["kind"], config["optimizer"].get("momentum")
    assert ("momentum" in config["optimizer"]) == (kind == "sgd")
    assert ("nesterov" in config["optimizer"]) == (momentum in ("some", "much"))
    assert ("beta" in config["optimizer"]) == (kind != "sgd")
    assert ("second" in config["width"]) == (config["layers"] >= 2)
    assert ("warmup" in config) == (kind == "lamb" and config["layers"] == 4)


@laws
@given(units)
def test_configurations_come_back_and_snapping_is_what_a_round_trip_does(u) -> None:
    config = SPACE.from_unit(u)
    snapped = SPACE.snapped(u)
    assert SPACE.to_unit(config) == snapped == SPACE.snapped(snapped)
    assert json.dumps(SPACE.from_unit(snapped)) == json.dumps(config)
    SPACE.check(config)


def test_inactive_parameters_lie_at_their_default_or_in_the_middle() -> None:
    off = {"when": {"on": True}}
    space = Space(
        {
            "on": Categorical([False, True]),
            "a": Float(0, 2, default=0.5, **off),
            "b": Float(0, 2, **off),
            "c": Int(0, 3, default=3, **off),
            "d": Categorical(["x", "y", "z"], default="z", **off),
            "e": Categorical(["x", None], default=None, **off),
            "f": Ordinal([1, 2, 3], **off),
            "g": Categorical(["x", "y", "z"], **off),
        }
    )
    expected = (0.0, 0.25, 0.5, 0.875, 0.0, 0.0, 1.0, 1.0, 0.5, 1.0, 0.0, 0.0)
    assert space.to_unit({"on": False}) == expected
    assert space.snapped([0.2, *[0.99] * 11]) == expected
    assert space.from_unit((1.0, *expected[1:])) == {
        "on": True,
        "a": 0.5,
        "b": 1.0,
        "c": 3,
        "d": "z",
        "e": None,
        "f": 2,
        "g": "x",
    }


def test_defaults_are_the_given_ones_or_the_middle_and_the_first_category() -> None:
    assert SPACE.defaults() == {
        "lr": 0.001,
        "optimizer": {"nesterov": True, "momentum": "some", "kind": "sgd"},
        "layers": 3,
        "width": {"second": 22, "unit": "relu"},
        "seed": 7,
    }
    space = Space({"k": Categorical(OPTIMIZERS, default="adam"), "b": Float(0.8, 1, default=0.9, when={"k": "adam"})})
    assert space.defaults() == {"k": "adam", "b": 0.9}


def test_samples_are_uniform_over_integers_and_categories_and_repeat_with_the_seed() -> None:
    generator, n = random.Random(3), 3000
    configs = [SPACE.sample(generator) for _ in range(n)]
    kinds = Counter(config["optimizer"]["kind"] for config in configs)
    layers = Counter(config["layers"] for config in configs)
    for counts, k in ((kinds, 3), (layers, 4)):
        spread = math.sqrt(n / k * (1 - 1 / k))
        assert all(abs(count - n / k) < 4.5 * spread for count in counts.values())  # wrong once in 20,000 seeds
        assert len(counts) == k
    below = sum(config["lr"] < 0.001 for config in configs)
    assert abs(below - n / 2) < 4.5 * math.sqrt(n / 4)
    assert SPACE.sample(random.Random(3)) == configs[0]


def test_coordinates_a_little_outside_are_clamped() -> None:
    space = Space({"x": Float(0, 1), "k": Int(1, 3)})
    assert space.from_unit([-1e-9, 1 + 1e-9]) == {"x": 0.0, "k": 3}
    assert space.from_unit([1, 0]) == {"x": 1.0, "k": 1}


@pytest.mark.parametrize(
    ("u", "message"),
    [
        ([0.5], "1 coordinates; expected 2, as many as the space has"),
        ([0.5, 1.1], r"coordinate 1 \(g.k\) is 1.1; expected a number in \[0, 1\]"),
        ([-2e-9, 0.5], r"coordinate 0 \(x\) is -2e-09; expected a number in \[0, 1\]"),
        ([math.nan, 0.5], r"coordinate 0 \(x\) is nan"),
        (["0", 0.5], r"coordinate 0 \(x\) is '0'"),
    ],
)
def test_coordinates_outside_the_cube_are_refused(u, message) -> None:
    space = Space({"x": Float(0, 1), "g": {"k": Int(1, 3)}})
    for function in (space.from_unit, space.snapped, space.neighbours):
        with pytest.raises(SpaceError, match=message):
            function(u)


def full_distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


@laws
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.integers(1, 40))
def test_neighbours_are_the_nearest_of_all_roundings(u, limit) -> None:
    space = Space({"x": Float(0, 1), "k": Int(1, 4), "o": Ordinal([*"abcde"]), "c": Categorical(OPTIMIZERS)})

    def around(coordinate, n):
        t = coordinate * n - 0.5
        return {(min(max(i, 0), n - 1) + 0.5) / n for i in (math.floor(t), math.ceil(t))}

    vertices = [tuple(float(i == j) for j in range(3)) for i in range(3) if u[3 + i] > 0 or not any(u[3:])]
    expected = [(u[0], a, b, *c) for a, b, c in product(around(u[1], 4), around(u[2], 5), vertices)]
    if not any(u[3:]):
        expected = [point for point in expected if point[3] == 1]
    found = space.neighbours(u, limit)
    assert found[0] == space.snapped(u)
    assert len(found) == len(set(found)) == min(limit, len(expected))
    distances = [full_distance(u, point) for point in found]
    assert distances == pytest.approx(sorted(full_distance(u, point) for point in expected)[:limit], abs=1e-12)
    assert all(min(full_distance(point, other) for other in expected) < 1e-20 for point in found)


@laws
@given(units, st.integers(1, 60))
def test_neighbours_can_be_run_are_distinct_and_begin_with_the_snapped_point(u, limit) -> None:
    found = SPACE.neighbours(u, limit)
    assert found[0] == SPACE.snapped(u)
    assert 1 <= len(found) == len(set(found)) <= limit
    assert all(SPACE.snapped(point) == point for point in found)
    assert SPACE.neighbours(u, 60)[:limit] == found
    assert SPACE.neighbours(found[-1], limit) == [found[-1]]


def test_a_neighbour_with_another_parent_has_the_children_of_that_parent_where_u_put_them() -> None:
    space = Space(
        {
            "n": Int(1, 4, when={"kind": "b"}),
            "kind": Categorical(["a", "b"]),
            "x": Float(0, 1, when={"kind": "a"}),
        }
    )
    configs = [space.from_unit(point) for point in space.neighbours([0.3, 0.45, 0.7])]
    assert configs == [{"kind": "a", "x": 0.7}, {"n": 2, "kind": "b"}, {"n": 1, "kind": "b"}]


def test_neighbours_look_at_the_three_largest_categories() -> None:
    space = Space({"c": Categorical([1, 2, 3, 4, 5])})
    found = [space.from_unit(point)["c"] for point in space.neighbours([0.1, 0.5, 0.3, 0.2, 0.4])]
    assert found == [2, 5, 3]


def test_neighbours_weigh_categories_against_integers_by_their_distance_from_u() -> None:
    space = Space({"c": Categorical(OPTIMIZERS), "b": Categorical(["x", "y"]), "k": Int(0, 1)})
    u = (0.5, 0.4, 0.0, 0.42, 0.35)
    found = space.neighbours(u)  # changing k adds 0.15, b 0.16 and c 0.20 to the squared distance
    assert [space.from_unit(point) for point in found[:4]] == [
        {"c": "sgd", "b": "x", "k": 0},
        {"c": "sgd", "b": "x", "k": 1},
        {"c": "sgd", "b": "y", "k": 0},
        {"c": "adam", "b": "x", "k": 0},
    ]
    distances = [full_distance(u, point) for point in found]
    assert [distance - distances[0] for distance in distances[:4]] == pytest.approx([0.0, 0.15, 0.16, 0.2])
    assert distances == sorted(distances)


def test_a_wide_space_gives_the_neighbours_asked_for_without_trying_all_roundings() -> None:
    space = Space({f"k{i}": Int(1, 10) for i in range(60)})
    u = [0.52 + 0.0005 * i for i in range(60)]
    found = space.neighbours(u, 5)
    assert len(found) == 5
    changed = [{i for i in range(60) if point[i] != found[0][i]} for point in found]
    assert changed[:4] == [set(), {0}, {1}, {2}]  # those closest to 0.5, where their bin begins


def test_a_log_integer_near_the_edge_of_a_wide_bin_is_still_the_first_neighbour() -> None:
    space = Space({"k": Int(1, 9, log=True)})
    edge = math.log(3) / math.log(19)  # between 1 and 2, whose centre is nearer
    assert [space.from_unit(point)["k"] for point in space.neighbours([edge - 1e-6])] == [1, 2]


@pytest.mark.parametrize("limit", [0, 1.0, True])
def test_a_limit_below_one_is_refused(limit) -> None:
    with pytest.raises(SpaceError, match=f"limit={limit!r}; expected an integer of at least 1"):
        SPACE.neighbours([0.5] * SPACE.d, limit)


GOOD = {"k": "a", "g": {"x": 0.5}, "n": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": "c"}, r"k='c' \(str\); expected one of \['a', 'b'\]"),
        ({"g": {"x": 2}}, r"g.x=2 \(int\); expected a number from 0.0 to 1.0"),
        ({"g": {"x": math.inf}}, r"g.x=inf \(float\); expected a number"),
        ({"g": {"x": False}}, r"g.x=False \(bool\); expected a number"),
        ({"n": 3.0}, r"n=3.0 \(float\); expected the constant 3"),
        ({"k": "b"}, r"g.x=0.5 is not active here: Float\(0.0, 1.0, when=\{'k': 'a'\}\); leave it out"),
        ({"g": {}}, r"'g.x' is missing in the configuration; expected a value of Float\(0.0, 1.0"),
        ({"g": 0.5}, "group 'g' of the configuration is 0.5; expected a dict"),
        ({"z": 1}, r"'z' in the configuration is unknown; expected nested dicts with \('k', 'g.x', 'n'\)"),
        ({"g.x": 1}, "'g.x' in the configuration is unknown"),
        ({"g": {"x": 0.5, "y": 1}}, "'g.y' in the configuration is unknown"),
        ({3: 1}, "'3' in the configuration is unknown"),
    ],
)
def test_a_configuration_outside_the_space_is_refused_by_name(change, message) -> None:
    space = Space({"k": Categorical(["a", "b"]), "g": {"x": Float(0, 1, when={"k": "a"})}, "n": 3})
    assert space.from_unit(space.to_unit(GOOD)) == GOOD
    for function in (space.to_unit, space.check):
        with pytest.raises(SpaceError, match=message):
            function({**GOOD, **change})
    with pytest.raises(SpaceError, match=r"the configuration is \[1\]; expected a dict"):
        space.to_unit([1])


def test_parents_are_found_by_full_name_first_and_then_beside_the_parameter() -> None:
    inner = {"kind": Categorical(["a", "b"]), "x": Float(0, 1, when={"kind": "a"})}
    assert Space({"g": inner}).parameters["g.x"].when == {"g.kind": ("a",)}
    outer = {"kind": Categorical(["a", "c"]), "g": inner}
    assert Space(outer).parameters["g.x"].when == {"kind": ("a",)}
    deep = {"g": {"h": {"kind": Int(1, 2)}, "x": Float(0, 1, when={"h.kind": 1})}}
    assert Space(deep).parameters["g.x"].when == {"g.h.kind": (1,)}


def test_a_constant_can_be_a_parent() -> None:
    space = Space({"mode": "fast", "x": Float(0, 1, when={"mode": "fast"})})
    assert space.from_unit([0.25]) == {"mode": "fast", "x": 0.25}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([1], "parameters is a list; expected a dict"),
        ({}, "the space is empty; expected parameters in it"),
        ({"g": {"h": {}}}, "group 'g.h' is empty; expected parameters in it"),
        ({"a.b": 1}, "the name 'a.b' contains a dot; dots join the names of nested groups: nest a dict instead"),
        ({"g": {"a.b": 1}}, "the name under 'g' 'a.b' contains a dot"),
        ({"": 1}, "the name ''; expected a name: a string that is not empty"),
        ({3: 1}, "the name 3; expected a name"),
        ({"a\n": 1}, r"the name 'a\\n' contains control characters"),
        ({"a": [1, 2]}, r"'a' is a list, \[1, 2\]; expected Float, Int, Categorical, Ordinal, Constant"),
        ({"a": Float}, "'a' is a type"),
        ({"a": math.nan}, r"Constant\(nan\): nan is not finite"),
        ({"a": Int(1, 2, when={"b": 1})}, r"'a' has a condition on 'b', which is unknown; expected one of \['a'\]"),
        ({"f": Float(0, 1), "a": Int(1, 2, when={"f": 0.5})}, r"'a' has a condition on 'f', Float\(0.0, 1.0\)"),
        (
            {"k": Categorical([1, 2]), "a": Int(1, 2, when={"k": True})},
            r"'a' has a condition that cannot hold: k=True \(bool\); expected one of \[1, 2\]",
        ),
        ({"k": Int(1, 4), "a": Int(1, 2, when={"k": 5})}, r"cannot hold: k=5 \(int\); expected an integer from 1 to 4"),
        ({"k": 3, "a": Int(1, 2, when={"k": 4})}, r"cannot hold: k=4 \(int\); expected the constant 3"),
        (
            {"g": {"k": Int(1, 4), "a": Int(1, 2, when={"k": 1, "g.k": 2})}},
            "'g.a' has two conditions on 'g.k'; expected one with the values that both allow",
        ),
        ({"a": Int(1, 2, when={"a": 1})}, "the conditions go round in a circle, 'a' -> 'a'"),
        (
            {"a": Int(1, 2, when={"b": 1}), "b": Int(1, 2, when={"c": 1}), "c": Int(1, 2, when={"a": 1})},
            "the conditions go round in a circle, '[abc]' -> '[abc]' -> '[abc]' -> '[abc]'; expected parents",
        ),
        (
            {"k": Int(1, 4), "p": Int(1, 2, when={"k": [1, 2]}), "a": Int(1, 2, when={"p": 1, "k": [3, 4]})},
            "'a' can never be active: its conditions and those of its parents leave no value for 'k'",
        ),
    ],
)
def test_a_space_that_contradicts_itself_is_refused(parameters, message) -> None:
    with pytest.raises(SpaceError, match=message):
        Space(parameters)


def test_names_need_not_be_identifiers() -> None:
    space = Space({"learning rate": Float(0, 1), "größe-2": {"class": 1}})
    assert space.from_unit([0.5]) == {"learning rate": 0.5, "größe-2": {"class": 1}}


TYPES = Space(
    {
        "c": Categorical([1, 1.0, True, "1", None], default=None),
        "o": Ordinal([2.0, 2, False], default=2),
        "when": {"x": Int(1, 5, default=2, when={"c": [1.0, True], "o": 2}), "n": None},
    }
)


@pytest.mark.parametrize("space", [SPACE, TYPES])
def test_a_space_comes_back_from_json_text_with_types_order_and_conditions(space) -> None:
    text = json.dumps(space.to_json(), allow_nan=False, sort_keys=True)
    back = Space.from_json(json.loads(text))
    assert back == space
    assert repr(back) == repr(space)
    assert back.names == space.names


def test_the_json_of_a_space_is_this() -> None:
    space = Space(
        {"k": Categorical(["a", 1.0]), "g": {"x": Float(1, 2, log=True, default=1.5, when={"k": "a"}), "n": 3}}
    )
    assert space.to_json() == {
        "parameters": [
            {"name": "k", "kind": "categorical", "choices": ["a", 1.0]},
            {
                "name": "g.x",
                "kind": "float",
                "low": 1.0,
                "high": 2.0,
                "log": True,
                "default": 1.5,
                "when": {"k": ["a"]},
            },
            {"name": "g.n", "kind": "constant", "value": 3},
        ]
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"the JSON of a space has \[\]; expected one key, 'parameters', that holds a list"),
        ({"parameters": [], "more": 1}, r"has \['more', 'parameters'\]; expected one key"),
        ({"parameters": {}}, r"has \['parameters'\]; expected one key, 'parameters', that holds a list"),
        ({"parameters": []}, "the space is empty"),
        ({"parameters": [3]}, "a parameter in JSON is 3; expected an object with a 'name'"),
        ({"parameters": [{"kind": "int"}]}, "expected an object with a 'name'"),
        ({"parameters": [{"name": "a", "kind": "real"}]}, r"'a' has the kind 'real'; expected one of \['float', 'int'"),
        ({"parameters": [{"name": "a", "kind": ["int"]}]}, r"'a' has the kind \['int'\]; expected one of"),
        (
            {"parameters": [{"name": "a", "kind": "int", "low": 1, "high": 2, "step": 1}]},
            r"parameter 'a', int, has the unknown keys \['step'\]; drop them",
        ),
        (
            {"parameters": [{"name": "a", "kind": "int", "low": 1}]},
            r"'a', int, lacks \['high'\]; expected all of \['low', 'high'\]",
        ),
        (
            {"parameters": [{"name": "a", "kind": "int", "low": 2, "high": 1}]},
            r"parameter 'a': Int\(2, 1\): expected low",
        ),
        ({"parameters": [{"name": "a..b", "kind": "constant", "value": 1}]}, "the name under 'a' ''; expected a name"),
        ({"parameters": [{"name": "a", "kind": "constant", "value": 1}] * 2}, "parameter 'a' is there twice"),
        (
            {"parameters": [{"name": name, "kind": "constant", "value": 1} for name in ("a", "a.b")]},
            "parameter 'a.b' is inside 'a', which is a parameter, not a group",
        ),
        (
            {"parameters": [{"name": name, "kind": "constant", "value": 1} for name in ("a.b", "a")]},
            "parameter 'a' is there twice, or a group has its name",
        ),
    ],
)
def test_json_that_is_no_space_is_refused(data, message) -> None:
    with pytest.raises(SpaceError, match=message):
        Space.from_json(data)


def test_spaces_are_equal_if_parameters_and_order_are() -> None:
    a, b = Float(0, 1), Int(1, 2)
    assert Space({"a": a, "b": b}) == Space({"a": a, "b": b})
    assert hash(Space({"a": a, "b": b})) == hash(Space({"a": a, "b": b}))
    assert Space({"a": a, "b": b}) != Space({"b": b, "a": a})
    assert Space({"a": 1}) == Space({"a": Constant(1)}) != Space({"a": 1.0})
    assert Space({"a": 1}) != {"a": 1}


def test_the_repr_of_a_space_can_be_evaluated_and_copies_are_equal() -> None:
    space = Space({"a": {"b": Int(1, 2, when={"c": "x"}), "c": "x"}})
    assert repr(space) == "Space({'a': {'b': Int(1, 2, when={'a.c': 'x'}), 'c': Constant('x')}})"
    assert eval(repr(SPACE)) == SPACE
    assert pickle.loads(pickle.dumps(SPACE)) == copy.deepcopy(SPACE) == SPACE


def test_what_a_space_shows_of_itself_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        SPACE.parameters["lr"] = Float(0, 1)
    with pytest.raises(TypeError, match="does not support item assignment"):
        SPACE.dims["lr"] = range(3)
