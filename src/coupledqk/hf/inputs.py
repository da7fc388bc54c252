"""Checks the inputs of our models in transformers.

Without these checks, invalid inputs would be broadcast, truncated or misread, or would cause an unclear error in PyTorch.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ..errors import CoupledQKError

LOWEST = -1e4
"""Additive masks hide tokens with values of at most this: −∞, the smallest value of a dtype, or −10,000."""


def look_up(table: nn.Embedding, ids: Tensor, name: str) -> Tensor:
    """The rows `ids` of an embedding."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise CoupledQKError(f"{name} of dtype {ids.dtype}: expected int64 or int32")
    try:
        return table(ids)
    except IndexError:
        low, high, n = int(ids.min()), int(ids.max()), table.num_embeddings
        raise CoupledQKError(f"{name} from {low} to {high}: this model has 0 to {n - 1}") from None


def check_cache(cache: Cache | None, n_layers: int, batch: int, n_key_heads: int) -> None:
    if cache is None:
        return
    if not isinstance(cache, Cache):
        raise CoupledQKError(f"past_key_values of type {type(cache).__name__}: expected a Cache of transformers")
    if len(cache.layers) not in (0, n_layers):
        raise CoupledQKError(
            f"a cache of {len(cache.layers)} layers, for a model with {n_layers}: give each model its own cache"
        )
    keys = getattr(cache.layers[0], "keys", None) if cache.layers else None  # (B, H, S, d) after the first update
    if isinstance(keys, Tensor) and keys.ndim == 4 and keys.shape[:2] != (batch, n_key_heads):
        raise CoupledQKError(
            f"a cache of {keys.shape[0]} sequences with {keys.shape[1]} key heads: expected {batch} with {n_key_heads}"
        )


def check_room(cache: Cache | None, T: int) -> None:
    """Raises an error if T new tokens do not fit into a static cache, before any layer stores them."""
    size = getattr(cache.layers[0], "max_cache_len", None) if cache is not None and cache.layers else None
    if cache is None or size is None or torch.compiler.is_compiling():
        return
    past = cache.get_seq_length()
    if isinstance(past, Tensor) and not past.is_cpu:  # reading it would synchronise
        return
    if past + T > size:
        raise CoupledQKError(
            f"{T} more tokens do not fit into a static cache of {size} with {int(past)} in use: create it with a max_cache_len "
            f"of at least {int(past) + T}, or use a DynamicCache"
        )


def refuse_filled(cache: Cache | None) -> None:
    """Raises an error if the cache contains tokens, because training with gradient checkpointing would ignore them."""
    if cache is not None and cache.get_seq_length() > 0:
        raise CoupledQKError(
            "a cache with tokens cannot be used in training with gradient checkpointing, which runs each block twice: "
            "leave out past_key_values, or call gradient_checkpointing_disable()"
        )


def check_shapes(x: Tensor, attention_mask: Any, position_ids: Tensor | None, cache: Cache | None) -> None:
    """Raises an error for shapes that would be broadcast or truncated."""
    B, T = x.shape[:2]
    if position_ids is not None and position_ids.shape not in ((1, T), (B, T)):
        raise CoupledQKError(
            f"position_ids of shape {tuple(position_ids.shape)}: expected ({B} or 1, {T}), one for each token"
        )
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim == 4:
        return
    past = 0 if cache is None else cache.get_seq_length()
    static = getattr(cache, "is_compileable", False)  # the mask may cover unused entries of a static cache
    length = attention_mask.shape[-1] if static else past + T
    if attention_mask.shape != (B, length):
        raise CoupledQKError(
            f"attention_mask of shape {tuple(attention_mask.shape)}: expected {(B, length)}, 1 for real tokens, the cached "
            "ones included, or 4 dimensions"
        )


def check_additive(mask: Tensor) -> None:
    """Raises an error for an additive mask with other values than 0 and −∞, because our scorings do not support biases."""
    if not mask.is_floating_point() or bool(((mask != 0) & (mask > LOWEST)).any()):
        raise CoupledQKError(
            f"attention_mask of 4 dimensions and dtype {mask.dtype}: expected booleans, True where a query may attend, or "
            "floats that are 0 there and -inf elsewhere"
        )


def check_labels(labels: Tensor, logits: Tensor) -> None:
    if labels.shape != logits.shape[:2]:
        raise CoupledQKError(
            f"labels of shape {tuple(labels.shape)} for logits of {tuple(logits.shape[:2])}: expected one for each token, "
            "as in the input ids; leave out logits_to_keep"
        )
    if labels.dtype not in (torch.int32, torch.int64):
        raise CoupledQKError(f"labels of dtype {labels.dtype}: expected token ids as int64 or int32")


def out_of_range(labels: Tensor, n: int, ignored: int) -> CoupledQKError:
    """The error for labels outside the vocabulary of n tokens, whose values the loss does not report."""
    return CoupledQKError(
        f"labels from {int(labels.min())} to {int(labels.max())}: expected 0 to {n - 1}, or {ignored} for tokens to ignore"
    )
