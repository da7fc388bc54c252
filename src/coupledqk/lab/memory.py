"""The memory that runs need at least, and whether several of them fit on this machine at a time."""

import os
from collections.abc import Sequence

from ..config import RunConfig
from ..costs import sizes


def least_memory(config: RunConfig) -> int:
    """Minimum memory for training in bytes: weights, gradients, AdamW's moments, and the saved activations of a micro-batch."""
    model, rows = config.model, config.runtime.micro_batch or config.train.batch_size
    layers = 1 if config.runtime.gradient_checkpointing else model.n_layers
    activations = 4 * rows * config.train.seq_len * layers * (6 * model.d_model + 3 * model.d_ff)
    return sizes(model).training_state + activations


def memory_here(config: RunConfig) -> int:
    """Memory in bytes of the device that the run would use."""
    import torch

    from ..tasks.models import pick_device

    device = pick_device(config.runtime.device)
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def fit_together(configs: Sequence[RunConfig]) -> bool:
    """Whether runs can be trained on this machine at the same time. Runs on GPUs are distributed over all of them."""
    return sum(least_memory(config) / (memory_here(config) * _devices(config)) for config in configs) <= 1


def _devices(config: RunConfig) -> int:
    """Number of devices that runs with these settings are distributed over."""
    import torch

    from ..tasks.models import pick_device

    return torch.cuda.device_count() if pick_device(config.runtime.device).type == "cuda" else 1
