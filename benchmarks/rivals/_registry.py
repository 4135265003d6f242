"""Methods by name; a library is only imported by those who use it."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rivals._protocol import Method, Setting


class MissingLibraryError(Exception):
    """A method's library is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    module: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


def _entry(module: str, kind: str, *packages: str, **options: Any) -> Entry:
    return Entry(module=f"rivals.{module}", kind=kind, options=options, packages=packages)


METHODS: Mapping[str, Entry] = MappingProxyType(
    {
        "takg": _entry("_takg", "Takg"),
        "takg_zero": _entry("_takg", "Takg", acquisition="takg_zero"),
        "takg_zero_noisy": _entry("_takg", "Takg", acquisition="takg_zero_as_printed"),
        "takg_stochastic": _entry("_takg", "Takg", maximiser="stochastic"),
        "takg_l3": _entry("_takg", "Takg", retained=3),
        "takg_cold": _entry("_takg", "Takg", basket=0),
        "takg_batch8": _entry("_takg", "Takg", q=8),
        "dkg": _entry("_takg", "DerivativeKG"),
        "dkg_batch8": _entry("_takg", "DerivativeKG", q=8),
        "random": _entry("_simple", "RandomSearch"),
        "hyperband": _entry("_simple", "Hyperband"),
        "hyperband_batch8": _entry("_simple", "Hyperband", q=8),
        "ei": _entry("_botorch", "LogEI", "botorch"),
        "ei_batch8": _entry("_botorch", "LogEI", "botorch", q=8),
        "logei_cheap": _entry("_botorch", "CheapLogEI", "botorch"),
        "kg": _entry("_botorch", "KG", "botorch"),
        "kg_batch8": _entry("_botorch", "KG", "botorch", q=8),
        "qmfkg": _entry("_botorch", "MultiFidelityKG", "botorch"),
        "boca": _entry("_boca", "Boca", "botorch"),
        "fabolas": _entry("_fabolas", "Fabolas", "botorch"),
        "optuna_tpe": _entry("_optuna", "Tpe", "optuna"),
        "optuna_gp": _entry("_optuna", "Gp", "optuna"),
        "optuna_hyperband": _entry("_optuna", "TpeHyperband", "optuna"),
        "dehb": _entry("_dehb", "Dehb", "dehb"),
        "smac": _entry("_smac", "Smac", "smac"),
    }
)

FEWER_SEEDS = ("qmfkg", "fabolas", "smac")  # slow ones


def build(name: str, setting: Setting) -> Method:
    """The method of that name for a setting; MissingLibraryError if its library is not there."""
    if name not in METHODS:
        raise ValueError(f"method {name!r} is unknown; expected one of {', '.join(METHODS)}")
    entry = METHODS[name]
    try:
        module = importlib.import_module(entry.module)
    except ImportError as error:
        wanted = " ".join(entry.packages) or "takg"
        raise MissingLibraryError(f"{name} needs {wanted}: pip install {wanted} ({error})") from error
    method: Method = getattr(module, entry.kind)(setting, **entry.options)
    return method
