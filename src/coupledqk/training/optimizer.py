"""AdamW and the learning-rate schedule, as in the paper's recipes."""

import math

import torch
from torch import nn

from ..config import TrainConfig


def lr_at(step: int, config: TrainConfig) -> float:
    """The learning rate of update `step`, counted from 0: a linear warm-up from 0 to the peak, then a decay to 0."""
    if step < config.warmup:
        return config.lr * step / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (0.5 * (1 + math.cos(math.pi * progress)) if config.schedule == "cosine" else 1 - progress)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, not on norms, step sizes, gates or λ.

    The optional attribute `lr_scales` of a model maps names of parameters to multiples of the schedule's learning rate.
    """
    scales: dict[str, float] = getattr(model, "lr_scales", {})
    trained = [(scales.get(name, 1.0), p) for name, p in model.named_parameters() if p.requires_grad]
    groups = []
    for scale in sorted({1.0, *(scale for scale, _ in trained)}):
        parameters = [p for own, p in trained if own == scale]
        matrices, others = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
        groups += [
            {"params": matrices, "weight_decay": config.weight_decay, "lr_scale": scale},
            {"params": others, "weight_decay": 0.0, "lr_scale": scale},
        ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.adam_eps, fused=True)
