"""The plots as PNG pictures, by matplotlib; without pyplot, so that no window and no global state is touched."""

import io
import itertools
import math
import textwrap
import warnings
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from takg.plots._look import (
    ALL_FULL,
    ANYWHERE,
    AT_FULL,
    BAND,
    BLUE,
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

_DPI = 150
_LETTERS = 12.5  # of a heading, to the inch
_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.titlesize": 10,
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # names may have dollar signs in them
    "xtick.color": INK,
    "xtick.labelsize": 8,
    "ytick.color": INK,
    "ytick.labelsize": 8,
}


def png(info: Info) -> bytes:
    """The picture of some numbers."""
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        match info:
            case Nothing():
                figure = _nothing(info)
            case Curves():
                figure = _curves(info)
            case Costs():
                figure = _costs(info)
            case Progress():
                figure = _progress(info)
            case Prediction():
                figure = _prediction(info)
            case Slices():
                figure = _slices(info)
        title, about = headline(info)
        lines = textwrap.wrap(about, int(_LETTERS * figure.get_figwidth()), max_lines=3, placeholder=" …")
        figure.suptitle("\n".join([title, *lines]), x=0.01, ha="left")
        file = io.BytesIO()
        FigureCanvasAgg(figure)
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": "takg"})
    return file.getvalue()


def _figure(width: float = 8.0, height: float = 4.8) -> Figure:
    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def _nothing(info: Nothing) -> Figure:
    figure = _figure(height=2.4)
    figure.text(0.5, 0.45, info.reason, ha="center", va="center", color=GREY, fontsize=11)
    return figure


def _curves(info: Curves) -> Figure:
    figure = _figure()
    axes = figure.subplots()
    axes.set_autoscale_on(False)  # limits are those of the numbers; the largest floats would overflow in finding others
    many = len(info.curves)
    size = _between(5.0, 2.5, many)  # of markers
    for fate in FATES:  # the most interesting last, on top
        for curve in info.curves:
            if curve.fate == fate:
                _curve(axes, info, curve, width=_between(1.6, 0.8, many), alpha=_between(0.9, 0.3, many), size=size)
    _y_axis(axes, info.scale, info.sign)
    axes.set_xlabel("trial" if info.axis is None else shown(info.axis, 40))
    if info.is_x_log:
        _log_axis(axes, "x", info.x_low / 1.1, info.x_high * 1.1)
    else:
        _linear_axis(axes, "x", info.x_low, info.x_high * 1.02, is_integer=info.is_x_integer)
    _curves_legend(axes, info)
    return figure


def _curve(axes: Axes, info: Curves, curve: Curve, *, width: float, alpha: float, size: float) -> None:
    colour = FATE_COLOURS[curve.fate]
    level = _thickness(info, curve.level)
    if info.are_lines and len(curve.x) > 1:
        axes.plot(curve.x, curve.y, color=colour, lw=width * level, alpha=alpha, solid_capstyle="round")
    else:
        axes.plot(curve.x, curve.y, "o", color=colour, ms=size * 0.8 * level, mew=0, alpha=alpha)
    for x, y in curve.pauses:
        axes.plot(x, y, "o", ms=size, mfc="white", mec=colour, mew=0.9, alpha=min(alpha + 0.2, 1))
    if curve.diverged is not None:
        x, last = curve.diverged
        y = info.scale.bad_end(info.sign) if last is None else info.scale.clamped(last)
        if curve.x and last is not None:
            axes.plot(
                [max(before for before in curve.x if before <= x), x], [y, y], ":", color=colour, lw=1, alpha=alpha
            )
        axes.plot(x, y, "x", ms=size * 1.2, color=VERMILION, mew=1.4, alpha=min(alpha + 0.3, 1), clip_on=False)


def _thickness(info: Curves, level: float) -> float:
    """A factor of the line width that shows the other fidelities."""
    return 0.4 + 1.1 * math.sqrt(level) if info.others else 1.0


def _curves_legend(axes: Axes, info: Curves) -> None:
    line = {"lw": 1.8} if info.are_lines else {"lw": 0, "marker": "o", "ms": 4}
    handles = []
    for fate in reversed(FATES):
        if count := sum(curve.fate == fate for curve in info.curves):
            handles.append(Line2D([], [], color=FATE_COLOURS[fate], label=f"{FATE_WORDS[fate]} ({count})", **line))
    if any(curve.pauses for curve in info.curves):
        handles.append(Line2D([], [], lw=0, marker="o", ms=5, mfc="white", mec=INK, label=PAUSED))
    if any(curve.diverged for curve in info.curves):
        handles.append(Line2D([], [], lw=0, marker="x", ms=6, color=VERMILION, mew=1.4, label="diverged here"))
    if info.others:
        what = " × ".join(shown(name, 16) for name in info.others)
        for level in (0.1, 1.0):
            label = f"{what}: full" if level == 1 else f"{what}: {level:.0%}"
            width = 1.6 * _thickness(info, level)
            handles.append(
                Line2D([], [], color=INK, lw=width, label=label)
                if info.are_lines
                else Line2D([], [], color=INK, lw=0, marker="o", ms=4 * _thickness(info, level), label=label)
            )
    _legend(axes, handles)


