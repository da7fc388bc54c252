"""Batches as a pure function of (seed, step): there is no loader, so nothing to save and nothing to restore.

A window is `length` inputs and, shifted by one token, as many targets. Windows that lie side by side share one token: the
last target of one is the first input of the next, so every target is in one window only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import CoupledQKError
from ..loss import IGNORED

if TYPE_CHECKING:
    from numpy.typing import NDArray

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, both (rows, length), int64."""


def train_batch(tokens: NDArray[Any], length: int, batch_size: int, seed: int, step: int) -> Batch:
    """The global batch of a step, for any number of ranks and micro-batches.

    Each epoch lays a fresh grid of windows over the text, shifted by a random offset, and visits each window once, in random
    order. So a target returns in the next epoch at another position, after another context. A batch may straddle two epochs.
    """
    if len(tokens) <= length:
        raise CoupledQKError(
            f"the training split has {len(tokens)} tokens, but a window takes {length + 1}: use more text or shorter windows"
        )
    n_windows = max(1, len(tokens) // length - 1)
    starts = []
    for row in range(step * batch_size, (step + 1) * batch_size):
        epoch, position = divmod(row, n_windows)
        offset, order = _grid(n_windows, len(tokens) - 1 - n_windows * length, seed, epoch)
        starts.append(offset + int(order[position]) * length)
    return _gather(tokens, starts, length)


def shuffled_rows(n_rows: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Which rows of a fixed set are in the batch of a step. Each epoch takes every row once, in random order."""
    rows = []
    for row in range(step * batch_size, (step + 1) * batch_size):
        epoch, position = divmod(row, n_rows)
        rows.append(int(_grid(n_rows, 0, seed, epoch)[1][position]))
    return rows


def valid_batches(tokens: NDArray[Any], length: int, batch_size: int) -> Iterator[Batch]:
    """The whole split in windows side by side: each token but the first is a target once. The last window is filled up
    with targets that do not count."""
    if len(tokens) < 2:
        raise CoupledQKError(f"the split to evaluate has {len(tokens)} tokens: expected at least 2; use more text")
    starts = range(0, len(tokens) - 1, length)
    for first in range(0, len(starts), batch_size):
        yield _gather(tokens, starts[first : first + batch_size], length)


def micro_batches(batch: Batch, size: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
    """A rank's share of a global batch, rows rank, rank + world, ..., at most `size` rows at a time."""
    inputs, targets = batch
    return zip(inputs[rank::world].split(size), targets[rank::world].split(size), strict=True)


@lru_cache(maxsize=8)
def _grid(n_windows: int, spare: int, seed: int, epoch: int) -> tuple[int, NDArray[Any]]:
    """Where an epoch's grid begins and in which order its windows come. RandomState's streams never change."""
    import numpy as np

    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    random = np.random.RandomState(np.frombuffer(digest, "<u4"))
    return int(random.randint(spare + 1)), random.permutation(n_windows)


def _gather(tokens: NDArray[Any], starts: Sequence[int], length: int) -> Batch:
    import numpy as np

    windows = np.full((len(starts), length + 1), IGNORED, np.int64)
    for window, start in zip(windows, starts, strict=True):
        text = tokens[start : start + length + 1]
        window[: len(text)] = text
    windows = torch.from_numpy(windows)
    return windows[:, :-1].clamp(min=0), windows[:, 1:].contiguous()
