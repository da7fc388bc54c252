"""Time and memory of an analysis, compared with computing only the singular values of the same attention maps.

The analysis is all of `survey`: the forward pass, the maps, all of their measures, and the motion of q and k. The singular
values alone are computed by the same method, in PyTorch's batched call and in our function, which gives each thread one map
at a time. All of them alternate sequence by sequence. Then methods for singular values are compared in time and in the error
of the effective rank. Without --run the model has initial weights, with q and k scaled so that maps are as sharp as trained
ones.

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
    """Random tokens with a Zipf distribution: the n-th token is n times as rare as the first."""
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
    survey(model, [tokens_of(model, length, seed=0)])  # warm-up
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
        f"singular values alone, one map per thread:     {threaded:.2f} s; ours takes {ours / threaded:.3f} times as long"
    )
    print(f"peak memory of this process: {peak_megabytes():.0f} MB")


def roots_of_gram(maps: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(maps @ maps.mT).clamp(min=0).sqrt().flip(-1)


ROUTES: dict[str, Callable[[Tensor], Tensor]] = {
    "svdvals, float64": lambda maps: torch.linalg.svdvals(maps.double()),
    "svdvals, float32": torch.linalg.svdvals,
    "eigvalsh of A Aᵀ, float32": roots_of_gram,
    "eigvalsh of A Aᵀ, float64": lambda maps: roots_of_gram(maps.double()),
    "the same, one map per thread": singular_values,
}


def compare_routes(model: TransformerLM, length: int) -> None:
    """Compares the methods on the maps of one sequence, by time and by maximum error relative to the first method."""
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
        print(f"  {name:<34} {1e3 * times[name] / n_maps:7.2f} ms per map, error {errors[name]:.1e}")


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
