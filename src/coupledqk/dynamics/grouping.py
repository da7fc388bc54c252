"""Grouped queries: several query heads that share one key head."""

from torch import Tensor


def group_heads(q: Tensor, k: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Gives the queries of a group their own axis after the key heads: (…, H_kv, G, …) and (…, H_kv, 1, …)."""
    return q.unflatten(axis, (k.shape[axis], -1)), k.unsqueeze(axis + 1)


def ungroup_heads(q: Tensor, k: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return q.flatten(axis, axis + 1), k.squeeze(axis + 1)
