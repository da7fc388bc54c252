"""A coupling in files of its own, without the model: `coupling.safetensors` and `coupling.toml`."""

import tomllib
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor, nn

from ..errors import CoupledQKError
from ..files import atomic_path, write_atomic
from .couple import attach, build_couplings, coupled_modules
from .settings import from_table, to_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS, SETTINGS = "coupling.safetensors", "coupling.toml"


def save_coupling(model: "PreTrainedModel", folder: str | PathLike[str]) -> None:
    """Writes the coupling's parameters and settings, and nothing of the model, into `folder`."""
    import tomli_w
    from safetensors.torch import save_file

    couplings = {name: module.coupling for name, module in coupled_modules(model).items()}
    dynamics = from_table(model.config.coupledqk, "the model's configuration")
    with atomic_path(Path(folder) / WEIGHTS) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in _tensors(couplings).items()}, temporary)
    table = {"model_type": model.config.model_type, **to_table(dynamics)}
    write_atomic(Path(folder) / SETTINGS, tomli_w.dumps(table))


def load_coupling(model: "PreTrainedModel", folder: str | PathLike[str]) -> "PreTrainedModel":
    """Couples `model` as the model was that `save_coupling` has written `folder` from, and returns it.

    All is checked before the model is touched.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    for name in (SETTINGS, WEIGHTS):
        if not (folder / name).is_file():
            raise CoupledQKError(f"{folder} has no {name}: give a folder that save_coupling has written")
    try:
        table = tomllib.loads((folder / SETTINGS).read_text())
    except tomllib.TOMLDecodeError as error:
        raise CoupledQKError(f"{folder / SETTINGS} is not TOML: {error}") from None
    dynamics = from_table(table, str(folder / SETTINGS))
    couplings = build_couplings(model, dynamics)
    _fill(couplings, load_file(folder / WEIGHTS), folder)
    attach(model, couplings, dynamics)
    return model


def merge_coupling(model: "PreTrainedModel") -> NoReturn:
    """Refused: says why, and what to do instead."""
    raise CoupledQKError(
        "a coupling cannot be merged into the model's matrices: it moves each query and key by a nonlinear function of the "
        "other, which no W_q and W_k compute. Keep it: save_coupling(model, folder), or model.save_pretrained(folder) and "
        "load_coupled(folder)"
    )


def _tensors(couplings: dict[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{layer}.coupling.{name}": tensor
        for layer, coupling in couplings.items()
        for name, tensor in coupling.state_dict().items()
    }


@torch.no_grad()
def _fill(couplings: dict[str, nn.Module], saved: dict[str, Tensor], folder: Path) -> None:
    wanted = _tensors(couplings)
    if wanted.keys() != saved.keys():
        name = min(wanted.keys() ^ saved.keys())
        lacking = "the coupling lacks" if name in wanted else "the model has no place for"
        raise CoupledQKError(
            f"{folder} does not fit this model: {lacking} {name}. Load it into the architecture and depth it was saved from"
        )
    for name, tensor in wanted.items():
        if tensor.shape != saved[name].shape:
            raise CoupledQKError(
                f"{folder} does not fit this model: {name} has the shape {tuple(saved[name].shape)} where the model needs "
                f"{tuple(tensor.shape)}. Load it into a model with the heads it was saved from"
            )
    for name, tensor in wanted.items():
        tensor.copy_(saved[name])
