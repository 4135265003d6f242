"""Every problem by name, for benchmarks: `branin`, `hartmann6-noise-0.05`, `misleading`, `lcbench-189908`."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from takg.errors import InputError
from takg.problems._synthetic import PROBLEMS, Problem, branin
from takg.problems.lying import LYING
from takg.problems.measured import LCBENCH_TASKS, TASKSET_TASKS, XGBOOST_TASKS, lcbench, taskset, xgboost
from takg.problems.noisy import noisy

__all__ = ["GROUPS", "find_problem"]

NOISES = (0.01, 0.05)  # shares of the function's sd


def _same(problem: Problem) -> Problem:
    return problem


_SYNTHETIC: Mapping[str, Callable[[], Problem]] = MappingProxyType(
    {
        **{name: partial(_same, problem) for name, problem in {**PROBLEMS, **LYING}.items()},
        "branin-bias-0.01": partial(branin, bias=0.01),
        **{
            f"{name}-noise-{share:g}": partial(noisy, problem, share)
            for name, problem in PROBLEMS.items()
            for share in NOISES
        },
    }
)
_MEASURED: Mapping[str, Callable[[Path], Problem]] = MappingProxyType(
    {
        **{f"taskset-{task}": partial(taskset, task=task) for task in TASKSET_TASKS},
        **{f"lcbench-{task}": partial(lcbench, task=task) for task in LCBENCH_TASKS},
        **{f"xgboost-{task}": partial(xgboost, task=task) for task in XGBOOST_TASKS},
    }
)

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "paper": tuple(PROBLEMS),
        "noisy": tuple(name for name in _SYNTHETIC if "-noise-" in name),
        "bias": ("branin-bias-0.01",),
        "lying": tuple(LYING),
        "taskset": tuple(name for name in _MEASURED if name.startswith("taskset")),
        "lcbench": tuple(name for name in _MEASURED if name.startswith("lcbench")),
        "xgboost": tuple(name for name in _MEASURED if name.startswith("xgboost")),
    }
)


def find_problem(name: str, *, data: str | Path | None = None) -> Problem:
    """The problem of that name.

    Args:
        name: one of those listed in GROUPS.
        data: the directory with taskset/ and yahpo/, for the problems that were measured.
    """
    if name in _SYNTHETIC:
        return _SYNTHETIC[name]()
    if name not in _MEASURED:
        known = ", ".join(one for names in GROUPS.values() for one in names)
        raise InputError(f"problem {name!r} is unknown; expected one of {known}")
    if data is None:
        raise InputError(f"problem {name!r} needs measured curves: give their directory with --data or TAKG_DATA")
    return _MEASURED[name](Path(data))
