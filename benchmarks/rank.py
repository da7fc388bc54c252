"""How long an analysis takes, against nothing but the singular values of the same maps, and in how much memory.

Ours is all of `survey`: the forward pass, the maps, every measure of them, and how q and k move. Bare are the singular values
of the same maps by the same route: in PyTorch's own batched call, and in ours, which gives each thread a map of its own. All
alternate, sequence by sequence. Then the routes to singular values are compared, in time and in the error of the effective
rank. Without a run the model has initial weights, with queries and keys scaled up until the maps are as sharp as trained ones.

    python benchmarks/rank.py                                # small, 25 sequences of 512 tokens
    python benchmarks/rank.py --variant standard --sequences 4 --threads 1
    python benchmarks/rank.py --run runs/NAME
"""

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from coupledqk import TransformerLM
from coupledqk.analysis import record, singular_values, survey
from coupledqk.analysis.measures import effective_rank
from coupledqk.provenance import machine
from coupledqk.runs import Run

SHARPNESS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="a trained run to measure")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--variant", default="hamiltonian")
    parser.add_argument("--sequences", type=int, default=25)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = Run.open(options.run).model(device="cpu") if options.run else sharp(options.preset, options.variant)
    print(machine())
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {options.threads} threads")
    compare(model, options.sequences, options.length)
    compare_routes(model, options.length)


@torch.no_grad()
def sharp(preset: str, variant: str) -> TransformerLM:
    model = TransformerLM.from_preset(preset, variant)
    for name, parameter in model.named_parameters():
        if name.endswith("qkv.weight"):
            parameter.mul_(SHARPNESS)
    return model.eval()


def tokens_of(model: TransformerLM, length: int, seed: int) -> Tensor:
    """Words as rare as in text: the n-th token about n times as rare as the first."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, model.config.vocab_size + 1)
    return torch.multinomial(frequencies, length, replacement=True, generator=generator)[None]


@torch.no_grad()
def layer_maps(model: TransformerLM, tokens: Tensor) -> Iterator[Tensor]:
    with record(model) as tape:
        model.hidden(tokens)
    for layer in tape.layers:
        yield layer.pattern()


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(model: TransformerLM, sequences: int, length: int) -> None:
    survey(model, [tokens_of(model, length, seed=0)])  # warms up
    ours = batched = threaded = 0.0
    for seed in range(sequences):
        tokens = tokens_of(model, length, seed)
        ours += seconds(lambda tokens=tokens: survey(model, [tokens]))
        for maps in layer_maps(model, tokens):
            batched += seconds(lambda maps=maps: roots_of_gram(maps.double()))
            threaded += seconds(lambda maps=maps: singular_values(maps))
    shape = model.config
    print(f"{sequences} sequences × {shape.n_layers} layers × {shape.n_heads} heads at length {length}: {ours:.2f} s")
    print(
        f"singular values alone, PyTorch's batched call: {batched:.2f} s; ours takes {ours / batched:.3f} times as long"
    )
    print(
        f"singular values alone, a map to each thread:   {threaded:.2f} s; ours takes {ours / threaded:.3f} times as long"
    )
    print(f"peak memory of this process {peak_megabytes():.0f} MB")


def roots_of_gram(maps: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(maps @ maps.mT).clamp(min=0).sqrt().flip(-1)


ROUTES: dict[str, Callable[[Tensor], Tensor]] = {
    "svdvals, float64": lambda maps: torch.linalg.svdvals(maps.double()),
    "svdvals, float32": torch.linalg.svdvals,
    "eigvalsh of A Aᵀ, float32": roots_of_gram,
    "eigvalsh of A Aᵀ, float64": lambda maps: roots_of_gram(maps.double()),
    "the same, a map to each thread": singular_values,
}


def compare_routes(model: TransformerLM, length: int) -> None:
    """On the maps of one sequence; the error is the largest, relative to the effective rank by the first route."""
    times, errors = dict.fromkeys(ROUTES, 0.0), dict.fromkeys(ROUTES, 0.0)
    lowest, highest, n_maps = float("inf"), 0.0, 0
    for maps in layer_maps(model, tokens_of(model, length, seed=0)):
        truth = effective_rank(ROUTES["svdvals, float64"](maps))
        lowest, highest, n_maps = (
            min(lowest, float(truth.min())),
            max(highest, float(truth.max())),
            n_maps + truth.numel(),
        )
        for name, route in ROUTES.items():
            start = time.perf_counter()
            sigma = route(maps)
            times[name] += time.perf_counter() - start
            errors[name] = max(errors[name], float((effective_rank(sigma.double()) / truth - 1).abs().max()))
    print(f"{n_maps} maps of effective rank {lowest:.1f} to {highest:.1f}")
    for name in ROUTES:
        print(f"  {name:<34} {1e3 * times[name] / n_maps:7.2f} ms a map, error {errors[name]:.1e}")


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
