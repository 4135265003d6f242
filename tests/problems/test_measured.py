"""Loaders of real curves, on small files made here."""

import json
import math

import numpy as np
import pytest
import torch

from takg.errors import InputError
from takg.problems.catalogue import find_problem
from takg.problems.measured import lcbench, lowest_value, taskset, xgboost


def at(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def pool(tmp_path):
    """Three trainings: a good one, one that is infinite at the end, one that was never good."""
    settings = np.array([[1e-4, 0.9, 1e-6], [1e-2, 0.99, 1e-4], [1e-3, 0.5, 1e-5]])
    curves = np.linspace([1.0, 1.0, 1.0], [0.2, 0.1, 0.6], 51).T.astype(np.float32)
    curves[1, 40:] = 1e34
    (tmp_path / "taskset").mkdir()
    np.savez(
        tmp_path / "taskset" / "taskset_rnn4.npz",
        hp_names=["learning_rate", "beta1", "l2"],
        X_0=settings,
        valid_0=curves,
    )
    return tmp_path


def test_taskset_means_the_nearest_recorded_training(pool):
    problem = taskset(pool, 0)
    assert problem.d == 3
    assert problem.minimum == pytest.approx(0.2)
    # On log scales, that of 1 - beta: the first is (0, log(0.1 / 0.01) / log(0.5 / 0.01), 0).
    first = at(0.0, math.log(10) / math.log(50), 0.0)
    assert torch.tensor(problem.minimisers[0]).tolist() == pytest.approx(first.tolist(), abs=1e-6)
    beside = (first + 0.05).clamp(0, 1)
    assert problem.evaluate(beside, at(1.0)).item() == pytest.approx(0.2)
    assert problem.evaluate(beside, at(0.5)).item() == pytest.approx(0.6)
    assert problem.cost(beside, at(0.5)).item() == pytest.approx(0.51)


def test_only_recorded_trainings_can_be_run(pool):
    problem = taskset(pool, 0)
    assert problem.pool is not None and len(problem.pool) == 3
    assert problem.minimisers[0] in problem.pool
    assert find_problem("branin").pool is None


def test_a_recorded_training_that_exploded_has_diverged(pool):
    problem = find_problem("taskset-0", data=pool)
    values = problem.evaluate(at(1.0, 0.0, 1.0), torch.linspace(0, 1, 51, dtype=torch.float64)[:, None])
    assert values.isnan().tolist() == [False] * 40 + [True] * 11


def surrogate_files(folder, ranges, codes):
    folder.mkdir(parents=True)
    (folder / "config_space.json").write_text(json.dumps({"hyperparameters": ranges}))
    (folder / "encoding.json").write_text(json.dumps(codes))
    (folder / "model.onnx").write_text("")


def number(name, lower, upper, log=False):
    return {"name": name, "type": "uniform_float", "lower": lower, "upper": upper, "log": log}


@pytest.fixture
def networks(tmp_path):
    ranges = [
        number("epoch", 1, 50),
        number("batch_size", 16, 256, log=True),
        number("learning_rate", 1e-4, 1e-1, log=True),
        number("momentum", 0.1, 0.9),
        number("weight_decay", 0.0, 0.1),
        number("num_layers", 1, 5),
        number("max_units", 64, 1024, log=True),
        number("max_dropout", 0.0, 1.0),
    ]
    surrogate_files(tmp_path / "yahpo" / "lcbench", ranges, {"OpenML_task_id": {"#na#": 0, "77": 3}})
    return tmp_path


def fake_networks(path):
    """Accuracy is best at momentum 0.5 and grows with epochs; time is epochs times layers."""

    def predict(categories, numbers):
        assert categories.tolist() == [[3]] * len(numbers)
        epoch, momentum, layers = numbers[:, 0], numbers[:, 3], numbers[:, 5]
        accuracy = 90 - 100 * (momentum - 0.5) ** 2 - (50 - epoch)
        return np.stack([epoch * layers, accuracy], axis=1)

    return predict


def test_lcbench_is_an_error_rate_over_epochs_with_its_time_as_unknown_cost(networks):
    problem = lcbench(networks, "77", open_model=fake_networks)
    assert problem.d == 7
    assert not problem.cost_is_known
    assert problem.minimum == pytest.approx(0.1, abs=1e-5)
    x = at(0.3, 0.6, 0.75, 0.1, 1.0, 0.2, 0.4)  # momentum 0.7, five layers
    assert problem.evaluate(x, at(0.5)).item() == pytest.approx(0.1 + 0.04 + 0.25, abs=1e-6)
    assert problem.cost(x, at(0.5)).item() == pytest.approx((0.5 * 50 * 5) / (50 * 3), rel=1e-4)
    assert problem.cost(torch.full((7,), 0.5, dtype=torch.float64), at(1.0)).item() == pytest.approx(1.0)


def test_the_time_of_lcbench_never_goes_back(networks):
    problem = lcbench(networks, "77", open_model=lambda path: _dipping)
    x = torch.full((7,), 0.5, dtype=torch.float64)
    before, after = problem.cost(x, at(0.8)).item(), problem.cost(x, at(1.0)).item()
    assert after >= before > 0


def _dipping(categories, numbers):
    epoch = numbers[:, 0]
    return np.stack([np.where(epoch < 45, epoch, 10), 50 + 0 * epoch], axis=1)


def test_a_task_that_is_not_there_is_an_error(networks):
    with pytest.raises(InputError, match=r"OpenML_task_id='78' is not in .*; expected one of \['#na#', '77'\]"):
        lcbench(networks, "78", open_model=fake_networks)


def test_xgboost_has_data_as_fixed_and_rounds_as_trace_fidelity(tmp_path):
    names = ["eta", "gamma", "lambda", "alpha", "subsample", "max_depth", "min_child_weight"]
    names += ["colsample_bytree", "colsample_bylevel", "rate_drop", "skip_drop"]
    ranges = [number(name, 0.1, 1.0) for name in names]
    ranges += [number("nrounds", 10, 1000, log=True), number("trainsize", 0.03, 1.0), number("repl", 1, 10)]
    codes = {"task_id": {"5": 2}, "booster": {"gbtree": 3}, "num.impute.selected.cpo": {"impute.mean": 1}}
    surrogate_files(tmp_path / "yahpo" / "rbv2_xgboost", ranges, codes)

    def predict(categories, numbers):
        assert categories.tolist() == [[2, 3, 1]] * len(numbers)
        rounds, eta, share, repl, drop = numbers[:, [0, 1, 12, 13, 10]].T
        assert (repl == 10).all()
        assert (drop == 0).all()  # only another booster has it
        return np.stack([0 * eta] * 5 + [eta**2 + 1 / rounds + 1 / share], axis=1)

    problem = xgboost(tmp_path, "5", open_model=lambda path: predict)
    assert (problem.d, problem.fidelities.trace_dims) == (9, (1,))
    x = torch.full((9,), 0.5, dtype=torch.float64)
    expected = 0.55**2 + 1 / 500 + 1 / 0.25
    assert problem.evaluate(x, at(0.25, 0.5)).item() == pytest.approx(expected, rel=1e-5)
    assert problem.minimum == pytest.approx(0.01 + 1 / 1000 + 1, rel=1e-5)
    assert problem.cost(x, at(0.25, 0.5)).item() == pytest.approx(0.01 + 0.125)


@pytest.mark.parametrize("load", [lambda data: taskset(data, 0), lambda data: lcbench(data, "1")])
def test_a_directory_without_the_files_is_an_error_that_names_them(tmp_path, load):
    with pytest.raises(InputError, match=r"(taskset_rnn4\.npz|config_space\.json) is not there; expected the data"):
        load(tmp_path)


def test_the_search_for_the_lowest_value_finds_it_between_its_points():
    best = at(0.123, 0.987, 0.456)
    found = lowest_value(lambda x, s: ((x - best) ** 2).sum(-1) + s[0] - 1, 3, 1, size=2**10)
    assert 0 <= found < 1e-5
