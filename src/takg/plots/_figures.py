"""The plots of a study, by kind, and how they are saved."""

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from takg.errors import InputError
from takg.plots._info import costs_of, curves_of, prediction_of, progress_of, slices_of, view_of
from takg.plots._numbers import Info, View
from takg.study import Study

KINDS = ("curves", "fidelities", "prediction", "progress", "slices")
SUFFIXES = (".html", ".png")
_NEED_A_MODEL = ("prediction", "progress", "slices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One plot: its numbers in `info`, drawn when it is saved."""

    kind: str  # one of KINDS
    info: Info

    def save(self, path: str | Path) -> Path:
        """Write a PNG or an HTML file, by the suffix; whoever reads it meanwhile sees the old file or the new one."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise InputError(f"path={str(path)!r}: a figure is saved as one of {SUFFIXES}; expected such a suffix")
        if not path.parent.is_dir():
            raise InputError(f"path={str(path)!r}: {str(path.parent)!r} is not a directory; make it first")
        content = self._drawn(suffix)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            draft.write_bytes(content)
            draft.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
        return path

    def _drawn(self, suffix: str) -> bytes:
        try:
            if suffix == ".png":
                from takg.plots._draw_png import png

                return png(self.info)
            from takg.plots._draw_html import html

            return html(self.info)
        except ModuleNotFoundError as error:
            library = "matplotlib" if suffix == ".png" else "plotly"
            raise InputError(
                f"{suffix} needs {library}, of which {error.name!r} is missing: pip install 'takg[plots]'"
            ) from error


def figures(study: Study, kinds: Sequence[str] = KINDS, *, trial: int | None = None) -> dict[str, Figure]:
    """Plots of a study as it is now.

    Args:
        kinds: some of KINDS. All but "curves" and "fidelities" need the model, which takes a few seconds to fit.
        trial: which one "prediction" is about; by default the best that is not complete, else the best.
    """
    if isinstance(kinds, str) or (bad := [kind for kind in kinds if kind not in KINDS]):
        raise InputError(f"kinds={kinds if isinstance(kinds, str) else bad!r}: expected a list of some of {KINDS}")
    view = view_of(study, with_forecast=any(kind in _NEED_A_MODEL for kind in kinds))
    if trial is not None and (isinstance(trial, bool) or trial not in range(len(view.trials))):
        there_are = f"a trial from 0 to {len(view.trials) - 1}" if view.trials else "None, as there are no trials yet"
        raise InputError(f"trial={trial!r}: expected {there_are}")
    make: dict[str, Callable[[View], Info]] = {
        "curves": curves_of,
        "fidelities": costs_of,
        "prediction": lambda now: prediction_of(now, trial),
        "progress": progress_of,
        "slices": slices_of,
    }
    return {kind: Figure(kind=kind, info=make[kind](view)) for kind in kinds}
