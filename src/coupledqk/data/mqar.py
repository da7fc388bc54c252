"""Multi-query associative recall: a row contains keys, each followed by its value, and then queries for the keys.

    inputs   k₁ v₁ k₂ v₂ 0 0 k₂ 0 k₁ 0 ...
    labels   -  -  -  -  - - v₂ - v₁ - ...       at the position of the query; the value does not follow it in the inputs

Keys are 1 .. V/2 − 1, values V/2 .. V − 1, and both are distinct within a row. Every key is queried once, in a slot of two
tokens after the context. Slot i = 1, 2, ... has a probability proportional to i^(power_a − 1), which favours near slots.
"""

from __future__ import annotations

import hashlib
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch

from ..loss import IGNORED
from ..schema import require
from .batches import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVELS = {"easy": (4, 64), "medium": (8, 128), "hard": (16, 256)}
"""Number of pairs and sequence length of each level. The paper states those of hard, which are Zoology's third configuration;
easy and medium are Zoology's first two."""

POWER_A = 0.01
"""Zoology's default: slot i is nearly 1/i as likely as the first."""


def zoology_mqar(
    vocab_size: int,
    num_examples: int,
    input_seq_len: int,
    num_kv_pairs: int,
    seed: int,
    power_a: float = POWER_A,
    random_non_queries: bool = True,
) -> Batch:
    """The same rows as Zoology's generator for the same arguments, with the same checks of the arguments.

    The legacy streams of numpy are frozen, and numbers are drawn in Zoology's order: keys of all rows, then values, then slots.
    With `random_non_queries` every 0 is replaced by a random token. Zoology draws these from torch's global generator; here
    they are those it draws right after `torch.manual_seed(seed)`. Zoology's `num_passes` is not supported, since values above
    one fail in Zoology.
    """
    import numpy as np

    _check(vocab_size, num_examples, input_seq_len, num_kv_pairs)
    require(
        vocab_size > input_seq_len,
        "vocab_size",
        vocab_size,
        f"more than input_seq_len={input_seq_len}, as Zoology does",
    )
    require(isinstance(seed, Integral) and 0 <= seed < 2**32, "seed", seed, "a whole number from 0 up to 2³² − 1")
    require(power_a > 0, "power_a", power_a, "a number above 0")
    random = np.random.RandomState(seed)
    half, shape = vocab_size // 2, (num_examples, num_kv_pairs)
    p = _slot_probabilities(input_seq_len, num_kv_pairs, power_a)
    keys, values, slots = (np.empty(shape, np.int64) for _ in range(3))
    for row in keys:
        row[:] = random.permutation(half - 1)[:num_kv_pairs]
    for row in values:
        row[:] = random.permutation(vocab_size - half)[:num_kv_pairs]
    for row in slots:
        row[:] = random.choice(len(p), num_kv_pairs, replace=False, p=p)
    inputs, labels = _rows(1 + keys, half + values, slots, input_seq_len)
    if random_non_queries:
        noise = torch.randint(vocab_size, inputs.shape, generator=torch.Generator().manual_seed(int(seed)))
        inputs = torch.where(inputs == 0, noise, inputs)
    return inputs, labels


def paper_mqar(
    num_kv_pairs: int, input_seq_len: int, seed: int, step: int, batch_size: int = 64, vocab_size: int = 64
) -> Batch:
    """The training batch of a step, as a pure function of (seed, step).

    The paper specifies the task and a vocabulary of 64 tokens, that is 31 keys and 32 values. Everything else follows Zoology:
    slots have Zoology's power law, and positions between queries are 0. Zoology's first figures have no fillers either, and
    with 64 tokens a random filler would often be a key followed by another token, which would make the answer ambiguous.
    """
    return _fresh_rows(num_kv_pairs, input_seq_len, batch_size, vocab_size, f"{seed}:{step}")


def paper_test_set(num_kv_pairs: int, input_seq_len: int, num_examples: int = 3000, vocab_size: int = 64) -> Batch:
    """The test set, which is the same for every seed and variant. Its size is not in the paper; 3,000 is Zoology's."""
    return _fresh_rows(num_kv_pairs, input_seq_len, num_examples, vocab_size, "test")


def _fresh_rows(num_kv_pairs: int, input_seq_len: int, num_examples: int, vocab_size: int, name: str) -> Batch:
    """Generates all rows at once. The random streams of numpy's RandomState are frozen."""
    import numpy as np

    _check(vocab_size, num_examples, input_seq_len, num_kv_pairs)
    random = np.random.RandomState(np.frombuffer(hashlib.sha256(f"mqar:{name}".encode()).digest(), "<u4"))
    half = vocab_size // 2
    keys = 1 + _smallest(random.random_sample((num_examples, half - 1)), num_kv_pairs)
    values = half + _smallest(random.random_sample((num_examples, vocab_size - half)), num_kv_pairs)
    # The order of exponential random times with rates p is that of draws without replacement with probabilities p.
    p = _slot_probabilities(input_seq_len, num_kv_pairs, POWER_A)
    slots = _smallest(random.standard_exponential((num_examples, len(p))) / p, num_kv_pairs)
    return _rows(keys, values, slots, input_seq_len)


def _check(vocab_size: int, num_examples: int, input_seq_len: int, num_kv_pairs: int) -> None:
    sizes = {
        "vocab_size": vocab_size,
        "num_examples": num_examples,
        "input_seq_len": input_seq_len,
        "num_kv_pairs": num_kv_pairs,
    }
    for name, size in sizes.items():
        require(isinstance(size, Integral) and size > 0, name, size, "a whole number above 0")
    require(
        input_seq_len % 2 == 0, "input_seq_len", input_seq_len, "an even number: keys and slots take two tokens each"
    )
    longest, keys = input_seq_len // 4, vocab_size // 2 - 1
    require(
        num_kv_pairs <= longest,
        "num_kv_pairs",
        num_kv_pairs,
        f"at most {longest} at input_seq_len={input_seq_len}: a pair takes two tokens, and its query two more",
    )
    require(num_kv_pairs <= keys, "num_kv_pairs", num_kv_pairs, f"at most the {keys} keys of vocab_size={vocab_size}")


def _slot_probabilities(input_seq_len: int, num_kv_pairs: int, power_a: float) -> NDArray[np.float64]:
    import numpy as np

    density = power_a * np.arange(1, input_seq_len // 2 - num_kv_pairs + 1) ** (power_a - 1.0)
    return density / density.sum()


def _smallest(draws: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices of the smallest numbers of each row, in increasing order."""
    return draws.argsort(axis=1)[:, :count]


def _rows(keys: NDArray[Any], values: NDArray[Any], slots: NDArray[Any], length: int) -> Batch:
    import numpy as np

    num_examples, num_kv_pairs = keys.shape
    inputs = np.zeros((num_examples, length), np.int64)
    labels = np.full((num_examples, length), IGNORED, np.int64)
    context = 2 * num_kv_pairs
    inputs[:, 0:context:2] = keys
    inputs[:, 1:context:2] = values
    queries = context + 2 * slots
    np.put_along_axis(inputs, queries, keys, axis=1)
    np.put_along_axis(labels, queries, values, axis=1)
    return torch.from_numpy(inputs), torch.from_numpy(labels)
