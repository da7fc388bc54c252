"""Effect of keeping freed memory in the process during CPU training (training/allocator.py) on time and peak memory.

The two settings alternate, each in a new process because the setting applies to a whole process. Each round gives a ratio.

    python benchmarks/allocator.py
    python benchmarks/allocator.py --recipe wikitext-103 --steps 3 --threads 2
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch

from coupledqk.bench.timing import round_robin, speeds
from coupledqk.model import TransformerLM
from coupledqk.provenance import commit, machine, versions
from coupledqk.recipes import recipe
from coupledqk.training.allocator import keep_freed_memory

WAYS = ("released", "kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mini")
    parser.add_argument("--variant", default="hamiltonian")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(*train(options))
        return
    memory: dict[str, list[float]] = {way: [] for way in WAYS}

    def run(way: str) -> float:
        seconds, megabytes = map(float, subprocess.check_output([*sys.orig_argv, "--way", way]).split())
        memory[way].append(megabytes)
        return seconds

    times = round_robin({way: lambda way=way: run(way) for way in WAYS}, options.rounds)
    ratio = speeds(times, "kept", 1)["released"].relative
    print(f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}")
    print(
        f"{options.recipe}, {options.variant}, batch {options.batch}, {options.rounds} rounds of {options.steps} steps"
    )
    print(f"time, kept / released: median {ratio.median:.3f}, quartiles {ratio.low:.3f} to {ratio.high:.3f}")
    print("peak resident memory:", ", ".join(f"{way} {statistics.median(memory[way]):,.0f} MB" for way in WAYS))


def train(options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the forward + backward passes after two warm-up passes, and peak resident memory in MB."""
    if options.way == "kept":
        keep_freed_memory()
    torch.set_num_threads(options.threads)
    config = recipe(options.recipe, options.variant)
    model = TransformerLM(config.model)
    tokens = torch.randint(config.model.vocab_size, (options.batch, config.train.seq_len + 1))
    start = 0.0
    for step in range(options.steps + 2):
        if step == 2:
            start = time.perf_counter()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        model.zero_grad()
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
