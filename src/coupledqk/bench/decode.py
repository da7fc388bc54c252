"""Decoding speed: tokens per second for greedy decoding of one sequence with the KV cache.

The timing covers the whole call, including the prompt. Peers decode with their own `generate`.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..costs import count_parameters, sizes
from .check import check_decoding
from .conditions import observe
from .contenders import Contender, Setup, TimedModel
from .orders import Launch, Order
from .records import DecodeRow
from .timing import OnMessage, round_robin, seconds_of, speeds_over_launches


def time_decoding(order: Order, on_message: OnMessage = lambda text: None) -> Launch:
    """Builds, checks and times the contenders in this process. The prompt has `setup.seq_len` tokens."""
    setup, new_tokens = order.setup, order.tokens
    torch.set_num_threads(setup.threads)
    prompt, _ = setup.random_batch(order.contenders[0].config.vocab_size)
    models = {place: contender.build(setup.device).eval() for place, contender in order.in_order()}
    for place, contender in order.in_order() if order.check else ():
        on_message(f"checking {contender.name}")
        check_decoding(contender, models[place], prompt, new_tokens, setup)
    observed = observe(order.cores, setup.threads)
    runs = {place: partial(seconds_of_call, model, prompt, new_tokens, setup) for place, model in models.items()}
    times = round_robin(runs, order.rounds, lambda text: on_message(f"decoding, {text}"))
    parameters = {place: count(order.contenders[place], model) for place, model in models.items()}
    seconds = {place: tuple(each) for place, each in times.items()}
    return Launch({"decode": seconds}, parameters, observed())


def count(contender: Contender, model: TimedModel) -> int:
    """Number of parameters. Quantized weights are buffers, so those models are counted from their configuration."""
    return count_parameters(contender.config) if contender.int8 else sum(p.numel() for p in model.parameters())


def decode_rows(order: Order, launches: Sequence[Launch], in_processes: bool) -> list[DecodeRow]:
    times = [launch.seconds["decode"] for launch in launches]
    found = speeds_over_launches(times, order.baseline, order.tokens, in_processes)
    return [
        DecodeRow(
            name=contender.name,
            peer=contender.peer is not None,
            prompt=order.setup.seq_len,
            new_tokens=order.tokens,
            parameters=launches[0].parameters[place],
            decode=found[place],
            cache_bytes=None if contender.peer else sizes(contender.config).cache_per_token,
        )
        for place, contender in enumerate(order.contenders)
    ]


def seconds_of_call(model: TimedModel, prompt: Tensor, new_tokens: int, setup: Setup) -> float:
    with torch.no_grad(), setup.autocast():
        return seconds_of(lambda: model.greedy(prompt, new_tokens), prompt.device)
