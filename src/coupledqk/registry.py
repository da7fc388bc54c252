"""The dynamics, forces and scorings by name. Torch-free.

An entry contains the location of a method's record and the properties that a configuration needs without importing torch.
All other properties are in the record itself (`dynamics/method.py`, `scoring/record.py`), which is defined beside the method.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import CoupledQKError, unknown
from .plugins import Plugin


@dataclass(frozen=True)
class DynamicsEntry:
    record: Any
    """The `Method`, or its location inside this package as "module:NAME"."""
    settings: tuple[str, ...] = ("force", "n_steps", "step_size", "learn_step_size", "force_std", "gate")
    """The settings of a `DynamicsConfig` that have an effect, besides `method`."""
    plugin: Plugin | None = None
    """The file that registered it; None for this package and for a Python session."""


@dataclass(frozen=True)
class ScoringEntry:
    record: Any
    """The `Scoring`, or its location inside this package as "module:NAME"."""
    settings: tuple[str, ...] = ()
    """The settings of a `ScoringConfig` that have an effect, besides `kind`."""
    sub_heads: int = 1
    """Number of parts of equal width into which each head's query, key and value are split."""
    queries: int = 1
    """Number of full-width queries per head, which share the head's key and value."""
    plugin: Plugin | None = None
    """The file that registered it; None for this package and for a Python session."""


DYNAMICS: dict[str, DynamicsEntry] = {
    "none": DynamicsEntry("dynamics.static:STATIC", settings=()),
    "euler": DynamicsEntry("dynamics.euler:EULER"),
    "leapfrog": DynamicsEntry("dynamics.leapfrog:LEAPFROG"),
    "semi_implicit": DynamicsEntry("dynamics.semi_implicit:SEMI_IMPLICIT"),
    "kick": DynamicsEntry("dynamics.residual:KICK"),
    "query_residual": DynamicsEntry("dynamics.residual:QUERY_RESIDUAL"),
    "key_residual": DynamicsEntry("dynamics.residual:KEY_RESIDUAL"),
    "shared_mlp": DynamicsEntry("dynamics.residual:SHARED_MLP"),
    "affine": DynamicsEntry("dynamics.affine:AFFINE", settings=("force_std",)),
}

FORCES: dict[str, str] = {
    "mlp": "dynamics.forces:MLPForce",
    "linear": "dynamics.forces:LinearForce",
    "potential": "dynamics.forces:PotentialForce",
    "zero": "dynamics.forces:ZeroForce",
}

SCORINGS: dict[str, ScoringEntry] = {
    "softmax": ScoringEntry("scoring.softmax:SOFTMAX"),
    "differential": ScoringEntry("scoring.differential:DIFFERENTIAL", settings=("flavour",), sub_heads=2),
    "differential_v2": ScoringEntry("scoring.differential_v2:DIFFERENTIAL_V2", queries=2),
    "gated": ScoringEntry("scoring.gated:GATED"),
    "sink": ScoringEntry("scoring.sink:SINK"),
}


def load(record: Any) -> Any:
    """The record of an entry, imported if the entry contains only its location."""
    if not isinstance(record, str):
        return record
    module, _, name = record.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def check_choice(config: Any, setting: str, entries: Mapping[str, DynamicsEntry] | Mapping[str, ScoringEntry]) -> None:
    """Raises for an unregistered name, and for a changed setting that the chosen method or kind does not use."""
    choice = getattr(config, setting)
    if choice not in entries:
        raise unknown(setting, choice, entries)
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.name not in (setting, *entries[choice].settings) and value != f.default:
            raise CoupledQKError(
                f"{f.name}={value!r} has no effect with {setting} {choice!r}: leave it at {f.default!r} or choose another "
                f"{setting}"
            )


def plugin_of(method: str, kind: str) -> Plugin | None:
    """The plugin that registered the dynamics or the scoring; None if both are part of this package."""
    plugins = {entry.plugin for entry in (DYNAMICS[method], SCORINGS[kind]) if entry.plugin is not None}
    if len(plugins) > 1:
        names = " and ".join(sorted(plugin.path for plugin in plugins))
        raise CoupledQKError(f"dynamics and scoring come from two plugins, {names}: put both into one file")
    return plugins.pop() if plugins else None
