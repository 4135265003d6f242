"""The plots as interactive HTML files with all that they need inside, by plotly.

A figure is built as the plain JSON that plotly.js reads; of the library only the script and the page around it are
used.
"""

import html as escaping
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from takg.plots._look import (
    ALL_FULL,
    ANYWHERE,
    AT_FULL,
    BAND,
    BLUE,
    DIVERGED,
    FATE_COLOURS,
    FATE_WORDS,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    PAUSED,
    PREDICTED,
    SHARE_COLOURS,
    SHARE_TICKS,
    SKY,
    SPENT_CONTINUED,
    SPENT_NEW,
    VERMILION,
    config_words,
    headline,
    jitter,
    listed,
    number,
    shown,
    value_words,
)
from takg.plots._numbers import (
    FATES,
    Band,
    Costs,
    Curve,
    Curves,
    Info,
    Nothing,
    Prediction,
    Progress,
    Slice,
    Slices,
)
from takg.plots._scale import Scale, log_ticks

Json = dict[str, Any]

_WIDTHS = (0.8, 1.4, 2.0, 2.8)  # of lines, by the level of the other fidelities
_LINE = 120  # characters of a heading
_LEGEND: Json = {"x": 1.02, "y": 1, "font": {"size": 12}}


def html(info: Info) -> bytes:
    """The page of some numbers."""
    from plotly.io import to_html

    page: str = to_html(
        figure(info),
        include_plotlyjs=True,
        include_mathjax=False,
        full_html=True,
        validate=False,
        div_id="takg",
        config={"displaylogo": False, "responsive": True},
    )
    title = escaping.escape(" ".join(filter(None, headline(info))), quote=False)
    return page.replace("<head>", f"<head>\n    <title>{title}</title>", 1).encode()


def figure(info: Info) -> Json:
    """The data and the layout, as plotly.js reads them."""
    match info:
        case Nothing():
            traces, layout = _nothing(info)
        case Curves():
            traces, layout = _curves(info)
        case Costs():
            traces, layout = _costs(info)
        case Progress():
            traces, layout = _progress(info)
        case Prediction():
            traces, layout = _prediction(info)
        case Slices():
            traces, layout = _slices(info)
    title, about = headline(info)
    lines = [_small(line) for line in textwrap.wrap(about, _LINE, max_lines=3, placeholder=" …")]
    common: Json = {
        "title": {
            "text": "<br>".join([f"<b>{_safe(title)}</b>", *lines]),
            "font": {"size": 16},
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 16},
        },
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "legend": _LEGEND,
        "margin": {"l": 80, "r": 30, "t": 50 + 20 * len(lines), "b": 70},
    }
    return {"data": traces, "layout": common | layout}


def _nothing(info: Nothing) -> tuple[list[Json], Json]:
    note = {"text": _safe(info.reason), "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    axis = {"visible": False}
    return [], {"annotations": [note | {"font": {"size": 16, "color": GREY}}], "xaxis": axis, "yaxis": axis}


# Learning curves


def _curves(info: Curves) -> tuple[list[Json], Json]:
    traces: list[Json] = []
    for fate in FATES:  # the most interesting last, on top
        members = [curve for curve in info.curves if curve.fate == fate]
        name = f"{FATE_WORDS[fate]} ({len(members)})"
        for i, width in enumerate(sorted({_width(info, curve) for curve in members})):
            alike = [curve for curve in members if _width(info, curve) == width]
            lines = _lines(info, alike, width, 0.9 if len(info.curves) <= 30 else 0.5)
            traces.append(lines | {"name": name, "showlegend": i == 0})
    paused = [(curve, x, y) for curve in info.curves for x, y in curve.pauses]
    if paused:
        outline = {"width": 1.2, "color": [FATE_COLOURS[curve.fate] for curve, _, _ in paused]}
        traces.append(_markers(paused, info, PAUSED) | {"marker": {"size": 6, "color": "white", "line": outline}})
    ends = [(curve, *curve.diverged) for curve in info.curves if curve.diverged]
    if ends:
        bad_end = info.scale.bad_end(info.sign)
        places = [(curve, x, bad_end if y is None else info.scale.clamped(y)) for curve, x, y in ends]
        marker = {"symbol": "x-thin", "size": 8, "line": {"width": 1.6, "color": VERMILION}}
        traces.append(_markers(places, info, f"{DIVERGED} here") | {"marker": marker})
    x_axis = _axis("trial" if info.axis is None else info.axis) | _range(info.x_low, info.x_high, info.is_x_log)
    layout: Json = {"xaxis": x_axis, "yaxis": _value_axis(info.scale, value_words(info.sign))}
    if info.others:
        what = _safe(" × ".join(shown(name, 16) for name in info.others))
        layout["legend"] = _LEGEND | {"title": {"text": f"{'line width' if info.are_lines else 'size'}: {what}"}}
    return traces, layout


def _width(info: Curves, curve: Curve) -> float:
    if not info.others:
        return _WIDTHS[2]
    return _WIDTHS[min(int(math.sqrt(curve.level) * len(_WIDTHS)), len(_WIDTHS) - 1)]


def _lines(info: Curves, curves: Sequence[Curve], width: float, opacity: float) -> Json:
    """Several curves as one trace, with gaps in between."""
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for curve in curves:
        x += [*curve.x, None]
        y += [*curve.y, None]
        texts += [_story(info, curve, *point) for point in zip(curve.x, curve.y, strict=True)] + [""]
    colour = FATE_COLOURS[curves[0].fate]
    return {
        "type": "scatter",
        "mode": "lines+markers" if info.are_lines else "markers",
        "x": x,
        "y": y,
        "hovertext": texts,
        "hoverinfo": "text",
        "opacity": opacity,
        "line": {"width": width, "color": colour},
        "marker": {"size": 2 * width if info.are_lines else 4 + 1.5 * width, "color": colour},
        "legendgroup": curves[0].fate,
    }


def _markers(places: Sequence[tuple[Curve, float, float]], info: Curves, name: str) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x for _, x, _ in places],
        "y": [y for _, _, y in places],
        "hovertext": [_story(info, curve, x) for curve, x, _ in places],
        "hoverinfo": "text",
        "name": name,
    }


