"""Time of a fit with integrated hyperparameters against one maximum-likelihood fit of BoTorch's model.

Hartmann-6 with one trace fidelity, two retained points for each evaluation. In each repetition the same rows
go to BoTorch's SingleTaskMultiFidelityGP (fit_gpytorch_mll), to a cold start of ours and to a warm refit that
continues the chains of one evaluation earlier, one after the other.
"""

import sys
import warnings
from typing import Any

import torch
from _common import Timing, arguments, at_most, finish, median, timed
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskMultiFidelityGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from takg.gp import Model, fit, value_rows
from takg.problems import PROBLEMS

SIZES = {25: 3, 50: 3, 100: 5, 200: 3, 400: 1, 800: 1}  # rows: repetitions
QUICK_SIZES = {25: 1, 100: 1, 200: 1}
BARRED = (100, 200)
PROBLEM = PROBLEMS["hartmann6"]
MODEL = Model(d=6, fidelity_kernels=("freeze_thaw",))


def data(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """n rows, two of each trace; outputs standardised."""
    generator = torch.Generator().manual_seed(seed)
    evaluations = (n + 1) // 2
    x = torch.rand(evaluations, PROBLEM.d, generator=generator, dtype=torch.float64).repeat_interleave(2, dim=0)
    s = torch.rand(evaluations, 1, generator=generator, dtype=torch.float64).repeat_interleave(2, dim=0)
    s[1::2] *= torch.rand(evaluations, 1, generator=generator, dtype=torch.float64)
    x, s = x[:n], s[:n]
    y = PROBLEM.evaluate(x, s)
    return x, s, (y - y.mean()) / y.std()


def botorch_fit(x: Tensor, s: Tensor, y: Tensor) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SingleTaskMultiFidelityGP(
            torch.cat([x, s], dim=-1), y[:, None], data_fidelities=[PROBLEM.d], linear_truncated=False
        )
        try:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        except Exception as error:  # its kernel is not positive semi-definite; the time until then is reported
            return type(error).__name__
    return "ok"


def measure(n: int, repetitions: int) -> dict[str, Any]:
    times: dict[str, list[Timing]] = {"botorch": [], "cold": [], "warm": []}
    outcomes, r_hats = [], []
    for seed in range(repetitions):
        x, s, y = data(n, seed)
        earlier = fit(MODEL, value_rows(x[:-2], s[:-2]), y[:-2], seed=seed)
        for name, job in (
            ("botorch", lambda x=x, s=s, y=y: botorch_fit(x, s, y)),
            ("cold", lambda x=x, s=s, y=y, k=seed: fit(MODEL, value_rows(x, s), y, seed=k)),
            (
                "warm",
                lambda x=x, s=s, y=y, k=seed, c=earlier.chains: fit(MODEL, value_rows(x, s), y, seed=k, chains=c),
            ),
        ):
            timing, result = timed(job)
            times[name].append(timing)
            if name == "botorch":
                outcomes.append(result)
            else:
                r_hats.append(result.diagnostics.r_hat)
    return {
        "rows": n,
        "repetitions": repetitions,
        "botorch_outcomes": outcomes,
        "worst_r_hat": max(r_hats),
        **{name: vars(median(timings)) for name, timings in times.items()},
    }


def main() -> int:
    args = arguments(__doc__.splitlines()[0]).parse_args()
    botorch_fit(*data(12, 0))  # what the first call of each library sets up is nobody's fit
    fit(MODEL, value_rows(*data(12, 0)[:2]), data(12, 0)[2], seed=0)
    print(f"{torch.get_num_threads()} threads; seconds of CPU (wall), and CPU as a share of BoTorch's fit")
    print(f"{'rows':>5} {'BoTorch fit':>16} {'cold':>16} {'warm':>16} {'cold/fit':>9} {'warm/fit':>9}")
    results = []
    for n, repetitions in (QUICK_SIZES if args.quick else SIZES).items():
        row = measure(n, repetitions)
        results.append(row)
        cells = [f"{row[name]['cpu']:7.2f} ({row[name]['wall']:6.2f})" for name in ("botorch", "cold", "warm")]
        shares = [row[name]["cpu"] / row["botorch"]["cpu"] for name in ("cold", "warm")]
        note = "" if set(row["botorch_outcomes"]) == {"ok"} else f"  BoTorch: {row['botorch_outcomes']}"
        print(
            f"{n:5d} {cells[0]:>16} {cells[1]:>16} {cells[2]:>16} {shares[0]:9.3f} {shares[1]:9.3f}{note}",
            flush=True,
        )
    by_rows = {row["rows"]: row for row in results}
    bars = [
        at_most(
            f"{name} refit / BoTorch fit, CPU, {n} rows"
            if name == "warm"
            else f"cold start / BoTorch fit, CPU, {n} rows",
            by_rows[n][name]["cpu"] / by_rows[n]["botorch"]["cpu"],
            limit,
        )
        for n in BARRED
        for name, limit in (("warm", 0.25), ("cold", 1.0))
    ]
    return finish(args, {"sizes": results}, bars, ["torch", "botorch", "gpytorch", "emcee"])


if __name__ == "__main__":
    sys.exit(main())
