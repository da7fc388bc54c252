"""Loads coupled models written by `save_pretrained` with their coupling, and warns if they are loaded without it."""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from ..config import DynamicsConfig
from ..errors import CoupledQKError
from ..schema import decode
from .couple import Verify, attach, build_couplings, common_dynamics, coupled_modules, is_coupled_whole, verify_attached
from .settings import BUFFER, from_table, record, to_table
from .versions import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MARK = "coupledqk"
"""The entry of config.json that contains the coupling of a coupled model."""
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")


class LostCouplingWarning(UserWarning):
    """A coupled model was loaded without its coupling."""


@overload
def load_coupled(
    folder: str | PathLike[str], *, verify: Verify = ..., output_loading_info: Literal[False] = ..., **kwargs: Any
) -> "PreTrainedModel": ...
@overload
def load_coupled(
    folder: str | PathLike[str], *, verify: Verify = ..., output_loading_info: Literal[True], **kwargs: Any
) -> tuple["PreTrainedModel", dict[str, Any]]: ...
def load_coupled(
    folder: str | PathLike[str], *, verify: Verify = "auto", output_loading_info: bool = False, **kwargs: Any
) -> "PreTrainedModel | tuple[PreTrainedModel, dict[str, Any]]":
    """Loads a coupled model that `save_pretrained` has written, with its coupling, from a folder or from the hub.

    `kwargs` are those of `from_pretrained`: dtype, device_map, attn_implementation, revision, ... With `output_loading_info`,
    transformers' report on missing and unexpected weights is returned together with the model.
    """
    require_transformers()
    from safetensors import SafetensorError

    kind, table = _read_config(folder, kwargs)
    dynamics = from_table(table, f"{folder}: config.json")
    names = decode(tuple[str, ...] | None, table.get("modules"), f"{folder}: config.json: {MARK}.modules")

    # The model is coupled when it is built, so that from_pretrained loads the coupling's weights like any others.
    def build_coupled(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        attach(self, build_couplings(self, dynamics, names), dynamics)

    coupled = type(kind.__name__, (kind,), {"__init__": build_coupled, "__module__": kind.__module__})
    try:
        model, info = coupled.from_pretrained(folder, output_loading_info=True, **kwargs)
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise CoupledQKError(f"the weights of {folder} cannot be read ({reason}): save the model again") from None
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise CoupledQKError(
            f"{folder}: the shapes of the weights are not those of config.json, as transformers' report above says: save the "
            "model again"
        ) from None
    model.__class__ = kind
    _check_weights(model, dynamics, info["missing_keys"], folder)
    verify_attached(model, dynamics, verify)
    return (model, info) if output_loading_info else model


def _check_weights(model: Any, dynamics: DynamicsConfig, missing: Any, folder: Any) -> None:
    lacking = sorted(name for name in missing if ".coupling." in name and not name.endswith(f".{BUFFER}"))
    if lacking:
        raise CoupledQKError(f"{folder} lacks weights of its coupling, {lacking[0]} for one: save the model again")
    for name, module in coupled_modules(model).items():
        record(module.coupling, dynamics)  # older checkpoints do not contain the settings
        module.coupling.to(next(module.coupling.parameters()).device)
        for parameter, tensor in module.coupling.named_parameters():
            if not tensor.is_meta and not torch.isfinite(tensor).all():
                raise CoupledQKError(
                    f"{folder} has NaN or infinite weights in {name}.coupling.{parameter}: it is damaged"
                )


def _read_config(folder: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model's class and the table of its coupling, read from config.json."""
    import transformers

    options = {name: options[name] for name in HUB_OPTIONS if name in options}
    try:
        config, _ = transformers.PreTrainedConfig.get_config_dict(folder, **options)
    except (OSError, ValueError) as error:
        raise CoupledQKError(f"the config.json of {folder} cannot be read: {str(error).splitlines()[0]}") from None
    if not config:
        raise CoupledQKError(
            f"{folder} has no config.json: give a folder that model.save_pretrained has written, or a model id on the hub"
        )
    if MARK not in config:
        raise CoupledQKError(
            f"{folder} does not contain a coupled model: load it with from_pretrained, and call couple(model) to couple it"
        )
    name = (config.get("architectures") or [""])[0]
    if not hasattr(transformers, name):
        raise CoupledQKError(
            f"{folder}: config.json names no model class of transformers ({name!r}): save the model again"
        )
    return getattr(transformers, name), config[MARK]


@contextlib.contextmanager
def marked(model: "PreTrainedModel") -> Iterator[None]:
    """Within this context the model's configuration contains its coupling, even if only a part of the model is coupled."""
    modules = coupled_modules(model)
    if not modules:
        yield
        return
    table = {**to_table(common_dynamics(modules)), "load_with": "coupledqk.hf.load_coupled"}
    if not is_coupled_whole(model):
        table["modules"] = list(modules)
    setattr(model.config, MARK, table)
    try:
        yield
    finally:
        delattr(model.config, MARK)


def guard_checkpoints() -> None:
    """Makes `save_pretrained` mark coupled models, and `from_pretrained` warn if it does not load their coupling."""
    from transformers import PreTrainedModel

    load, save = PreTrainedModel.from_pretrained.__func__, PreTrainedModel.save_pretrained
    if hasattr(load, "guards_couplings"):
        return

    @functools.wraps(load)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = load(cls, *args, **kwargs)
        _warn_if_lost(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    @functools.wraps(save)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        with marked(self):
            return save(self, *args, **kwargs)

    from_pretrained.guards_couplings = True  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.save_pretrained = save_pretrained


def _warn_if_lost(model: "PreTrainedModel") -> None:
    if not hasattr(model.config, MARK):
        return
    delattr(model.config, MARK)
    folder = model.name_or_path
    if not coupled_modules(model):
        warnings.warn(
            f"{folder} holds a coupled model, and from_pretrained has left its coupling out, so this is not the model "
            f"that was saved. Load it with coupledqk.hf.load_coupled({folder!r})",
            LostCouplingWarning,
            stacklevel=3,
        )
