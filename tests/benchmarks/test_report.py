"""From runs to the table, the figure and the bars; and the runner as a user calls it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import _bars
import _published
import pytest
import report
from scipy.stats import binomtest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(method, seed, regrets, *, problem="branin", budget=20.0, is_exhausted=False):
    """Recommendations of that regret at costs 1, 2, 3, ..."""
    curve = [{"cost": float(i), "regret": value, "cpu": 0.5} for i, value in enumerate(regrets, start=1)]
    return {
        "problem": problem,
        "method": method,
        "seed": seed,
        "budget": budget,
        "cost": float(len(regrets)),
        "is_exhausted": is_exhausted,
        "low_share": 0.25,
        "cpu_per_suggestion": 0.5,
        "curve": curve,
    }


def test_the_regret_at_a_cost_is_that_of_the_last_recommendation_paid_by_then():
    one = run("ei", 0, [8.0, 4.0, 2.0])
    assert [_bars.regret_at(one, cost) for cost in (1.0, 2.9, 3.0)] == [8.0, 4.0, 2.0]


def test_a_run_whose_first_evaluation_was_not_paid_for_yet_is_as_bad_as_can_be():
    """To leave it out would leave only those whose first evaluation happened to be cheap."""
    late = run("ei", 0, [8.0, 4.0, 2.0])
    late["curve"] = late["curve"][1:]  # the first evaluation has cost 2
    assert [_bars.regret_at(late, cost) for cost in (1.9, 2.0)] == [math.inf, 4.0]
    early = [run("ei", seed, [1.0, 1.0, 1.0]) for seed in (1, 2)]
    assert _bars.median_at([late, *early], 1.5) == 1.0
    assert _bars.median_at([late, {**late, "seed": 3}, *early[:1]], 1.5) == math.inf
    assert report._cell({0: math.inf, 1: 1.0, 2: 1.0, 3: 2.0}) == "1.5 (1, inf; inf)"


def test_a_run_that_did_not_get_there_has_no_regret_there_unless_it_used_up_its_suggestions():
    assert _bars.regret_at(run("ei", 0, [8.0, 4.0]), 5.0) is None
    assert _bars.regret_at(run("ei", 0, [8.0, 4.0], is_exhausted=True), 5.0) == 4.0


def test_what_a_run_overshoots_its_budget_by_does_not_count():
    """Or of those that were to stop there only the dear ones would count further on."""
    one = run("ei", 0, [8.0, 4.0, 2.0], budget=2.5)
    assert [_bars.regret_at(one, cost) for cost in (2.5, 2.6, 3.0)] == [4.0, None, None]


def test_the_bars_hold_where_we_have_a_tenth_of_the_best_rivals_median():
    runs = [run("takg", i, [0.1] * 7 + [1e-6] * 3) for i in range(3)]
    runs += [run("ei", i, [0.5] * 10) for i in range(3)] + [run("boca", i, [9.0] * 10) for i in range(3)]
    runs += [
        run("ei_batch8", i, [1e-9] * 10) for i in range(3)
    ]  # not compared with: its money buys eight times as much
    at_5, at_10 = _bars.bars_of(runs, ["branin"], 10.0)
    assert (at_5.value, at_5.limit, at_5.holds) == (0.1, 0.05, False)
    assert "(ei)" in at_5.name
    assert (at_10.value, at_10.holds) == (1e-6, True)


def test_a_regret_below_a_hundred_thousandth_is_reached_whatever_the_rival_has():
    runs = [run("takg", 0, [5e-6] * 10), run("ei", 0, [1e-7] * 10)]
    assert all(bar.holds for bar in _bars.bars_of(runs, ["branin"], 10.0))


def test_there_are_no_bars_beyond_the_budget_or_on_other_problems():
    runs = [run("takg", 0, [1.0] * 5), run("ei", 0, [1.0] * 5)]
    assert len(_bars.bars_of(runs, ["branin"], 5.0)) == 1
    assert _bars.bars_of(runs, ["misleading"], 5.0) == []


def test_where_values_mislead_we_are_held_to_the_best_at_full_fidelity_and_to_three_rivals():
    values = {"takg": 0.5, "ei": 0.45, "random": 3.0, "hyperband": 0.4, "logei_cheap": 9.0, "boca": 0.01}
    runs = [run(name, 0, [value] * 20, problem="mute", budget=20.0) for name, value in values.items()]
    assert _bars.bars_of(runs, ["mute"], 10.0) == []
    full, hyperband, cheap = _bars.bars_of(runs, ["mute"], 20.0)
    assert (full.limit, full.holds) == (pytest.approx(0.54), True) and "(ei)" in full.name
    assert (hyperband.limit, hyperband.holds) == (0.4, False) and "hyperband" in hyperband.name
    assert (cheap.limit, cheap.holds) == (9.0, True) and "logei_cheap" in cheap.name


def test_below_a_hundred_thousandth_nobody_is_better():
    runs = [run("takg", 0, [9e-6] * 20, problem="static"), run("ei", 0, [1e-9] * 20, problem="static")]
    (bar,) = _bars.bars_of(runs, ["static"], 20.0)
    assert bar.holds and bar.limit == pytest.approx(1.2e-5)


@pytest.mark.parametrize(("share", "holds"), [(0.25, False), (0.05, True)])
def test_the_zero_avoiding_form_is_held_to_its_share_of_low_fidelities(share, holds):
    runs = [{**run("takg_zero", seed, [1.0] * 20, problem="static"), "low_share": share} for seed in range(2)]
    (bar,) = _bars.bars_of(runs, ["static"], 5.0)
    assert (bar.value, bar.limit, bar.holds) == (pytest.approx(share), 0.1, holds)
    assert _bars.bars_of([{**one, "problem": "crossing"} for one in runs], ["crossing"], 5.0) == []


TASKS = [f"taskset-{i}" for i in range(4)]


def ranked(**regrets):
    """Runs on all tasks with one regret for each task."""
    return [
        run(method, 0, [value] * 20, problem=task)
        for method, values in regrets.items()
        for task, value in zip(TASKS, values, strict=True)
    ]


def test_mean_ranks_are_over_tasks_and_ties_count_against_us():
    runs = ranked(takg=[1, 1, 5, 2], ei=[2, 1, 4, 3], random=[3, 1, 9, 4])
    assert _bars.mean_ranks(runs, TASKS, 20.0) == {"takg": (1 + 3 + 2 + 1) / 4, "ei": 6 / 4, "random": 10 / 4}
    assert _bars.mean_ranks(runs[:-1], TASKS, 20.0).keys() == {"takg", "ei"}  # random has not run everywhere
    variants = runs + ranked(takg_cold=[0, 0, 0, 0], ei_batch8=[0, 0, 0, 0])
    assert _bars.mean_ranks(variants, TASKS, 20.0) == _bars.mean_ranks(runs, TASKS, 20.0)


def test_the_lowest_mean_rank_is_asked_for_at_three_costs_and_an_equal_one_is_not_enough():
    ahead = _bars.bars_of(ranked(takg=[1, 1, 1, 9], ei=[2, 2, 2, 3]), TASKS, 20.0)
    assert [bar.holds for bar in ahead] == [True] * 3 and [bar.value for bar in ahead] == [1.25] * 3
    level = _bars.bars_of(ranked(takg=[1, 1, 5, 5], ei=[2, 2, 3, 3]), TASKS, 20.0)
    assert [(bar.value, bar.limit, bar.holds) for bar in level] == [(1.5, 1.5, False)] * 3
    assert [bar.name.split()[5] for bar in level] == ["2", "6.67", "20"]
    assert _bars.bars_of(ranked(takg=[1] * 4, ei=[2] * 4), TASKS[:3], 20.0) == []


def test_the_table_of_ranks_has_a_row_for_each_method_the_best_first():
    results = {}
    for one in ranked(takg=[1, 1, 1, 9], ei=[2, 2, 2, 3], random=[3, 3, 3, 4]):
        results.setdefault(one["problem"], {}).setdefault(one["method"], []).append(one)
    rows = [line.split("|")[1:-1] for line in report.rank_table("taskset", results).splitlines() if "|" in line]
    assert [[cell.strip() for cell in row] for row in rows[2:]] == [
        ["takg", "1", "1.50", "1.50", "1.50"],
        ["ei", "1", "1.75", "1.75", "1.75"],
        ["random", "1", "2.75", "2.75", "2.75"],
    ]
    assert report.rank_table("lcbench", results) == ""


def test_runs_that_were_to_stop_earlier_count_up_to_there(tmp_path):
    whole = [run("takg", seed, [4.0, 2.0, 1.0, 0.5, 0.25]) for seed in range(2)]
    early = [{**run("takg", seed, [8.0, 8.0], budget=2.0), "low_share": 0.75} for seed in (2, 3, 4)]
    rows = [line.split("|") for line in report.table("branin", {"takg": [*whole, *early]}).splitlines()[4:5]]
    (cells,) = [[cell.strip() for cell in row] for row in rows]
    assert cells[1:5] == ["takg", "2 (5)", "8 (2, 8; 5.6)", "0.25 (0.25, 0.25; 0.25)"]
    assert "25%" in cells
    assert report.longest([*early, *whole]) == whole
    bands = []
    for methods in ({"takg": whole}, {"takg": [*whole, *early]}):
        report.figure("branin", methods, tmp_path / "figure.png")
        bands.append((tmp_path / "figure.png").read_bytes())
    assert bands[0] == bands[1]  # drawn to its end, from those that got there


def test_ablations_are_compared_on_the_seeds_that_both_have_run():
    methods = {
        "takg": [run("takg", i, [0.1 * (i + 1)] * 10) for i in range(5)],
        "takg_zero": [run("takg_zero", i, [0.15] * 10) for i in range(3)],
        "takg_zero_noisy": [run("takg_zero_noisy", i, [0.7] * 10) for i in (1, 2, 3)],
        "takg_cold": [run("takg_cold", 0, [0.7] * 2)],  # did not get there
    }
    text = report.ablation_table({"branin": methods, "hartmann3": {"takg": methods["takg"]}})
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    assert head[1:7] == ["against", "problem", "seeds", "without", "with", "lower with"]
    assert [row[1:7] for row in rows] == [
        ["takg", "branin", "3", "0.2", "0.15", "2 of 3, p = 1"],
        ["takg_zero", "branin", "2", "0.15", "0.7", "0 of 2, p = 0.5"],
    ]
    assert [row[0].split(":")[0] for row in rows] == ["takg_zero", "takg_zero_noisy"]
    assert report.ablation_table({"hartmann3": {"takg": methods["takg"]}}) == ""


def test_shares_of_cheap_evaluations_are_compared_where_as_much_was_spent():
    base = [{**run("takg", 0, [0.1] * 10), "low_share": 0.25}]
    change = [{**run("takg_zero", 0, [0.1] * 10), "low_share": 0.04}]
    assert report.ablation_table({"branin": {"takg": base, "takg_zero": change}}).endswith("| 25%, 4% |\n")
    change[0]["budget"] *= 2
    assert report.ablation_table({"branin": {"takg": base, "takg_zero": change}}).endswith("|  |\n")


def test_quantiles_are_linear_between_the_order_statistics():
    values = [4.0, 1.0, 3.0, 2.0]
    assert [report.quantile(values, share) for share in (0, 0.25, 0.5, 1)] == [1.0, 1.75, 2.5, 4.0]


@pytest.mark.parametrize(("wins", "losses", "ties"), [(9, 1, 0), (3, 3, 2), (0, 6, 1)])
def test_the_sign_test_agrees_with_scipy(wins, losses, ties):
    ours = [0.0] * wins + [2.0] * losses + [1.0] * ties
    found = report.sign_test(ours, [1.0] * len(ours))
    assert found == (wins, wins + losses, pytest.approx(binomtest(wins, wins + losses).pvalue))


def test_the_table_ranks_by_the_median_and_counts_how_often_we_are_lower(tmp_path):
    (tmp_path / "branin").mkdir()
    for seed in range(4):
        for method, value in (("takg", 0.01 * (seed + 1)), ("ei", 0.5), ("random", 0.03)):
            path = tmp_path / "branin" / f"{method}-{seed}.json"
            path.write_text(json.dumps(run(method, seed, [1.0, 1.0, 1.0, 1.0, value])))
    (tmp_path / "branin" / "takg-0.state.json").write_text("{}")
    text = report.table("branin", report.load(tmp_path)["branin"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0][2:5] == ["cost 2", "cost 5", "rank at 5"]
    assert [row[0] for row in rows[2:]] == ["takg", "random", "ei"]
    assert rows[2][3] == "0.025 (0.018, 0.033; 0.025)"
    assert rows[3][4:6] == ["2", "2 of 3, p = 1"]
    assert rows[4][5] == "4 of 4, p = 0.12"


def test_methods_are_ranked_where_we_have_got_to():
    methods = {"takg": [run("takg", 0, [0.1] * 5)], "ei": [run("ei", 0, [0.5] * 5 + [0.01] * 5)]}
    rows = [[cell.strip() for cell in line.split("|")] for line in report.table("branin", methods).splitlines()]
    assert "rank at 5" in rows[2]
    assert [row[1] for row in rows[4:]] == ["takg", "ei"]


def test_batches_are_ranked_among_themselves_and_compared_with_our_batches():
    methods = {name: [run(name, 0, [1.0, value])] for name, value in (("takg", 0.5), ("ei", 0.6), ("ei_batch8", 0.1))}
    methods["takg_batch8"] = [run("takg_batch8", 0, [1.0, 0.01])]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in report.table("branin", methods).splitlines()[4:]
    ]
    assert [(row[0], row[3]) for row in rows] == [("takg", "1"), ("ei", "2"), ("takg_batch8", "1"), ("ei_batch8", "2")]
    assert rows[3][4].startswith("1 of 1")


def test_the_summary_says_where_we_have_a_tenth_of_the_best_rivals_median():
    results = {"branin": {"takg": [run("takg", 0, [0.1] * 5)], "ei": [run("ei", 0, [0.5] * 10)]}}
    *_, line = report.summary(results).splitlines()  # we did not get to cost 10
    name = "branin: median regret at cost 5 against a tenth of the best rival's (ei)"
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [name, "0.1", "0.05", "missed"]


def test_the_page_keeps_all_but_what_stands_between_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n")
    report.put(page, "new")
    assert page.read_text() == f"above\n{report.BEGIN}\n\nnew\n{report.END}\nbelow\n"
    assert report.BEGIN in (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text()


def test_a_figure_is_drawn_for_each_problem(tmp_path):
    results = {"branin": {name: [run(name, 0, [9.0, 1e-3, 0.0])] for name in ("takg", "ei", "ei_batch8")}}
    text = report.report(results, tmp_path / "figures", tmp_path / "page.md")
    assert "](figures/regret-branin.png)" in text
    assert (tmp_path / "figures" / "regret-branin.png").stat().st_size > 10_000


def test_figures_without_new_results_stay_as_they_are(tmp_path):
    results = {name: {"takg": [run("takg", 0, [9.0, 1e-3, 0.0])]} for name in ("branin", "hartmann3", "static")}
    for name in ("branin", "hartmann3"):
        (tmp_path / f"regret-{name}.png").write_text("old")
    report.report(results, tmp_path, tmp_path / "page.md", new={"branin"})
    drawn = {path.name: path.stat().st_size > 10_000 for path in tmp_path.glob("*.png")}
    assert drawn == {"regret-branin.png": True, "regret-hartmann3.png": False, "regret-static.png": True}


def test_what_is_published_gives_the_same_tables_and_bars(tmp_path):
    regrets = {"takg": [3.0, 1.0, 0.5, 0.25, 0.125], "ei": [4.0, 2.0, 2.0, 1.5, 1.25], "dkg": [8.0, 0.3]}
    runs = [
        run(name, seed, [value / (seed + 1) for value in values]) for name, values in regrets.items() for seed in (0, 1)
    ]
    runs[0]["engine"] = "abc123"
    runs[1]["curve"] = runs[1]["curve"][2:]  # its first evaluation has cost 3
    results = {"branin": {name: [one for one in runs if one["method"] == name] for name in regrets}}
    _published.publish(results, tmp_path)
    again = report.load(tmp_path / "none", tmp_path)
    assert report.table("branin", again["branin"]) == report.table("branin", results["branin"])
    assert "takg as of abc123." in report.table("branin", again["branin"])
    assert report.summary(again) == report.summary(results)
    _published.publish(again, tmp_path / "twice")
    assert (tmp_path / "twice" / "branin.json").read_text() == (tmp_path / "branin.json").read_text()


def test_a_run_that_was_made_again_replaces_what_was_published_of_it(tmp_path):
    _published.publish({"branin": {"ei": [run("ei", seed, [4.0, 2.0]) for seed in (0, 1)]}}, tmp_path / "published")
    (tmp_path / "results" / "branin").mkdir(parents=True)
    (tmp_path / "results" / "branin" / "ei-1.json").write_text(json.dumps(run("ei", 1, [4.0, 1.0])))
    first, second = report.load(tmp_path / "results", tmp_path / "published")["branin"]["ei"]
    assert [_bars.regret_at(one, 2.0) for one in (first, second)] == [2.0, 1.0]


@pytest.mark.slow
def test_the_runner_goes_on_without_a_method_that_fails_and_ends_with_bars(tmp_path):
    command = [sys.executable, "regret.py", "--problem", "branin,taskset-0", "--methods", "random,hyperband"]
    command += ["--seeds", "3-3", "--budget", "1.5", "--results", str(tmp_path / "results")]
    command += ["--json", str(tmp_path / "regret.json")]
    environment = {name: value for name, value in os.environ.items() if name != "TAKG_DATA"}
    environment["PYTHONPATH"] = str(BENCHMARKS.parent / "src")
    done = subprocess.run(command, cwd=BENCHMARKS, env=environment, capture_output=True, text=True, check=False)
    found = json.loads((tmp_path / "regret.json").read_text())
    runs = [(one["problem"], one["method"], one["seed"]) for one in found["runs"]]
    assert runs == [("branin", "random", 3), ("branin", "hyperband", 3)]
    assert "taskset-0" in done.stdout
    assert "--data or TAKG_DATA" in done.stdout
    assert list(found)[-1] == "bars"
    assert found["bars"] == [{"name": "runs that finished", "value": 2, "limit": 4, "holds": False}]
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0", "9-5", "few"])
def test_seeds_that_are_none_are_refused_with_what_was_expected(text):
    command = [sys.executable, "regret.py", f"--seeds={text}"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"argument --seeds: {text!r}: expected" in done.stderr
