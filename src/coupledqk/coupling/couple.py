"""`couple`: adds coupled query-key dynamics to an existing model of transformers.

Each attention module gets a submodule `coupling`, our dynamics, between its projections (with their normalisation, if any) and
RoPE. It starts as the exact identity, so the output of the model does not change until the coupling is trained.
"""

import dataclasses
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..config import DynamicsConfig
from ..dynamics import METHODS, build_dynamics
from ..errors import CoupledQKError, unknown
from ..schema import change
from ..variants import VARIANTS
from .architectures import attention_modules, head_shape
from .insertion import CoupledModule, coupled_class
from .settings import record
from .versions import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Verify = Literal["auto", "always", "never"]


def couple(
    model: "PreTrainedModel", variant: str = "euler", *, verify: Verify = "auto", **settings: Any
) -> "PreTrainedModel":
    """Adds coupled dynamics to every attention module of `model`, in place, and returns it.

    `variant` is the name of the dynamics, and `settings` change them: `couple(model, "hamiltonian", n_steps=1)`. The outputs
    remain bit-identical until the new parameters are trained. Frozen parameters stay frozen; the new parameters are trainable.

    With `verify="auto"`, attention classes other than the tested ones are checked first (`coupledqk.coupling.verify`); with
    "always" all classes are checked, with "never" none. A model that fails the check is refused and not changed.
    """
    return couple_by(model, dynamics_of(variant, settings), verify)


def couple_by(model: "PreTrainedModel", dynamics: DynamicsConfig, verify: Verify = "auto") -> "PreTrainedModel":
    """Like `couple`, for dynamics that start as the identity, with a gate if necessary."""
    check_materialized(model)
    attach_verified(model, build_couplings(model, dynamics), dynamics, verify)
    return model


def uncouple(model: "PreTrainedModel") -> "PreTrainedModel":
    """Removes the coupling and its parameters, and returns the model."""
    for module in require_coupled(model).values():
        change_class(module, module.uncoupled_class)
        del module.coupling, module.coupling_dynamics
    return model


def attach_verified(
    model: "PreTrainedModel", couplings: dict[str, nn.Module], dynamics: DynamicsConfig, verify: Verify
) -> None:
    """Attaches the couplings. If the self-check fails, the model is restored."""
    if any(p.is_meta for coupling in couplings.values() for p in coupling.parameters()):
        raise CoupledQKError('the coupling was built on the meta device: couple outside of `with torch.device("meta")`')
    attach(model, couplings, dynamics)
    try:
        verify_attached(model, dynamics, verify)
    except CoupledQKError:
        uncouple(model)
        raise


@torch.inference_mode(False)
def verify_attached(model: "PreTrainedModel", dynamics: DynamicsConfig, verify: Verify) -> None:
    from .verify import check_architecture, check_layer, is_quantized, needs_check

    for part in coupled_parts(model):
        modules = coupled_modules(part).values()
        if checked := needs_check(modules, verify):
            check_architecture(part, dynamics)
        if checked or (verify == "auto" and any(map(is_quantized, modules))):
            check_layer(part)


def dynamics_of(variant: str, settings: dict[str, Any]) -> DynamicsConfig:
    """The dynamics of a variant, with a gate if they do not start as the identity."""
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    attention = VARIANTS[variant]
    if attention.dynamics.method == "none":
        raise CoupledQKError(f"variant {variant!r} has no dynamics to couple with: choose 'euler' or 'hamiltonian'")
    if attention != dataclasses.replace(VARIANTS["standard"], dynamics=attention.dynamics):
        raise CoupledQKError(
            f"variant {variant!r} changes more than the dynamics, but heads and scoring are the model's own: "
            f"choose {variant.partition('_')[0]!r}"
        )
    if "gate" in settings:
        raise CoupledQKError(f"gate={settings['gate']!r}: couple() sets the gate, so that the model starts as it is")
    dynamics = change(attention.dynamics, settings)
    return dynamics if METHODS[dynamics.method].starts_as_identity else dataclasses.replace(dynamics, gate=True)


@torch.inference_mode(False)
def build_couplings(
    model: "PreTrainedModel", dynamics: DynamicsConfig, names: Sequence[str] | None = None
) -> dict[str, nn.Module]:
    """A coupling for each attention module, or for those given by name, with its dtype and device. They are not
    attached, and can be trained even if they are built inside `torch.inference_mode()`."""
    check_model(model)
    if model.config.model_type == "coupledqk":
        raise CoupledQKError(
            f"a {type(model).__name__} has dynamics of its own: select them in its configuration, as in attention='euler'"
        )
    modules = attention_modules(model, names)
    if any(map(is_coupled, modules.values())):
        raise CoupledQKError(f"this {type(model).__name__} is coupled already: call uncouple(model) first")
    return {name: build_coupling(model, module, dynamics) for name, module in modules.items()}


def build_coupling(model: "PreTrainedModel", module: nn.Module, dynamics: DynamicsConfig) -> nn.Module:
    coupling = build_dynamics(dynamics, *head_shape(module))
    record(coupling, dynamics)
    # inside from_pretrained, modules are built on the meta device and filled later
    is_meta = any(p.is_meta for p in coupling.parameters())
    device = torch.device("meta") if is_meta else _device(module, model)
    return coupling.to(device, _dtype(model)).train(module.training)


def attach(model: "PreTrainedModel", couplings: dict[str, nn.Module], dynamics: DynamicsConfig) -> None:
    for name, coupling in couplings.items():
        module: Any = model.get_submodule(name)
        module.coupling, module.coupling_dynamics = coupling, dynamics
        change_class(module, coupled_class(type(module)))


def coupled_modules(model: nn.Module) -> dict[str, Any]:
    """The coupled attention modules by name; empty for a model that is not coupled."""
    return {name: module for name, module in model.named_modules() if is_coupled(module)}


def coupled_parts(model: Any) -> list[Any]:
    """The models passed to `couple`: the model itself, or parts of it, such as T5's encoder or both towers of CLIP."""
    from transformers import PreTrainedModel

    if is_coupled_whole(model):
        return [model]
    inner = {name: part for name, part in model.named_modules() if name and isinstance(part, PreTrainedModel)}
    outermost = [part for name, part in inner.items() if not any(name.startswith(f"{other}.") for other in inner)]
    inside = [part for candidate in outermost if coupled_modules(candidate) for part in coupled_parts(candidate)]
    return inside or [model]


def is_coupled_whole(model: "PreTrainedModel") -> bool:
    """Whether exactly those modules are coupled that `couple(model)` would couple."""
    try:
        return list(attention_modules(model)) == list(coupled_modules(model))
    except CoupledQKError:
        return False


def require_coupled(model: "PreTrainedModel") -> dict[str, Any]:
    """Like `coupled_modules`, but raises if there are none."""
    check_model(model)
    found = coupled_modules(model)
    if not found:
        raise CoupledQKError(f"this {type(model).__name__} is not coupled: call couple(model) first")
    return found


def common_dynamics(modules: dict[str, Any]) -> DynamicsConfig:
    """The dynamics of coupled modules. Raises if they differ, because files contain one table of settings."""
    dynamics = next(iter(modules.values())).coupling_dynamics
    if any(module.coupling_dynamics != dynamics for module in modules.values()):
        raise CoupledQKError("parts of this model are coupled with different settings: save each part on its own")
    return dynamics


def is_coupled(module: nn.Module) -> bool:
    return isinstance(module, CoupledModule)


def check_materialized(model: "PreTrainedModel") -> None:
    """Raises an error if weights are on the meta device. Offloaded weights, which a hook loads for each use, are allowed."""
    check_model(model)
    hooked = {id(p) for m in model.modules() if hasattr(m, "_hf_hook") for p in m.parameters()}
    if any(p.is_meta and id(p) not in hooked for p in model.parameters()):
        raise CoupledQKError(
            f"this {type(model).__name__} is on the meta device and has no weights: load them, then couple"
        )


def check_model(model: Any) -> None:
    require_transformers()
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        peft = hasattr(model, "peft_config")
        remedy = (
            "pass model.get_base_model(); to couple it, do so before get_peft_model"
            if peft
            else "pass the model itself"
        )
        raise CoupledQKError(f"a {type(model).__name__} is not a model of transformers: {remedy}")


def change_class(module: Any, kind: type[nn.Module]) -> None:
    """Changes the class of a module, even if accelerate has wrapped the bound `forward` of the old class in a hook."""
    old = type(module).forward
    module.__class__ = kind
    for name, value in list(vars(module).items()):
        if isinstance(value, types.MethodType) and value.__func__ is old:
            setattr(module, name, types.MethodType(kind.forward, module))


def _device(module: nn.Module, model: "PreTrainedModel") -> torch.device:
    """The device on which the module computes, which differs from that of offloaded weights."""
    hooks = (getattr(part, "_hf_hook", None) for part in module.modules())
    devices = [device for hook in hooks if (device := getattr(hook, "execution_device", None)) is not None]
    return torch.device(devices[0]) if devices else next((p.device for p in module.parameters()), model.device)


def _dtype(model: "PreTrainedModel") -> torch.dtype:
    """The dtype of the model's activations, which differs from that of quantized weights."""
    usual = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    return next((dtype for dtype in (model.dtype, *(p.dtype for p in model.parameters())) if dtype in usual), usual[0])
