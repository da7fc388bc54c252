"""Events of the training loop. Progress bars, logs, trackers and time budgets consume them independently of the loop."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Started:
    """Training begins at `step`: 0, or the step of the checkpoint it resumes from. `notes` are messages about
    skipped checkpoints and a slow first step."""

    step: int
    device: torch.device
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One update. `loss` is the mean over the global batch. An update is skipped if fp16 gradients overflow."""

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
    """A checkpoint is about to be written. Everything logged so far must be on disk first."""

    step: int


@dataclass(frozen=True)
class Stopped:
    """Training stopped early on request, after saving a checkpoint."""

    step: int


@dataclass(frozen=True)
class Finished:
    step: int


Event = Started | Step | Evaluating | Evaluation | Saving | Stopped | Finished

Listener = Callable[[Event], None]

Consumer = AbstractContextManager[Listener]
"""An event consumer as a context manager, so that files are always closed and the terminal is always restored."""
