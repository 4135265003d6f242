"""Problems from real learning curves: a pool of trainings (TaskSet) and surrogates of them (LCBench, XGBoost).

All are read from a data directory, laid out as `taskset/taskset_rnn4.npz` and `yahpo/<scenario>/`. The minimum of a
surrogate is its own, the lowest value that a long search has found.
"""

import importlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from takg.errors import InputError
from takg.fidelity import FidelitySpace
from takg.problems._synthetic import Problem

__all__ = [
    "LCBENCH_TASKS",
    "TASKSET_TASKS",
    "XGBOOST_TASKS",
    "lcbench",
    "lowest_value",
    "taskset",
    "xgboost",
]

Array = NDArray[Any]
Predict = Callable[[Array, Array], Array]  # categories (n, k), numbers (n, p) -> (n, outputs)
Open = Callable[[Path], Predict]

TASKSET_TASKS = (0, 1, 2, 3)
LCBENCH_TASKS = ("189908", "7593", "146212", "168330")  # those without spurious optima
XGBOOST_TASKS = ("40981", "41146")

_TASKSET_FILE = Path("taskset") / "taskset_rnn4.npz"
_TOO_LARGE = 1e6  # a loss above this has diverged


def taskset(data: Path, task: int) -> Problem:
    """One RNN task of TaskSet with 1000 configurations of an optimiser; a design means the nearest of them.

    The fidelity is the share of the training steps, 50 of which were recorded.
    """
    with np.load(_existing(data / _TASKSET_FILE), allow_pickle=False) as file:
        names = file["hp_names"].tolist()
        settings, curves = file[f"X_{task}"], file[f"valid_{task}"].astype(np.float64)
    # All are sampled on a log scale; that of the betas is of their distance from 1.
    logs = np.log(np.where([name.startswith("beta") for name in names], 1 - settings, settings))
    pool = torch.tensor((logs - logs.min(0)) / np.ptp(logs, axis=0))  # (n, d)
    losses = torch.tensor(np.where(np.abs(curves) < _TOO_LARGE, curves, np.nan))  # (n, steps)
    last = losses.shape[1] - 1

    def formula(x: Tensor, s: Tensor) -> Tensor:
        nearest = torch.cdist(x.reshape(-1, x.shape[-1]), pool).argmin(-1).reshape(x.shape[:-1])
        return losses[nearest, (s[..., 0] * last).round().long()]

    final = losses[:, -1]
    best = torch.where(final.isnan(), torch.inf, final).argmin()
    return Problem(
        name=f"taskset-{task}",
        lower=(0.0,) * pool.shape[1],
        upper=(1.0,) * pool.shape[1],
        fidelities=FidelitySpace(names=("steps",), trace_dims=(0,)),
        minimum=float(final[best]),
        minimisers=(tuple(pool[best].tolist()),),
        formula=formula,
        pool=tuple(map(tuple, pool.tolist())),
    )


_LCBENCH_NUMBERS = (
    "epoch",
    "batch_size",
    "learning_rate",
    "momentum",
    "weight_decay",
    "num_layers",
    "max_units",
    "max_dropout",
)
_LCBENCH_TIME, _LCBENCH_ACCURACY = 0, 1  # columns of the output
# What `lowest_value` finds, so that it need not search again.
_LCBENCH_MINIMA: Mapping[str, float] = MappingProxyType(
    {
        "189908": 0.044730758666992165,
        "7593": 0.0834513092041016,
        "146212": 0.008028945922851527,
        "168330": 0.23279869079589843,
    }
)