def _story(info: Curves, curve: Curve, x: float, y: float | None = None) -> str:
    """What is shown of a point under the pointer."""
    at = {} if info.axis is None else {info.axis: x}
    words = [f"trial {curve.trial}, {FATE_WORDS[curve.fate]}", listed(at | dict(curve.others))]
    if y is not None:
        words.append(f"value {number(y)}")
    lines = [*filter(None, words), *textwrap.wrap(config_words(curve.config), 60)]
    return "<br>".join(map(_safe, lines))


# Cost by fidelity


def _costs(info: Costs) -> tuple[list[Json], Json]:
    traces: list[Json] = []
    layout: Json = {"barmode": "stack", "bargap": 0}
    for i, (histogram, domain) in enumerate(zip(info.histograms, _panels(len(info.histograms)), strict=True)):
        which = _nth(i)
        pairs = list(itertools.pairwise(histogram.edges))
        between = [f"{number(a)} to {number(b)}" if b - a != 1 else number((a + b) / 2) for a, b in pairs]
        places = [math.log10(a * b) / 2 if histogram.is_log else (a + b) / 2 for a, b in pairs]
        widths = [math.log10(b / a) if histogram.is_log else b - a for a, b in pairs]
        for name, colour, heights in ((SPENT_NEW, SKY, histogram.new), (SPENT_CONTINUED, BLUE, histogram.continued)):
            traces.append(
                {
                    "type": "bar",
                    "x": places,
                    "y": list(heights),
                    "width": widths,
                    "hovertext": [
                        _safe(f"{histogram.fidelity} {where}: {number(height)}, {name}")
                        for where, height in zip(between, heights, strict=True)
                    ],
                    "hoverinfo": "text",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": i == 0,
                    "marker": {"color": colour, "line": {"color": "white", "width": 0.6}},
                    "xaxis": f"x{which}",
                    "yaxis": f"y{which}",
                }
            )
        axis = _axis(f"{histogram.fidelity} reached") | {"domain": domain, "anchor": f"y{which}", "showgrid": False}
        if histogram.is_log:  # bars on a linear axis of exponents: plotly has no bars of equal width on a log axis
            ticks = log_ticks(histogram.edges[0], histogram.edges[-1])
            axis |= {"tickvals": [math.log10(tick) for tick in ticks], "ticktext": [number(tick) for tick in ticks]}
        layout[f"xaxis{which}"] = axis
        layout[f"yaxis{which}"] = _axis(f"cost ({info.unit})" if i == 0 else "") | {"anchor": f"x{which}"}
    return traces, layout


# Best value against cost


def _progress(info: Progress) -> tuple[list[Json], Json]:
    traces: list[Json] = []
    for name, points, colour, width in ((ANYWHERE, info.anywhere, GREY, 1.4), (AT_FULL, info.full, GREEN, 2.4)):
        if points:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [cost for cost, _ in points] + [info.total],
                    "y": [value for _, value in points] + [points[-1][1]],
                    "line": {"shape": "hv", "color": colour, "width": width},
                    "marker": {"size": 4, "color": colour},
                    "name": name,
                }
            )
    if info.predicted is not None:
        (mean,), (low,), (high,) = info.predicted.mean, info.predicted.low, info.predicted.high
        name = f"{PREDICTED}: {number(mean)}<br>({number(low)} to {number(high)}, {BAND})"
        traces.append(_error_bars(info.predicted, info.scale, ORANGE) | {"name": name})
    x_axis = _axis(f"cost spent ({info.unit})") | {"range": [0, info.total * 1.04 or 1]}
    return traces, {"xaxis": x_axis, "yaxis": _value_axis(info.scale, value_words(info.sign))}


