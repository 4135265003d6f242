"""Every method on a quadratic: at equal cost it beats random search, or at least asks for what can be run."""

import json
import math
import statistics
from importlib.util import find_spec

import pytest
import torch
from rivals import METHODS, MissingLibraryError, Run, Simulator, build, play
from rivals._protocol import tensor

from takg.fidelity import FidelitySpace
from takg.problems import Problem

BEST = (0.62, 0.27)
QUADRATIC = Problem(
    name="quadratic",
    lower=(0.0, 0.0),
    upper=(1.0, 1.0),
    fidelities=FidelitySpace(names=("iterations",), trace_dims=(0,)),
    minimum=0.0,
    minimisers=(BEST,),
    formula=lambda x, s: ((x - x.new_tensor(BEST)) ** 2).sum(dim=-1) + 0.3 * (1 - s[..., 0]) * (1 + x[..., 0]),
)
BUDGETS = {  # enough to tell them from random search, where that is cheap; a few suggestions where it is not
    "ei": 6.0,
    "ei_batch8": 3.0,
    "logei_cheap": 0.5,
    "kg": 6.0,
    "dkg": 5.0,
    "boca": 3.0,
    "fabolas": 0.8,
    "optuna_tpe": 40.0,
    "optuna_gp": 7.0,
    "optuna_hyperband": 20.0,
    "dehb": 20.0,
    "smac": 6.0,
    "hyperband": 20.0,
    "hyperband_batch8": 10.0,
    "takg": 0.8,
}
TRIED_ONCE = ("qmfkg", "takg_batch8", "takg_cold", "takg_stochastic")
# Of methods that are tried, by an option.
VARIANTS = ("kg_batch8", "dkg_batch8", "takg_l3", "takg_zero", "takg_zero_noisy")


def is_installed(name):
    return all(find_spec(package) for package in METHODS[name].packages)


def random_regret(cost):
    """Median over 25 seeds of what random search reaches at that cost, with one evaluation at least."""
    found = []
    for seed in range(25):
        simulator = Simulator(QUADRATIC, seed)
        method = build("random", simulator.setting)
        while simulator.suggestions == 0 or simulator.cost + 1.01 <= cost:
            requests = method.ask()
            method.tell(requests, simulator.evaluate(requests))
        found.append(simulator.regret(method.recommend()))
    return statistics.median(found)


def assert_says_what_to_install(name):
    with pytest.raises(MissingLibraryError, match=f"{name} needs {METHODS[name].packages[0]}: pip install"):
        build(name, Simulator(QUADRATIC, 0).setting)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS)
def test_a_method_beats_random_search_at_equal_cost(name, tmp_path):
    if not is_installed(name):
        assert_says_what_to_install(name)
        return
    run = Run(problem="quadratic", method=name, seed=1, directory=tmp_path)
    result = play(run, QUADRATIC, budget=BUDGETS[name])
    assert result["regret"] < random_regret(result["cost"])


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED_ONCE)
def test_a_slow_method_starts_and_asks_for_what_can_be_run(name):
    if not is_installed(name):
        assert_says_what_to_install(name)
        return
    simulator = Simulator(QUADRATIC, 1)
    method = build(name, simulator.setting)
    while simulator.suggestions <= simulator.setting.initial_size:  # one decision of its own, or one batch
        requests = method.ask()
        replies = simulator.evaluate(requests)
        method.tell(requests, replies)
        assert all(len(one.x) == 2 and all(0 <= u <= 1 for u in one.x) for one in requests)
        assert all(reply.s == request.s for request, reply in zip(requests, replies, strict=True))
    assert 0 <= simulator.regret(method.recommend()) < math.inf


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_begins_with_the_initial_design(name):
    if not is_installed(name):
        assert_says_what_to_install(name)
        return
    setting = Simulator(QUADRATIC, 1).setting
    asked = build(name, setting).ask()
    expected = [one.x for one in setting.initial()[: len(asked)]]
    torch.testing.assert_close(tensor([one.x for one in asked][: len(expected)]), tensor(expected))


def test_every_method_is_tested():
    assert {*BUDGETS, *TRIED_ONCE, *VARIANTS, "random"} == set(METHODS)


def test_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match="method 'best' is unknown; expected one of takg"):
        build("best", Simulator(QUADRATIC, 0).setting)


@pytest.mark.slow
def test_takg_goes_on_from_its_events_when_it_was_killed(tmp_path):
    run = Run(problem="quadratic", method="takg", seed=0, directory=tmp_path)
    play(run, QUADRATIC, budget=10.0, most=5)
    lines = run.log.read_text().splitlines()
    with run.log.open("a") as log:
        log.write(lines[-1] + "\n")  # killed before its state was saved, too
    result = play(run, QUADRATIC, budget=10.0, most=6)
    assert run.log.read_text().splitlines()[:5] == lines
    assert result["suggestions"] == 6
    assert json.loads(run.state.read_text())["lines"] == 6


def test_boca_takes_the_cheapest_fidelity_that_is_uncertain_enough():
    from rivals._boca import Boca

    class Far:  # a model that has seen nothing: every sd is 1
        class covar_module:  # noqa: N801
            lengthscale = torch.tensor([[0.3, 0.3, 1.0]], dtype=torch.float64)

        class outcome_transform:  # noqa: N801
            stdvs = torch.ones(1, 1, dtype=torch.float64)

        class _Posterior:
            def __init__(self, n):
                self.variance = torch.ones(n, 1, dtype=torch.float64)

        def posterior(self, rows):
            return self._Posterior(len(rows))

    method = Boca(Simulator(QUADRATIC, 0).setting)
    s = method._grid()
    x = torch.full((len(s), 2), 0.5, dtype=torch.float64)
    gap = (1 - torch.exp(-((1 - s[:, 0]) ** 2))).sqrt()  # its definition, for this lengthscale
    for beta in (1.5, 4.0):
        allowed = [
            i for i in range(26) if gap[i] > gap.max() / beta**0.5 and gap[i] * ((0.01 + s[i, 0]) / 1.01) ** 0.2 < 1
        ]
        assert method._choose(Far(), x, s, beta) == allowed[0]


def test_fabolas_learns_more_of_the_target_at_a_higher_fidelity():
    from botorch.models import SingleTaskMultiFidelityGP
    from rivals._fabolas import information_gain

    x = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(6, dtype=torch.float64)
    model = SingleTaskMultiFidelityGP(x, x[:, :1].sin(), data_fidelities=[1], linear_truncated=False)
    representers = torch.stack([torch.linspace(0, 1, 20), torch.ones(20)], dim=-1).double()
    places = torch.tensor([[0.5, 0.05], [0.5, 1.0]], dtype=torch.float64)
    with torch.no_grad():
        low, high = information_gain(model, representers, places, seed=0).tolist()
    assert high > low


def test_takg_is_judged_by_what_its_study_recommends_from_the_first_value_on():
    simulator = Simulator(QUADRATIC, 0)
    method = build("takg", simulator.setting)
    for _ in range(simulator.setting.initial_size - 1):
        requests = method.ask()
        method.tell(requests, simulator.evaluate(requests))
        assert method.recommend() == tuple(method.study.best.config[f"x{i}"] for i in range(2))
