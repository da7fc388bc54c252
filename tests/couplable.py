"""Tiny models of transformers: 32 wide, two layers, 64 tokens, one for each architecture that can be coupled."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

transformers: Any = pytest.importorskip("transformers")

from coupledqk.coupling.couple import couple  # noqa: E402

SMALL: dict[str, Any] = {
    **{"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.4},
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "block_size"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_shared_experts", "n_shared_experts"), 1),
    **{"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "init_std": 0.4, "rotary_dim": 4},
    **{"cross_attention_layers": [1], "image_size": 32, "depth": 2, "out_hidden_size": 32},
    **{"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_d_ssm": 64, "mamba_n_groups": 1},
}
"""Settings of small models, under every name that configurations use for them."""

_DECODING_ENCODERS = """
    bert bert-generation camembert data2vec-text electra ernie roberta roberta-prelayernorm roc_bert xlm-roberta xlm-roberta-xl
"""
HYBRID = ["linear_attention", "full_attention"]
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 1, "expert_layer_offset": 0},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "zaya": {"num_experts_per_tok": 1},
    **{name: {"is_decoder": True} for name in _DECODING_ENCODERS.split()},
}
"""Settings of single architectures."""

_NAMES = """
    afmoe apertus arcee aria_text beam bert bert-generation biogpt bitnet camembert cohere cohere2 cohere2_moe ctrl
    cwm data2vec-text diffllama doge dots1 electra emu3 ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon_h1
    flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text glm glm4 glm4_moe got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neox
    gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium hunyuan_v1_dense
    hunyuan_v1_moe hy_v3 hyperclovax inkling2_text inkling_text internlm3 iquestcoder jais2 jamba jetmoe kolibri1
    laguna lfm2 lfm2_moe lfm3 llama llama4 llama4_text mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text
    ministral ministral3 mistral mixtral modernbert-decoder moss_transcribe_diarize nanochat nemotron olmo olmo2 olmo3
    olmo_hybrid olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text
    qwen3_5_text qwen3_moe qwen3_next roberta roberta-prelayernorm roc_bert seed_oss smollm3 solar_open stablelm
    starcoder2 vaultgemma xlm-roberta xlm-roberta-xl zaya
"""
ARCHITECTURES = _NAMES.split()
"""Model types of causal language models in transformers; its other causal language models are refused, see docs/coupling.md."""
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def tiny_config(architecture: str, **settings: Any) -> Any:
    """The default configuration with small sizes. Of lists with one entry per layer, the first and the last are kept."""
    return _tiny(transformers.CONFIG_MAPPING[architecture], **SPECIAL.get(architecture, {}) | settings)


def _tiny(kind: Any, **settings: Any) -> Any:
    default = kind()
    depth = getattr(default, "num_hidden_layers", 0)
    lists = {
        name: [value[0], value[-1]]
        for name, value in default.to_dict().items()
        if isinstance(value, list) and len(value) == depth > 2
    }
    small = {name: value for name, value in SMALL.items() if hasattr(default, name)}
    parts = {name: type(part) for name in kind.sub_configs if (part := getattr(default, name, None)) is not None}
    return kind(**small | lists | {name: _tiny(part) for name, part in parts.items()} | settings)


_TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BLOCKS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGE = {**_BLOCKS, "image_size": 16, "patch_size": 4}
_AUDIO = {
    "d_model": 32,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 32,
    "decoder_start_token_id": 1,
}
_STACKS = {
    f"{part}_{name}": n
    for part in ("encoder", "decoder")
    for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {**_TEXT, **_BLOCKS}),
    "roberta": ("RobertaModel", {**_TEXT, **_BLOCKS}),
    "modernbert": ("ModernBertModel", {**_TEXT, **_BLOCKS, "cls_token_id": 1, "sep_token_id": 2}),
    "vit": ("ViTModel", _IMAGE),
    "dinov2": ("Dinov2Model", _IMAGE),
    "clip_text_model": ("CLIPTextModel", {**_TEXT, **_BLOCKS}),
    "clip_vision_model": ("CLIPVisionModel", _IMAGE),
    "whisper": ("WhisperModel", {**_TEXT, **_AUDIO, **_STACKS}),
}
"""Bidirectional models, and CLIP's text tower: the class and the settings of each. For Whisper, this is the encoder."""


@functools.cache
def built_tower(name: str) -> Any:
    kind, settings = TOWERS[name]
    settings = {key: value for key, value in settings.items() if key != "max_position_embeddings" or name != "whisper"}
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.CONFIG_MAPPING[name](initializer_range=0.4, **settings)).eval()
    return model.encoder if name == "whisper" else model


def fresh_tower(name: str) -> Any:
    return copy.deepcopy(built_tower(name))


def tiny_model(architecture: str, auto: str = "AutoModelForCausalLM") -> Any:
    torch.manual_seed(0)
    return getattr(transformers, auto).from_config(tiny_config(architecture)).eval()


built = functools.cache(tiny_model)


def fresh(architecture: str = "llama") -> Any:
    return copy.deepcopy(built(architecture))


@torch.no_grad()
def randomize_coupling(model: Any) -> Any:
    """Adds noise to the gates and step sizes of the couplings and randomizes their forces, so that they have an effect."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".coupling." in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else parameter + noise)
    return model


def coupled(architecture: str = "llama", variant: str = "euler", **settings: Any) -> Any:
    return randomize_coupling(couple(fresh(architecture), variant, **settings))


def tokens(*shape: int) -> Tensor:
    return torch.randint(2, 61, shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model: Any, ids: Tensor, **kwargs: Any) -> Tensor:
    return model(input_ids=ids, use_cache=False, **kwargs).logits