def _error_bars(band: Band, scale: Scale, colour: str) -> Json:
    mean, low, high = ([scale.clamped(value) for value in values] for values in (band.mean, band.low, band.high))
    up, down = ([b - a for a, b in zip(*ends, strict=True)] for ends in ((mean, high), (low, mean)))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(band.x),
        "y": mean,
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": colour},
        "marker": {"symbol": "diamond", "size": 9, "color": colour},
        "hovertext": _estimates(band),
        "hoverinfo": "text",
    }


def _estimates(band: Band) -> list[str]:
    return [
        f"mean {number(mean)}<br>{number(low)} to {number(high)} ({BAND})"
        for mean, low, high in zip(band.mean, band.low, band.high, strict=True)
    ]


# The predicted curve of one trial


def _prediction(info: Prediction) -> tuple[list[Json], Json]:
    observed = {
        "type": "scatter",
        "mode": "markers",
        "x": [0.0 if info.axis is None else x for x, _ in info.observed],
        "y": [y for _, y in info.observed],
        "marker": {"size": 6, "color": INK},
        "name": "observed",
    }
    y_axis = _value_axis(info.scale, value_words(info.sign))
    if info.axis is None:
        bar = _error_bars(info.own, info.scale, BLUE) | {"x": [1]}
        x_axis = _axis("") | {"tickvals": [0, 1], "ticktext": ["observed", "predicted"], "range": [-0.6, 1.6]}
        return [observed, bar | {"name": f"predicted, {BAND}"}], {"xaxis": x_axis, "yaxis": y_axis}
    own = f"predicted{_safe(f' at {listed(info.others)}') if info.others else ''}"
    traces = _band(info.own, info.scale, name=own)
    if info.full is not None:
        traces.append(_mean(info.full, ORANGE) | {"name": ALL_FULL, "opacity": 0.8})
        traces[-1]["line"] |= {"dash": "dash", "width": 1.5}
    return [*traces, observed], {"xaxis": _axis(info.axis) | {"range": [0, info.own.x[-1] * 1.02]}, "yaxis": y_axis}


