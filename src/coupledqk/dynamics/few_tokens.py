"""The moves of `fused.py` for few tokens without gradients, as in decoding. The method files are the reference.

With so few tokens the overhead of PyTorch's calls dominates. This implementation makes as few as possible, on plain matrices.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch_internals import autocasts
from .methods import moves_of
from .operators import SHARE


def obstacle_of(q: Tensor, k: Tensor, dt: Tensor | float) -> str | None:
    """The reason why this implementation cannot be used; None if it can."""
    if torch.is_grad_enabled():
        return "gradients enabled (use torch.no_grad() or torch.inference_mode())"
    if torch.compiler.is_compiling():
        return "torch.compile"
    if autocasts(q.device):  # autocast would round the sums of a product
        return "autocast"
    if not (q.dtype == k.dtype == torch.float32) or (isinstance(dt, Tensor) and dt.dtype != torch.float32):
        return f"q in {q.dtype} and k in {k.dtype} (it needs q, k and dt in float32)"
    return None


def few_tokens_dynamics(
    q: Tensor, k: Tensor, dt: Tensor, force: Any, n_steps: int, method: str
) -> tuple[Tensor, Tensor]:
    """q is (B, T, H, d), k (B, T, H_kv, d), dt (H_kv,) or a scalar."""
    B, T, n_keys, d = k.shape
    group_size = q.shape[2] // n_keys
    if B * T > 1 or dt.ndim == 0:
        dt = dt.expand(B * T, n_keys)
    new_q, new_k, dt = q.reshape(-1, d), k.reshape(-1, d), dt.reshape(-1, 1)
    w1, w2 = force.w1.t(), force.w2.t()
    h = new_q
    for move in moves_of(method, n_steps):
        if move == "force":
            h = F.silu(torch.mm(new_q, w1), inplace=True)
            if group_size > 1:
                h = h.view(-1, group_size, d).mean(1)
        elif move in SHARE:
            new_k = torch.addcmul(new_k, torch.mm(h, w2), dt, value=SHARE[move])
        elif group_size == 1:
            new_q = torch.addcmul(new_q, new_k, dt)
        else:
            grouped = torch.addcmul(new_q.view(-1, group_size, d), new_k.unsqueeze(1), dt.unsqueeze(1))
            new_q = grouped.view(-1, d)
    return new_q.view(q.shape), new_k.view(k.shape)
