"""`couple`: coupled query-key dynamics for a model of transformers that exists already.

Each attention module gets a submodule `coupling`, our dynamics, between its projections (with normalisation, where it has
one) and RoPE. It starts as the exact identity, so the model computes what it did until the coupling is trained.
"""

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from torch import nn

from ..config import DynamicsConfig
from ..dynamics import METHODS, build_dynamics
from ..errors import CoupledQKError, unknown
from ..schema import change
from ..variants import VARIANTS
from .architectures import attention_modules, head_shape
from .interception import NAME, CoupledView, Intercept, coupled_attention
from .settings import mark, unmark
from .versions import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def couple(model: "PreTrainedModel", variant: str = "euler", **settings: Any) -> "PreTrainedModel":
    """Adds coupled dynamics to every attention module of `model`, in place, and returns it.

    `variant` names the dynamics and `settings` change them: `couple(model, "hamiltonian", n_steps=1)`. The outputs stay the
    same to the bit until the new parameters are trained. What was frozen stays frozen; the new parameters are not.
    """
    dynamics = dynamics_of(variant, settings)
    attach(model, build_couplings(model, dynamics), dynamics)
    return model


def uncouple(model: "PreTrainedModel") -> "PreTrainedModel":
    """Takes the coupling out again, with its parameters, and returns the model."""
    for module in coupled_modules(model).values():
        module._coupling_hook.remove()
        module.config = module.config.original
        del module.coupling, module._coupling_hook
    unmark(model)
    return model


def dynamics_of(variant: str, settings: dict[str, Any]) -> DynamicsConfig:
    """The dynamics of a variant, with a gate where they do not start as the identity by themselves."""
    if variant not in VARIANTS:
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


def build_couplings(model: "PreTrainedModel", dynamics: DynamicsConfig) -> dict[str, nn.Module]:
    """A coupling for each attention module, by the module's name, like it in dtype and device; not attached yet."""
    _check_model(model)
    couplings = {}
    for name, module in attention_modules(model).items():
        if isinstance(module.config, CoupledView):
            raise CoupledQKError(f"this {type(model).__name__} is coupled already: call uncouple(model) first")
        coupling = build_dynamics(dynamics, *head_shape(module))
        couplings[name] = coupling.to(next(module.parameters()).device, model.dtype).train(module.training)
    return couplings


def attach(model: "PreTrainedModel", couplings: dict[str, nn.Module], dynamics: DynamicsConfig) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, coupled_attention)
    _give_own_config(model)
    for name, coupling in couplings.items():
        module: Any = model.get_submodule(name)
        module.coupling = coupling
        module.config = CoupledView(module.config)
        module._coupling_hook = module.register_forward_pre_hook(Intercept(module), with_kwargs=True)
    mark(model, dynamics)


def coupled_modules(model: "PreTrainedModel") -> dict[str, Any]:
    """The coupled attention modules by name; an error if there are none."""
    _check_model(model)
    found = {name: module for name, module in model.named_modules() if is_coupled(module)}
    if not found:
        raise CoupledQKError(f"this {type(model).__name__} is not coupled: call couple(model) first")
    return found


def is_coupled(module: nn.Module) -> bool:
    return isinstance(getattr(module, "config", None), CoupledView)


def _check_model(model: Any) -> None:
    require_transformers()
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        peft = hasattr(model, "peft_config")
        remedy = "couple the base model first, then call get_peft_model" if peft else "pass the model itself, unwrapped"
        raise CoupledQKError(f"a {type(model).__name__} is not a model of transformers: {remedy}")


def _give_own_config(model: "PreTrainedModel") -> None:
    """Other models may have been built from the same configuration object; they keep it."""
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if vars(module).get("config") is shared:
            vars(module)["config"] = own
