"""A full suggestion against BoTorch's qMultiFidelityKnowledgeGradient: time, memory and value.

Hartmann-6 with one trace fidelity and Rosenbrock-3 with two fidelities, 50 and 100 rows (two kept of each trace), the
model given. Each side runs in a process of its own, so that its peak memory is its own. The value of our suggestion is
measured again with fresh draws and compared with the best of many restarts run to convergence.
"""

import argparse
import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from _common import arguments, at_least, at_most, finish, median, timed
from torch import Tensor

from takg.acquisition import TaKGZero
from takg.gp import Fit, Model, Posterior, fit, fit_outcome, value_rows
from takg.optim import Region, maximise
from takg.problems import PROBLEMS, Problem
from takg.study import _suggest

CASES = [("hartmann6", 50), ("hartmann6", 100), ("rosenbrock3", 50), ("rosenbrock3", 100)]
QUICK_CASES = [("rosenbrock3", 20)]
NOISES = (0.0, 0.05)  # share of the values' sd; with 5 % the model's noise is that of real training runs
KERNELS = {"hartmann6": ("curve",), "rosenbrock3": ("size", "curve")}
FRESH_DRAWS = 2048  # either sign of each: 4,096
LEAST = {True: 1 / 27, False: 0.01}  # fidelity that can be run, of a trace and of others
PASSES = _suggest._PASSES["sample_average"]
SLOWER = 20.0


