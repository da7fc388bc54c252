"""AdamW and its schedule, as in the paper's recipes."""

import math

import torch
from torch import nn

from ..config import TrainConfig


def lr_at(step: int, config: TrainConfig) -> float:
    """The learning rate of update `step`, counted from 0: linear from 0 to the peak, then down to 0."""
    if step < config.warmup:
        return config.lr * step / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (0.5 * (1 + math.cos(math.pi * progress)) if config.schedule == "cosine" else 1 - progress)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Weight decay on matrices alone: not on norms, step sizes, gates or λ."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.adam_eps, fused=True)
