"""What a training loop reports. Progress bars, logs, trackers and time budgets consume these; the loop knows none of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Started:
    """Training begins at `step`: 0, or that of the checkpoint it resumes from. `notes` say what was passed over."""

    step: int
    device: torch.device
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One update. `loss` is the mean over the global batch; an update is skipped when fp16 gradients overflowed."""

    step: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    skipped: bool


@dataclass(frozen=True)
class Evaluating:
    """The task is about to be evaluated, which may take a while."""

    step: int


@dataclass(frozen=True)
class Evaluation:
    """The task's measures after `step` updates."""

    step: int
    tokens: int
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Saving:
    """A checkpoint is about to be written: what was logged up to here must reach the disk first."""

    step: int


@dataclass(frozen=True)
class Stopped:
    """Asked to stop early, with everything saved."""

    step: int


@dataclass(frozen=True)
class Finished:
    step: int


Event = Started | Step | Evaluating | Evaluation | Saving | Stopped | Finished

Listener = Callable[[Event], None]

Consumer = AbstractContextManager[Listener]
"""Entered before training and left however it ends, so that files are closed and the terminal is restored."""
