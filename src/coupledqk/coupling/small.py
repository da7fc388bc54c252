"""Builds a small model from the configuration of a large one, and inputs for it, for the self-check of `couple`."""

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .architectures import tower

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCABULARY = 64
LENGTH = 12

_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_WIDTHS = {  # outside of attention
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size"), 64
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    "vocab_size": VOCABULARY,
}


def small_model(model: "PreTrainedModel") -> Any:
    """The architecture without its head: the heads, RoPE, norms and kinds of layers of the model, with random weights."""
    base: Any = tower(model).base_model
    attention = "sdpa" if base._supports_sdpa else "eager"
    try:
        small = type(base)._from_config(small_config(base.config, _WIDTHS), attn_implementation=attention)
    except Exception:  # some widths depend on others
        small = type(base)._from_config(small_config(base.config, {}), attn_implementation=attention)
    randomize(small)
    return small.float().eval()


def small_config(config: Any, widths: dict[str, int]) -> Any:
    """With at least two layers, one of each kind, and other widths where the configuration has them."""
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
    """Randomises all weights, norms and biases included: norms of 1 would hide a norm on the wrong side of a rotation."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            noise = torch.randn_like(parameter)
            matrix = parameter.ndim > 1
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if matrix else parameter + 0.5 * noise)


def example_inputs(model: Any, batch: int = 2) -> dict[str, Tensor]:
    """Random tokens, pixels or audio features for a model without a head, by the name of its main input."""
    config, name = model.config, model.main_input_name
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))  # meta: offloaded
    if name == "input_ids":
        high = min(VOCABULARY, config.vocab_size)
        return {name: torch.randint(2, high, (batch, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)}
    if name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        shape = (batch, config.num_channels, size, size)
    elif name == "input_features":
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
    else:
        raise ValueError(f"its main input is {name!r}, not input_ids, pixel_values or input_features")
    return {name: torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, model.dtype)}


def accepts(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
