"""How the coupling gets between an attention module's projections and its scores, without a change to the module's code.

A module of transformers projects, normalises, rotates (RoPE), updates the cache, and calls the attention function that its
configuration names. The coupling belongs before the rotation, and its keys into the cache. So of a coupled module

- a pre-hook lets rotation and cache update pass without effect, and sends what they need along as an argument,
- the configuration names the attention function below, which has q and k of the same tokens: it moves them, then rotates,
  updates the cache and calls the function that was configured (sdpa, eager, flash, flex, ...).

All of it belongs to the one model; calls share no state.
"""

import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from .architectures import rotates

NAME = "coupledqk"
"""Of the attention function among those of transformers."""


class CoupledView:
    """The model's configuration as its attention modules read it: the same, but for the attention function's name."""

    _attn_implementation = NAME

    def __init__(self, config: Any) -> None:
        self.original = config

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.original, name)


class Deferred:
    """What one call of an attention module was given and did not get: its cache and its rotation."""

    def __init__(self, cache: Any, rotation: tuple[Tensor, Tensor] | None) -> None:
        self.cache, self.rotation = cache, rotation

    def update(self, k: Tensor, v: Tensor, *unused: object) -> tuple[Tensor, Tensor]:
        """Stands in for the cache's own."""
        return k, v


class Neutral:
    """A factor of 1 or a term of 0 that costs nothing: `x * one` is x, `x * zero` is zero, and `x + zero` is x.

    It goes where RoPE takes the cosines and sines of its angles, and has what the modules ask of those.
    """

    def __init__(self, value: int, shape: torch.Size) -> None:
        self.value, self.shape = value, shape

    def unsqueeze(self, dim: int) -> "Neutral":
        return self

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        x, neutral = args
        adds = function is Tensor.add
        assert (adds and neutral.value == 0) or function is Tensor.mul, f"{function} in RoPE"
        return x if adds or neutral.value == 1 else neutral


def stand_still(cos: Tensor, sin: Tensor) -> tuple[Any, Any]:
    """What turns by no angle at all."""
    if torch.compiler.is_compiling() or not cos.is_cpu:  # compilers and kernels know tensors only
        return torch.ones_like(cos), torch.zeros_like(sin)
    return Neutral(1, cos.shape), Neutral(0, sin.shape)


class Intercept:
    """The pre-hook. A class, so that a coupled model can be copied and pickled."""

    def __init__(self, module: nn.Module) -> None:
        self.names = list(inspect.signature(module.forward).parameters)
        self.cache_name = "layer_past" if "layer_past" in self.names else "past_key_values"
        self.rotates = rotates(module)

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        kwargs = dict(zip(self.names, args, strict=False)) | kwargs
        cache, rotation = kwargs.get(self.cache_name), kwargs.get("position_embeddings")
        kwargs["deferred"] = deferred = Deferred(cache, rotation if self.rotates else None)
        if cache is not None:
            kwargs[self.cache_name] = deferred
        if rotation is not None:
            kwargs["position_embeddings"] = stand_still(*rotation)
        return (), kwargs


def coupled_attention(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, *, deferred: Deferred, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention function of coupled modules; q is (B, H, T, d), k and v (B, H_kv, T, d)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    q, k = module.coupling(q.transpose(1, 2), k.transpose(1, 2))
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    code = sys.modules[type(module).__module__]
    if deferred.rotation is not None:
        q, k = _rotate(code.apply_rotary_pos_emb, q, k, *deferred.rotation)
    if deferred.cache is not None:
        k, v = deferred.cache.update(k, v, module.layer_idx)
    uncoupled = Uncoupled(module)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(uncoupled.config._attn_implementation, code.eager_attention_forward)
    return attend(uncoupled, q, k, v, mask, **kwargs)


class Uncoupled:
    """An attention module with the configuration it had: flash attention looks up there which of its kernels is meant."""

    def __init__(self, module: Any) -> None:
        self.module, self.config = module, module.config.original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _rotate(apply: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The module's own RoPE, which may turn only the first coordinates."""
    n = cos.shape[-1]
    if n == q.shape[-1]:
        return apply(q, k, cos, sin)
    new_q, new_k = apply(q[..., :n], k[..., :n], cos, sin)
    return torch.cat((new_q, q[..., n:]), dim=-1), torch.cat((new_k, k[..., n:]), dim=-1)