def _costs(info: Costs) -> Figure:
    count = len(info.histograms)
    figure = _figure(width=max(5.0, min(4.2 * count, 12.0)), height=3.6)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, histogram in zip(panels, info.histograms, strict=True):
        edges = histogram.edges
        widths = [b - a for a, b in itertools.pairwise(edges)]
        style: dict[str, Any] = {"width": widths, "align": "edge", "edgecolor": "white", "linewidth": 0.6}
        axes.bar(edges[:-1], histogram.new, color=SKY, label=SPENT_NEW, **style)
        axes.bar(edges[:-1], histogram.continued, bottom=histogram.new, color=BLUE, label=SPENT_CONTINUED, **style)
        if histogram.is_log:
            _log_axis(axes, "x", edges[0], edges[-1])
        else:
            _linear_axis(axes, "x", edges[0], edges[-1], most=6, is_integer=edges[0] % 1 == 0.5)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(f"{shown(histogram.fidelity, 32)} reached")
    panels[0].set_ylabel(f"cost ({info.unit})")
    _legend(panels[-1])
    return figure


def _progress(info: Progress) -> Figure:
    figure = _figure()
    axes = figure.subplots()
    axes.set_autoscale_on(False)
    if info.anywhere:
        _steps(axes, info.anywhere, info.total, color=GREY, lw=1.2, alpha=0.7, label=ANYWHERE)
    if info.full:
        _steps(axes, info.full, info.total, color=GREEN, lw=2.0, label=AT_FULL)
    if info.predicted is not None:
        (mean,), (low,), (high,) = info.predicted.mean, info.predicted.low, info.predicted.high
        label = f"{PREDICTED}: {number(mean)}\n({number(low)} to {number(high)}, {BAND})"
        _error_bar(axes, info.total, info.predicted, info.scale, color=ORANGE, label=label)
    _y_axis(axes, info.scale, info.sign)
    axes.set_xlim(0, info.total * 1.04 or 1)
    axes.set_xlabel(f"cost spent ({info.unit})")
    _legend(axes)
    return figure


def _steps(axes: Axes, points: tuple[tuple[float, float], ...], total: float, **style: Any) -> None:
    x = [cost for cost, _ in points] + [total]
    y = [value for _, value in points] + [points[-1][1]]
    axes.step(x, y, where="post", **style)
    axes.plot(x[0], y[0], "o", ms=3, color=style["color"], alpha=style.get("alpha"))


def _prediction(info: Prediction) -> Figure:
    figure = _figure()
    axes = figure.subplots()
    axes.set_autoscale_on(False)
    if info.axis is None:
        _single_prediction(axes, info)
    else:
        if info.full is not None:
            axes.plot(info.full.x, info.full.mean, color=ORANGE, lw=1.2, ls="--", alpha=0.8, label=ALL_FULL)
        own = f" at {listed(info.others)}" if info.others else ""
        _band(axes, info.own, info.scale, label=f"predicted{own}")
        axes.plot(*_columns(info.observed), "o", ms=4, color=INK, label="observed", zorder=4)
        _linear_axis(axes, "x", 0, info.own.x[-1] * 1.02, is_integer=info.is_x_integer)
        axes.set_xlabel(shown(info.axis, 40))
    _y_axis(axes, info.scale, info.sign)
    _legend(axes)
    return figure


def _single_prediction(axes: Axes, info: Prediction) -> None:
    """Without fidelities: what was observed beside what is believed."""
    axes.plot([0] * len(info.observed), [value for _, value in info.observed], "o", color=INK, label="observed")
    _error_bar(axes, 1, info.own, info.scale, color=BLUE, label=f"predicted, {BAND}")
    axes.set_xlim(-0.6, 1.6)
    axes.xaxis.set_major_locator(FixedLocator([0, 1]))
    axes.set_xticklabels(["observed", "predicted"])


def _error_bar(axes: Axes, x: float, band: Band, scale: Scale, *, color: str, label: str) -> None:
    mean, low, high = (scale.clamped(one[0]) for one in (band.mean, band.low, band.high))
    ends = [[max(mean - low, 0)], [max(high - mean, 0)]]
    axes.errorbar(x, mean, yerr=ends, fmt="D", ms=5, color=color, capsize=4, label=label)


def _band(axes: Axes, band: Band, scale: Scale, *, label: str = "", band_label: str = BAND) -> None:
    low, high = ([scale.clamped(value) for value in values] for values in (band.low, band.high))
    axes.fill_between(band.x, low, high, color=BLUE, alpha=0.15, lw=0, label=band_label if label else None)
    axes.plot(band.x, band.mean, color=BLUE, lw=1.6, label=label or None)


