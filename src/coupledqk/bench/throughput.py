"""Measurements for the paper's throughput table: forward, forward + backward, and peak memory.

Forward maps tokens and targets to the mean loss, under no_grad. Forward + backward also computes the gradients of all weights,
without an optimizer step; the gradients of the previous pass are cleared outside the timed region.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from ..costs import flops
from ..variants import variant
from .check import check_loss
from .compiled import NotCompiledError, compile_model
from .conditions import observe
from .contenders import BASELINE, Batch, Contender, Setup, TimedModel
from .memory import peak_memory
from .orders import Launch, Order
from .records import MatmulBound, Memory, ThroughputRow
from .timing import OnMessage, round_robin, seconds_of, speeds_over_launches

PASSES = {"forward": "forward", "training": "forward + backward"}


def time_passes(order: Order, on_message: OnMessage = lambda text: None) -> Launch:
    """Builds, checks and times the contenders in this process."""
    setup = order.setup
    torch.set_num_threads(setup.threads)
    batch = setup.random_batch(order.contenders[0].config.vocab_size)
    models: dict[int, TimedModel] = {}
    compile_seconds, failed = {}, {}
    for place, contender in order.in_order():
        model = contender.build(setup.device)
        if order.check:
            on_message(f"checking {contender.name}")
            check_loss(contender, model, setup)
        if contender.compiled:
            on_message(f"compiling {contender.name}")
            try:
                compile_seconds[place] = compile_model(contender, model, batch, setup, order.check)
            except NotCompiledError as error:
                failed[place] = str(error)
                continue
        models[place] = model
    observed = observe(order.cores, setup.threads)
    seconds = {}
    for measure in ["training"] if order.training_only else PASSES:
        on_pass = lambda text, what=PASSES[measure]: on_message(f"{what}, {text}")  # noqa: E731
        runs = {i: partial(seconds_of_pass, model, batch, setup, measure == "training") for i, model in models.items()}
        seconds[measure] = {i: tuple(times) for i, times in round_robin(runs, order.rounds, on_pass).items()}
    parameters = {i: sum(p.numel() for p in model.parameters()) for i, model in models.items()}
    return Launch(seconds, parameters, observed(), compile_seconds, failed)


def seconds_of_pass(model: TimedModel, batch: Batch, setup: Setup, training: bool) -> float:
    def run() -> None:
        with torch.set_grad_enabled(training), setup.autocast():
            loss = model(*batch)
        if training:
            loss.backward()

    seconds = seconds_of(run, torch.device(setup.device))
    model.zero_grad()
    return seconds


def throughput_rows(
    order: Order, launches: Sequence[Launch], memory: dict[int, Memory], in_processes: bool
) -> list[ThroughputRow]:
    """One row per timed contender. The first is the baseline."""
    found = {
        measure: speeds_over_launches(
            [launch.seconds[measure] for launch in launches], order.baseline, order.tokens, in_processes
        )
        for measure in launches[0].seconds
    }
    return [
        ThroughputRow(
            name=contender.name,
            peer=contender.peer is not None,
            n_steps=contender.n_steps,
            batch=order.setup.batch,
            seq_len=order.setup.seq_len,
            parameters=launches[0].parameters[place],
            forward=found["forward"][place] if "forward" in found else None,
            training=found["training"][place],
            arithmetic=matmul_bound(contender, order.setup.seq_len),
            memory=memory.get(place),
            relative_memory=memory[place].peak_mb / memory[order.baseline].peak_mb if memory else None,
            d_model=contender.config.d_model,
            n_layers=contender.config.n_layers,
            compile_seconds=launches[0].compile_seconds.get(place),
        )
        for place, contender in enumerate(order.contenders)
        if place in found["training"]
    ]


def measure_memory(order: Order, batch: int, on_message: OnMessage) -> dict[int, Memory]:
    """Peak memory of each contender at this batch size. Measures nothing if the batch size is 0."""
    memory = {}
    for place, contender in enumerate(order.contenders) if batch else ():
        on_message(f"memory of {contender.name}")
        memory[place] = peak_memory(contender, replace(order.setup, batch=batch))
    return memory


def matmul_bound(contender: Contender, seq_len: int) -> MatmulBound:
    standard = flops(replace(contender.config, attention=variant(BASELINE)), seq_len)
    plain = flops(contender.config, seq_len)
    recomputes = contender.impl != "reference" and not (contender.compiled and contender.impl == "auto")
    fused = flops(contender.config, seq_len, fused=recomputes)
    return MatmulBound(
        standard.forward / plain.forward, standard.training / plain.training, standard.training / fused.training
    )
