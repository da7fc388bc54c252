"""Peers: models of the same shape from other libraries, used through their public API.

Each maps tokens and targets to the mean loss, and decodes greedily with its own cache. They differ from our models where the
library offers no option: Llama and DiffLlama use RoPE instead of learned positions, and x-transformers has a bias in SwiGLU.
nanoGPT (https://github.com/karpathy/nanoGPT) is reimplemented here from its description.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import CoupledQKError, unknown


class HuggingFace(nn.Module):
    """A causal language model from transformers, with PyTorch's fused attention."""

    config_class: str
    model_class: str

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        library = self.library()
        settings = getattr(library, self.config_class)(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_heads,
            max_position_embeddings=config.n_positions,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation="sdpa",
        )
        self.model = getattr(library, self.model_class)(settings)

    @staticmethod
    def library() -> Any:
        import transformers

        transformers.logging.set_verbosity_error()
        return transformers

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=targets, shift_labels=targets, use_cache=False).loss

    def greedy(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        real = torch.ones_like(prompt)
        return self.model.generate(prompt, attention_mask=real, max_new_tokens=max_new_tokens, do_sample=False)


class Llama(HuggingFace):
    config_class, model_class = "LlamaConfig", "LlamaForCausalLM"


class DiffLlama(HuggingFace):
    config_class, model_class = "DiffLlamaConfig", "DiffLlamaForCausalLM"


class XTransformers(nn.Module):
    """A decoder from x-transformers in its wrapper for language modelling, with PyTorch's fused attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        library = self.library()
        layers = library.Decoder(
            dim=config.d_model,
            depth=config.n_layers,
            heads=config.n_heads,
            attn_dim_head=config.d_model // config.n_heads,
            attn_flash=True,
            use_rmsnorm=True,
            ff_mult=config.d_ff / config.d_model,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
        )
        model = library.TransformerWrapper(
            num_tokens=config.vocab_size, max_seq_len=config.n_positions, attn_layers=layers, tie_embedding=True
        )
        self.model = library.AutoregressiveWrapper(model)

    @staticmethod
    def library() -> Any:
        import x_transformers

        return x_transformers

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(torch.cat((tokens, targets[:, -1:]), dim=1))  # the wrapper shifts the targets

    def greedy(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        new = self.model.generate(prompt, max_new_tokens, temperature=0.0, cache_kv=True)
        return torch.cat((prompt, new), dim=1)


class NanoGPTBlock(nn.Module):
    """LayerNorm, one projection to q, k and v, fused attention; LayerNorm and a feed-forward layer with GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, hidden = (
            config.d_model,
            3 * config.d_ff // 2,
        )  # two matrices of this width need as many FLOPs as SwiGLU's three
        self.n_heads = config.n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, hidden, bias=False), nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for y in self.qkv(self.norm_1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, d)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class NanoGPT(nn.Module):
    """A model in the style of nanoGPT: learned positions, tied embeddings, and generation without a cache."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.n_positions, config.d_model)
        self.blocks = nn.Sequential(*(NanoGPTBlock(config) for _ in range(config.n_layers)))
        self.norm = nn.LayerNorm(config.d_model, bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    @staticmethod
    def library() -> Any:
        return torch

    def logits(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return F.linear(self.norm(self.blocks(self.embed(tokens) + self.positions(places))), self.embed.weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    def greedy(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            prompt = torch.cat((prompt, self.logits(prompt)[:, -1:].argmax(-1)), dim=1)
        return prompt


Peer = Llama | DiffLlama | XTransformers | NanoGPT

PEERS: dict[str, type[Peer]] = {
    "llama": Llama,
    "x-transformers": XTransformers,
    "diffllama": DiffLlama,
    "nanogpt": NanoGPT,
}

TWINS = {"llama": "standard", "x-transformers": "standard", "diffllama": "diff", "nanogpt": "standard"}
"""For each peer, our variant with the same matrix products."""


def find_peer(name: str) -> type[Peer]:
    """Returns the class of a peer. Raises an error if the peer is unknown or its library is not installed."""
    if name not in PEERS:
        raise unknown("peer", name, PEERS)
    try:
        PEERS[name].library()
    except ImportError:
        raise CoupledQKError(
            f"the peer {name!r} needs a library that is not installed: pip install 'coupledqk[bench]', or leave it out"
        ) from None
    return PEERS[name]
