"""Guards PEFT against losing couplings: by default it ignores weights that a model does not have, and saves no frozen ones.

With the guard, PEFT saves the coupling of the model with every adapter, rejects adapters whose coupling the model does not
have, and warns about adapters that were trained without the coupling of the model.
"""

import functools
import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CoupledQKError
from .architectures import head_shape
from .couple import coupled_modules
from .settings import BUFFER, check_same, recorded

_MODULE = "peft.peft_model"
_INFIX = ".coupling."


class UncoupledAdapterWarning(UserWarning):
    """An adapter without a coupling was loaded into a model whose coupling has been trained."""


def check_adapter(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Raises an error unless the model has the couplings of the adapter, with the same dynamics and the same head shapes."""
    modules = {_plain(name): module for name, module in coupled_modules(model).items()}
    for name, tensor in weights.items():
        layer, infix, parameter = name.partition(_INFIX)
        if not infix:
            continue
        if _plain(layer) not in modules:
            raise CoupledQKError(
                f"the adapter has weights of a coupling ({name}) that this model does not have: couple the model like the "
                "one it was trained with, then load the adapter"
            )
        if parameter == BUFFER:
            check_same(recorded(tensor, name), modules[_plain(layer)].coupling_dynamics, "the adapter")
        elif not torch.isfinite(tensor).all():
            raise CoupledQKError(f"the adapter has NaN or infinite values in {name}: its training has diverged")
        else:
            _check_shape(modules[_plain(layer)], parameter, tensor, name)
    has = {_plain(name).partition(_INFIX)[0] for name in weights if _INFIX in name}
    if has and (lacking := sorted(modules.keys() - has)):
        raise CoupledQKError(
            f"the adapter has no coupling for {lacking[0]}, which is coupled in this model: load it into a model of the depth "
            "it was trained with"
        )
    if weights and not any(_INFIX in name for name in weights) and any(map(_has_effect, modules.values())):
        warnings.warn(
            "the adapter was trained without a coupling, and this model has a trained one: together they compute what neither "
            "was trained for. Load the adapter into the uncoupled model, or train it further with the coupling",
            UncoupledAdapterWarning,
            stacklevel=3,
        )


def _check_shape(module: Any, parameter: str, tensor: Tensor, name: str) -> None:
    coupling = getattr(module.coupling, "original_module", module.coupling)  # PEFT wraps it for `modules_to_save`
    expected = dict(coupling.named_parameters()).get(parameter)
    if expected is not None and expected.shape != tensor.shape:
        raise CoupledQKError(
            f"the adapter has {name} with the shape {tuple(tensor.shape)} where this model needs {tuple(expected.shape)}: load "
            "it into a model with the heads it was trained with"
        )


@torch.no_grad()
def _has_effect(module: Any) -> bool:
    """Whether the coupling differs from the identity, its initial value."""
    parameter = next(module.coupling.parameters())
    width, heads = head_shape(module)
    q = torch.linspace(-1, 1, heads * width, dtype=parameter.dtype, device=parameter.device).view(1, 1, heads, width)
    k = q.flip(-1)
    evolved = module.coupling(q, k)
    return not all(map(torch.equal, evolved, (q, k)))


def frozen_couplings(model: Any, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of couplings that the adapter lacks because they are not in `modules_to_save`, so that PEFT froze them."""
    prefixes = tuple(f"{name}{_INFIX}" for name in coupled_modules(model))
    has = {_plain(name).partition(_INFIX)[0] for name in saved if _INFIX in name}
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name.startswith(prefixes) and _plain(name).partition(_INFIX)[0] not in has
    }


def check_other_adapters(model: Any, weights: dict[str, Tensor], adapter: str | None = None) -> None:
    """Raises an error if the adapters differ in a coupling outside `modules_to_save`, which all adapters of a model share.

    `adapter` is the name of the adapter to load, if PEFT has prepared the model for it.
    """
    own: dict[str, Tensor] = {}
    for name, module in coupled_modules(model).items():
        copies = getattr(module.coupling, "modules_to_save", None)
        if copies is not None and (adapter is None or adapter in copies):
            continue  # the adapter has its own copy
        shared = module.coupling if copies is None else module.coupling.original_module
        own |= {f"{_plain(name)}{_INFIX}{key}": tensor for key, tensor in shared.state_dict().items()}
    for name, tensor in weights.items():
        loaded = own.get(_plain(name))
        if loaded is not None and not torch.equal(tensor.to(loaded), loaded):
            raise CoupledQKError(
                f"the adapter was trained with another coupling than the one that is loaded already ({name} differs): load it "
                "into a model of its own"
            )


