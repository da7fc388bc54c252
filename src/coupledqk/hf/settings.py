"""The settings of a coupling in files: a table that names its format, in config.json and beside an adapter's weights."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config import DynamicsConfig
from ..errors import CoupledQKError
from ..schema import from_dict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = 1


def to_table(dynamics: DynamicsConfig) -> dict[str, Any]:
    return {"format": FORMAT, "dynamics": dataclasses.asdict(dynamics)}


def from_table(table: Any, where: str) -> DynamicsConfig:
    """Strict; `where` is the file, for the error."""
    if not isinstance(table, Mapping) or not isinstance(table.get("format"), int) or "dynamics" not in table:
        raise CoupledQKError(f"{where} does not hold the settings of a coupling: give what save_coupling has written")
    if table["format"] > FORMAT:
        raise CoupledQKError(
            f"{where} has format {table['format']} and this version of coupledqk reads up to {FORMAT}: "
            "pip install --upgrade coupledqk"
        )
    return from_dict(DynamicsConfig, table["dynamics"], f"{where}: dynamics.")


def mark(model: "PreTrainedModel", dynamics: DynamicsConfig) -> None:
    """Lets the config.json that `save_pretrained` writes say that the model is coupled, and how it is loaded."""
    model.config.coupledqk = {**to_table(dynamics), "load_with": "coupledqk.hf.load_coupled"}


def unmark(model: "PreTrainedModel") -> None:
    delattr(model.config, "coupledqk")
