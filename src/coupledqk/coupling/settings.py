"""Stores the settings of a coupling: as a table in config.json and coupling.toml, and as a tensor stored with the coupling's
weights.

The tensor is saved with the weights, also in PEFT adapters, so that weights are never loaded into different dynamics.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..config import DynamicsConfig
from ..errors import CoupledQKError
from ..schema import from_dict

FORMAT = 1
BUFFER = "settings"


def to_table(dynamics: DynamicsConfig) -> dict[str, Any]:
    return {"format": FORMAT, "dynamics": dataclasses.asdict(dynamics)}


def from_table(table: Any, where: str) -> DynamicsConfig:
    """Decodes the settings of a coupling strictly. Errors mention the file `where`."""
    number = table.get("format") if isinstance(table, Mapping) else None
    if type(number) is not int or number < 1 or "dynamics" not in table:
        raise CoupledQKError(f"{where} does not hold the settings of a coupling: give what save_coupling has written")
    if number > FORMAT:
        raise CoupledQKError(
            f"{where} has format {number} and this version of coupledqk reads up to {FORMAT}: "
            "pip install --upgrade coupledqk"
        )
    return from_dict(DynamicsConfig, table["dynamics"], f"{where}: dynamics.")


def record(coupling: nn.Module, dynamics: DynamicsConfig) -> None:
    """Adds the tensor of settings to a coupling, which then rejects the weights of different dynamics."""
    coupling.register_buffer(BUFFER, _encoded(dynamics))
    # the settings are not read from the buffer, which has no values on the meta device and after to_empty()
    coupling.register_load_state_dict_pre_hook(functools.partial(_check_recorded, dynamics))


def _encoded(dynamics: DynamicsConfig) -> Tensor:
    data = json.dumps(to_table(dynamics)).encode()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()


def recorded(tensor: Tensor, where: str) -> DynamicsConfig:
    try:
        table = json.loads(bytes(tensor.tolist()))
    except ValueError:
        raise CoupledQKError(
            f"{where} does not hold the settings of a coupling: save the coupled model again"
        ) from None
    return from_table(table, where)


def check_same(saved: DynamicsConfig, dynamics: DynamicsConfig, what: str) -> None:
    """Raises an error that names the first setting that differs, if any."""
    for field in dataclasses.fields(DynamicsConfig):
        theirs, ours = getattr(saved, field.name), getattr(dynamics, field.name)
        if theirs != ours:
            raise CoupledQKError(
                f"{what} belongs to a coupling with {field.name}={theirs!r}, and this model is coupled with "
                f"{field.name}={ours!r}: couple the model as the one it was saved from"
            )


def _check_recorded(
    dynamics: DynamicsConfig, module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any
) -> None:
    name = prefix + BUFFER
    if name in state_dict:
        check_same(recorded(state_dict[name], name), dynamics, f"the saved {prefix.removesuffix('.')}")
    elif any(key.startswith(prefix) for key in state_dict):  # saved by a version that did not record settings
        state_dict[name] = _encoded(dynamics)