def guard_transformers() -> None:
    """Guards the adapter methods of transformers' own models, which do not use a PeftModel."""
    from transformers import PreTrainedModel

    load: Any = PreTrainedModel.load_adapter
    collect: Any = PreTrainedModel.get_adapter_state_dict  # called by save_pretrained
    if hasattr(load, "guards_couplings"):
        return

    @functools.wraps(load)
    def load_adapter(self: Any, peft_model_id: Any = None, *args: Any, **kwargs: Any) -> Any:
        weights = kwargs.get("adapter_state_dict")
        if weights is None and peft_model_id is not None:
            peft_model, options = importlib.import_module(_MODULE), kwargs.get("adapter_kwargs") or {}
            weights = peft_model.load_peft_weights(str(peft_model_id), device="cpu", **options)
        check_adapter(self, weights or {})
        if getattr(self, "peft_config", None):
            check_other_adapters(self, weights or {})
        return load(self, peft_model_id, *args, **kwargs)

    @functools.wraps(collect)
    def get_adapter_state_dict(self: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        saved = collect(self, *args, **kwargs)
        return saved | frozen_couplings(self, saved)

    load_adapter.guards_couplings = True  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.load_adapter = load_adapter
    PreTrainedModel.get_adapter_state_dict = get_adapter_state_dict


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")


def guard_peft() -> None:
    """Guards PEFT's loading now or, if PEFT is not imported yet, when it is imported."""
    guard_transformers()
    if _MODULE in sys.modules:
        _guard(sys.modules[_MODULE])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _guard(peft_model: Any) -> None:
    load = peft_model.set_peft_model_state_dict
    if hasattr(load, "guards_couplings"):
        return

    @functools.wraps(load)
    def set_peft_model_state_dict(
        model: nn.Module, weights: dict[str, Tensor], adapter_name: str = "default", *args: Any, **kwargs: Any
    ) -> Any:
        check_adapter(model, weights)
        if len(getattr(model, "peft_config", ())) > 1:  # the new adapter is already included
            check_other_adapters(model, weights, adapter_name)
        return load(model, weights, adapter_name, *args, **kwargs)

    collect = peft_model.get_peft_model_state_dict
    read = peft_model.load_peft_weights

    @functools.wraps(read)
    def load_peft_weights(model_id: str, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        from safetensors import SafetensorError

        try:
            return read(model_id, *args, **kwargs)
        except SafetensorError as error:
            raise CoupledQKError(f"the adapter {model_id} is damaged ({error}): save or download it again") from None

    @functools.wraps(collect)
    def get_peft_model_state_dict(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        saved = collect(model, *args, **kwargs)
        return saved | frozen_couplings(model, saved)

    set_peft_model_state_dict.guards_couplings = True  # pyright: ignore[reportAttributeAccessIssue]
    peft_model.set_peft_model_state_dict = set_peft_model_state_dict
    peft_model.get_peft_model_state_dict = get_peft_model_state_dict
    peft_model.load_peft_weights = load_peft_weights
    _guard_settings(sys.modules["peft.config"])


def _guard_settings(config: Any) -> None:
    parse = config.PeftConfigMixin.from_json_file.__func__

    @functools.wraps(parse)
    def from_json_file(cls: type, path_json_file: str, **kwargs: Any) -> dict[str, Any]:
        try:
            return parse(cls, path_json_file, **kwargs)
        except ValueError as error:  # not JSON, or not text
            raise CoupledQKError(f"{path_json_file} is damaged ({error}): save or download the adapter again") from None

    config.PeftConfigMixin.from_json_file = classmethod(from_json_file)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Guards PEFT after its import. The other finders locate the module."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _guard(module)

        spec.loader.exec_module = exec_module
        return spec
