"""Softmax scoring with an attention sink: a learned logit b per head that is part of the softmax but has no value.

    weight of key s = exp(q · k_s / √d) / (exp(b) + Σ exp(q · k / √d))

A row sums to less than 1. b starts at 0, as in "softmax off by one".

The fast kernel does not support such a logit, so an additional key with value 0 is used. It is orthogonal to all others in
`PAD` additional coordinates, one of which is set in each query so that their product is b. `PAD` keeps the width a
multiple of 8.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..initial import Normal, global_normal
from .record import Scoring
from .softmax import Softmax, attend, masked_scores

PAD = 8


class Sink(Softmax):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.empty(n_heads))
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        nn.init.zeros_(self.logit)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> Tensor:
        width = q.shape[-1]
        scale = 1 / math.sqrt(width)
        logit = (self.logit / scale).to(q.dtype)[:, None].expand(*q.shape[:3], 1)
        q = F.pad(torch.cat((q, logit), dim=-1), (0, PAD - 1))
        sink = F.one_hot(torch.tensor(width, device=k.device), width + PAD).to(k.dtype)
        sink = sink.expand(k.shape[0], 1, k.shape[2], -1)
        k = torch.cat((sink, F.pad(k, (0, PAD))), dim=1)  # (B, 1 + S, H_kv, width + PAD)
        v = F.pad(v, (0, PAD, 0, 0, 1, 0))
        if causal:  # the kernel's causal mask also needs a query for the sink
            return attend(F.pad(q, (0, 0, 0, 0, 1, 0)), k, v, None, True, scale)[:, 1:, :, :width]
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
        return attend(q, k, v, mask, False, scale)[..., :width]

    def weights(
        self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False, x: Tensor | None = None
    ) -> Tensor:
        scores = masked_scores(q, k, mask, causal)
        logit = self.logit.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat((logit, scores), dim=-1).softmax(-1)[..., 1:]


SINK = Scoring(
    build=lambda config, n_heads, width, layer, eps: Sink(n_heads),
    products=lambda keys, width: 2 * (keys + 1) * (width + PAD),
)
