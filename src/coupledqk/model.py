"""The transformer language model of the paper.

Pre-norm RMSNorm, SwiGLU, tied input and output embeddings, learned positions (or RoPE), no biases, no dropout, and no masking
between documents. All matrices start as N(0, 0.02²), those that write to the residual stream scaled by 1/√(2L).
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import Attention
from .config import AttentionConfig, ModelConfig, head_width
from .errors import CoupledQKError
from .initial import INIT_STD, Normal, global_normal, initialize
from .layers import KVCache, RMSNorm, SwiGLU
from .linear import Int8Linear, Linear, linear
from .loss import IGNORED, linear_cross_entropy
from .rope import Rope, rope_at
from .sampling import Sampler
from .values import FirstValues
from .variants import preset


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    attention: type[Attention] = Attention

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        out_std = INIT_STD / math.sqrt(2 * config.n_layers)
        self.attn_norm = RMSNorm(config.d_model)
        self.attn = self.attention(config.d_model, config.n_heads, config.attention, layer, out_std)
        self.ffn_norm = RMSNorm(config.d_model)
        self.ffn = SwiGLU(config.d_model, config.d_ff, out_std)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        rope: Rope | None,
        cache: KVCache | None,
        first_values: FirstValues | None = None,
    ) -> Tensor:
        attended, _ = self.attn(self.attn_norm(x), mask, rope, cache, first_values)
        x = x + attended
        return x + self.ffn(self.ffn_norm(x))


def embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding whose weights are not initialised."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class TransformerLM(nn.Module):
    """A transformer language model. `model(tokens)` returns logits, `model(tokens, targets)` the mean loss."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        """The initial weights are a function of the seed and of each weight's name."""
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.int8_head: Int8Linear | None = None
        device = torch.get_default_device()
        # The model is built on the meta device, so that each weight is drawn once. Under torch.device("meta") it stays there.
        with torch.device("meta"):
            self.embed = embedding(config.vocab_size, config.d_model)
            self.positions = embedding(config.n_positions, config.d_model) if config.positions == "learned" else None
            self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
            self.norm = RMSNorm(config.d_model)
        if device.type != "meta":
            self.to_empty(device=device)
            initialize(self, seed)

    @classmethod
    def from_preset(
        cls, name: str, attention: str | AttentionConfig = "standard", seed: int = 0, **settings: Any
    ) -> "TransformerLM":
        """Builds a model by size and attention variant, with some settings changed.

        For example, `TransformerLM.from_preset("small", "euler", n_layers=4, n_steps=1)`.
        """
        return cls(preset(name, attention, **settings), seed)

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.embed.weight, "embed", INIT_STD)
        if self.positions is not None:
            normal(self.positions.weight, "positions", INIT_STD)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        padding: Tensor | None = None,
        cache: list[KVCache] | None = None,
    ) -> Tensor:
        """Logits (B, T, vocabulary), or with `targets` (B, T) the mean or sum of the losses; targets of −100 are ignored.

        `padding` is boolean, (B, S), True for real tokens; positions count from each row's first real token. With a
        `cache` (see `new_cache`) the tokens continue the cached ones, and S includes both.
        """
        x = self.hidden(tokens, padding, cache)
        if targets is None:
            return self.logits(x)
        if targets.shape != tokens.shape:
            raise CoupledQKError(
                f"targets of shape {tuple(targets.shape)}: expected that of the tokens, {tuple(tokens.shape)}"
            )
        if self.int8_head is not None:
            return self._loss_by_logits(x, targets, reduction)
        return linear_cross_entropy(x, self.embed.weight, targets, reduction)

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary) of final states (..., d_model)."""
        return linear(states, self.embed.weight) if self.int8_head is None else self.int8_head(states)

    def _loss_by_logits(self, x: Tensor, targets: Tensor, reduction: Literal["mean", "sum"]) -> Tensor:
        rows = zip(x, targets, strict=True)  # one sequence at a time, because logits need much memory
        sums = [
            F.cross_entropy(self.logits(row), target, ignore_index=IGNORED, reduction="sum") for row, target in rows
        ]
        total = torch.stack(sums).sum()
        return total if reduction == "sum" else total / (targets != IGNORED).sum()

    def to_int8(self) -> "TransformerLM":
        """Quantizes the weight matrices to 8 bits in place, for generation and evaluation on a CPU.

        The model can no longer be trained. Embeddings, norms and dynamics keep their precision; the tied output matrix is
        replaced by a quantized copy.
        """
        device = self.embed.weight.device
        if device.type != "cpu":
            raise CoupledQKError(
                f"int8 weights run on a CPU, not on {device}: leave out int8, or set the device to cpu"
            )
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if type(child) is Linear:
                    setattr(module, name, Int8Linear(child.weight))
        self.int8_head = Int8Linear(self.embed.weight)
        return self.requires_grad_(False)

    def hidden(self, tokens: Tensor, padding: Tensor | None = None, cache: list[KVCache] | None = None) -> Tensor:
        """The final normalised states, (B, T, d_model)."""
        if cache is not None and (parts := len({id(part) for part in cache})) != len(self.blocks):
            raise CoupledQKError(
                f"a cache of {parts} different parts for {len(self.blocks)} layers: make it with new_cache(capacity)"
            )
        positions = self._positions(tokens, padding, past=cache[0].length if cache else 0)
        try:
            x = self.embed(tokens)
        except IndexError:
            self._check_ids(tokens, "tokens")
            raise
        rope = None
        if self.positions is not None:
            x = x + self.positions(positions)
        else:
            rope = rope_at(positions, head_width(self.config.d_model, self.config.n_heads, self.config.attention))
        mask = None if padding is None else padding[:, None, None, :]
        first_values = FirstValues() if self.config.attention.value_residual else None
        for i, block in enumerate(self.blocks):
            layer_cache = cache[i] if cache else None
            if self.gradient_checkpointing and torch.is_grad_enabled() and cache is None:
                x = checkpoint(block, x, mask, rope, layer_cache, first_values, use_reentrant=False)
            else:
                x = block(x, mask, rope, layer_cache, first_values)
        return self.norm(x)

    def _positions(self, tokens: Tensor, padding: Tensor | None, past: int) -> Tensor:
        """The positions of the tokens: (T,), or (B, T) if rows are padded."""
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise CoupledQKError(
                f"tokens of shape {tuple(tokens.shape)}: expected (batch, tokens) with at least one sequence and one token"
            )
        if tokens.dtype not in (torch.int32, torch.int64):
            raise CoupledQKError(f"tokens of dtype {tokens.dtype}: expected token ids as int64 or int32")
        B, T = tokens.shape
        self._check_length(past + T)
        if padding is None:
            return torch.arange(past, past + T, device=tokens.device)
        self._check_padding(padding, B, past + T)
        return (padding.cumsum(-1) - 1).clamp(min=0)[:, past:]

    def _check_ids(self, tokens: Tensor, name: str) -> None:
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocab_size:
            raise CoupledQKError(
                f"token ids from {low} to {high} in the {name}: the vocabulary has 0 to {self.config.vocab_size - 1}; was the "
                "text encoded with the model's own tokenizer?"
            )

    def _check_padding(self, padding: Tensor, B: int, S: int) -> None:
        if padding.shape != (B, S) or padding.dtype != torch.bool:
            raise CoupledQKError(
                f"padding of shape {tuple(padding.shape)} and dtype {padding.dtype}: expected booleans of shape "
                f"{(B, S)}, True for real tokens, the cached ones included"
            )

    def _check_length(self, length: int) -> None:
        if self.positions is not None and length > self.config.n_positions:
            raise CoupledQKError(
                f"a sequence of {length} tokens is longer than the model's {self.config.n_positions} learned positions: "
                'shorten it, or build the model with a larger n_positions or with positions="rope"'
            )

    def new_cache(self, capacity: int) -> list[KVCache]:
        """An empty key-value cache for sequences of up to `capacity` tokens, one part per layer."""
        return [KVCache(capacity) for _ in self.blocks]

    def stream(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop_token: int | None = None,
        padding: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yields the next token of each row, (B,), up to `max_new_tokens` or until every row has produced `stop_token`.

        `prompt` is (B, T); shorter rows are padded on the left, with `padding` True for real tokens. A row that has
        stopped yields `stop_token` from then on. The same `seed` gives the same tokens.
        """
        self._check_prompt(prompt, max_new_tokens, padding)
        if seed is not None and not -(2**63) <= seed < 2**63:
            raise CoupledQKError(f"seed={seed}: expected a signed 64-bit integer")
        generator = None if seed is None else torch.Generator(prompt.device).manual_seed(seed)
        sample = partial(Sampler(temperature, top_k, top_p), generator=generator)
        # copied outside inference mode, since inference tensors cannot be used in training
        return (token.clone() for token in self._stream(prompt, max_new_tokens, sample, stop_token, padding))

    @torch.inference_mode()
    def _stream(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        sample: Callable[[Tensor], Tensor],
        stop_token: int | None,
        padding: Tensor | None,
    ) -> Iterator[Tensor]:
        cache = self.new_cache(tokens.shape[1] + max_new_tokens)
        stopped = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
        for _ in range(max_new_tokens):
            states = self.hidden(tokens, padding, cache)
            token = sample(self.logits(states[:, -1]))
            if stop_token is not None:
                token = token.masked_fill(stopped, stop_token)
                stopped = stopped | (token == stop_token)
            yield token
            if stop_token is not None and bool(stopped.all()):
                return
            tokens = token[:, None]
            if padding is not None:
                padding = F.pad(padding, (0, 1), value=True)

    def generate(self, prompt: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        """The prompt and its continuation, (B, T + at most max_new_tokens); options as for `stream`."""
        new = [token[:, None] for token in self.stream(prompt, max_new_tokens, **options)]
        return torch.cat([prompt, *new], dim=1)

    def _check_prompt(self, prompt: Tensor, max_new_tokens: int, padding: Tensor | None) -> None:
        if max_new_tokens < 1:
            raise CoupledQKError(f"max_new_tokens={max_new_tokens}: expected at least 1")
        if prompt.ndim != 2 or prompt.numel() == 0:
            raise CoupledQKError(
                f"prompt of shape {tuple(prompt.shape)}: expected (batch, tokens) with at least one token"
            )
        self._check_ids(prompt, "prompt")
        if padding is not None:
            self._check_padding(padding, prompt.shape[0], prompt.shape[1])
        if padding is not None and not bool(padding[:, -1].all()):
            raise CoupledQKError("padding marks the last token of a row as unreal: pad prompts on the left")
        # the last new token is not fed back
        self._check_length(prompt.shape[1] + max_new_tokens - 1)
