"""The books that are kept of every method, and runs that are taken up again."""

import json
import math
from dataclasses import replace

import pytest
import torch
from rivals import Request, Run, Simulator, play
from rivals._simple import Hyperband, RandomSearch

from takg.problems import PROBLEMS
from takg.problems.lying import LYING
from takg.problems.noisy import noisy


def request(problem, step, run=None, x=None):
    dims, m = problem.fidelities.trace_dims, problem.fidelities.m
    s = tuple(step / 27 if j in dims else 0.5 for j in range(m))
    return Request((0.3,) * problem.d if x is None else x, s, run)


def test_a_trace_is_seen_step_by_step_and_its_end_is_charged():
    problem = PROBLEMS["branin"]
    (reply,) = Simulator(problem, 0).evaluate([request(problem, 3)])
    assert [s for s, _ in reply.trace] == [(1 / 27,), (2 / 27,), (3 / 27,)]
    assert reply.cost == pytest.approx(0.01 + 3 / 27)
    expected = problem.evaluate(torch.tensor([0.3, 0.3]).double(), torch.tensor([3 / 27]).double())
    assert reply.value == pytest.approx(float(expected))


def test_a_continued_run_shows_the_new_part_and_costs_the_difference():
    problem = PROBLEMS["rosenbrock3"]
    simulator = Simulator(problem, 0)
    (first,) = simulator.evaluate([request(problem, 3)])
    (second,) = simulator.evaluate([request(problem, 9, run=first.run)])
    assert len(second.trace) == 6
    assert second.cost == pytest.approx(0.5 * 6 / 27)
    assert simulator.cost == pytest.approx(0.01 + 0.5 * 9 / 27)


@pytest.mark.parametrize("step", [2, 3])
def test_a_run_cannot_go_back(step):
    problem = PROBLEMS["branin"]
    simulator = Simulator(problem, 0)
    (first,) = simulator.evaluate([request(problem, 3)])
    with pytest.raises(ValueError, match=r"run 0 .* cannot go on"):
        simulator.evaluate([request(problem, step, run=first.run)])


def test_a_batch_costs_as_much_as_its_dearest_member():
    problem = PROBLEMS["branin"]
    simulator = Simulator(problem, 0)
    simulator.evaluate([request(problem, 1), request(problem, 27)])
    assert simulator.cost == pytest.approx(1.01)
    assert simulator.suggestions == 2


def test_money_spent_at_very_low_fidelities_is_counted():
    problem = PROBLEMS["branin"]
    simulator = Simulator(problem, 0)
    for step in (1, 2):
        simulator.evaluate([request(problem, step)])
    assert simulator.low_cost == pytest.approx(0.01 + 1 / 27)


def test_noise_belongs_to_the_run_and_the_regret_has_none():
    problem = noisy(PROBLEMS["branin"], 0.05)
    simulator, again = Simulator(problem, 3), Simulator(problem, 3)
    (whole,) = simulator.evaluate([request(problem, 27)])
    (part,) = again.evaluate([request(problem, 9)])
    (rest,) = again.evaluate([request(problem, 27, run=part.run)])
    assert part.trace + rest.trace == whole.trace
    truth = problem.evaluate(torch.tensor([0.3, 0.3]).double(), torch.ones(1).double())
    assert whole.value != pytest.approx(float(truth))
    assert simulator.regret((0.3, 0.3)) == pytest.approx(float(truth) - problem.minimum)


def test_a_training_that_diverges_ends_there_and_is_charged_up_to_there():
    problem = LYING["diverging"]
    simulator = Simulator(problem, 0)
    (reply,) = simulator.evaluate([request(problem, 27, x=(0.85, 0.5, 0.5))])  # lasts until s = 0.5
    assert math.isnan(reply.value)
    assert reply.s == (14 / 27,)
    assert reply.cost == pytest.approx(0.01 + 14 / 27)
    assert math.isfinite(simulator.regret((0.85, 0.5, 0.5)))


def test_the_gradient_is_there_on_request():
    problem = PROBLEMS["branin"]
    (reply,) = Simulator(problem, 0).evaluate([Request((0.3, 0.6), (1.0,), gradient=True)])
    step = 1e-6
    points = torch.tensor([[0.3 + step, 0.6], [0.3 - step, 0.6]], dtype=torch.float64)
    up, down = problem.evaluate(points, torch.ones(1).double()).tolist()
    assert reply.gradient[0] == pytest.approx((up - down) / (2 * step), rel=1e-6)


def test_hyperband_pays_for_brackets_of_27_12_6_and_4_runs():
    problem = PROBLEMS["branin"]
    simulator = Simulator(problem, 0)
    method = Hyperband(simulator.setting)
    new, steps = 0, []
    for _ in range(27 + 9 + 3 + 1 + 12 + 4 + 1 + 6 + 2 + 4):
        requests = method.ask()
        new += requests[0].run is None
        steps.append(round(requests[0].s[0] * 27))
        method.tell(requests, simulator.evaluate(requests))
    assert new == 27 + 12 + 6 + 4
    assert steps == [1] * 27 + [3] * 9 + [9] * 3 + [27] + [3] * 12 + [9] * 4 + [27] + [9] * 6 + [27] * 2 + [27] * 4


@pytest.mark.parametrize("kind", [RandomSearch, Hyperband])
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, kind):
    problem = PROBLEMS["hartmann3"]
    whole = Run(problem="hartmann3", method="m", seed=4, directory=tmp_path / "whole")
    parts = replace(whole, directory=tmp_path / "parts")
    expected = play(whole, problem, budget=6.0, make=lambda _, setting: kind(setting))
    play(parts, problem, budget=2.5, make=lambda _, setting: kind(setting))
    with parts.log.open("a") as log:
        log.write('{"requests": [{"x": [0.1')  # killed while it wrote
    found = play(parts, problem, budget=6.0, make=lambda _, setting: kind(setting))
    assert [point["regret"] for point in found["curve"]] == [point["regret"] for point in expected["curve"]]
    assert [point["cost"] for point in found["curve"]] == [point["cost"] for point in expected["curve"]]
    assert len(parts.log.read_text().splitlines()) == len(found["curve"])
    assert json.loads(parts.result.read_text())["cost"] == found["cost"]


def test_a_run_that_cannot_be_replayed_starts_over(tmp_path):
    run = Run(problem="branin", method="m", seed=0, directory=tmp_path)
    play(run, PROBLEMS["branin"], budget=0.5, make=lambda _, setting: Hyperband(setting))
    other = [line.replace("0.", "0.1", 1) for line in run.log.read_text().splitlines()]
    run.log.write_text("\n".join(other) + "\n")
    found = play(run, PROBLEMS["branin"], budget=0.5, make=lambda _, setting: Hyperband(setting))
    assert len(found["curve"]) == len(run.log.read_text().splitlines()) == len(other)


def test_a_run_ends_after_the_most_suggestions(tmp_path):
    run = Run(problem="branin", method="m", seed=0, directory=tmp_path)
    found = play(run, PROBLEMS["branin"], budget=100.0, make=lambda _, setting: Hyperband(setting), most=12)
    assert found["suggestions"] == 12
    assert found["is_exhausted"]
