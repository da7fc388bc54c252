"""Training speed, measured by a few steps of the training loop on random tokens."""

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import RunConfig
from ..model import TransformerLM
from ..schema import change
from ..tasks.models import pick_device
from ..training.checkpoints import Checkpoints
from ..training.events import Event, Step
from ..training.loop import ALL, Batch, train
from ..training.mesh import SINGLE, Mesh


def training_speeds(
    configs: Mapping[str, RunConfig], rounds: int = 5, steps: int = 2, max_rows: int | None = None
) -> dict[str, list[float]]:
    """Tokens per second of each configuration, one value per round.

    In each round every configuration takes `steps` training steps. The order rotates, so that a drift in the speed of the
    machine affects all configurations equally. `max_rows` limits the number of rows in a batch.
    """
    speeds: dict[str, list[float]] = {name: [] for name in configs}
    with _limited_threads(next(iter(configs.values()))), tempfile.TemporaryDirectory() as folder:
        started = {
            name: _Training(_short(config, 1 + rounds * steps, max_rows), Path(folder, str(i)))
            for i, (name, config) in enumerate(configs.items())
        }
        for training in started.values():
            training.advance(1)  # allocates memory and optimizer state
        names = list(configs)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                speeds[name].append(started[name].advance(steps))
    return speeds


def has_bfloat16() -> bool:
    """Whether models are trained on a processor with instructions for matrix products in bfloat16."""
    if pick_device("auto").type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


class _Training:
    """A run that is advanced step by step."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.tokens = config.train.batch_size * config.train.seq_len
        model = TransformerLM(config.model).to(pick_device(config.runtime.device))
        self.events: Iterator[Event] = train(model, _RandomTokens(config), config, Checkpoints(folder, 1))

    def advance(self, steps: int) -> float:
        """Takes training steps and returns the speed in tokens per second."""
        began = time.perf_counter()
        for _ in range(steps):
            while not isinstance(next(self.events), Step):
                pass
        return steps * self.tokens / (time.perf_counter() - began)


class _RandomTokens:
    """A Task that costs as much as language modelling but needs no corpus."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.chance_loss = config, math.inf

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        shape = (self.config.train.batch_size, self.config.train.seq_len)
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(self.config.model.vocab_size, shape, generator=generator)
        return tokens[rows], tokens.roll(-1, 1)[rows]

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        return model(*micro, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, Any]:
        raise AssertionError("speed is measured without evaluation")


def _short(config: RunConfig, steps: int, max_rows: int | None) -> RunConfig:
    """The configuration with one step more than will be taken, so that the run neither evaluates nor saves."""
    limits = {"steps": steps + 1, "warmup": 0, "eval_every": steps + 1, "save_every": steps + 1}
    rows = min(config.train.batch_size, max_rows or config.train.batch_size)
    return change(config, {**limits, "batch_size": rows})


@contextlib.contextmanager
def _limited_threads(config: RunConfig) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(config.runtime.threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