def _band(band: Band, scale: Scale, *, name: str = "") -> list[Json]:
    """The band, as one closed outline, and the mean."""
    low, high = ([scale.clamped(value) for value in values] for values in (band.low, band.high))
    outline = {
        "type": "scatter",
        "mode": "lines",
        "x": [*band.x, *reversed(band.x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": "rgba(0, 114, 178, 0.15)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": BAND,
        "showlegend": bool(name),
    }
    return [outline, _mean(band, BLUE) | {"name": name, "showlegend": bool(name)}]


def _mean(band: Band, colour: str) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(band.x),
        "y": list(band.mean),
        "line": {"color": colour, "width": 2},
        "hovertext": _estimates(band),
        "hoverinfo": "x+text",
    }


# Parameter by parameter


def _slices(info: Slices) -> tuple[list[Json], Json]:
    count = len(info.slices)
    across = min(count, 4 if count > 6 or count == 4 else 3)
    down = -(-count // across)
    traces: list[Json] = []
    shapes: list[Json] = []
    height = max(260 * down + 160, 420)
    layout: Json = {"showlegend": False, "height": height}
    if info.fidelities:
        layout["coloraxis"] = _share_axis(info.fidelities)
    columns, rows = _panels(across), _panels(down, gap=100 / height)[::-1]
    for i, one in enumerate(info.slices):
        which = _nth(i)
        parts = [*_slice_band(one, info.scale), _dots(one, bool(info.fidelities))]
        parts += [_crosses(one, info)] if one.diverged else []
        traces += [part | {"xaxis": f"x{which}", "yaxis": f"y{which}"} for part in parts]
        layout[f"xaxis{which}"] = _slice_axis(one) | {"domain": columns[i % across], "anchor": f"y{which}"}
        y_axis = _value_axis(info.scale, ("value" if down > 1 else value_words(info.sign)) if i % across == 0 else "")
        layout[f"yaxis{which}"] = y_axis | {"domain": rows[i // across], "anchor": f"x{which}"}
        if one.best is not None:
            where = {"x0": one.best, "x1": one.best, "y0": 0, "y1": 1, "xref": f"x{which}", "yref": f"y{which} domain"}
            shapes.append({"type": "line", "line": {"color": ORANGE, "dash": "dot", "width": 1.2}} | where)
    return traces, layout | {"shapes": shapes}


def _slice_band(one: Slice, scale: Scale) -> list[Json]:
    if not one.choices:
        return _band(one.band, scale)
    bars = _error_bars(one.band, scale, BLUE)
    bars["error_y"]["width"] = 14
    return [bars | {"marker": {"symbol": "line-ew", "size": 34, "line": {"width": 2.4, "color": BLUE}}}]


def _dots(one: Slice, is_coloured: bool) -> Json:
    order = sorted(one.dots, key=lambda dot: dot.share)  # what was trained furthest on top
    colour: Json = {"color": SHARE_COLOURS[-1]}
    if is_coloured:
        colour = {"color": [math.sqrt(dot.share) for dot in order], "coloraxis": "coloraxis"}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [dot.x + (jitter(dot.trial) if one.choices else 0) for dot in order],
        "y": [dot.y for dot in order],
        "marker": {"size": 7, "line": {"color": "white", "width": 0.5}} | colour,
        "hovertext": [
            _safe(f"trial {dot.trial}, value {number(dot.y)}, {dot.share:.0%} trained, {_named(one, dot.x)}")
            for dot in order
        ],
        "hoverinfo": "text",
    }


def _crosses(one: Slice, info: Slices) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x + (jitter(trial) if one.choices else 0) for trial, x in one.diverged],
        "y": [info.scale.bad_end(info.sign)] * len(one.diverged),
        "marker": {"symbol": "x-thin", "size": 7, "line": {"width": 1.6, "color": VERMILION}},
        "hovertext": [_safe(f"trial {trial}, {DIVERGED}, {_named(one, x)}") for trial, x in one.diverged],
        "hoverinfo": "text",
    }


def _named(one: Slice, x: float) -> str:
    return f"{one.parameter} = {shown(one.choices[int(x)] if one.choices else x, 40)}"


def _slice_axis(one: Slice) -> Json:
    given = f"<br>{_small(f'with {config_words(one.given)}')}" if one.given else ""
    axis = _axis(one.parameter)
    axis["title"]["text"] += given
    if one.choices:
        names = [_safe(shown(choice)) for choice in one.choices]
        return axis | {"tickvals": list(one.band.x), "ticktext": names, "range": [one.low - 0.6, one.high + 0.6]}
    return axis | _range(one.low, one.high, one.is_log)


def _share_axis(fidelities: Iterable[str]) -> Json:
    """The colours of shares, by their square roots, so that small ones can be told apart."""
    steps = len(SHARE_COLOURS) - 1
    what = " × ".join(shown(name, 14) for name in fidelities)
    return {
        "cmin": 0,
        "cmax": 1,
        "colorscale": [[i / steps, colour] for i, colour in enumerate(SHARE_COLOURS)],
        "colorbar": {
            "title": {"text": _safe(f"trained, share of full {what}"), "side": "right"},
            "tickvals": [math.sqrt(tick) for tick in SHARE_TICKS],
            "ticktext": [f"{tick:.0%}" for tick in SHARE_TICKS],
            "thickness": 14,
            "outlinewidth": 0,
        },
    }


# Axes


def _axis(title: str) -> Json:
    return {
        "title": {"text": _safe(shown(title, 60))},
        "gridcolor": GRID,
        "linecolor": GREY,
        "ticks": "outside",
        "tickcolor": GREY,
        "zeroline": False,
        "showline": True,
        "exponentformat": "e",
        "automargin": True,
    }


def _range(low: float, high: float, is_log: bool) -> Json:
    if is_log:
        room = 0.03 * math.log10(high / low)
        return {"type": "log", "range": [math.log10(low) - room, math.log10(high) + room]}
    room = 0.03 * (high - low)
    return {"type": "linear", "range": [low - room, high + room]}


def _value_axis(scale: Scale, title: str) -> Json:
    ends = [math.log10(end) if scale.is_log else end for end in (scale.low, scale.high)]
    return _axis(title) | {"type": "log" if scale.is_log else "linear", "range": ends}


def _panels(count: int, gap: float = 0.07) -> list[list[float]]:
    """Where each of several panels begins and ends, as shares of the whole."""
    width = (1 - gap * (count - 1)) / count
    return [[i * (width + gap), min(i * (width + gap) + width, 1.0)] for i in range(count)]


def _nth(i: int) -> str:
    """How plotly numbers axes: none for the first, then 2, 3 and so on."""
    return "" if i == 0 else str(i + 1)


def _small(text: str) -> str:
    return f'<span style="font-size:12px">{_safe(text)}</span>'


def _safe(text: str) -> str:
    """With names that look like tags shown as they are."""
    return escaping.escape(text, quote=False)
