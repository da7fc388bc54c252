"""Time and peak memory of forward + backward of the chunked cross-entropy loss (lean) and of the plain one.

For the time, the two alternate and each round gives a ratio. The memory of each is measured once in a separate process: the
peak resident memory minus the resident memory after the inputs and the weight were created.

    python benchmarks/loss.py
"""

import argparse
import subprocess
import sys
import time

import torch

from coupledqk.bench.memory import resident
from coupledqk.bench.timing import round_robin, speeds
from coupledqk.loss import linear_cross_entropy, plain_loss
from coupledqk.provenance import commit, machine, versions

LOSSES = {"plain": plain_loss, "lean": linear_cross_entropy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=50_257)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--measure-memory", choices=LOSSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    inputs = make_inputs(options)
    if options.measure_memory:
        print(peak_memory(options.measure_memory, inputs))
        return
    runs = {name: lambda name=name: seconds(name, inputs) for name in LOSSES}
    ratio = speeds(round_robin(runs, options.rounds, print), "lean", options.rows)["plain"].relative
    peaks = {name: float(subprocess.check_output([*sys.orig_argv, "--measure-memory", name])) for name in LOSSES}
    print(f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}")
    print(f"{options.rows:,} × {options.vocabulary:,}, width {options.width}, {options.rounds} rounds")
    print(f"time, lean / plain: median {ratio.median:.3f}, quartiles {ratio.low:.3f} to {ratio.high:.3f}")
    print(
        f"peak memory: plain {peaks['plain']:,.0f} MB, lean {peaks['lean']:,.0f} MB, ratio {peaks['lean'] / peaks['plain']:.3f}"
    )


def make_inputs(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(options.rows, options.width, generator=random, requires_grad=True)
    weight = (torch.randn(options.vocabulary, options.width, generator=random) * 0.02).requires_grad_()
    return x, weight, torch.randint(options.vocabulary, (options.rows,), generator=random)


def seconds(name: str, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
    for tensor in inputs:
        tensor.grad = None
    start = time.perf_counter()
    LOSSES[name](*inputs).backward()
    return time.perf_counter() - start


def peak_memory(name: str, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
    before = resident("VmRSS")
    seconds(name, inputs)
    return (resident("VmHWM") - before) / 1e6


if __name__ == "__main__":
    main()
