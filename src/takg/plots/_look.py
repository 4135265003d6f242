"""Colours and words that the drawings share."""

from collections.abc import Mapping
from typing import Any

from takg.plots._numbers import Costs, Curves, Info, Nothing, Prediction, Progress, Slices

# Okabe and Ito's palette, which colour-blind people can tell apart.
BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
GREY, INK, GRID = "#999999", "#333333", "#E6E6E6"

FATE_COLOURS = {
    "new": SKY,
    "dropped": GREY,
    "failed": PURPLE,
    "diverged": VERMILION,
    "running": ORANGE,
    "continued": BLUE,
    "complete": GREEN,
}
FATE_WORDS = {
    "new": "trained once",
    "dropped": "dropped",
    "failed": "failed",
    "diverged": "diverged",
    "running": "running",
    "continued": "continued",
    "complete": "complete",
}
SHARE_COLOURS = ("#D8E3A9", "#8CC98B", "#45A58D", "#2B7C8E", "#2E4F83", "#3A1F5C")  # light, little trained, to dark
SHARE_TICKS = (0.01, 0.1, 0.25, 0.5, 1.0)

SPENT_NEW, SPENT_CONTINUED = "new trials", "continued trials"
ANYWHERE, AT_FULL, PREDICTED = "best at any fidelity", "best at full fidelity", "predicted for the best"
ALL_FULL = "predicted, all fidelities full"
BAND = "5 to 95 %"
DIVERGED = "diverged"
PAUSED = "paused, continued later"


def value_words(sign: float) -> str:
    return f"reported value ({'smaller' if sign > 0 else 'larger'} is better)"


def number(value: float) -> str:
    """Short and plain: 0.001, 50000, 1e-5."""
    text = f"{value:.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"
    if "e" not in text:
        return text
    digits, _, power = text.partition("e")
    return f"{digits}e{int(power)}"


def shown(value: Any, width: int = 16) -> str:
    """A value of a parameter or a name, shortened to a width."""
    text = number(value) if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def listed(values: Mapping[str, Any]) -> str:
    """As in: epochs 3, data 500."""
    return ", ".join(f"{shown(name, 24)} {shown(value)}" for name, value in values.items())


def config_words(config: Mapping[str, Any], prefix: str = "") -> str:
    """As in: lr = 0.1, model.depth = 3."""
    return ", ".join(_pairs(config, prefix))


def _pairs(config: Mapping[str, Any], prefix: str) -> list[str]:
    found: list[str] = []
    for name, value in config.items():
        is_group = isinstance(value, Mapping)
        found += _pairs(value, f"{prefix}{name}.") if is_group else [f"{prefix}{name} = {shown(value, 24)}"]
    return found


def headline(info: Info) -> tuple[str, str]:
    """The title, and what it is about."""
    match info:
        case Nothing():
            return info.title, ""
        case Curves():
            title, words = "Learning curves", [_counted(len(info.curves) + info.silent, "trial")]
            if info.silent:
                words.append(f"{info.silent} of them without a value")
        case Costs():
            title, words = "Cost by fidelity", [f"{number(info.total)} in total ({info.unit})"]
        case Progress():
            title = "Best value against cost"
            words = [] if info.full else ["no trial is at full fidelity yet"]
        case Prediction():
            title = f"Prediction for trial {info.trial}"
            words = [info.status, config_words(info.config)]
        case Slices():
            title = "Value by parameter"
            about = "blue: predicted at full fidelity, the others as recommended; dotted: the recommended value"
            words = [
                about,
                *([f"{_counted(info.left_out, 'parameter')} with less effect left out"] if info.left_out else []),
            ]
    if isinstance(info, Curves | Slices) and info.scale.hidden:
        words.append(f"{_counted(info.scale.hidden, 'value')} beyond the axis")
    return title, "; ".join([f"“{shown(info.name, 40)}”", *words])


def jitter(trial: int) -> float:
    """A small shift along an axis of choices, so that trials with the same one do not hide each other."""
    return 0.4 * ((trial + 1) * 0.618034 % 1 - 0.5)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
