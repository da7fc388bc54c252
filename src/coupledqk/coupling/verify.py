"""The self-check of `couple`: verifies that the coupling works in an unknown architecture as in the tested ones.

A small model of the same configuration gets random weights and a coupling. The properties in the second group are first checked
on the uncoupled small model; the coupled one must keep those that it has.

identity            a new coupling changes no bit of the output, under sdpa and eager attention
effect              a random coupling changes the output
gradients           every parameter of every coupling has a finite gradient, and it is not zero

decoding            token by token with the cache gives the same output as the whole sequence
left padding        padding changes nothing for the real tokens
relative positions  shifting all positions changes nothing (RoPE)

Then one attention module of the model itself must pass identity and gradients, with its own weights, device and dtype.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..config import DynamicsConfig
from ..errors import CoupledQKError, unknown
from .architectures import is_verified
from .couple import attach, build_coupling, build_couplings, change_class, coupled_modules, uncouple
from .small import LENGTH, InputError, accepts, backbone, example_inputs, randomize, small_model
from .versions import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Inputs = dict[str, Tensor]

TOLERANCE = 1e-3
"""Tolerance relative to the largest output: rounding in float32 gives differences of 1e-6, an error at least 1e-2."""
PADDING, SHIFT = 4, 19


class CheckError(Exception):
    """A coupled model failed a check; the message names it."""


def needs_check(modules: Iterable[nn.Module], verify: str) -> bool:
    choices = ("auto", "always", "never")
    if verify not in choices:
        raise unknown("verify", verify, choices)
    return verify == "always" or (verify == "auto" and not all(map(is_verified, modules)))


def is_quantized(module: nn.Module) -> bool:
    """Whether a weight in the module is not a plain floating-point tensor. Some such weights do not propagate gradients."""
    weights = [weight for child in module.modules() if (weight := getattr(child, "weight", None)) is not None]
    return not all(type(weight) in (nn.Parameter, Tensor) and weight.is_floating_point() for weight in weights)


def check_architecture(model: "PreTrainedModel", dynamics: DynamicsConfig) -> None:
    """Raises an error unless a small model of the same configuration passes the checks."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), quiet():
        torch.default_generator.manual_seed(0)
        try:
            small = small_model(model)
            inputs = example_inputs(small)
            states(small, inputs)
        except InputError as error:
            raise _refusal(model, str(error)) from None
        except Exception as error:
            raise _refusal(model, f"could not run a small model of its configuration ({_first_line(error)})") from None
        try:
            run_checks(small, inputs, dynamics)
        except CheckError as failed:
            raise _refusal(model, str(failed)) from None
        except Exception as error:
            raise _refusal(model, f"could not run it coupled ({_first_line(error)})") from None


def check_layer(model: "PreTrainedModel") -> None:
    """Raises an error unless the first coupled module passes the checks, with a new coupling in place of its own."""
    name, module = next(iter(coupled_modules(model).items()))
    own = module.coupling
    with torch.random.fork_rng(devices=[]), _evaluating(model):
        try:
            args, kwargs = _arguments_of(module, backbone(model))
        except Exception as error:
            raise _refusal(model, f"could not run {name} ({_first_line(error)})") from None
        try:
            module.coupling = build_coupling(model, module, module.coupling_dynamics)
            _check_module(module, lambda: module(*args, **kwargs)[0])
        except CheckError as failed:
            remedy = (
                ", whose weights are quantized: couple the model before quantizing it" if is_quantized(module) else ""
            )
            raise _refusal(model, f"{failed}, in {name}{remedy}") from None
        except Exception as error:
            raise _refusal(model, f"could not run {name} coupled ({_first_line(error)})") from None
        finally:
            module.coupling = own


def run_checks(model: Any, inputs: Inputs, dynamics: DynamicsConfig) -> list[str]:
    """Runs every check on a small model, which is uncoupled before and after, and returns the names of those that applied."""
    plain = _states_by_implementation(model, inputs)
    kept = [name for name, measure in PROPERTIES.items() if _has(measure, model, inputs)]
    if "decoding" not in kept and _has_cache(model, inputs):
        raise CheckError(
            "'decoding' has no baseline: the uncoupled model's cache does not give what the whole sequence gives"
        )
    attach(model, build_couplings(model, dynamics), dynamics)
    try:
        new = _states_by_implementation(model, inputs)
        for implementation, expected in plain.items():
            if implementation not in new or not torch.equal(new[implementation], expected):
                raise CheckError(f"'identity' failed: a new coupling changes the output under {implementation}")
        couplings = nn.ModuleList(module.coupling for module in coupled_modules(model).values())
        randomize(couplings)
        if _difference(states(model, inputs), next(iter(plain.values()))) < TOLERANCE:
            raise CheckError("'effect' failed: a random coupling does not change the output")
        _check_gradients(couplings, lambda: output(model, inputs))
        for name in kept:
            if not _has(PROPERTIES[name], model, inputs):
                raise CheckError(f"{name!r} failed: the uncoupled model has this property, the coupled one does not")
    finally:
        uncouple(model)
    return ["identity", "effect", "gradients", *kept]


