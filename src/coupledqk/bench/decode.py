"""Decoding speed: how many tokens per second one sequence is continued by, greedily and with the KV cache.

The whole call is timed, prompt included, as a user makes it; peers are called by their own `generate`.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..costs import sizes
from .check import check_decoding
from .contenders import Contender, Setup, TimedModel
from .records import DecodeRow
from .timing import OnMessage, round_robin, seconds_of, speeds


def baseline_of(contenders: Sequence[Contender]) -> Contender:
    """The first peer, or without peers the first of ours."""
    return next((contender for contender in contenders if contender.peer), contenders[0])


def decode(
    contenders: Sequence[Contender],
    setup: Setup,
    new_tokens: int,
    rounds: int,
    on_message: OnMessage = lambda text: None,
) -> list[DecodeRow]:
    """A row for each contender; the prompt is `setup.seq_len` tokens long."""
    torch.set_num_threads(setup.threads)
    prompt, _ = setup.random_batch(contenders[0].config.vocab_size)
    models = {contender: contender.build(setup.device).eval() for contender in contenders}
    for contender in contenders:
        on_message(f"checking {contender.name}")
        check_decoding(contender, models[contender], prompt, new_tokens, setup)
    runs = {who: partial(seconds_of_call, model, prompt, new_tokens, setup) for who, model in models.items()}
    times = round_robin(runs, rounds, lambda text: on_message(f"decoding, {text}"))
    found = speeds(times, baseline_of(contenders), new_tokens)
    return [
        DecodeRow(
            name=contender.name,
            peer=contender.peer is not None,
            prompt=setup.seq_len,
            new_tokens=new_tokens,
            parameters=sum(p.numel() for p in models[contender].parameters()),
            decode=found[contender],
            cache_bytes=None if contender.peer else sizes(contender.config).cache_per_token,
        )
        for contender in contenders
    ]


def seconds_of_call(model: TimedModel, prompt: Tensor, new_tokens: int, setup: Setup) -> float:
    with torch.no_grad(), setup.autocast():
        return seconds_of(lambda: model.greedy(prompt, new_tokens), prompt.device)
