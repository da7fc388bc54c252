"""What a model costs, from its configuration alone."""

import torch

from .config import ModelConfig
from .model import TransformerLM


def count_parameters(config: ModelConfig) -> int:
    """Counted on the meta device: the real model, without its memory."""
    with torch.device("meta"):
        model = TransformerLM(config)
    return sum(parameter.numel() for parameter in model.parameters())
