import math
import random

import pytest
from made_studies import EPOCHS, EPOCHS_AND_DATA, History, curve

import takg
from takg.study import Study

SPACE = {"lr": takg.Float(1e-4, 1.0, log=True), "depth": takg.Int(1, 8), "optimizer": takg.Categorical(["sgd", "adam"])}


@pytest.fixture
def history() -> History:
    """A study of one parameter and twenty epochs, still empty."""
    return History({"lr": takg.Float(0.1, 10.0, log=True)}, EPOCHS)


@pytest.fixture(scope="session")
def fitted() -> Study:
    """Eight trials with every fate; its model is fitted once for all tests."""
    history = History(SPACE, EPOCHS_AND_DATA, name="all fates", samples=3)
    draw = random.Random(4)
    for i in range(8):
        config = history.study.plan.space.sample(draw)
        data = 2000 * (i + 1)
        trial = history.asks(config, epochs=3, data=data)
        values = curve(0.1 * abs(math.log10(config["lr"]) + 2), range(1, 4))
        if i == 1:
            values[-1] = math.nan
        history.observes(trial, *values)
        if i == 7:
            break
        history.fails(trial) if i == 2 else history.finishes(trial, cost=data / 1000)
    for last in (9, 20):
        first = 4 if last == 9 else 10
        history.continues(3, epochs=last, data=8000)
        history.observes(3, *curve(0.1, range(first, last + 1)), first=first)
        history.finishes(3, cost=last)
    history.continues(4, epochs=5, data=10_000)
    history.observes(4, *curve(0.2, range(4, 6)), first=4)
    history.finishes(4, cost=4)
    history.drops(5)
    history.study.belief()
    return history.study


@pytest.fixture(scope="session")
def maximised() -> Study:
    """Larger is better, one parameter depends on another, and names are such that they could break a drawing."""
    space = {
        "model": takg.Categorical(["tree", "<b>net</b>", "a forest of very many random trees"]),
        "net": {"$width$": takg.Int(4, 400, log=True, when={"model": "<b>net</b>"})},
        "scale": takg.Ordinal([0.5, 1.0, 2.0]),
        "fixed": 7,
    }
    history = History(space, {"steps": takg.Fidelity(10.0, 1000.0, trace=True)}, direction="maximise", samples=3)
    draw = random.Random(2)
    for i in range(9):
        config = history.study.plan.space.sample(draw)
        top = {"tree": 0.7, "<b>net</b>": 0.6}.get(config["model"], 0.9) + 0.02 * config["scale"]
        last = 100.0 if i % 2 else 1000.0
        trial = history.asks(config, steps=last)
        for share in (0.3, 1.0):
            is_bad = i == 4 and share == 1.0
            history.observes(trial, -math.inf if is_bad else top - 30 / (last * share + 100), steps=last * share)
        history.finishes(trial, cost=last)
    history.study.belief()
    return history.study