def _slices(info: Slices) -> Figure:
    count = len(info.slices)
    columns = min(count, 4 if count > 6 or count == 4 else 3)
    rows = -(-count // columns)
    figure = _figure(width=max(2.7 * columns + 1.2, 5.0), height=2.4 * rows + 0.9)
    panels = figure.subplots(rows, columns, squeeze=False)
    colours = LinearSegmentedColormap.from_list("share", SHARE_COLOURS)
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    dots: Any = None
    for i, axes in enumerate(panels.flat):
        if i >= count:
            axes.set_visible(False)
            continue
        one = info.slices[i]
        axes.set_autoscale_on(False)
        _slice_band(axes, one, info.scale)
        order = sorted(one.dots, key=lambda dot: dot.share)  # what was trained furthest on top
        dots = axes.scatter(
            [dot.x + (jitter(dot.trial) if one.choices else 0) for dot in order],
            [dot.y for dot in order],
            c=[dot.share for dot in order],
            cmap=colours,
            norm=norm,
            s=_between(22, 9, len(order)),
            edgecolors="white",
            linewidths=0.3,
            zorder=3,
        )
        end = info.scale.bad_end(info.sign)
        crosses = [x + (jitter(trial) if one.choices else 0) for trial, x in one.diverged]
        axes.plot(crosses, [end] * len(crosses), "x", ms=4, color=VERMILION, mew=1.1)
        _slice_axis(axes, one)
        _y_axis(axes, info.scale, info.sign, is_labelled=False)
        axes.tick_params(labelleft=i % columns == 0)
    figure.supylabel(value_words(info.sign), fontsize=9)
    if info.fidelities:
        bar = figure.colorbar(dots, ax=panels, shrink=min(1.0, 1.6 / rows + 0.3), aspect=22, pad=0.02)
        bar.set_ticks(list(SHARE_TICKS), labels=[f"{tick:.0%}" for tick in SHARE_TICKS])
        bar.minorticks_off()
        bar.outline.set_visible(False)
        bar.set_label(f"trained, share of full {' × '.join(shown(name, 14) for name in info.fidelities)}", fontsize=8)
    return figure


def _slice_band(axes: Axes, one: Slice, scale: Scale) -> None:
    if not one.choices:
        _band(axes, one.band, scale)
        return
    for x, mean, low, high in zip(one.band.x, one.band.mean, one.band.low, one.band.high, strict=True):
        axes.fill_between([x - 0.3, x + 0.3], scale.clamped(low), scale.clamped(high), color=BLUE, alpha=0.15, lw=0)
        axes.plot([x - 0.3, x + 0.3], [mean, mean], color=BLUE, lw=1.6)


def _slice_axis(axes: Axes, one: Slice) -> None:
    if one.best is not None:
        axes.axvline(one.best, color=ORANGE, lw=1, ls=":", zorder=1)
    given = f"\nwith {config_words(one.given)}" if one.given else ""
    axes.set_xlabel(shown(one.parameter, 30) + given)
    if one.choices:
        axes.set_xlim(one.low - 0.6, one.high + 0.6)
        axes.xaxis.set_major_locator(FixedLocator(range(len(one.choices))))
        width = max(18 // len(one.choices), 3)
        names = [shown(choice) for choice in one.choices]
        is_wide = any(len(name) > width for name in names)
        axes.set_xticklabels(names, rotation=30 if is_wide else 0, ha="right" if is_wide else "center")
    elif one.is_log:
        room = (one.high / one.low) ** 0.03
        _log_axis(axes, "x", one.low / room, one.high * room, most=4)
    else:
        room = 0.03 * (one.high - one.low)
        _linear_axis(axes, "x", one.low - room, one.high + room, most=4, is_integer=one.is_integer)


def _legend(axes: Axes, handles: list[Line2D] | None = None) -> None:
    """Beside the data, not on it."""
    handles = handles or axes.get_legend_handles_labels()[0]  # type: ignore[assignment]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)


def _y_axis(axes: Axes, scale: Scale, sign: float, *, is_labelled: bool = True) -> None:
    if scale.is_log:
        _log_axis(axes, "y", scale.low, scale.high)
    else:
        _linear_axis(axes, "y", scale.low, scale.high)
    if is_labelled:
        axes.set_ylabel(value_words(sign))


def _linear_axis(axes: Axes, which: str, low: float, high: float, *, most: int = 8, is_integer: bool = False) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(MaxNLocator(most, integer=is_integer, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _log_axis(axes: Axes, which: str, low: float, high: float, most: int = 8) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(FixedLocator(log_ticks(low, high, most)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _between(few: float, many: float, count: int) -> float:
    """From one size to another as the number of things to draw grows from 10 to 300."""
    share = (math.log(max(count, 1)) - math.log(10)) / (math.log(300) - math.log(10))
    return few + (many - few) * min(max(share, 0.0), 1.0)


def _columns(points: tuple[tuple[float, float], ...]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