def data(problem: Problem, n: int, seed: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """n rows, two of each trace; noise as a share of the values' sd."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"generator": generator, "dtype": torch.float64}
    x = torch.rand(n // 2, problem.d, **shape).repeat_interleave(2, dim=0)
    s = torch.rand(n // 2, problem.fidelities.m, **shape).repeat_interleave(2, dim=0)
    for j in problem.fidelities.trace_dims:
        s[1::2, j] *= torch.rand(n // 2, **shape)
    y = problem.evaluate(x, s)
    return x, s, y + noise * y.std() * torch.randn(n, **shape)


def fitted(name: str, n: int, seed: int, noise: float) -> Fit:
    x, s, y = data(PROBLEMS[name], n, seed, noise)
    model = Model(d=x.shape[-1], fidelity_kernels=KERNELS[name], has_quirks=True)  # as in a study
    return fit(model, value_rows(x, s), fit_outcome(y, warp="log").forward(y), seed=seed)


def ours(name: str, n: int, seed: int, repetitions: int, restarts: int, noises: int) -> dict[str, Any]:
    """Time of a suggestion, and its value against the best of `restarts` run to convergence, at each noise."""
    problem = PROBLEMS[name]
    least = tuple(LEAST[j in problem.fidelities.trace_dims] for j in range(problem.fidelities.m))
    region = Region(d=problem.d, m=problem.fidelities.m, trace_dims=problem.fidelities.trace_dims, s_min=least)
    report: dict[str, Any] = {"timings": [], "values": []}
    for noise in NOISES[:noises]:
        post = fitted(name, n, seed, noise).posterior

        def acquisition(k: int, post: Posterior = post) -> TaKGZero:
            return TaKGZero(post, cost=problem.cost, trace_dims=problem.fidelities.trace_dims, seed=k)

        suggestions = []
        for k in range(repetitions):
            timing, suggestion = timed(lambda k=k: maximise(acquisition(k), region, seed=k, passes=PASSES))
            report["timings"].append(timing)
            suggestions.append(suggestion)
        report["peak_mb"] = report.get("peak_mb") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        best = maximise(acquisition(99), region, seed=99, restarts=restarts, raw=2048, passes=150, in_stages=False)
        referee = acquisition(0).redrawn(12_345, draws=FRESH_DRAWS, polish=10)
        with torch.no_grad():
            values = [float(referee.evaluate_joint(s.x[None], s.S[None]).value) for s in [*suggestions, best]]
        ratios = sorted(value / max(values) for value in values[:-1])
        report["values"].append(
            {"noise": noise, "median": ratios[repetitions // 2], "worst": ratios[0], "best_value": max(values)}
        )
    middle = median(report.pop("timings"))
    return {"cpu": middle.cpu, "wall": middle.wall, **report}


def botorch(name: str, n: int, seed: int) -> dict[str, Any]:
    from botorch.acquisition import PosteriorMean
    from botorch.acquisition.cost_aware import InverseCostWeightedUtility
    from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
    from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
    from botorch.acquisition.utils import project_to_target_fidelity
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskMultiFidelityGP
    from botorch.models.cost import AffineFidelityCostModel
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    problem = PROBLEMS[name]
    d, m = problem.d, problem.fidelities.m
    x, s, y = data(problem, n, seed, 0.0)
    bounds = torch.tensor([[0.0] * (d + m), [1.0] * (d + m)], dtype=torch.float64)
    target = {d + j: 1.0 for j in range(m)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        standardised = -((y - y.mean()) / y.std())[:, None]
        model = SingleTaskMultiFidelityGP(
            torch.cat([x, s], dim=-1), standardised, data_fidelities=list(target), linear_truncated=False
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))

        def suggestion() -> Tensor:
            mean = FixedFeatureAcquisitionFunction(
                PosteriorMean(model), d=d + m, columns=list(target), values=list(target.values())
            )
            _, current = optimize_acqf(mean, bounds[:, :d], q=1, num_restarts=5, raw_samples=128)
            cost = AffineFidelityCostModel(fidelity_weights=dict.fromkeys(target, 1.0), fixed_cost=0.01)
            acquisition = qMultiFidelityKnowledgeGradient(
                model,
                num_fantasies=128,
                current_value=current,
                cost_aware_utility=InverseCostWeightedUtility(cost_model=cost),
                project=lambda X: project_to_target_fidelity(X=X, d=d + m, target_fidelities=target),
            )
            options = {"batch_limit": 5, "init_batch_limit": 8, "maxiter": 200}
            point, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=5, raw_samples=128, options=options)
            return point

        torch.manual_seed(seed)
        timing, point = timed(suggestion)
    return {
        "cpu": timing.cpu,
        "wall": timing.wall,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "fidelity": point[0, d:].tolist(),
    }


def in_own_process(side: str, name: str, *numbers: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", side, "--case", name, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--side", choices=["ours", "botorch"], help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        name, *numbers = args.case
        print(json.dumps({"ours": ours, "botorch": botorch}[args.side](name, *map(int, numbers))))
        return 0

    print(
        f"{'case':>20} {'ours, CPU s':>12} {'wall':>6} {'MB':>6} {'BoTorch, CPU s':>15} {'wall':>6} {'MB':>6}"
        f" {'ratio':>7}"
    )
    results, bars = [], []
    for name, n in QUICK_CASES if args.quick else CASES:
        effort = (1, 8, 1) if args.quick else (5, 200, len(NOISES))
        mine = in_own_process("ours", name, n, 1, *effort)
        theirs = in_own_process("botorch", name, n, 1)
        results.append({"problem": name, "rows": n, "ours": mine, "botorch": theirs})
        case = f"{name}, {n} rows"
        if "error" in mine or "error" in theirs:
            print(f"{case:>20} ours: {mine.get('error', 'ok')}; BoTorch: {theirs.get('error', 'ok')}", flush=True)
        ratio = mine["cpu"] / theirs["cpu"] if "cpu" in mine and "cpu" in theirs else None
        bars.append(at_most(f"suggestion / BoTorch's, CPU, {case}", ratio, 1 / SLOWER))
        if ratio is not None:
            print(
                f"{case:>20} {mine['cpu']:12.2f} {mine['wall']:6.2f} {mine['peak_mb']:6.0f} {theirs['cpu']:15.2f}"
                f" {theirs['wall']:6.1f} {theirs['peak_mb']:6.0f} {ratio:7.4f}"
            )
        for value in mine.get("values", []):
            label = f"value / best of restarts run to convergence, median, {case}, noise {value['noise']:g}"
            print(f"{'':>20} noise {value['noise']:g}: value median {value['median']:.3f}, worst {value['worst']:.3f}")
            bars.append(at_least(label, value["median"], 0.95))
        sys.stdout.flush()
    return finish(args, {"cases": results}, bars, ["torch", "botorch", "gpytorch"])


if __name__ == "__main__":
    sys.exit(main())
