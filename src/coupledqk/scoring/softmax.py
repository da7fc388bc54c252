"""Softmax scoring: softmax(q kᵀ / √d) v.

`attend` is the fast path, PyTorch's fused kernel; `attention_weights` is the definition. Shapes are (B, T, H, d) for q and
(B, S, H_kv, d) for k and v; keys are never expanded to the query heads. `mask` is boolean, broadcastable to (B, H, T, S), True
where a query may attend; `causal` selects the kernel's causal mask and requires T = S. A fully masked row is 0. A scoring also
receives x, the input of the attention, (B, T, d_model), for weights or gates that depend on the token.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .record import Scoring


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """The attention output with scores q kᵀ · `scale`; `scale` is 1/√d by default."""
    grouped = bool(q.shape[2] != k.shape[2])  # under torch.jit.trace, sizes are tensors
    options = {"attn_mask": mask, "is_causal": causal, "scale": scale, "enable_gqa": grouped}
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, d)
    if not needs_float32(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)
    with torch.autocast("cpu", enabled=False):
        out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **options)
    return out.transpose(1, 2).to(v.dtype)


def needs_float32(*tensors: Tensor) -> bool:
    """Whether the kernel is used in float32 although the model computes in half precision: for training on a CPU.

    Forward and backward pass of PyTorch's CPU kernel take up to 3.8 times as long in bfloat16 as in float32, and 6 to 8 times
    in float16. Only with long sequences is bfloat16 faster, by up to a fifth (`benchmarks/attention.py`).
    """
    half = any(x.dtype in (torch.bfloat16, torch.float16) for x in tensors)
    return half and tensors[0].is_cpu and torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def masked_scores(q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """q kᵀ / √d, (B, H, T, S), and −∞ where a query may not attend."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """The map softmax(q kᵀ / √d), (B, H, T, S)."""
    weights = masked_scores(q, k, mask, causal).softmax(-1)
    return weights if mask is None else weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


class Softmax(nn.Module):
    """Softmax scoring, with one attention map per head."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> Tensor:
        return attend(q, k, v, mask, causal)

    def weights(
        self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False, x: Tensor | None = None
    ) -> Tensor:
        return attention_weights(q, k, mask, causal)

    def plain(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output, computed from the definition, and the weights."""
        weights = self.weights(q, k, mask, causal, x)
        v = v.repeat_interleave(weights.shape[1] // v.shape[2], dim=2)
        return torch.einsum("bhts,bshd->bthd", weights, v), weights


SOFTMAX = Scoring(
    build=lambda config, n_heads, width, layer, eps: Softmax(),
    products=lambda keys, width: 2 * keys * width,
)
