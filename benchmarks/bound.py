"""Share of matrix products and attention kernels in the time of a training pass, and the upper bound of the speed they imply.

The forward and backward pass of each model is profiled in turn for several rounds, by the self time of each operator. Matrix
products and PyTorch's attention kernel do the arithmetic that defines a model; everything else (norms, activations, residual
additions, the softmax of the loss, copies, Python) could at best be eliminated. The bound in the last column is the speed
relative to transformers' Llama that our model would then have, with Llama unchanged.

    python benchmarks/bound.py
    python benchmarks/bound.py --variants standard hamiltonian --rounds 7 --save results/bench

Load on the machine affects the speeds, but hardly affects the shares.
"""

import argparse
import datetime
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from coupledqk.bench.contenders import Setup, TimedModel, our_contenders, peer_contenders
from coupledqk.files import write_atomic
from coupledqk.provenance import commit, machine, versions

PEER = "llama"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmm_", "aten::baddbmm_")
ATTENTION = ("scaled_dot_product", "flash_attention")
KINDS = ("products", "attention", "rest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--variants", nargs="+", default=["standard", "euler", "hamiltonian"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--save", type=Path, help="folder for DATE-bound.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    setup = Setup(options.batch, options.seq_len, threads=options.threads)
    contenders = [*our_contenders(options.size, options.variants), *peer_contenders(options.size, [PEER])]
    models = {contender.label: contender.build("cpu") for contender in contenders}
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(options.rounds + 1):
        order = list(models) if number % 2 else list(models)[::-1]
        rounds.append({label: milliseconds(models[label], setup) for label in order})
    text = described(rounds[1:], options)  # the first round warms up
    print(text)
    if options.save:
        write_atomic(options.save / f"{datetime.date.today()}-bound.md", text)


def milliseconds(model: TimedModel, setup: Setup) -> dict[str, float]:
    """Milliseconds of a forward and backward pass by kind of operator."""
    tokens, targets = setup.random_batch(1_000)
    with profile(activities=[ProfilerActivity.CPU]) as record:
        model(tokens, targets).backward()
    model.zero_grad()
    found = dict.fromkeys(KINDS, 0.0)
    for event in record.key_averages():
        found[kind_of(event.key)] += event.self_cpu_time_total / 1_000
    return found


def kind_of(operator: str) -> str:
    if operator in PRODUCTS:
        return "products"
    return "attention" if any(name in operator for name in ATTENTION) else "rest"


def described(rounds: list[dict[str, dict[str, float]]], options: argparse.Namespace) -> str:
    lines = [
        f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}",
        "",
        f"{options.size}, {options.batch} × {options.seq_len} tokens, fp32, forward and backward pass; medians of "
        f"{options.rounds} rounds, profiled",
        "",
        f"| | {', ms | '.join(KINDS)}, ms | whole, ms | share of products and attention | speed relative to {PEER} | bound |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for label in rounds[0]:
        parts = {kind: median(found[label][kind] for found in rounds) for kind in KINDS}
        whole = median(sum(found[label].values()) for found in rounds)
        arithmetic = parts["products"] + parts["attention"]
        speed = median(sum(found[PEER].values()) / sum(found[label].values()) for found in rounds)
        bound = median(
            sum(found[PEER].values()) / (found[label]["products"] + found[label]["attention"]) for found in rounds
        )
        numbers = [f"{parts[kind]:,.0f}" for kind in KINDS]
        lines.append(
            f"| {label} | {' | '.join(numbers)} | {whole:,.0f} | {arithmetic / whole:.1%} | {speed:.3f} | {bound:.3f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
