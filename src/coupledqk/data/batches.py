"""Batches as a pure function of (seed, step). There is no data loader whose state would have to be saved and restored.

A window consists of `length` inputs and the same number of targets, shifted by one token. Adjacent windows share one token: the
last target of one is the first input of the next, so every target is in exactly one window.
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


EVERY_ROW = slice(None)

MAX_STORED_ORDER = 1 << 24
"""Maximum number of windows per epoch whose order is stored (at most 64 MB). The order of more windows is computed on
demand."""


def train_batch(
    tokens: NDArray[Any], length: int, batch_size: int, seed: int, step: int, rows: slice = EVERY_ROW
) -> Batch:
    """The global batch of a step, or some of its rows: a rank reads only `slice(rank, None, world)`.

    Each epoch divides the text into a new grid of windows, shifted by a random offset, and visits each window once, in random
    order. In the next epoch a target therefore has a different position and context. A batch may contain windows of two epochs.
    """
    if len(tokens) <= length:
        raise CoupledQKError(
            f"the training split has {len(tokens)} tokens, but a window needs {length + 1}: use more text or shorter windows"
        )
    n_windows = max(1, len(tokens) // length - 1)
    starts = []
    for row in range(step * batch_size, (step + 1) * batch_size)[rows]:
        epoch, position = divmod(row, n_windows)
        offset, order = _grid(n_windows, len(tokens) - 1 - n_windows * length, seed, epoch)
        starts.append(offset + int(order[position]) * length)
    return _gather(tokens, starts, length)


def shuffled_rows(n_rows: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Indices of the rows of a fixed set that are in the batch of a step. Each epoch contains every row once, in random
    order."""
    rows = []
    for row in range(step * batch_size, (step + 1) * batch_size):
        epoch, position = divmod(row, n_rows)
        rows.append(int(_grid(n_rows, 0, seed, epoch)[1][position]))
    return rows


GROUP = 25
"""Number of consecutive batches whose rows are sorted, so that each batch has rows of similar length."""


def grouped_rows(lengths: Sequence[int], batch_size: int, seed: int, step: int) -> list[int]:
    """Like `shuffled_rows`, but rows of similar length share a batch, which reduces padding.

    The rows of every GROUP consecutive batches are sorted by length, and the batches of a group are visited in random order.
    """
    group, place = divmod(step, GROUP)
    steps = range(group * GROUP, (group + 1) * GROUP)
    rows = [row for each in steps for row in shuffled_rows(len(lengths), batch_size, seed, each)]
    rows.sort(key=lambda row: lengths[row])
    start = int(_grid(GROUP, 0, seed, group)[1][place]) * batch_size
    return rows[start : start + batch_size]


def valid_batches(tokens: NDArray[Any], length: int, batch_size: int, rows: slice = EVERY_ROW) -> Iterator[Batch]:
    """The whole split in adjacent windows: each token but the first is a target exactly once. The last window is padded with
    ignored targets.

    With `rows`, only these rows of each batch are returned. Every rank gets the same number of batches: a rank without a row in
    the last batch gets a row of ignored targets.
    """
    if len(tokens) < 2:
        raise CoupledQKError(f"the split to evaluate has {len(tokens)} tokens: expected at least 2; use more text")
    starts = range(0, len(tokens) - 1, length)
    for first in range(0, len(starts), batch_size):
        yield _gather(tokens, starts[first : first + batch_size][rows] or [len(tokens)], length)


@lru_cache(maxsize=2)
def _grid(n_windows: int, spare: int, seed: int, epoch: int) -> tuple[int, NDArray[Any] | ComputedOrder]:
    """The offset of an epoch's grid and the order of its windows. The streams of numpy's RandomState never change."""
    import numpy as np

    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    random = np.random.RandomState(np.frombuffer(digest, "<u4"))
    offset = int(random.randint(spare + 1))
    if n_windows > MAX_STORED_ORDER:
        return offset, ComputedOrder(n_windows, digest)
    return offset, random.permutation(n_windows).astype(np.uint32)


class ComputedOrder:
    """A random permutation of 0 to n - 1 whose elements are computed on access, without storing it.

    A balanced Feistel network of six rounds permutes the numbers of 2h bits, at most 4n of them. A result of n or more is
    permuted again until it is below n, so that the numbers below n are permuted among themselves.
    """

    def __init__(self, n: int, key: bytes) -> None:
        self.n, self.key = n, key
        self.half = ((n - 1).bit_length() + 1) // 2
        self.mask = (1 << self.half) - 1

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.n:
            raise IndexError(f"position {position} of {self.n}")
        while (position := self._permuted(position)) >= self.n:
            pass
        return position

    def _permuted(self, number: int) -> int:
        left, right = number >> self.half, number & self.mask
        for turn in range(6):
            text = b"%d:%d" % (turn, right)
            mixed = int.from_bytes(hashlib.blake2b(text, digest_size=8, key=self.key).digest(), "little")
            left, right = right, left ^ (mixed & self.mask)
        return left << self.half | right


def _gather(tokens: NDArray[Any], starts: Sequence[int], length: int) -> Batch:
    import numpy as np

    windows = np.full((len(starts), length + 1), IGNORED, np.int64)
    for window, start in zip(windows, starts, strict=True):
        text = tokens[start : start + length + 1]
        window[: len(text)] = text
    windows = torch.from_numpy(windows)
    return windows[:, :-1].clamp(min=0), windows[:, 1:].contiguous()
