"""Speedup of float32 training on AMD processors if MKL uses AVX-512.

PyTorch computes matrix products in float32 with Intel's MKL, which chooses its kernels by the manufacturer of the processor: on
AMD it takes those for AVX2, even if the processor has AVX-512. This script compiles a library with gcc that replaces the two
functions by which MKL asks for the manufacturer, and trains in fresh processes, alternately with and without this library.

    python benchmarks/avx512.py --save results/bench
    python benchmarks/avx512.py --recipes mini-modern --threads 1 --launches 7
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from coupledqk.bench.conditions import available, observe
from coupledqk.files import write_atomic
from coupledqk.model import TransformerLM
from coupledqk.provenance import commit, machine, versions
from coupledqk.recipes import recipe

SOURCE = "int mkl_serv_intel_cpu(void) { return 1; }\nint mkl_serv_intel_cpu_true(void) { return 1; }\n"
STEPS = {"mini-modern": 100, "wikitext-103": 2}
TOKENS = 1_024  # in a batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["mini-modern", "wikitext-103"], choices=STEPS)
    parser.add_argument("--variants", nargs="+", default=["standard", "hamiltonian"])
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path, help="folder for DATE-avx512.md")
    parser.add_argument("--measure", nargs=2, metavar=("RECIPE", "VARIANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(seconds_per_step(*options.measure, threads=options.threads))
        return
    lines = [
        f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}",
        "",
        f"median milliseconds of a training step of {TOKENS:,} tokens in float32",
        f"{options.launches} fresh processes of each kind, alternating",
        "",
        "| recipe | variant | as installed | with AVX-512 | ratio of neighbouring processes (range) |",
        "| --- | --- | --: | --: | --: |",
    ]
    observed = observe(available(), options.threads)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        for name in options.recipes:
            for variant in options.variants:
                lines.append(row(name, variant, library, options))
                print(lines[-1], flush=True)
    found = observed()
    busy = f"other processes used {found.other_cores:.2f} of {found.cores} cores" if found else "load not observed"
    text = "\n".join([*lines, "", busy, ""])
    print(text)
    if options.save:
        write_atomic(options.save / f"{datetime.date.today()}-avx512.md", text)


def compiled(folder: Path) -> Path:
    source, library = folder / "intel.c", folder / "intel.so"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def row(name: str, variant: str, library: Path, options: argparse.Namespace) -> str:
    measure = partial(launched, [__file__, "--measure", name, variant, "--threads", str(options.threads)])
    pairs = [(measure({}), measure({"LD_PRELOAD": str(library)})) for _ in range(options.launches)]
    before, after = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = [installed / preloaded for installed, preloaded in pairs]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    return f"| {name} | {variant} | {before:,.1f} | {after:,.1f} | {spread} |"


def launched(arguments: list[str], environment: dict[str, str]) -> float:
    command = [sys.executable, *arguments]
    return float(
        subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True).stdout
    )


def seconds_per_step(name: str, variant: str, threads: int) -> float:
    """The median over training steps with random tokens, without the first one."""
    torch.set_num_threads(threads)
    config = recipe(name, variant)
    model = TransformerLM(config.model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    length = config.train.seq_len
    tokens = torch.randint(config.model.vocab_size, (TOKENS // length, length + 1))
    times = []
    for _ in range(STEPS[name] + 1):
        start = time.perf_counter()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
