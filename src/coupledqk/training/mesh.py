"""One model on one or several processes: the interface through which the training loop uses other processes.

`Mesh` is a single process. Meshes of several processes are in `parallel.py`, and `job.py` opens the right one. All of them
compute the same result: losses are divided by the number of targets in the global batch, and gradients are summed over
processes, not averaged.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ..loss import IGNORED
from .compilation import keep_many_models
from .state_files import save_whole

Batch = tuple[Tensor, ...]
"""Tensors with one row per sequence. The last one contains the targets; targets of −100 are ignored."""

Value = TypeVar("Value")


class Mesh:
    """A mesh of a single process, which has the whole model and all data."""

    rank, world = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder and reports progress."""
        return self.rank == 0

    @property
    def rows(self) -> slice:
        """The rows of a global batch that this process trains on."""
        return slice(self.rank, None, self.world)

    def even(self, batch: Batch, batch_size: int) -> Batch:
        """This process' rows of a global batch of `batch_size`, padded so that all processes have the same number of rows.

        Padding rows have no targets, so they change neither the loss nor the gradient.
        """
        missing = -(-batch_size // self.world) - len(batch[0])
        return tuple(map(torch.cat, zip(batch, blank(batch), strict=True))) if missing else batch

    def deal(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Every `world`-th batch, for evaluation. All processes get the same number of batches; additional ones have no
        targets."""
        stream = iter(batches)
        while turn := tuple(itertools.islice(stream, self.world)):
            yield turn[self.rank] if self.rank < len(turn) else blank(turn[0])

    def wrap(self, model: nn.Module, compiled: bool) -> nn.Module:
        """Wraps the model for training. The optimizer must be built for `model` afterwards, since its parameters may have been
        replaced."""
        if not compiled:
            return model
        keep_many_models()
        return cast(nn.Module, torch.compile(model))

    def gradients(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Context of the forward and backward pass of a micro-batch; the `last` one completes the gradient."""
        return nullcontext()

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        return value

    def totals(self, *numbers: float) -> tuple[float, ...]:
        """The sum of each number over all processes, in float64."""
        return numbers

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any process."""
        return flag

    def wait(self) -> None:
        """Waits until all processes have called it."""

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes."""
        return [value]

    def from_first(self, compute: Callable[[], Value], patient: bool = False) -> Value:
        """The result of a function that only the first process calls. A CoupledQKError is raised on all processes."""
        return compute()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The complete weights, at least on the first process."""
        return model.state_dict()

    def whole_model(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        """A model that the first process can use on its own; `build` creates a new one."""
        return model

    def save_state(self, state: dict[str, Any], folder: Path) -> None:
        """Writes the optimizer's state and all other parts of a checkpoint except the weights."""
        if self.is_first:
            save_whole(state, folder / "state.pt")


SINGLE = Mesh()


def blank(batch: Batch) -> Batch:
    """The first row of a batch, without targets."""
    *inputs, targets = (rows[:1] for rows in batch)
    return (*inputs, torch.full_like(targets, IGNORED))
