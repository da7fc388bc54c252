"""Models of transformers, tiny, one of each architecture that can be coupled."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

transformers: Any = pytest.importorskip("transformers")

from coupledqk.hf.couple import couple  # noqa: E402

COMMON = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.4}
SMALL = {
    **COMMON,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "cohere": GROUPED | {"use_qk_norm": True},
    "gemma2": GROUPED | {"head_dim": 8, "sliding_window": 6},
    "gemma3": GROUPED | {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": COMMON | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": SMALL,
    "granite": GROUPED,
    "llama": GROUPED,
    "ministral": GROUPED | {"head_dim": 8},
    "mistral": GROUPED | {"sliding_window": 6},
    "mixtral": GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1},
    "olmo2": GROUPED,
    "olmo3": GROUPED | {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "opt": SMALL | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4},
    "phi": GROUPED | {"partial_rotary_factor": 0.5},
    "phi3": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 16},
    "qwen3_moe": GROUPED | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    "smollm3": GROUPED | {"no_rope_layers": [1, 0]},
    "stablelm": GROUPED | {"partial_rotary_factor": 0.25},
    "starcoder2": GROUPED,
}
every_architecture = pytest.mark.parametrize("architecture", CONFIGS)


@functools.cache
def built(architecture: str) -> Any:
    torch.manual_seed(0)
    name = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    config = transformers.AutoConfig.for_model(name, **CONFIGS[architecture])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def fresh(architecture: str = "llama") -> Any:
    return copy.deepcopy(built(architecture))


@torch.no_grad()
def wake(model: Any) -> Any:
    """Opens the gates, and gives the forces weights that matter."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".coupling." in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else parameter + noise)
    return model


def coupled(architecture: str = "llama", variant: str = "euler", **settings: Any) -> Any:
    return wake(couple(fresh(architecture), variant, **settings))


def tokens(*shape: int) -> Tensor:
    return torch.randint(2, 61, shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model: Any, ids: Tensor, **kwargs: Any) -> Tensor:
    return model(input_ids=ids, use_cache=False, **kwargs).logits