def onnx_model(path: Path) -> Predict:
    """A surrogate by onnxruntime, on one thread."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise InputError(f"{path} needs onnxruntime: pip install onnxruntime") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda categories, numbers: np.asarray(session.run(None, {"x_cat": categories, "x_cont": numbers})[0])


def lcbench(data: Path, task: str, *, open_model: Open = onnx_model) -> Problem:
    """Validation error of networks on one LCBench task over epochs; the cost is their time, which is to be learnt."""
    surrogate = _Surrogate(
        data / "yahpo" / "lcbench", _LCBENCH_NUMBERS, {"OpenML_task_id": task}, ("epoch",), open_model
    )
    epochs = surrogate.upper("epoch")

    def outputs(x: Tensor, s: Tensor) -> Tensor:
        return surrogate(x, {"epoch": epochs * s[..., 0]})

    def hours(x: Tensor, s: Tensor) -> Tensor:
        on_the_way = s[..., None, :] * torch.linspace(0.125, 1, 8, dtype=s.dtype)[:, None]  # (..., 8, 1)
        # The surrogate's time now and then decreases, which real time does not.
        return outputs(x[..., None, :], on_the_way)[..., _LCBENCH_TIME].amax(-1).clamp_min(0) + 1e-3

    middle = torch.full((surrogate.d,), 0.5, dtype=torch.float64)
    unit = float(hours(middle, torch.ones(1, dtype=torch.float64)))  # of the design in the middle, trained in full
    return _of_surrogate(
        surrogate,
        f"lcbench-{task}",
        FidelitySpace(names=("epochs",), trace_dims=(0,)),
        lambda x, s: 1 - outputs(x, s)[..., _LCBENCH_ACCURACY] / 100,
        _LCBENCH_MINIMA.get(task),
        price=lambda x, s: hours(x, s) / unit,
    )


_XGBOOST_NUMBERS = (
    "nrounds",
    "eta",
    "gamma",
    "lambda",
    "alpha",
    "subsample",
    "max_depth",
    "min_child_weight",
    "colsample_bytree",
    "colsample_bylevel",
    "rate_drop",
    "skip_drop",
    "trainsize",
    "repl",
)
_XGBOOST_LOGLOSS = 5
_XGBOOST_MINIMA: Mapping[str, float] = MappingProxyType({"40981": 0.23852945864200592, "41146": 0.0891401618719101})


def xgboost(data: Path, task: str, *, open_model: Open = onnx_model) -> Problem:
    """Log-loss of boosted trees on one OpenML task: s_1 the share of the data, and s_2 rounds, a trace."""
    categories = {"task_id": task, "booster": "gbtree", "num.impute.selected.cpo": "impute.mean"}
    surrogate = _Surrogate(
        data / "yahpo" / "rbv2_xgboost",
        _XGBOOST_NUMBERS,
        categories,
        ("trainsize", "nrounds", "repl", "rate_drop", "skip_drop"),
        open_model,
    )
    rounds = surrogate.upper("nrounds")

    def formula(x: Tensor, s: Tensor) -> Tensor:
        share = s[..., 0].clamp_min(surrogate.lower("trainsize"))
        return surrogate(x, {"trainsize": share, "nrounds": rounds * s[..., 1], "repl": 10.0})[..., _XGBOOST_LOGLOSS]

    return _of_surrogate(
        surrogate,
        f"xgboost-{task}",
        FidelitySpace(names=("data", "rounds"), trace_dims=(1,)),
        formula,
        _XGBOOST_MINIMA.get(task),
    )


class _Surrogate:
    """A YAHPO network: designs in the unit cube and fidelities in their own units -> outputs."""

    def __init__(
        self,
        folder: Path,
        numbers: tuple[str, ...],
        categories: Mapping[str, str],
        fidelities: tuple[str, ...],
        open_model: Open,
    ) -> None:
        ranges = json.loads(_existing(folder / "config_space.json").read_text())["hyperparameters"]
        codes = json.loads(_existing(folder / "encoding.json").read_text())
        self._ranges = {one["name"]: one for one in ranges}
        for name, value in categories.items():
            if value not in codes[name]:
                raise InputError(f"{name}={value!r} is not in {folder}; expected one of {sorted(codes[name])}")
        self._codes = np.array([[codes[name][value] for name, value in categories.items()]], dtype=np.int32)
        self._numbers = numbers
        self._designs = tuple(name for name in numbers if name not in fidelities)
        self._predict = open_model(_existing(folder / "model.onnx"))

    @property
    def d(self) -> int:
        return len(self._designs)

    def lower(self, name: str) -> float:
        return float(self._ranges[name]["lower"])

    def upper(self, name: str) -> float:
        return float(self._ranges[name]["upper"])

    def __call__(self, x: Tensor, fidelities: Mapping[str, Tensor | float]) -> Tensor:
        """x (..., d) in the unit cube and fidelities (...) -> (..., outputs); what is not named is inactive, 0."""
        batch = np.broadcast_shapes(x.shape[:-1], *(v.shape for v in fidelities.values() if isinstance(v, Tensor)))
        columns = {name: self._scaled(name, x[..., i]) for i, name in enumerate(self._designs)}
        columns |= {name: torch.as_tensor(value, dtype=torch.float64) for name, value in fidelities.items()}
        zero = torch.zeros((), dtype=torch.float64)
        rows = torch.stack([columns.get(name, zero).expand(batch) for name in self._numbers], dim=-1)
        flat = rows.detach().reshape(-1, len(self._numbers)).numpy().astype(np.float32)
        found = self._predict(np.repeat(self._codes, len(flat), axis=0), flat)
        return torch.tensor(found, dtype=torch.float64).reshape(*batch, -1)

    def _scaled(self, name: str, u: Tensor) -> Tensor:
        low, high = self.lower(name), self.upper(name)
        if self._ranges[name].get("log"):
            return torch.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        return low + u * (high - low)


def lowest_value(formula: Callable[[Tensor, Tensor], Tensor], d: int, m: int, *, size: int = 2**14) -> float:
    """The least value at s = 1 that a seeded search finds: Sobol points, then ever smaller steps from the best."""
    generator = torch.Generator().manual_seed(0)
    target = torch.ones(m, dtype=torch.float64)
    points = torch.quasirandom.SobolEngine(d, scramble=True, seed=0).draw(size, dtype=torch.float64)
    values = formula(points, target)
    for step in (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
        for _ in range(4):
            best = points[values.argsort()[:32]]
            moves = step * torch.randn(size // 32, 1, d, generator=generator, dtype=torch.float64)
            points = torch.cat([best, (best + moves).clamp(0, 1).reshape(-1, d)])
            values = formula(points, target)
    return float(values.min())


def _of_surrogate(
    surrogate: _Surrogate,
    name: str,
    fidelities: FidelitySpace,
    formula: Callable[[Tensor, Tensor], Tensor],
    minimum: float | None,
    price: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Problem:
    return Problem(
        name=name,
        lower=(0.0,) * surrogate.d,
        upper=(1.0,) * surrogate.d,
        fidelities=fidelities,
        minimum=lowest_value(formula, surrogate.d, fidelities.m) if minimum is None else minimum,
        minimisers=(),
        formula=formula,
        price=price,
        cost_is_known=price is None,
    )


def _existing(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path} is not there; expected the data directory with taskset/ and yahpo/ in it")
    return path
