"""What the engine remembers between fits, and when it learns the warp again."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from small import new, reloaded, script, small_study
from torch import Tensor

import takg
from takg.gp import Chains, Model, Rows, fit, fit_outcome, learn_warp_scale, value_rows
from takg.study import Study
from takg.study._belief import Belief, Memory, learn
from takg.study._data import designs, observed
from takg.study._suggest import Proposal

TURN = 0.7  # where the losses below turn from linear to logarithmic
SEED, SAMPLES = 3, 2
NAN = math.nan
LINE = Model(d=1)


def loss(x: float) -> float:
    return TURN / 3 + TURN * math.sinh(2.1 + 2.1 * math.sin(14 * x))


def study_of(directory: Path, count: int, *, shift: float = 0.0, **options: object) -> Study:
    """With `count` full trainings on a line, at places in no order."""
    study = small_study(directory, None, space={"x": takg.Float(0.0, 1.0)}, cost="reported", samples=SAMPLES, **options)
    xs = [(0.11 + 0.381966 * i) % 1 for i in range(count)]
    script(study, *(Proposal(config={"x": x}, target=()) for x in xs))
    for x in xs:
        study.tell(study.ask(), loss(x) + shift, cost=1.0)
    return study


def data_of(study: Study) -> tuple[Rows, Tensor]:
    rows = observed(study.plan, study.state, designs(study.plan, study.state))
    x = torch.tensor([row.x for row in rows], dtype=torch.float64)
    return value_rows(x, x[:, :0]), torch.tensor([row.y for row in rows], dtype=torch.float64)


def learned(study: Study, memory: Memory | None = None) -> Belief:
    belief = learn(study.plan, study.state, memory or Memory(), seed=SEED)
    assert belief is not None
    return belief


def walkers_from(study: Study, scale: float, chains: Chains | None, *, look_again: bool = False) -> Chains:
    """Where a fit under the warp of this scale ends, from earlier chains or from none."""
    rows, y = data_of(study)
    z = fit_outcome(y, warp="log", scale=scale).forward(y)
    return fit(LINE, rows, z, seed=SEED, draws=SAMPLES, chains=chains, look_again=look_again).chains


# What is remembered


def some_chains() -> Chains:
    return Chains(names=("a", "b"), walkers=((0.25, -1.5), (0.75, 2.0)))


def test_a_memory_comes_back_from_its_note() -> None:
    memory = Memory(chains=some_chains(), winners=((0.25, 0.5),), scale=0.1 + 0.2, looked_rows=17)
    assert Memory.loads(memory.dumps()) == memory
    assert Memory.loads(Memory().dumps()) == Memory() == Memory.loads(None)


def test_a_note_of_a_version_without_a_scale_loads() -> None:
    note = json.dumps({"chains": some_chains().to_json(), "cost_chains": None, "winners": [[0.25, 0.5]]})
    assert Memory.loads(note) == Memory(chains=some_chains(), winners=((0.25, 0.5),), scale=None, looked_rows=0)


# When the warp is learned


def test_the_warp_is_learned_from_six_rows_on(tmp_path: Path) -> None:
    few, enough = (study_of(tmp_path, count, name=f"of {count}") for count in (5, 6))
    belief = learned(few)
    assert (belief.memory.scale, belief.memory.looked_rows) == (None, 0)
    assert belief.outcome.scale == fit_outcome(data_of(few)[1], warp="log").scale
    belief = learned(enough)
    assert belief.memory.scale == belief.outcome.scale == learn_warp_scale(LINE, *data_of(enough))
    assert belief.memory.looked_rows == 6


@pytest.mark.parametrize(("before", "is_learned"), [(25, True), (26, False), (30, False)])
def test_the_warp_is_learned_again_after_a_fifth_more_rows(tmp_path: Path, before: int, is_learned: bool) -> None:
    study = study_of(tmp_path, 30)
    belief = learned(study, Memory(scale=TURN / 3, looked_rows=before))
    # The evidence is clearly for three times as much, once it is asked.
    assert belief.outcome.scale == belief.memory.scale == pytest.approx(TURN if is_learned else TURN / 3)
    assert belief.memory.looked_rows == (30 if is_learned else before)


def test_another_scale_restarts_the_chains(tmp_path: Path) -> None:
    study = study_of(tmp_path, 30)
    chains = walkers_from(study, TURN / 3, None)
    belief = learned(study, Memory(chains=chains, scale=TURN / 3, looked_rows=6))
    assert belief.memory.scale == pytest.approx(TURN)
    assert belief.memory.chains == walkers_from(study, belief.memory.scale, None)


@pytest.mark.parametrize("rows", [25, 26])
def test_the_chains_go_on_while_the_scale_stays(tmp_path: Path, rows: int) -> None:
    study = study_of(tmp_path, 30)
    chains = walkers_from(study, TURN, None)
    belief = learned(study, Memory(chains=chains, scale=TURN, looked_rows=rows))
    assert (belief.memory.scale, belief.memory.looked_rows) == (TURN, 30 if rows == 25 else 26)
    assert belief.memory.chains == walkers_from(study, TURN, chains, look_again=rows == 25)
    assert belief.memory.chains != walkers_from(study, TURN, None)


@pytest.mark.parametrize("warp", ["none", "log"])
def test_chains_that_are_left_behind_start_anew_after_a_fifth_more_rows(tmp_path: Path, warp: str) -> None:
    study = study_of(tmp_path, 30, warp=warp)
    good = learned(study).memory
    assert good.chains is not None
    lost = Chains(names=good.chains.names, walkers=tuple((3.0, 3.0, 3.0 + i / 100) for i in range(8)))
    after = {
        rows: learned(study, dataclasses.replace(good, chains=lost, looked_rows=rows)).memory.chains
        for rows in (25, 26)
    }
    far = {rows: _distance(chains, good.chains) for rows, chains in after.items()}
    assert far[25] < 1.0 < far[26]


def _distance(chains: Chains | None, others: Chains) -> float:
    """Between the medians of the walkers, in sds of the prior."""
    assert chains is not None
    a, b = (torch.tensor(one.walkers).median(0).values for one in (chains, others))
    return float((a - b).norm())


def test_chains_of_a_version_with_another_model_start_anew(tmp_path: Path) -> None:
    study = study_of(tmp_path, 30)
    belief = learned(study, Memory(chains=some_chains(), scale=TURN, looked_rows=30))
    assert belief.memory.chains == walkers_from(study, TURN, None)


def test_chains_of_a_version_without_a_scale_start_anew(tmp_path: Path) -> None:
    study = study_of(tmp_path, 12)
    chains = walkers_from(study, fit_outcome(data_of(study)[1], warp="log").scale, None)
    note = json.dumps({"chains": chains.to_json(), "cost_chains": None, "winners": []})
    belief = learned(study, Memory.loads(note))
    assert belief.memory.scale is not None
    assert belief.memory.chains == walkers_from(study, belief.memory.scale, None)


def test_without_a_warp_there_is_no_scale_to_learn(tmp_path: Path) -> None:
    memory = learned(study_of(tmp_path, 8, warp="none")).memory
    assert memory.scale is None


def test_learning_keeps_the_winners(tmp_path: Path) -> None:
    winners = ((0.25,), (0.75,))
    assert learned(study_of(tmp_path, 6), Memory(winners=winners)).memory.winners == winners


def test_the_scale_is_stored_with_the_next_suggestion(tmp_path: Path) -> None:
    study_of(tmp_path, 7, initial=7)
    study = reloaded(tmp_path)
    belief = study.belief()
    assert belief is not None and belief.memory.looked_rows == 7
    study.ask()
    stored = Memory.loads(study.log.storage.recall(study.name, "engine"))
    assert (stored.scale, stored.looked_rows) == (belief.memory.scale, 7)


# Predictions


def test_a_prediction_has_the_quantiles_of_the_mixture(tmp_path: Path) -> None:
    """Those of the recommendation are roots of the mixture's distribution function, with six rows far apart.

    Some losses are negative, so that predictions may be.
    """
    belief = learned(study_of(tmp_path, 6, shift=-2.0))
    expected = belief.recommended.quantiles
    found = belief.predict(tuple(belief.recommended.x.tolist()), [()])[0]
    spread = expected[0.95] - expected[0.05]
    assert spread > 0.1 * TURN
    assert [found.low, found.median, found.high] == pytest.approx(
        [expected[p] for p in (0.05, 0.5, 0.95)], abs=0.1 * spread
    )


# Trainings that diverge


def study_at_a_cliff(directory: Path, count: int) -> Study:
    """The larger x the better, until trainings diverge from x = 0.7 on."""
    study = small_study(directory, None, space={"x": takg.Float(0.0, 1.0)}, cost="reported", initial=count, seed=SEED)
    xs = [(0.11 + 0.381966 * i) % 1 for i in range(count)]
    script(study, *(Proposal(config={"x": x}, target=()) for x in xs))
    for x in xs:
        study.tell(study.ask(), (0.75 - x) ** 2 if x < 0.7 else math.nan, cost=1.0)
    return study


def test_losses_are_learned_from_those_that_have_one_and_where_there_is_none_by_itself(tmp_path: Path) -> None:
    study = study_at_a_cliff(tmp_path, 20)
    belief = learned(study)
    _, y = data_of(study)
    assert belief.posterior.n == int(y.isfinite().sum()) < len(y)
    assert belief.survival is not None
    places = torch.tensor([[0.1], [0.6], [0.8], [0.95]], dtype=torch.float64)
    assert belief.survival.is_safe(places).tolist() == [True, True, False, False]
    assert (
        0.68 < belief.best[0]["x"] < 0.73
    )  # seen to be sound at 0.694 and not at 0.784; the losses would lead to 0.75
    assert belief.best[1].mean < 0.01  # the cliff beside it does not spoil what is predicted there


def test_while_nothing_has_diverged_nothing_is_learned_of_it(tmp_path: Path) -> None:
    belief = learned(study_of(tmp_path, 8))
    assert belief.survival is None and belief.memory.survival_chains is None


def test_what_was_learned_of_divergence_is_remembered(tmp_path: Path) -> None:
    memory = learned(study_at_a_cliff(tmp_path, 20)).memory
    assert memory.survival_rows == 20 and memory.survival_chains is not None
    assert Memory.loads(memory.dumps()) == memory


def test_what_has_survived_for_a_while_only_is_not_recommended_beside_what_diverged_late(tmp_path: Path) -> None:
    """The larger x the better, and trainings beyond x = 0.6 diverge before they end: two were seen to."""
    study = small_study(tmp_path, space={"x": takg.Float(0.0, 1.0)}, cost="reported", seed=SEED)
    lengths = {0.05: 4, 0.2: 20, 0.35: 8, 0.5: 20, 0.65: 8, 0.72: 4, 0.8: 15, 0.88: 4, 0.95: 12}
    for x, epochs in lengths.items():
        script(study, Proposal(config={"x": x}, target=(epochs,)))
        trace = [(i, (1 - x) + 1 / i) for i in range(1, epochs + 1)]
        if x > 0.6 and epochs > 10:
            trace[-1] = (epochs, NAN)
        study.tell(study.ask(), trace=trace, cost=float(epochs))
    assert study.best.config["x"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
def test_the_edge_of_what_survives_is_found(tmp_path: Path) -> None:
    study = study_at_a_cliff(tmp_path, 12)
    del study._proposals  # its own ideas from here on
    for _ in range(6):
        evaluation = study.ask()
        x = evaluation.config["x"]
        study.tell(evaluation, (0.75 - x) ** 2 if x < 0.7 else math.nan, cost=1.0)
    assert 0.62 < study.best.config["x"] < 0.71


# What is predicted


def low_and_high(belief: Belief) -> Tensor:
    """5 % and 95 % quantiles along the line: of `predict`, and as they follow from the posterior, (2, 2, n)."""
    places = [(i / 40,) for i in range(41)]
    found = [belief.predict(place, [()])[0] for place in places]
    rows = belief.posterior.target_rows(torch.tensor(places, dtype=torch.float64))
    mu, sd = belief.posterior.mean(rows), belief.posterior.variance(rows).sqrt()
    plain = [belief.outcome.mixture_quantile(mu, sd, p) for p in (0.05, 0.95)]
    return torch.stack([torch.tensor([[one.low for one in found], [one.high for one in found]]), torch.stack(plain)])


def test_no_loss_is_predicted_to_be_negative_while_none_was(tmp_path: Path) -> None:
    belief = learned(study_of(tmp_path, 5, shift=-1.2))
    (low, high), (plain_low, plain_high) = low_and_high(belief)
    best = belief.outcome.origin
    assert best > 0 > plain_low.min()  # or there was nothing to mend
    assert (low > 0).all()
    assert (low <= high).all()
    is_below = plain_low < best
    assert (low[is_below] < best).all()
    torch.testing.assert_close(low[~is_below], plain_low[~is_below], rtol=0.1, atol=0.0)  # 64 quantiles of each sample
    torch.testing.assert_close(high[plain_high > best], plain_high[plain_high > best], rtol=0.1, atol=0.0)


def test_losses_may_be_predicted_to_be_negative_once_one_was(tmp_path: Path) -> None:
    belief = learned(study_of(tmp_path, 5, shift=-2.0))
    (low, _), (plain_low, _) = low_and_high(belief)
    assert belief.outcome.origin < 0
    assert low.min() < belief.outcome.origin - 0.3
    torch.testing.assert_close(low, plain_low, rtol=0.1, atol=0.1)


def test_what_is_maximised_and_was_never_positive_is_not_predicted_to_be(tmp_path: Path) -> None:
    """As a score that is minus a loss."""
    study = small_study(tmp_path, None, space={"x": takg.Float(0.0, 1.0)}, direction="maximise", samples=SAMPLES)
    xs = (0.1, 0.35, 0.6, 0.85)
    script(study, *(Proposal(config={"x": x}, target=()) for x in xs))
    for x in xs:
        study.tell(study.ask(), -loss(x), cost=1.0)
    belief = learned(study)
    found = [belief.predict((i / 40,), [()])[0] for i in range(41)]
    assert max(one.high for one in found) < 0


@pytest.mark.parametrize("has_full", [False, True])
def test_out_of_a_pool_the_lowest_so_far_is_recommended_until_one_was_trained_in_full(
    tmp_path: Path, has_full: bool
) -> None:
    """Until then 0.9 leads, though 0.25 falls faster and overtakes it."""
    every = {"x": takg.Float(0.0, 1.0)}
    tried = [0.1, 0.25, 0.4, 0.6, 0.75, 0.9]
    study = small_study(tmp_path, space=takg.Pool(every, [{"x": x} for x in tried]), cost="reported", seed=SEED)
    for x in tried:
        epochs = 20 if has_full else 4
        script(study, Proposal(config={"x": x}, target=(epochs,), kept=((2,), (4,), (epochs,))))
        rate = 0.05 if x == 0.25 else 0.01
        study.tell(study.ask(), trace=[(i, 1.1 - 0.5 * x - rate * i) for i in range(1, epochs + 1)], cost=float(epochs))
    belief = learned(study)
    assert belief.tells_slopes == has_full
    assert belief.best[0] == {"x": 0.25 if has_full else 0.9}


def test_how_far_a_loss_falls_below_all_that_was_seen_is_not_known(tmp_path: Path) -> None:
    """Curves fall by 0.4 an epoch, are expected to go on so, and level off at 0.9 right behind what was seen."""
    study = small_study(tmp_path, space={"x": takg.Float(0.0, 1.0)}, cost="reported", seed=SEED)
    for x in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95):
        script(study, Proposal(config={"x": x}, target=(6,), kept=((2,), (4,), (6,))))
        worse = 2 * (x - 0.6) ** 2
        study.tell(study.ask(), trace=[(i, worse + max(0.9, 3.4 - 0.4 * i)) for i in range(1, 7)], cost=6.0)
    belief, x = learned(study), (0.6,)
    lowest = min(value for trial in study.state.trials for value in trial.points.values())
    mean = belief.posterior.mean(belief.posterior.target_rows(torch.tensor([x], dtype=torch.float64)))
    assert mean.mean() < belief.posterior.y.min() - 3
    found = belief.predict(x, [(1.0,)])[0]
    assert found.low < 0.5 * lowest < found.median < lowest
    assert found.low < 0.9 < found.high


# What is recommended


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_one_of_those_that_were_tried_is_recommended_until_there_are_enough_for_a_plane(
    tmp_path: Path, count: int
) -> None:
    study = small_study(
        tmp_path,
        None,
        space={"x": takg.Float(0.0, 1.0), "k": takg.Int(1, 100)},
        cost="reported",
        samples=SAMPLES,
        initial=count,
    )
    tried = [{"x": 0.1 + 0.17 * i, "k": 5 + 31 * (i % 3)} for i in range(count)]
    script(study, *(Proposal(config=config, target=()) for config in tried))
    for config in tried:
        study.tell(study.ask(), (config["x"] - 0.35) ** 2 + (config["k"] - 40) ** 2 / 1e4, cost=1.0)
    assert (study.best.config in tried) == (count <= 3)  # two parameters, and a level


@pytest.mark.parametrize(
    ("curves", "best"),
    [
        ([(0.47, 0.17), (0.95, 0.87)], 0),  # of a network; what fell most was extrapolated furthest, and not believed
        ([(0.95, 0.87), (0.88, 0.72), (0.47, 0.17)], 2),
        ([(0.5, 0.1, 0.6), (0.7, 0.5)], 1),  # where it is now counts
        ([(0.5, 0.1, NAN), (0.7, 0.5)], 1),
        ([(0.5, 0.1, NAN), (0.7, NAN)], 0),  # both have diverged
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_so_far_is_recommended_until_there_are_enough_for_a_plane(
    tmp_path: Path, curves: list[tuple[float, ...]], best: int, sign: int
) -> None:
    study = small_study(tmp_path, cost="reported", direction="minimise" if sign > 0 else "maximise", samples=SAMPLES)
    tried = [{"x": 0.25 * (i + 1), "y": 0.75 - 0.25 * i} for i in range(len(curves))]
    for config, curve in zip(tried, curves, strict=True):
        script(study, dataclasses.replace(new(len(curve), **config), kept=tuple((i + 1,) for i in range(len(curve)))))
        study.tell(study.ask(), trace=[(i + 1, sign * loss) for i, loss in enumerate(curve)], cost=1.0)
    assert study.best.config == tried[best]


# What is trusted


@pytest.mark.parametrize(("noise", "is_trusted"), [(0.0, True), (0.05, False)])
def test_losses_without_noise_are_trusted_further_than_hyperparameters_are_learned_with(
    tmp_path: Path, noise: float, is_trusted: bool
) -> None:
    study = small_study(
        tmp_path, None, space={"x": takg.Float(0.0, 1.0)}, cost="reported", samples=SAMPLES, warp="none"
    )
    xs = [(0.11 + 0.381966 * i) % 1 for i in range(20)]
    script(study, *(Proposal(config={"x": x}, target=()) for x in xs))
    for i, x in enumerate(xs):
        study.tell(study.ask(), math.sin(5 * x) + noise * math.sin(97.0 * i), cost=1.0)
    assert (learned(study).posterior.theta.noise_var < 1e-6).tolist() == [is_trusted] * SAMPLES
