"""Samples the next token from logits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import CoupledQKError


@dataclass(frozen=True)
class Sampler:
    """Draws from softmax(logits / temperature), restricted to the `top_k` likeliest tokens and to the smallest set of
    them with probability `top_p`. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise CoupledQKError(f"temperature={self.temperature}: expected 0 (greedy) or a finite positive number")
        if self.top_k is not None and self.top_k < 1:
            raise CoupledQKError(f"top_k={self.top_k}: expected at least 1, or nothing for all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise CoupledQKError(f"top_p={self.top_p}: expected a probability above 0 and up to 1")

    def __call__(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples tokens (B,) from logits (B, vocabulary)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = self.probabilities(logits)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        # the maximum is subtracted first, because logits divided by a tiny temperature would overflow
        logits = (logits.float() - logits.max(-1, keepdim=True).values) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kept = logits.topk(self.top_k)  # by index, because of ties at the smallest logit
            logits = torch.full_like(logits, -math.inf).scatter(-1, kept.indices, kept.values)
        probabilities = logits.softmax(-1)
        if self.top_p is not None:
            ordered, order = probabilities.sort(-1, descending=True)
            # a token is kept if the total probability of the likelier ones is below top_p
            dropped = ordered.cumsum(-1) - ordered >= self.top_p
            probabilities = probabilities.masked_fill(dropped.scatter(-1, order, dropped), 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities
