"""Saves and loads a coupling without its model, as `coupling.safetensors` and `coupling.toml`."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from ..errors import CoupledQKError
from ..files import atomic_path, read_toml, write_atomic
from .couple import (
    Verify,
    attach_verified,
    build_couplings,
    check_materialized,
    common_dynamics,
    require_coupled,
)
from .settings import BUFFER, from_table, to_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS, SETTINGS = "coupling.safetensors", "coupling.toml"


def save_coupling(model: "PreTrainedModel", folder: str | PathLike[str]) -> None:
    """Writes the coupling's parameters and settings, without the model, to `folder`."""
    import tomli_w
    from safetensors.torch import save_file

    modules = require_coupled(model)
    dynamics = common_dynamics(modules)
    with torch.no_grad():
        tensors = _tensors({name: _current(module.coupling) for name, module in modules.items()})
    with atomic_path(Path(folder) / WEIGHTS) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
    table = {"model_type": model.config.model_type, **to_table(dynamics)}
    write_atomic(Path(folder) / SETTINGS, tomli_w.dumps(table))


def load_coupling(
    model: "PreTrainedModel", folder: str | PathLike[str], *, verify: Verify = "auto", **hub_options: Any
) -> "PreTrainedModel":
    """Adds the coupling that `save_coupling` wrote to `folder` to `model`, and returns the model.

    `folder` may be the id of a repository on the hub; `hub_options` are options such as revision, cache_dir and token. All
    files are checked before the model is changed.
    """
    settings, weights = (_find(folder, name, hub_options) for name in (SETTINGS, WEIGHTS))
    table = read_toml(settings)
    dynamics = from_table(table, str(settings))
    check_materialized(model)
    if table.get("model_type", model.config.model_type) != model.config.model_type:
        raise CoupledQKError(
            f"{folder} was saved from a model of type {table['model_type']!r}, and this {type(model).__name__} is of type "
            f"{model.config.model_type!r}: load it into the model it was trained on"
        )
    couplings = build_couplings(model, dynamics)
    _fill(couplings, _read(weights), folder)
    attach_verified(model, couplings, dynamics, verify)
    return model


def merge_coupling(model: "PreTrainedModel") -> NoReturn:
    """Always raises: a coupling cannot be merged. The message gives the reason and the alternatives."""
    raise CoupledQKError(
        "a coupling cannot be merged into the model's matrices: it moves each query and key by a nonlinear function of the "
        "other, which no W_q and W_k compute. Keep it: save_coupling(model, folder), or model.save_pretrained(folder) and "
        "load_coupled(folder)"
    )


def _find(folder: Any, name: str, hub_options: dict[str, Any]) -> Path:
    """Path of the file in a local folder, or of its download from the hub."""
    if not Path(folder).is_dir():
        from transformers.utils.hub import cached_file

        try:
            return Path(cached_file(str(folder), name, **hub_options) or "")
        except OSError as error:
            reason = str(error).splitlines()[0]
            raise CoupledQKError(f"{folder} is neither a folder nor a coupling on the hub ({reason})") from None
    if not (Path(folder) / name).is_file():
        raise CoupledQKError(f"{folder} has no {name}: give a folder that save_coupling has written")
    return Path(folder) / name


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CoupledQKError(f"{path} is damaged ({error}): save the coupling again") from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CoupledQKError(
                f"{path} has {name} as {tensor.dtype}, expected floating point: save the coupling again"
            )
        if not torch.isfinite(tensor).all():
            raise CoupledQKError(f"{path} has NaN or infinite values in {name}: the training it came from has diverged")
    return tensors


def _current(coupling: Any) -> nn.Module:
    """The coupling, or the copy of it that PEFT trains if it is in `modules_to_save`."""
    trained = getattr(coupling, "modules_to_save", None)
    return coupling if trained is None else trained[coupling.active_adapters[0]]


def _tensors(couplings: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Tensors of the couplings by name, without their settings, which are stored in a separate file."""
    return {
        f"{layer}.coupling.{name}": tensor
        for layer, coupling in couplings.items()
        for name, tensor in _state_dict(coupling).items()
        if name != BUFFER
    }


def _state_dict(coupling: nn.Module) -> dict[str, Tensor]:
    """The state dict of a coupling. Weights offloaded by accelerate are loaded."""
    if not any(parameter.is_meta for parameter in coupling.parameters()):
        return coupling.state_dict()
    from accelerate.utils import align_module_device

    found = {}
    for path, module in coupling.named_modules():
        with align_module_device(module, torch.device("cpu")):
            found |= {f"{path}.{name}".lstrip("."): p.clone() for name, p in module.named_parameters(recurse=False)}
    return found


@torch.no_grad()
def _fill(couplings: dict[str, nn.Module], saved: dict[str, Tensor], folder: Any) -> None:
    wanted = _tensors(couplings)
    if wanted.keys() != saved.keys():
        name = min(wanted.keys() ^ saved.keys())
        lacking = "the coupling lacks" if name in wanted else "the model does not have"
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
