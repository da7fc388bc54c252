"""The paper's throughput table: forward, forward + backward, peak memory.

Forward is tokens and targets to the mean loss, under no_grad. Forward + backward is the same with gradients of all weights, and
without an optimiser step; the gradients of the pass before are dropped off the clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..costs import flops
from ..variants import variant
from .check import check_loss
from .contenders import BASELINE, Batch, Contender, Rival, Setup
from .memory import Memory, peak_memory
from .timing import Speed, seconds_of, speeds, take_turns

Tell = Callable[[str], None]
"""Hears what is being done, for whoever waits."""


@dataclass(frozen=True)
class Arithmetic:
    """The baseline's matrix products over a contender's: its relative speed if products were all that takes time."""

    forward: float
    training: float
    recomputing: float
    """Of training, with what the fused dynamics recompute."""


@dataclass(frozen=True)
class Row:
    name: str
    peer: bool
    n_steps: int | None
    """Of the dynamics, if they take steps."""
    batch: int
    seq_len: int
    parameters: int
    forward: Speed
    training: Speed
    """Forward + backward."""
    arithmetic: Arithmetic
    memory: Memory
    relative_memory: float
    """The peak over the baseline's."""


def throughput(
    contenders: Sequence[Contender], setup: Setup, rounds: int, memory_batch: int, tell: Tell = lambda text: None
) -> list[Row]:
    """A row for each contender; the first is the baseline. Memory is measured for `memory_batch` sequences."""
    models = build_all(contenders, setup, tell)
    batch = setup.random_batch(contenders[0].config.vocab_size)
    forward = time_passes(models, batch, setup, rounds, training=False, tell=tell)
    training = time_passes(models, batch, setup, rounds, training=True, tell=tell)
    parameters = {contender: sum(p.numel() for p in model.parameters()) for contender, model in models.items()}
    del models  # the processes that measure memory may need it
    memory = {}
    for contender in contenders:
        tell(f"memory of {contender.name}")
        memory[contender] = peak_memory(contender, replace(setup, batch=memory_batch))
    return [
        Row(
            name=contender.name,
            peer=contender.peer is not None,
            n_steps=contender.n_steps,
            batch=setup.batch,
            seq_len=setup.seq_len,
            parameters=parameters[contender],
            forward=forward[contender],
            training=training[contender],
            arithmetic=arithmetic(contender, setup.seq_len),
            memory=memory[contender],
            relative_memory=memory[contender].peak_mb / memory[contenders[0]].peak_mb,
        )
        for contender in contenders
    ]


def build_all(contenders: Sequence[Contender], setup: Setup, tell: Tell) -> dict[Contender, Rival]:
    """Every contender that is to be timed, checked."""
    torch.set_num_threads(setup.threads)
    models = {}
    for contender in contenders:
        tell(f"checking {contender.name}")
        models[contender] = contender.build(setup.device)
        check_loss(contender, models[contender], setup)
    return models


def time_passes(
    models: Mapping[Contender, Rival], batch: Batch, setup: Setup, rounds: int, training: bool, tell: Tell
) -> dict[Contender, Speed]:
    runs = {who: partial(seconds_of_pass, model, batch, setup, training) for who, model in models.items()}
    what = "forward + backward" if training else "forward"
    times = take_turns(runs, rounds, lambda text: tell(f"{what}, {text}"))
    return speeds(times, next(iter(models)), setup.batch * setup.seq_len)


def seconds_of_pass(model: Rival, batch: Batch, setup: Setup, training: bool) -> float:
    def run() -> None:
        with torch.set_grad_enabled(training), setup.autocast():
            loss = model(*batch)
        if training:
            loss.backward()

    seconds = seconds_of(run, torch.device(setup.device))
    model.zero_grad()
    return seconds


def arithmetic(contender: Contender, seq_len: int) -> Arithmetic:
    standard = flops(replace(contender.config, attention=variant(BASELINE)), seq_len)
    plain = flops(contender.config, seq_len)
    fused = flops(contender.config, seq_len, fused=contender.impl != "reference")
    return Arithmetic(
        standard.forward / plain.forward, standard.training / plain.training, standard.training / fused.training
    )
