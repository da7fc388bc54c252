"""Speed of generating associative recall (MQAR) data, compared with a loop over rows with numpy's `choice`.

The loop draws each row's keys, values and slots with `choice` and writes the row. `zoology_mqar` must consume the same random
numbers in the same order, so it can only avoid the overhead around them. `paper_mqar` may draw all rows at once. The loop
and our function alternate; each round gives a ratio.

    python benchmarks/mqar.py
    python benchmarks/mqar.py --rounds 21 --examples 3000
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from coupledqk.data.mqar import LEVELS, POWER_A, paper_mqar, zoology_mqar
from coupledqk.provenance import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=500, help="number of rows of zoology_mqar")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    print(f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, 1 thread")
    for level, (pairs, length) in LEVELS.items():
        compare(
            f"paper, {level}, batch of 64",
            lambda pairs=pairs, length=length: by_row(64, 64, length, pairs),
            lambda pairs=pairs, length=length: paper_mqar(pairs, length, seed=0, step=0),
            options.rounds,
        )
    for pairs, length in [*LEVELS.values(), (64, 512)]:
        compare(
            f"zoology, {pairs} pairs in {length}, {options.examples} rows of 8192 tokens",
            lambda pairs=pairs, length=length: by_row(8192, options.examples, length, pairs),
            lambda pairs=pairs, length=length: zoology_mqar(
                8192, options.examples, length, pairs, seed=0, random_non_queries=False
            ),
            options.rounds,
        )


def by_row(vocab_size: int, num_examples: int, length: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.RandomState(0)
    keys, values = np.arange(1, vocab_size // 2), np.arange(vocab_size // 2, vocab_size)
    places = np.arange(2 * pairs, length, 2)
    p = np.arange(1, len(places) + 1) ** (POWER_A - 1)
    p /= p.sum()
    inputs, labels = np.zeros((num_examples, length), np.int64), np.full((num_examples, length), -100)
    for row in range(num_examples):
        inputs[row, 0 : 2 * pairs : 2] = asked = random.choice(keys, pairs, replace=False)
        inputs[row, 1 : 2 * pairs : 2] = answers = random.choice(values, pairs, replace=False)
        queries = random.choice(places, pairs, replace=False, p=p)
        inputs[row, queries], labels[row, queries] = asked, answers
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def compare(what: str, loop: Callable[[], object], ours: Callable[[], object], rounds: int) -> None:
    times = [(seconds(loop), seconds(ours)) for _ in range(rounds + 1)][1:]  # the first round is a warm-up
    ratios = [by_loop / by_us for by_loop, by_us in times]
    by_loop, by_us = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    low, median, high = statistics.quantiles(ratios, n=4) if rounds > 1 else 3 * ratios
    print(
        f"{what}: loop {by_loop:.2f} ms, ours {by_us:.2f} ms; {median:.2f} times as fast, quartiles {low:.2f} to {high:.2f}"
    )


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
