"""Which Gaussian process: its kernel by name, its hyperparameters, and how they are packed into a vector."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from takg.errors import InputError
from takg.gp._priors import (
    FIDELITY_PRIORS,
    GRADIENT_NOISE_VAR,
    NOISE_FLOOR,
    NOISE_VAR,
    QUIRK_VAR,
    SIGNAL_VAR,
    LogNormal,
    lengthscale_prior,
)

DESIGN_KERNELS = ("matern52", "squared_exponential")
FIDELITY_KERNELS = tuple(sorted(FIDELITY_PRIORS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """H samples of everything the kernel and the noise depend on."""

    signal_var: Tensor  # (H,)
    lengthscale: Tensor  # (H, d)
    fidelity: tuple[tuple[Tensor, ...], ...]  # for each of the m fidelities, its parameters (H,) in table order
    noise_var: Tensor  # (H,)
    gradient_noise_var: Tensor  # (H,)
    quirk_var: Tensor | None = None  # (H,); None if designs have no quirks
    low_noise_var: Tensor | None = None  # (H,), noise of values at fidelity 0 beside noise_var; none at the target

    @property
    def H(self) -> int:
        return self.signal_var.shape[0]

    def part(self, chosen: slice) -> "Hyperparameters":
        return Hyperparameters(
            signal_var=self.signal_var[chosen],
            lengthscale=self.lengthscale[chosen],
            fidelity=tuple(tuple(one[chosen] for one in parameters) for parameters in self.fidelity),
            noise_var=self.noise_var[chosen],
            gradient_noise_var=self.gradient_noise_var[chosen],
            quirk_var=None if self.quirk_var is None else self.quirk_var[chosen],
            low_noise_var=None if self.low_noise_var is None else self.low_noise_var[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """g ~ GP(0, trend + signal_var * k_x * prod_j k_j) over d design and m fidelity dimensions.

    The trend is a constant, plus a slope in each of `trend_dims`, whose weights have normal priors with
    mean 0 and are integrated out exactly by adding their covariance to the kernel.

    With `has_quirks` every design also has a deviation of its own, unlike its neighbours', that goes with 1 - prod s:
    where low fidelity is erratic, only higher ones teach, and nothing is left of it at the target.
    """

    d: int
    fidelity_kernels: tuple[str, ...] = ()  # one of FIDELITY_KERNELS for each fidelity
    design_kernel: str = "squared_exponential"
    has_gradients: bool = False  # gradient observations bring their own noise
    mean_var: float = 1.0
    trend_dims: tuple[int, ...] = ()
    slope_var: float = 1.0
    has_quirks: bool = False
    least_noise: float = NOISE_FLOOR  # added to both noise variances

    def __post_init__(self) -> None:
        if self.d < 1:
            raise InputError(f"d={self.d}: expected at least one design dimension")
        if self.design_kernel not in DESIGN_KERNELS:
            raise InputError(f"design_kernel={self.design_kernel!r}: expected one of {DESIGN_KERNELS}")
        if unknown := [name for name in self.fidelity_kernels if name not in FIDELITY_PRIORS]:
            raise InputError(f"fidelity_kernels has {unknown}: expected names out of {FIDELITY_KERNELS}")
        if bad := [j for j in self.trend_dims if not 0 <= j < self.d]:
            raise InputError(f"trend_dims={self.trend_dims}: {bad} outside 0..{self.d - 1}")
        if self.trend_dims and self.has_gradients:
            raise InputError(f"trend_dims={self.trend_dims} with has_gradients=True: expected one or the other")
        for name, value in (("mean_var", self.mean_var), ("slope_var", self.slope_var)):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value}: expected a finite variance >= 0")

    @property
    def m(self) -> int:
        return len(self.fidelity_kernels)

    @property
    def priors(self) -> dict[str, LogNormal]:
        """Every hyperparameter by name, in the order in which vectors hold them."""
        table = {"signal_var": SIGNAL_VAR}
        table |= {f"lengthscale[{k}]": lengthscale_prior(self.d) for k in range(self.d)}
        for j, kind in enumerate(self.fidelity_kernels):
            table |= {f"fidelity[{j}].{name}": prior for name, prior in FIDELITY_PRIORS[kind].items()}
        table |= {"noise_var": NOISE_VAR}
        if self.has_gradients:
            table |= {"gradient_noise_var": GRADIENT_NOISE_VAR}
        if self.has_quirks:
            table |= {"quirk_var": QUIRK_VAR}
        return table

    def unpack(self, z: Tensor) -> Hyperparameters:
        """Whitened vectors (H, p) to hyperparameters; z = 0 is the prior median of each."""
        priors = self.priors.values()
        centre = torch.tensor([math.log(prior.median) for prior in priors], dtype=z.dtype)
        spread = torch.tensor([prior.sd for prior in priors], dtype=z.dtype)
        values = iter((centre + spread * z).exp().unbind(-1))
        return Hyperparameters(
            signal_var=next(values),
            lengthscale=torch.stack([next(values) for _ in range(self.d)], dim=-1),
            fidelity=tuple(tuple(next(values) for _ in FIDELITY_PRIORS[kind]) for kind in self.fidelity_kernels),
            noise_var=(noise_var := self.least_noise + next(values)),
            gradient_noise_var=self.least_noise + next(values) if self.has_gradients else noise_var,
            quirk_var=next(values) if self.has_quirks else None,
        )
