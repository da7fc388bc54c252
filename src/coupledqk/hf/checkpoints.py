"""Whole coupled models in files: what `save_pretrained` writes, loaded with its coupling, and never silently without it."""

import functools
import json
import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CoupledQKError
from .couple import attach, build_couplings, is_coupled
from .settings import from_table, unmark
from .versions import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LostCouplingWarning(UserWarning):
    """A coupled model was loaded without its coupling."""


def load_coupled(folder: str | PathLike[str], **kwargs: Any) -> "PreTrainedModel":
    """Loads what `save_pretrained` has written of a coupled model, with its coupling.

    `kwargs` are those of `from_pretrained`: dtype, device_map, attn_implementation, ...
    """
    require_transformers()
    kind, dynamics = _read_config(Path(folder))

    # Coupled as soon as it is built, the model takes the coupling's weights from the files like any others.
    def build_coupled(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        attach(self, build_couplings(self, dynamics), dynamics)

    coupled = type(kind.__name__, (kind,), {"__init__": build_coupled, "__module__": kind.__module__})
    model, info = coupled.from_pretrained(folder, output_loading_info=True, **kwargs)
    model.__class__ = kind
    missing = sorted(name for name in info["missing_keys"] if ".coupling." in name)
    if missing:
        raise CoupledQKError(f"{folder} lacks weights of its coupling, {missing[0]} for one: save the model again")
    return model


def _read_config(folder: Path) -> tuple[Any, Any]:
    """The model's class and the dynamics, by config.json."""
    import transformers

    path = folder / "config.json"
    if not path.is_file():
        raise CoupledQKError(f"{folder} has no config.json: give a local folder that model.save_pretrained has written")
    config = json.loads(path.read_text())
    if "coupledqk" not in config:
        raise CoupledQKError(
            f"{folder} is not of a coupled model: load it with from_pretrained, and call couple(model) to couple it"
        )
    name = (config.get("architectures") or [""])[0]
    if not hasattr(transformers, name):
        raise CoupledQKError(f"{path} names no model class of transformers ({name!r}): save the model again")
    return getattr(transformers, name), from_table(config["coupledqk"], str(path))


def warn_of_lost_couplings() -> None:
    """From now on `from_pretrained` warns when it leaves out the coupling of a coupled model. It does nothing else."""
    from transformers import PreTrainedModel

    plain = PreTrainedModel.from_pretrained.__func__
    if hasattr(plain, "warns_of_lost_couplings"):
        return

    @functools.wraps(plain)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = plain(cls, *args, **kwargs)
        _warn_if_lost(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    from_pretrained.warns_of_lost_couplings = True  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # pyright: ignore[reportAttributeAccessIssue]


def _warn_if_lost(model: "PreTrainedModel") -> None:
    folder = model.name_or_path
    if hasattr(model.config, "coupledqk") and not any(is_coupled(module) for module in model.modules()):
        unmark(model)
        warnings.warn(
            f"{folder} holds a coupled model, and from_pretrained has left its coupling out: what you have now is another "
            f"model. Load it with coupledqk.hf.load_coupled({folder!r})",
            LostCouplingWarning,
            stacklevel=3,
        )
