import builtins
import json
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_studies import History

import takg
from takg.plots import KINDS, Figure, figures
from takg.plots._draw_html import figure as as_json
from takg.plots._draw_png import png
from takg.plots._info import View, curves_of, view_of
from takg.plots._look import config_words, number, shown
from takg.plots._numbers import Curves, Nothing, Prediction, Slices
from takg.study import Study


def read_page(page: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Data and layout of a saved page."""
    text = page[page.rindex("Plotly.newPlot(") + len("Plotly.newPlot(") :]
    found, place = [], 0
    while len(found) < 3:
        place += len(text[place:]) - len(text[place:].lstrip(" \n,"))
        value, place = json.JSONDecoder().raw_decode(text, place)
        found.append(value)
    return found[1], found[2]


@pytest.fixture(scope="module")
def drawn(fitted: Study) -> dict[str, Figure]:
    return figures(fitted)


def test_figures_come_by_kind_in_the_order_asked_for(fitted: Study, drawn: dict[str, Figure]) -> None:
    assert tuple(drawn) == KINDS == ("curves", "fidelities", "prediction", "progress", "slices")
    assert [figure.kind for figure in drawn.values()] == list(KINDS)
    assert list(figures(fitted, ["slices", "curves"])) == ["slices", "curves"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_png_has_the_right_signature_and_size(drawn: dict[str, Figure], kind: str, tmp_path: Path) -> None:
    path = drawn[kind].save(tmp_path / f"{kind}.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert 700 < width < 2000
    assert 300 < height < 2000
    assert len(content) > 10_000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_the_data_and_the_script_inside_and_loads_nothing(
    drawn: dict[str, Figure], kind: str, tmp_path: Path
) -> None:
    page = drawn[kind].save(str(tmp_path / f"{kind}.HTML")).read_text()
    data, layout = read_page(page)
    assert data
    assert layout["title"]["text"].startswith("<b>")
    assert "all fates" in layout["title"]["text"]
    assert len(page) > 1_000_000
    outside = page[: page.index("<script")] + page[page.rindex("Plotly.newPlot(") :]
    assert "src=" not in outside
    assert "<link" not in outside


@pytest.mark.parametrize("kind", KINDS)
def test_the_json_of_a_page_is_what_plotly_takes(drawn: dict[str, Figure], maximised: Study, kind: str) -> None:
    import plotly.graph_objects

    for figure in (drawn[kind], figures(maximised, [kind])[kind]):
        plotly.graph_objects.Figure(json.loads(json.dumps(as_json(figure.info), allow_nan=False)))


def test_the_curves_on_a_page_are_those_that_were_observed(drawn: dict[str, Figure]) -> None:
    info = drawn["curves"].info
    assert isinstance(info, Curves)
    traces = as_json(info)["data"]
    lines = [trace for trace in traces if "legendgroup" in trace]
    points = {(x, y) for trace in lines for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None}
    assert points == {(x, y) for curve in info.curves for x, y in zip(curve.x, curve.y, strict=True)}
    assert sum(trace["showlegend"] for trace in lines) == len({curve.fate for curve in info.curves})
    assert [len(trace["x"]) for trace in traces if "legendgroup" not in trace] == [3, 1]  # pauses, divergences


def test_the_prediction_of_a_fitted_study_agrees_with_the_study(fitted: Study) -> None:
    info = figures(fitted, ["prediction"], trial=4)["prediction"].info
    assert isinstance(info, Prediction)
    config = fitted.trials[4].config
    direct = fitted.predict(config, [{"epochs": 7, "data": 10_000}, {"epochs": 7, "data": 50_000}])
    place = info.own.x.index(7)
    assert info.own.mean[place] == pytest.approx(direct[0].mean)
    assert (info.own.low[place], info.own.high[place]) == (pytest.approx(direct[0].low), pytest.approx(direct[0].high))
    assert info.full is not None
    assert info.full.mean[place] == pytest.approx(direct[1].mean)


def test_the_slices_of_a_fitted_study_agree_with_the_study(fitted: Study, drawn: dict[str, Figure]) -> None:
    info = drawn["slices"].info
    assert isinstance(info, Slices)
    best = fitted.best
    choice = next(one for one in info.slices if one.parameter == "optimizer")
    for place, name in enumerate(["sgd", "adam"]):
        (direct,) = fitted.predict({**best.config, "optimizer": name})
        assert choice.band.mean[place] == pytest.approx(direct.mean)
        assert choice.band.high[place] == pytest.approx(direct.high)


def test_a_maximising_study_with_conditions_and_strange_names_is_drawn(maximised: Study, tmp_path: Path) -> None:
    made = figures(maximised)
    for kind, figure in made.items():
        figure.save(tmp_path / f"{kind}.png")
    page = made["slices"].save(tmp_path / "slices.html").read_text()
    layout = read_page(page)[1]
    names = [layout[f"xaxis{i}"]["title"]["text"] for i in ("", 2, 3)]
    assert names[0] == "model"
    assert names[1].startswith("net.$width$")
    assert layout["xaxis"]["ticktext"] == ["tree", "&lt;b&gt;net&lt;/b&gt;", "a forest of ver…"]
    assert "</script><" not in page[page.rindex("Plotly.newPlot(") : -100]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_study_gives_a_figure_that_says_so(history: History, kind: str, tmp_path: Path) -> None:
    figure = figures(history.study, [kind])[kind]
    assert isinstance(figure.info, Nothing)
    assert figure.save(tmp_path / "a.png").stat().st_size > 1000
    (note,) = as_json(figure.info)["layout"]["annotations"]
    assert note["text"] == figure.info.reason


def test_hundreds_of_curves_are_drawn_in_few_traces(history: History) -> None:
    for i in range(300):
        history.observes(history.asks({"lr": 1.0}, epochs=2), 2.0 + 0.01 * i, 1.0 + 0.01 * i)
    info = curves_of(view_of(history.study, with_forecast=False))
    assert len(as_json(info)["data"]) == 1
    assert png(info).startswith(b"\x89PNG")


def test_values_near_the_largest_float_are_drawn(history: History) -> None:
    for values in ((1.0, 2.0), (1.0, 1e308), (-1e308, 3.0)):
        history.observes(history.asks({"lr": 1.0}, epochs=2), *values)
        info = curves_of(view_of(history.study, with_forecast=False))
        assert png(info).startswith(b"\x89PNG")
        json.dumps(as_json(info), allow_nan=False)


def test_studies_without_a_trace_and_without_fidelities_are_drawn(tmp_path: Path) -> None:
    space = {"lr": takg.Float(0.1, 10.0, log=True)}
    for fidelities in ({}, {"data": takg.Fidelity(100, 60_000, trace=False)}):
        history = History(space, fidelities, samples=2)
        for lr in (0.2, 1.0, 5.0):
            trial = history.asks({"lr": lr}, **dict.fromkeys(fidelities, 600))
            history.observes(trial, lr)
            history.finishes(trial)
        for kind, figure in figures(history.study).items():
            figure.save(tmp_path / f"{kind}.png")
            json.dumps(as_json(figure.info), allow_nan=False)


def test_saving_again_replaces_the_file_and_keeps_the_usual_permissions(history: History, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("old")
    figure = figures(history.study, ["curves"])["curves"]
    assert figure.save(path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_a_file_that_cannot_be_replaced_leaves_no_draft_behind(history: History, tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(OSError, match=r"a\.png"):
        figures(history.study, ["curves"])["curves"].save(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.png"]


@pytest.mark.parametrize("name", ["a.svg", "a", "png"])
def test_other_suffixes_are_refused(history: History, tmp_path: Path, name: str) -> None:
    with pytest.raises(takg.InputError, match=r"saved as one of \('.html', '.png'\)"):
        figures(history.study, ["curves"])["curves"].save(tmp_path / name)


def test_a_directory_that_is_missing_is_named(history: History, tmp_path: Path) -> None:
    with pytest.raises(takg.InputError, match=r"nowhere' is not a directory; make it first"):
        figures(history.study, ["curves"])["curves"].save(tmp_path / "nowhere" / "a.png")


@pytest.mark.parametrize("kinds", ["curves", ["curves", "pie"]])
def test_unknown_kinds_are_refused(history: History, kinds: Any) -> None:
    with pytest.raises(takg.InputError, match=r"kinds=.*: expected a list of some of \('curves', 'fidelities'"):
        figures(history.study, kinds)


@pytest.mark.parametrize("trial", [2, -1, True, "0"])
def test_a_trial_that_does_not_exist_is_refused(history: History, trial: Any) -> None:
    for _ in range(2):
        history.asks({"lr": 1.0}, epochs=2)
    with pytest.raises(takg.InputError, match=r"trial=.*: expected a trial from 0 to 1"):
        figures(history.study, ["curves"], trial=trial)


def test_no_trial_can_be_chosen_in_an_empty_study(history: History) -> None:
    with pytest.raises(takg.InputError, match="trial=0: expected None, as there are no trials yet"):
        figures(history.study, ["prediction"], trial=0)


@pytest.mark.parametrize(("suffix", "library"), [("png", "matplotlib"), ("html", "plotly")])
def test_a_missing_library_is_named_with_the_extra_to_install(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, library: str
) -> None:
    real = builtins.__import__

    def without_it(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **more)

    figure = figures(history.study, ["curves"])["curves"]
    monkeypatch.delitem(sys.modules, "takg.plots._draw_png")
    monkeypatch.setattr(builtins, "__import__", without_it)
    with pytest.raises(takg.InputError, match=rf"{library}.*missing: pip install 'takg\[plots\]'"):
        figure.save(tmp_path / f"a.{suffix}")
    assert not list(tmp_path.iterdir())


def test_importing_the_package_and_drawing_curves_loads_no_heavy_library() -> None:
    code = (
        "import sys, takg, takg.plots\n"
        "study = takg.create_study({'lr': takg.Float(0.1, 1.0)}, storage=None)\n"
        "takg.plots.figures(study, ['curves', 'fidelities'])\n"
        "print([name for name in ('matplotlib', 'plotly', 'torch') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_a_view_without_a_forecast_fits_no_model(fitted: Study) -> None:
    view = view_of(fitted, with_forecast=False)
    assert isinstance(view, View)
    assert view.forecaster is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.001, "0.001"), (1e-5, "1e-5"), (50_000.0, "50000"), (2.5e7, "2.5e7"), (0.123456, "0.1235"), (-3.0, "-3")],
)
def test_numbers_are_short_and_plain(value: float, text: str) -> None:
    assert number(value) == text


def test_values_are_shortened_to_one_line() -> None:
    assert shown("a long\nname of a choice", 12) == "a long name…"
    assert shown(None) == "None"
    assert config_words({"lr": 0.1, "net": {"depth": 3}}) == "lr = 0.1, net.depth = 3"
