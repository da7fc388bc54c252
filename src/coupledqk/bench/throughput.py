"""The paper's throughput table: forward, forward + backward, peak memory.

Forward maps tokens and targets to the mean loss, under no_grad. Forward + backward also computes the gradients of all weights,
without an optimizer step; the gradients of the previous pass are cleared outside the timed region.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from ..costs import flops
from ..variants import variant
from .check import check_loss
from .contenders import BASELINE, Batch, Contender, Setup, TimedModel
from .memory import peak_memory
from .records import MatmulBound, Speed, ThroughputRow
from .timing import OnMessage, round_robin, seconds_of, speeds


def throughput(
    contenders: Sequence[Contender],
    setup: Setup,
    rounds: int,
    memory_batch: int,
    on_message: OnMessage = lambda text: None,
) -> list[ThroughputRow]:
    """A row for each contender; the first is the baseline. Memory is measured for `memory_batch` sequences."""
    models = build_all(contenders, setup, on_message)
    batch = setup.random_batch(contenders[0].config.vocab_size)
    forward = time_passes(models, batch, setup, rounds, training=False, on_message=on_message)
    training = time_passes(models, batch, setup, rounds, training=True, on_message=on_message)
    parameters = {contender: sum(p.numel() for p in model.parameters()) for contender, model in models.items()}
    del models  # the processes that measure memory may need it
    memory = {}
    for contender in contenders:
        on_message(f"memory of {contender.name}")
        memory[contender] = peak_memory(contender, replace(setup, batch=memory_batch))
    return [
        ThroughputRow(
            name=contender.name,
            peer=contender.peer is not None,
            n_steps=contender.n_steps,
            batch=setup.batch,
            seq_len=setup.seq_len,
            parameters=parameters[contender],
            forward=forward[contender],
            training=training[contender],
            arithmetic=matmul_bound(contender, setup.seq_len),
            memory=memory[contender],
            relative_memory=memory[contender].peak_mb / memory[contenders[0]].peak_mb,
        )
        for contender in contenders
    ]


def build_all(contenders: Sequence[Contender], setup: Setup, on_message: OnMessage) -> dict[Contender, TimedModel]:
    """The models of all contenders, each of which has passed its numerics check."""
    torch.set_num_threads(setup.threads)
    models = {}
    for contender in contenders:
        on_message(f"checking {contender.name}")
        models[contender] = contender.build(setup.device)
        check_loss(contender, models[contender], setup)
    return models


def time_passes(
    models: Mapping[Contender, TimedModel],
    batch: Batch,
    setup: Setup,
    rounds: int,
    training: bool,
    on_message: OnMessage,
) -> dict[Contender, Speed]:
    runs = {who: partial(seconds_of_pass, model, batch, setup, training) for who, model in models.items()}
    what = "forward + backward" if training else "forward"
    times = round_robin(runs, rounds, lambda text: on_message(f"{what}, {text}"))
    return speeds(times, next(iter(models)), setup.batch * setup.seq_len)


def seconds_of_pass(model: TimedModel, batch: Batch, setup: Setup, training: bool) -> float:
    def run() -> None:
        with torch.set_grad_enabled(training), setup.autocast():
            loss = model(*batch)
        if training:
            loss.backward()

    seconds = seconds_of(run, torch.device(setup.device))
    model.zero_grad()
    return seconds


def matmul_bound(contender: Contender, seq_len: int) -> MatmulBound:
    standard = flops(replace(contender.config, attention=variant(BASELINE)), seq_len)
    plain = flops(contender.config, seq_len)
    fused = flops(contender.config, seq_len, fused=contender.impl != "reference")
    return MatmulBound(
        standard.forward / plain.forward, standard.training / plain.training, standard.training / fused.training
    )
