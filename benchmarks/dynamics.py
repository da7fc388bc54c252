"""Time of the dynamics alone, forward and backward, in each implementation, and time of their matrix products alone.

The implementations alternate; each round gives a ratio to the reference. The script stops if an implementation is inaccurate.

    python benchmarks/dynamics.py --threads 1
    python benchmarks/dynamics.py --device cuda --dtype bfloat16 --batch 32
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from coupledqk.dynamics import MLPForce, evolve
from coupledqk.dynamics.methods import moves_of
from coupledqk.provenance import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    print(machine())
    print(f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads")
    shape = (options.batch, options.tokens, options.heads, options.width)
    print(f"q and k of {shape} in {options.dtype}; milliseconds, medians of {options.rounds} rounds")
    inputs = make_inputs(options)
    impls = ["reference", "fused"] + ["triton"] * (options.device == "cuda")
    for method in ("euler", "leapfrog", "semi_implicit"):
        for n_steps in (1, 3, 7):
            report(inputs, impls, n_steps, method, options.rounds)


def make_inputs(options: argparse.Namespace) -> tuple[Tensor, Tensor, MLPForce]:
    kind = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    qkv = torch.randn(options.batch, options.tokens, 3 * options.heads * options.width, **kind)
    dt = torch.full((options.heads,), 0.1, device=options.device)
    return qkv.requires_grad_(), dt.requires_grad_(), MLPForce(options.width, std=options.width**-0.5).to(**kind)


def report(inputs: tuple[Tensor, Tensor, MLPForce], impls: list[str], n_steps: int, method: str, rounds: int) -> None:
    runs = {impl: lambda impl=impl: forward_and_backward(*inputs, impl, n_steps, method) for impl in impls}
    expected = runs["reference"]()
    for impl, run in runs.items():
        for x, y in zip(run(), expected, strict=True):
            error = float((x - y).float().norm() / y.float().norm())
            if error > 8 * torch.finfo(inputs[0].dtype).eps:
                raise SystemExit(f"{impl} has an error of {error:.1e} for {method}, n = {n_steps}: not timed")

    products = matrix_products(inputs[0], inputs[2], method, n_steps)
    times = measure([*runs.values(), products], rounds)
    print(f"{method:>13} n={n_steps}", end="")
    for impl, mine in zip(impls, times, strict=False):
        ratios = [a / b for a, b in zip(mine, times[0], strict=True)]
        print(f"  {impl} {statistics.median(mine):6.2f}", end="")
        if impl != "reference":
            print(f" ({statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f})", end="")
    print(f"  matrix products of fused alone {statistics.median(times[-1]):6.2f}")


def forward_and_backward(
    qkv: Tensor, dt: Tensor, force: MLPForce, impl: str, n_steps: int, method: str
) -> tuple[Tensor, ...]:
    q, k, _ = (x.unflatten(-1, (len(dt), -1)) for x in qkv.chunk(3, dim=-1))
    moved = evolve(q, k, dt, force, n_steps, method, impl=impl)
    inputs = (q, k, dt, *force.parameters())
    grads = torch.autograd.grad(moved, inputs, [x.detach() for x in moved])
    return tuple(x.detach() for x in (*moved, *grads))


def matrix_products(qkv: Tensor, force: MLPForce, method: str, n_steps: int) -> Callable[[], None]:
    """As many float32 products of the same size as the fused implementation computes."""
    moves = moves_of(method, n_steps)
    evaluations = moves.count("force")
    # Each evaluation has 2 products in the forward pass, 2 for the gradient of q, and 2 for the gradients of the weights.
    n = 6 * evaluations + replayed(moves)
    w = force.w1.detach().float()
    x = qkv.detach().float().flatten()[: qkv.numel() // 3].view(-1, len(w))
    out = torch.empty_like(x)

    def run() -> None:
        for _ in range(n):
            torch.mm(x, w, out=out)

    return run


def replayed(moves: list[str]) -> int:
    """Number of products that the backward pass recomputes: one per force, and one per kick that a later drift reads."""
    kicks = [i for i, move in enumerate(moves) if "kick" in move and "drift" in moves[i:]]
    return moves.count("force") + len(kicks)


def measure(runs: list[Callable], rounds: int) -> list[list[float]]:
    """Milliseconds of each run in each round."""
    times: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 2):
        for run, mine in zip(runs, times, strict=True):
            start = now()
            run()
            if number >= 2:  # the first two rounds are a warm-up
                mine.append(1e3 * (now() - start))
    return times


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
