"""Time of PyTorch's attention kernel on a CPU, forward + backward, by precision: the reason why training uses float32 for it.

The precisions alternate and each round gives a ratio. "as float32" converts q, k and v from bfloat16 before the kernel and the
output after it, as `coupledqk.scoring.softmax.attend` does if a gradient is needed.

    python benchmarks/attention.py
"""

import argparse
import time
from functools import partial

import torch
import torch.nn.functional as F

from coupledqk.bench.timing import round_robin, speeds
from coupledqk.provenance import commit, machine, versions
from coupledqk.scoring.softmax import attend

SHAPES = {
    "mini recipes": (8, 128, 4, 16),
    "BERT, 22M": (32, 128, 12, 32),
    "60M": (2, 512, 8, 64),
    "60M, 2,048 tokens": (1, 2048, 8, 64),
}
"""Shapes (batch, length, heads, width) by name."""
WAYS = {
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
    "bfloat16 as float32": (torch.bfloat16, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}\n")
    print("| shape | precision | time relative to float32: median | quartiles |\n| --- | --- | --: | --: |")
    for name, shape in SHAPES.items():
        runs = {way: partial(seconds, shape, *how) for way, how in WAYS.items()}
        found = speeds(round_robin(runs, options.rounds, lambda _: None), "float32", shape[0] * shape[1])
        for way in list(WAYS)[1:]:
            slower = found[way].relative
            print(
                f"| {name} {shape} | {way} | {1 / slower.median:.2f} | {1 / slower.high:.2f} to {1 / slower.low:.2f} |"
            )


def seconds(shape: tuple[int, ...], dtype: torch.dtype, converts: bool) -> float:
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    start = time.perf_counter()
    if converts:
        out = attend(q, k, v, causal=True)
    else:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.backward(torch.ones_like(out))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
