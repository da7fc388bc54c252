"""Saves and loads the training state, whole or sharded. Either form can be loaded into a whole or a sharded optimizer.

state.pt                        whole: one file, readable with weights_only=True
state.json, optimizer/*         sharded: each process writes its shards of the tensors as safetensors with PyTorch's distributed
                                checkpoints; everything else is JSON, so reading them cannot execute code
"""

import json
import pickle
import re
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..files import FileError, read_json
from .sharded import is_sharded

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SHARDS = "optimizer"

UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError,
    AssertionError, OverflowError, MemoryError, struct.error,
)  # fmt: skip
"""Exceptions that torch.load raises for files that torch.save did not write."""


def save_whole(state: dict[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # The C++ writer only reports that something failed; the context is the Python exception that caused it.
        raise error.__context__ if isinstance(error.__context__, OSError) else os_error(error) from error


def os_error(error: Exception) -> OSError:
    """Converts the exception of a library that writes files itself into an OSError, for which `atomic_path` gives advice."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    code = re.search(r"os error (\d+)", text)
    return OSError(int(code[1]), text) if code else OSError(text)


def save_sharded(state: dict[str, Any], folder: Path, is_first: bool, group: "ProcessGroup | None") -> None:
    """Writes a sharded state. All processes must call it."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    optimizer = state["optimizer"]
    tensors, numbers = {}, {}
    for index, values in optimizer["state"].items():
        tensors |= {f"{index}.{name}": value for name, value in values.items() if value.ndim}
        numbers[index] = {name: float(value) for name, value in values.items() if not value.ndim}
    writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
    try:
        save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:  # raised on all processes, with the failure of each
        why = next(iter(error.failures.values()))[0]
        raise FileError(
            f"cannot write {folder / SHARDS} ({why}): free some space and run the same command again to resume from the last "
            "checkpoint"
        ) from None
    if is_first:
        rest = {**state, "optimizer": {"state": numbers, "param_groups": optimizer["param_groups"]}}
        (folder / "state.json").write_text(json.dumps(rest, indent=2))


def read_state(folder: Path) -> dict[str, Any]:
    """The state that was saved with the weights. Sharded tensors stay on disk until `restore` loads those it needs."""
    if not (folder / "state.json").is_file():
        return load_state(folder / "state.pt")
    state = read_json(folder / "state.json", advice := f"move {folder} away to resume from an earlier checkpoint")
    if not isinstance(state, dict) or not isinstance(state.get("optimizer"), dict):
        raise FileError(f"{folder / 'state.json'} is not a training state: {advice}")
    state["optimizer"]["shards"] = str(folder / SHARDS)
    return state


def load_state(path: Path) -> dict[str, Any]:
    """All parts of a checkpoint except the weights."""
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except UNPICKLING_ERRORS as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(
            f"cannot read {path} ({why}): it is damaged, or was written by another version of torch; move {path.parent} away "
            "to resume from an earlier checkpoint"
        ) from None
    if not isinstance(state, dict):
        raise FileError(
            f"cannot read {path} (not a training state): move {path.parent} away to resume from an earlier checkpoint"
        )
    return state


def restore(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Loads the "optimizer" state returned by `read_state`, which may be whole or sharded over any number of processes."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if "shards" in saved:
        state = {
            int(index): {k: torch.tensor(v) for k, v in values.items()} for index, values in saved["state"].items()
        }
        for name, tensor in _read_shards(Path(saved["shards"]), parameters).items():
            index, _, key = name.partition(".")
            state[int(index)][key] = tensor
    else:
        state = {
            index: {name: _like(parameters[index], value) for name, value in values.items()}
            for index, values in saved["state"].items()
        }
    optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """This process' shard of a whole tensor, if its parameter is sharded."""
    if not is_sharded(parameter) or not value.ndim:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _read_shards(folder: Path, parameters: list[Tensor]) -> dict[str, Tensor]:
    """Tensors by "index.name", whole or sharded like their parameters. Only the parts that this process needs are read."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    names = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.zeros_like(parameters[int(name.partition(".")[0])]) for name in names}
    alone = not any(map(is_sharded, parameters))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader, no_dist=alone)
    return tensors
