"""Which attention modules of transformers can be coupled, and why the others cannot.

The list is closed: a module is coupled only if the tests hold it to its uncoupled self. One that merely looks alike could
decode wrongly in silence.
"""

import sys
from typing import TYPE_CHECKING, Any

from torch import nn

from ..errors import CoupledQKError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ARCHITECTURES: dict[str, str] = {
    "cohere": "CohereAttention",
    "gemma2": "Gemma2Attention",
    "gemma3": "Gemma3Attention",
    "gpt2": "GPT2Attention",
    "gpt_neox": "GPTNeoXAttention",
    "granite": "GraniteAttention",
    "llama": "LlamaAttention",
    "ministral": "MinistralAttention",
    "mistral": "MistralAttention",
    "mixtral": "MixtralAttention",
    "olmo2": "Olmo2Attention",
    "olmo3": "Olmo3Attention",
    "opt": "OPTAttention",
    "phi": "PhiAttention",
    "phi3": "Phi3Attention",
    "qwen2": "Qwen2Attention",
    "qwen3": "Qwen3Attention",
    "qwen3_moe": "Qwen3MoeAttention",
    "smollm3": "SmolLM3Attention",
    "stablelm": "StableLmAttention",
    "starcoder2": "Starcoder2Attention",
}
"""transformers' name of each architecture that can be coupled, with its attention class."""

_CLASSES = {(f"transformers.models.{name}.modeling_{name}", kind): name for name, kind in ARCHITECTURES.items()}


def attention_modules(model: "PreTrainedModel") -> dict[str, nn.Module]:
    """Every attention module by name; an error unless all of them can be coupled."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    found = {name: module for name, module in modules.items() if type(module).__name__.endswith("Attention")}
    for module in found.values():
        obstacle = _obstacle(module)
        if obstacle:
            raise CoupledQKError(
                f"{type(model).__name__} cannot be coupled: its {type(module).__name__} {obstacle}. "
                f"These architectures can: {', '.join(ARCHITECTURES)}"
            )
    if not found:
        raise CoupledQKError(
            f"{type(model).__name__} cannot be coupled: it has no attention module. "
            f"These architectures can: {', '.join(ARCHITECTURES)}"
        )
    return found


def _obstacle(module: Any) -> str | None:
    if getattr(module, "is_cross_attention", False):
        return "is cross-attention, where queries and keys belong to different tokens"
    if (type(module).__module__, type(module).__name__) in _CLASSES:
        # GPT-2 computes this one itself, past the attention interface
        upcast = getattr(module, "reorder_and_upcast_attn", False)
        return "has reorder_and_upcast_attn set, which goes past the attention interface" if upcast else None
    if hasattr(module, "kv_lora_rank"):
        return "is latent attention (MLA): its keys are rebuilt from a compressed cache"
    if hasattr(module, "is_kv_shared_layer") or hasattr(module, "kv_shared_layer_index"):
        return "takes its keys from another layer"
    if not hasattr(sys.modules[type(module).__module__], "ALL_ATTENTION_FUNCTIONS"):
        return "does not use transformers' attention interface, so nothing can be put before its scores"
    return "is not among those tested"


def head_shape(module: Any) -> tuple[int, int]:
    """Width of a head and number of key heads."""
    config = module.config
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return getattr(module, "head_dim", None) or module.head_size, key_heads


def rotates(module: Any) -> bool:
    """Whether the module turns its queries and keys by the positions it is given; SmolLM3 has layers that do not."""
    return bool(getattr(module, "use_rope", True))
