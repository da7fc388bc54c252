"""Builds a small model from the configuration of a large one, and inputs for it, for the self-check of `couple`."""

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .architectures import tower

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCABULARY = 64
LENGTH = 12

_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_WIDTHS = {  # upper bounds of widths outside of attention
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size"), 64
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    "vocab_size": VOCABULARY,
}


class InputError(Exception):
    """An input of a model cannot be generated; the message names it."""


def backbone(model: "PreTrainedModel") -> Any:
    """The coupled part of a model without its head; with it if the inner model has no embedding, as in DINOv3."""
    whole: Any = tower(model)
    return whole if input_name(whole.base_model) is None else whole.base_model


def small_model(model: "PreTrainedModel") -> Any:
    """A small model without a head, with the attention heads, RoPE, norms and kinds of layers of `model` and random weights."""
    base = backbone(model)
    attention = "sdpa" if base._supports_sdpa else "eager"
    try:
        small = type(base)._from_config(small_config(base.config, _WIDTHS), attn_implementation=attention)
    except Exception:  # some widths depend on others
        small = type(base)._from_config(small_config(base.config, {}), attn_implementation=attention)
    randomize(small)
    return small.float().eval()


def small_config(config: Any, widths: dict[str, int]) -> Any:
    """The configuration with at least two layers, one of each kind, and with widths of at most `widths`."""
    table = config.to_dict()
    depth = next((table[name] for name in _DEPTH if isinstance(table.get(name), int)), 0)
    lists = {name: value for name, value in table.items() if isinstance(value, list) and len(value) == depth}
    kinds = [tuple(str(value[i]) for value in lists.values()) for i in range(depth)]
    kept = sorted({kinds.index(kind) for kind in kinds} | set(range(min(depth, 2))))
    table |= {name: len(kept) for name in _DEPTH if table.get(name) == depth}
    table |= {name: [value[i] for i in kept] for name, value in lists.items()}
    table |= {name: min(size, table[name]) for name, size in widths.items() if isinstance(table.get(name), int)}
    if "vocab_size" in widths:
        ids = {name: value for name, value in table.items() if name.endswith("_token_id") and isinstance(value, int)}
        table |= {name: min(value, VOCABULARY - 1) for name, value in ids.items()}
    return type(config).from_dict(table)


@torch.no_grad()
def randomize(module: nn.Module) -> None:
    """Randomises all weights, norms and biases included: norms of 1 would hide a norm on the wrong side of a rotation.

    Random numbers are drawn on the CPU, since the self-check restores no other generator.
    """
    for parameter in module.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, device="cpu").to(parameter)
            matrix = parameter.ndim > 1
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if matrix else parameter + 0.5 * noise)


def input_name(model: Any) -> str | None:
    """The name of the model's main input, if the self-check can generate it. Some classes inherit a wrong `main_input_name`."""
    known = ("input_ids", "pixel_values", "input_features", "input_values")
    return next((name for name in (model.main_input_name, *known) if name in known and accepts(model, name)), None)


def example_inputs(model: Any, batch: int = 2) -> dict[str, Tensor]:
    """Random tokens, pixels or audio for a model without a head, as its main input."""
    config, name = model.config, input_name(model)
    parameters = inspect.signature(model.forward).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if name is None or set(required) - {name}:
        others = ", ".join(other for other in required if other != name) or model.main_input_name
        raise InputError(f"cannot generate its input {others}")
    generator = torch.Generator().manual_seed(0)
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))  # meta: offloaded
    try:
        if name == "input_ids":
            high = min(VOCABULARY, config.vocab_size)
            return {name: torch.randint(2, high, (batch, LENGTH), generator=generator).to(device)}
        values = torch.randn(batch, *_shape(name, config), generator=generator)
    except AttributeError as error:  # the configuration lacks a setting
        raise InputError(f"cannot generate its {name} ({error})") from None
    return {name: values.to(device, model.dtype)}


def _shape(name: str, config: Any) -> tuple[int, ...]:
    """The shape of one image or recording."""
    if name == "pixel_values":
        size = config.image_size
        return getattr(config, "num_channels", 3), *((size, size) if isinstance(size, int) else size)
    if name == "input_features":
        return config.num_mel_bins, 2 * config.max_source_positions
    if hasattr(config, "conv_stride"):  # samples, as in Wav2Vec2
        return ((LENGTH + 1) * math.prod(config.conv_stride),)
    return config.max_length, config.num_mel_bins


def accepts(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
