"""From data to a posterior with its hyperparameters integrated over: emcee, cold or continued."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import emcee
import numpy as np
import torch
from torch import Tensor

from takg.errors import InputError, NumericsError
from takg.gp._evidence import Z_MAX, LogDensity, with_large_quirks
from takg.gp._model import Model
from takg.gp._posterior import Posterior, check_data, condition
from takg.gp._rows import Rows
from takg.gp._sharpen import sharpened
from takg.numerics import minimise, threads_for

_STARTS = 4
_CLEARLY = 2.0  # sds of the log density below what would be usual, for walkers to be left behind
_COLD_STEPS = 60
_WARM_STEPS, _LEAST_STEPS = 8, 4
_ROWS_TIMES_STEPS = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Where the walkers stand, in whitened coordinates, with the names of those: all a later fit needs."""

    names: tuple[str, ...]
    walkers: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Chains":
        if missing := {"names", "walkers"} - data.keys():
            raise InputError(f"data has no {sorted(missing)}; expected what Chains.to_json returned")
        p = len(data["names"])
        if not data["walkers"] or any(len(row) != p for row in data["walkers"]):
            raise InputError(
                f"data['walkers'] has rows of other lengths than {p}, one number for each of data['names']"
            )
        return cls(names=tuple(data["names"]), walkers=tuple(tuple(map(float, row)) for row in data["walkers"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """How the sampling went."""

    was_warm: bool
    steps: int  # of the whole ensemble
    acceptance: float  # mean share of accepted moves
    r_hat: float  # first half of the steps against the second, worst hyperparameter; near 1 is good
    failed_factorisations: int  # proposals that were rejected because their covariance has no factor
    evaluations: int  # of the log density


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A posterior under `draws` hyperparameter samples, and what it takes to continue from here."""

    posterior: Posterior
    chains: Chains
    diagnostics: Diagnostics


def fit(
    model: Model,
    rows: Rows,
    y: Tensor,
    *,
    seed: int,
    draws: int = 10,
    chains: Chains | None = None,
    look_again: bool = False,
    steps: int | None = None,
    most_rows: int = 320,
    sharpen: bool = False,
) -> Fit:
    """Sample the hyperparameters given the data and condition on the data under each sample.

    Args:
        rows, y: n observations, outputs standardised (see `fit_outcome`).
        seed: of all randomness here; global random state is neither read nor changed.
        draws: H, how many samples the posterior has.
        chains: where an earlier fit of the same model ended; without it, walkers start from the Laplace
            approximation at the best of several modes.
        look_again: with chains, look for modes all the same, and start cold if one is clearly higher than where they
            stand: a few steps for each new row do not lead from one mode to another.
        steps: how often the ensemble moves; by default few from earlier chains and more from a cold start.
        most_rows: with more than this, the hyperparameters are learned from so many rows, drawn at random. Every
            sample is then conditioned on all of them.
        sharpen: condition with next to no noise where that makes the data likelier; docs/paper.md#sharpened.
    """
    check_data(model, rows, y)
    if draws < 1:
        raise InputError(f"draws={draws}: expected at least 1")
    if steps is not None and steps < 2:
        raise InputError(f"steps={steps}: expected at least 2")
    if most_rows < 1:
        raise InputError(f"most_rows={most_rows}: expected at least 1")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: expected an integer in 0..2**32 - 1")
    names = tuple(model.priors)
    if chains is not None and chains.names != names:
        raise InputError(f"chains are of {chains.names}; expected those of this model, {names}: start without chains")

    with threads_for(len(rows)):
        return _sampled(
            model,
            rows,
            y,
            seed=seed,
            draws=draws,
            chains=chains,
            look_again=look_again,
            steps=steps,
            most_rows=most_rows,
            sharpen=sharpen,
        )


def _sampled(
    model: Model,
    rows: Rows,
    y: Tensor,
    *,
    seed: int,
    draws: int,
    chains: Chains | None,
    look_again: bool,
    steps: int | None,
    most_rows: int,
    sharpen: bool,
) -> Fit:
    names = tuple(model.priors)
    random = np.random.RandomState(seed)  # emcee speaks this older generator
    density = LogDensity(model=model, rows=rows, y=y)
    if len(rows) > most_rows:
        chosen = torch.from_numpy(np.sort(random.permutation(len(rows))[:most_rows]))
        density = LogDensity(model=model, rows=rows[chosen], y=y[chosen])
    n_walkers = max(2 * len(names) + 2, draws + draws % 2)
    start = None if chains is None else _resumed_walkers(chains, n_walkers, random)
    if start is None or look_again:
        mode, at_mode = _highest_mode(density, names, random)
        if start is None or _is_left_behind(density(start), at_mode, len(names)):
            start, chains = _laplace_walkers(density, mode, n_walkers, random), None
    start, height = _without_stragglers(density, *_made_finite(density, start), random)

    steps = steps or (_COLD_STEPS if chains is None else _warm_steps(len(density.rows)))
    sampler = emcee.EnsembleSampler(
        n_walkers,
        len(names),
        lambda z: density(torch.from_numpy(np.ascontiguousarray(z))).numpy(),
        vectorize=True,
        moves=[(emcee.moves.DEMove(), 0.7), (emcee.moves.StretchMove(), 0.3)],
    )
    state = emcee.State(start.numpy(), log_prob=height.numpy(), random_state=random.get_state())
    last = sampler.run_mcmc(state, steps, skip_initial_state_check=True)

    is_lost = _are_stragglers(last.log_prob, len(names))
    order = random.permutation(n_walkers)
    order = np.concatenate([order[~is_lost[order]], order[is_lost[order]]])  # those only if there are no others
    theta = model.unpack(torch.from_numpy(last.coords[order[:draws]]))
    posterior = condition(model, theta, density.rows, density.y)
    if sharpen:
        posterior = sharpened(posterior)
    if len(density.rows) < len(rows):
        posterior = condition(model, posterior.theta, rows, y)
    return Fit(
        posterior=posterior,
        chains=Chains(names=names, walkers=tuple(tuple(map(float, row)) for row in last.coords)),
        diagnostics=Diagnostics(
            was_warm=chains is not None,
            steps=steps,
            acceptance=float(sampler.acceptance_fraction.mean()),
            r_hat=_r_hat(sampler.get_chain()),
            failed_factorisations=density.failures,
            evaluations=density.evaluations,
        ),
    )


def _warm_steps(n: int) -> int:
    """Fewer with more rows: one further row then moves the distribution less, and a step takes longer."""
    return max(_LEAST_STEPS, min(_WARM_STEPS, _ROWS_TIMES_STEPS // n))


def _highest_mode(density: LogDensity, names: tuple[str, ...], random: np.random.RandomState) -> tuple[Tensor, float]:
    """The best mode found from a few prior draws, and its log density."""
    p = len(names)
    starts = torch.from_numpy(random.standard_normal((_STARTS, p))) * 0.7
    starts[0] = 0.0
    starts[1::2] = with_large_quirks(starts[1::2], names)
    modes = minimise(
        lambda z, _: density.negative_with_gradient(z),
        starts,
        -Z_MAX,
        Z_MAX,
        max_passes=60,
        tolerance=0.1,
        first_step=1.0,
    )
    best = modes.value.nan_to_num(nan=math.inf).argmin()
    return modes.x[best], -float(modes.value[best])


def _is_left_behind(height: Tensor, at_mode: float, p: int) -> bool:
    """Whether the middle of the walkers is clearly lower than where a normal posterior with that mode would have it.

    That is half a chi-square of p degrees of freedom below the mode; see `_are_stragglers`.
    """
    return at_mode - float(height.median()) > p / 2 + _CLEARLY * math.sqrt(p / 2)


def _laplace_walkers(density: LogDensity, mode: Tensor, n_walkers: int, random: np.random.RandomState) -> Tensor:
    """Walkers from the normal approximation at the mode."""
    p = len(mode)
    h = 1e-3
    nudges = h * torch.eye(p, dtype=mode.dtype)
    inside = mode.clamp(2 * h - Z_MAX, Z_MAX - 2 * h)  # beyond the cut there is no gradient to take differences of
    _, gradients = density.negative_with_gradient(torch.cat([inside + nudges, inside - nudges]))
    hessian = (gradients[:p] - gradients[p:]) / (2 * h)
    if not hessian.isfinite().all():  # no density here either: spread as the prior, and let _made_finite judge
        hessian = torch.eye(p, dtype=mode.dtype)
    curvature, axes = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
    # The prior alone has curvature 1; less than half of that is a flat ridge, better filled by the sampler.
    spread: Tensor = axes * curvature.clamp_min(0.5).rsqrt()
    noise = torch.from_numpy(random.standard_normal((n_walkers, p)))
    return (mode + noise @ spread.mT).clamp(-Z_MAX, Z_MAX)


def _resumed_walkers(chains: Chains, n_walkers: int, random: np.random.RandomState) -> Tensor:
    """Earlier positions; where more are wanted than there were, slightly moved copies of them."""
    old = torch.tensor(chains.walkers, dtype=torch.float64)
    if len(old) >= n_walkers:
        return old[torch.from_numpy(random.permutation(len(old))[:n_walkers])]
    copies = old[torch.from_numpy(random.randint(len(old), size=n_walkers - len(old)))]
    return torch.cat([old, copies + 0.05 * torch.from_numpy(random.standard_normal(copies.shape))])


def _made_finite(density: LogDensity, walkers: Tensor) -> tuple[Tensor, Tensor]:
    """Pull walkers without a density towards the prior's centre, which has one for any sound data; with densities."""
    for _ in range(8):
        height = density(walkers)
        is_lost = ~height.isfinite()
        if not is_lost.any():
            return walkers, height
        walkers = torch.where(is_lost[:, None], 0.5 * walkers, walkers)
    raise NumericsError(
        f"{int(is_lost.sum())} of {len(walkers)} walkers have no posterior density even near the centre of the "
        "prior; the outputs are far from standardised, or the inputs from the unit cube"
    )


def _are_stragglers(
    log_density: "np.ndarray[Any, np.dtype[np.float64]]", p: int
) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Walkers where the posterior, were it normal, would hardly ever be.

    The log density then lies below its peak by half a chi-square of p degrees of freedom: p / 2, with an sd of
    sqrt(p / 2). Six sds above that is left to what is not normal about it.
    """
    return log_density.max() - log_density > p / 2 + 6 * math.sqrt(p / 2)  # type: ignore[no-any-return]


def _without_stragglers(
    density: LogDensity, walkers: Tensor, height: Tensor, random: np.random.RandomState
) -> tuple[Tensor, Tensor]:
    """Replace walkers that new data have left behind: few find back, and one absurd sample of ten spoils all."""
    is_lost = torch.from_numpy(_are_stragglers(height.numpy(), walkers.shape[1]))
    if not is_lost.any():
        return walkers, height
    good = walkers[~is_lost]
    copies = good[torch.from_numpy(random.randint(len(good), size=int(is_lost.sum())))]
    walkers = walkers.clone()
    walkers[is_lost] = copies + 0.05 * torch.from_numpy(random.standard_normal(copies.shape))
    return _made_finite(density, walkers)


def _r_hat(chain: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    """Potential scale reduction between the two halves of the steps, all walkers pooled: (steps, W, p)."""
    half = len(chain) // 2
    halves = np.stack([chain[:half].reshape(-1, chain.shape[-1]), chain[-half:].reshape(-1, chain.shape[-1])])
    within = halves.var(axis=1, ddof=1).mean(axis=0) + np.finfo(float).tiny
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    return float(np.sqrt(1 + between / within).max())
