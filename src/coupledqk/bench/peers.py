"""Peers: models of the same shape from other libraries, called the way their users call them.

Each maps tokens and targets to the mean loss, and continues a prompt greedily with its own cache. They differ from ours where
their library leaves no choice: Llama and DiffLlama rotate q and k instead of learning positions, and x-transformers has a bias
in SwiGLU.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import CoupledQKError, unknown


class HuggingFace(nn.Module):
    """A causal language model of transformers, with PyTorch's fused attention."""

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
    """A decoder of x-transformers in its wrapper for language modelling, with PyTorch's fused attention."""

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
        return self.model(torch.cat((tokens, targets[:, -1:]), dim=1))  # it shifts by itself

    def greedy(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        new = self.model.generate(prompt, max_new_tokens, temperature=0.0, cache_kv=True)
        return torch.cat((prompt, new), dim=1)


Peer = Llama | DiffLlama | XTransformers

PEERS: dict[str, type[Peer]] = {"llama": Llama, "x-transformers": XTransformers, "diffllama": DiffLlama}

TWINS = {"llama": "standard", "x-transformers": "standard", "diffllama": "diff"}
"""Our variant with the same matrix products, by peer."""


def find_peer(name: str) -> type[Peer]:
    """The class of a peer, after its library has been imported."""
    if name not in PEERS:
        raise unknown("peer", name, PEERS)
    try:
        PEERS[name].library()
    except ImportError:
        raise CoupledQKError(
            f"the peer {name!r} needs a library that is not installed: pip install 'coupledqk[bench]', or leave it out"
        ) from None
    return PEERS[name]