def _check_module(module: Any, run: Callable[[], Tensor]) -> None:
    coupled = type(module)
    change_class(module, coupled.uncoupled_class)
    with torch.no_grad():
        plain = run()
        change_class(module, coupled)
        if not torch.equal(run(), plain):
            raise CheckError("'identity' failed: a new coupling changes the output")
    randomize(module.coupling)
    _check_gradients(module.coupling, run)


def _check_gradients(couplings: nn.Module, run: Callable[[], Tensor]) -> None:
    named = dict(couplings.named_parameters())
    with torch.enable_grad():
        loss = run().float().pow(3).sum()
    if not loss.requires_grad:
        raise CheckError("'gradients' failed: none reaches the coupling")
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, grad in zip(named, grads, strict=True):
        if grad is None or not grad.isfinite().all() or not grad.any():
            raise CheckError(f"'gradients' failed: that of {name} is zero or not finite")


def output(model: Any, inputs: Inputs, **kwargs: Any) -> Tensor:
    if accepts(model, "use_cache"):
        kwargs = {"use_cache": False, **kwargs}
    torch.default_generator.manual_seed(0)  # some models draw random numbers, such as ViTMAE for its mask
    return _states_of(model(**inputs, **kwargs))


def _states_of(out: Any) -> Tensor:
    states = getattr(out, "last_hidden_state", None)
    return out[0] if states is None else states


@torch.no_grad()
def states(model: Any, inputs: Inputs, **kwargs: Any) -> Tensor:
    return output(model, inputs, **kwargs)


def decoding(model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
    tokens, cache, steps = inputs["input_ids"], None, []
    with torch.no_grad():
        for chunk in tokens.split([LENGTH // 2] + [1] * (LENGTH - LENGTH // 2), dim=1):
            out = model(input_ids=chunk, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(_states_of(out))
    return torch.cat(steps, dim=1), states(model, inputs)


def left_padding(model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
    tokens = inputs["input_ids"]
    real = torch.ones_like(tokens)
    real[0, :PADDING] = 0
    kwargs = {}
    if accepts(model, "position_ids"):
        kwargs["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    padded = states(model, {"input_ids": tokens}, attention_mask=real, **kwargs)
    return padded[:1, PADDING:], states(model, {"input_ids": tokens[:1, PADDING:]})


def relative_positions(model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
    positions = torch.arange(LENGTH)[None]
    return states(model, inputs, position_ids=positions + SHIFT), states(model, inputs, position_ids=positions)


PROPERTIES: dict[str, Callable[[Any, Inputs], tuple[Tensor, Tensor]]] = {
    "decoding": decoding,
    "left padding": left_padding,
    "relative positions": relative_positions,
}
"""Checks by name. Each returns two outputs, which are equal in a model with the property."""


def _has(measure: Callable[[Any, Inputs], tuple[Tensor, Tensor]], model: Any, inputs: Inputs) -> bool:
    """Whether a model has a property. A model that cannot be run that way does not: for example, an encoder cannot decode."""
    try:
        one, other = measure(model, inputs)
    except Exception:
        return False
    return one.shape == other.shape and _difference(one, other) < TOLERANCE


def _has_cache(model: Any, inputs: Inputs) -> bool:
    if "input_ids" not in inputs or not accepts(model, "past_key_values"):
        return False
    try:
        with torch.no_grad():
            return model(**inputs, use_cache=True).past_key_values is not None
    except ValueError:  # raised by an encoder whose class is also used for decoders, such as T5Stack
        return False
    except Exception as error:
        raise CheckError(f"could not run the uncoupled model with its cache ({_first_line(error)})") from None


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference relative to the largest value; infinite if an output is not finite."""
    error = ((one - other).abs().max() / other.abs().max()).item()
    return error if error == error else float("inf")


def _states_by_implementation(model: Any, inputs: Inputs) -> dict[str, Tensor]:
    """Final states by attention implementation: the selected one, and eager attention if the model supports it."""
    chosen = model.config._attn_implementation
    found = {chosen: states(model, inputs)}
    if chosen != "eager":
        model.set_attn_implementation("eager")
        with contextlib.suppress(Exception):
            found["eager"] = states(model, inputs)
        model.set_attn_implementation(chosen)
    return found


class _ReachedError(Exception):
    pass


def _arguments_of(module: nn.Module, model: Any) -> tuple[tuple, dict[str, Any]]:
    """The arguments that the model passes to the module in a forward pass, which is aborted there."""
    found: list[Any] = []

    def stop(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        found.extend((args, kwargs))
        raise _ReachedError

    hook = module.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        states(model, example_inputs(model, batch=1))
    except _ReachedError:
        return found[0], found[1]
    finally:
        hook.remove()
    raise ValueError("a forward pass does not reach it")


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _refusal(model: "PreTrainedModel", why: str) -> CoupledQKError:
    return CoupledQKError(
        f'{type(model).__name__} cannot be coupled: the self-check {why}; verify="never" skips the check'
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
