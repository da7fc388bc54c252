"""Converts between our official flavour of differential attention and transformers' DiffLlama, which differ only in names.

    ours                          DiffLlama
    embed                         model.embed_tokens (and the tied lm_head)
    blocks.L.attn_norm            model.layers.L.input_layernorm
    blocks.L.attn.qkv             self_attn.q_proj | k_proj | v_proj, by rows
    blocks.L.attn.out             self_attn.o_proj
    blocks.L.attn.scoring.lam_q1  self_attn.lambda_q1 (and k1, q2, k2)
    blocks.L.ffn_norm             post_attention_layernorm
    blocks.L.ffn.gate_up          mlp.gate_proj | up_proj, by rows
    blocks.L.ffn.down             mlp.down_proj
    norm                          model.norm

The heads of DiffLlama are our sub-heads: there are twice as many, of half the width.
"""

from typing import Any

import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

from ..config import AttentionConfig, ModelConfig, ScoringConfig
from ..errors import CoupledQKError
from ..layers import RMS_EPS
from ..model import TransformerLM
from ..rope import THETA

OFFICIAL = ScoringConfig(kind="differential", flavour="official")

OF_A_LAYER = {
    "attn_norm.weight": ["input_layernorm.weight"],
    "attn.qkv.weight": ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
    "attn.out.weight": ["self_attn.o_proj.weight"],
    **{f"attn.scoring.lam_{x}": [f"self_attn.lambda_{x}"] for x in ("q1", "k1", "q2", "k2")},
    "ffn_norm.weight": ["post_attention_layernorm.weight"],
    "ffn.gate_up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "ffn.down.weight": ["mlp.down_proj.weight"],
}


def weight_map(n_layers: int) -> dict[str, list[str]]:
    """For each of our tensors, the names of the DiffLlama tensors whose rows it consists of."""
    names = {"embed.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"]}
    for layer in range(n_layers):
        for ours, theirs in OF_A_LAYER.items():
            names[f"blocks.{layer}.{ours}"] = [f"model.layers.{layer}.{name}" for name in theirs]
    return names


def to_diffllama(model: TransformerLM) -> DiffLlamaForCausalLM:
    """Converts our model to a DiffLlama with the same logits."""
    config = model.config
    if config.positions != "rope" or config.attention != official(config.attention.group_size):
        raise CoupledQKError(
            "only a model with differential scoring of the official flavour, no dynamics, no qk_norm and RoPE is a DiffLlama: "
            'preset(size, "diff", flavour="official", positions="rope")'
        )
    theirs = DiffLlamaForCausalLM(
        DiffLlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layers,
            num_attention_heads=2 * config.n_heads,
            num_key_value_heads=2 * config.n_heads // config.attention.group_size,
            max_position_embeddings=config.n_positions,
            rms_norm_eps=RMS_EPS,
            rope_parameters={"rope_type": "default", "rope_theta": THETA},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    weights, shapes = model.state_dict(), theirs.state_dict()
    converted = {"lm_head.weight": weights["embed.weight"]}
    for ours, names in weight_map(config.n_layers).items():
        rows = weights[ours].split([len(shapes[name]) for name in names])
        converted |= dict(zip(names, rows, strict=True))
    theirs.to(weights["norm.weight"].dtype).load_state_dict(converted)
    return theirs.eval()


def from_diffllama(model: DiffLlamaForCausalLM) -> TransformerLM:
    """Converts a DiffLlama to our model with the same logits."""
    config: Any = model.config
    _refuse_what_ours_lacks(config)
    with torch.device("meta"):
        ours = TransformerLM(
            ModelConfig(
                d_model=config.hidden_size,
                n_heads=config.num_attention_heads // 2,
                n_layers=config.num_hidden_layers,
                d_ff=config.intermediate_size,
                vocab_size=config.vocab_size,
                n_positions=config.max_position_embeddings,
                positions="rope",
                attention=official(config.num_attention_heads // config.num_key_value_heads),
            )
        )
    weights = model.state_dict()
    names = weight_map(config.num_hidden_layers)
    ours.load_state_dict({name: torch.cat([weights[n] for n in theirs]) for name, theirs in names.items()}, assign=True)
    return ours.requires_grad_().eval()


def official(group_size: int) -> AttentionConfig:
    return AttentionConfig(scoring=OFFICIAL, group_size=group_size)


def _refuse_what_ours_lacks(config: DiffLlamaConfig) -> None:
    fixed = {
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": RMS_EPS,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }
    for name, expected in fixed.items():
        given = getattr(config, name)
        if given != expected:
            raise CoupledQKError(
                f"a DiffLlama with {name}={given!r} cannot become one of our models, which have {expected!r}"
            )
