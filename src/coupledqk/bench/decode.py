"""Decoding: how many tokens a second one sequence is continued with, greedily and with the cache.

What is timed is a whole call, the prompt included, as a user makes it; peers are called by their own `generate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..costs import sizes
from .check import check_decoding
from .contenders import Contender, Rival, Setup
from .throughput import Tell
from .timing import Speed, seconds_of, speeds, take_turns


@dataclass(frozen=True)
class DecodeRow:
    name: str
    peer: bool
    prompt: int
    """Tokens."""
    new_tokens: int
    parameters: int
    decode: Speed
    """In new tokens."""
    cache_bytes: int | None
    """Of each token, for all layers; a peer's is not known."""


def baseline_of(contenders: Sequence[Contender]) -> Contender:
    """The first peer, or without peers the first of ours."""
    return next((contender for contender in contenders if contender.peer), contenders[0])


def decode(
    contenders: Sequence[Contender], setup: Setup, new_tokens: int, rounds: int, tell: Tell = lambda text: None
) -> list[DecodeRow]:
    """A row for each contender; the prompt is `setup.seq_len` tokens long."""
    torch.set_num_threads(setup.threads)
    prompt, _ = setup.random_batch(contenders[0].config.vocab_size)
    models = {contender: contender.build(setup.device).eval() for contender in contenders}
    for contender in contenders:
        tell(f"checking {contender.name}")
        check_decoding(contender, models[contender], prompt, new_tokens, setup)
    runs = {who: partial(seconds_of_call, model, prompt, new_tokens, setup) for who, model in models.items()}
    times = take_turns(runs, rounds, lambda text: tell(f"decoding, {text}"))
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


def seconds_of_call(model: Rival, prompt: Tensor, new_tokens: int, setup: Setup) -> float:
    with torch.no_grad(), setup.autocast():
        return seconds_of(lambda: model.greedy(prompt, new_tokens), prompt.device)
