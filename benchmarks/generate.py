"""Decoding time per token with the cache after a short and a long prompt (64 and 1,024 tokens).

The prompt and the first token are not timed. The two lengths alternate; each round gives a ratio.

    python benchmarks/generate.py
    python benchmarks/generate.py --variant hamiltonian
"""

import argparse
import time

import torch

from coupledqk.bench.timing import round_robin, speeds
from coupledqk.model import TransformerLM
from coupledqk.provenance import commit, machine, versions

SHORT, LONG = 64, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--variant", default="standard")
    parser.add_argument("--tokens", type=int, default=64, help="number of timed tokens after each prompt")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = TransformerLM.from_preset(options.preset, options.variant).eval()
    runs = {length: lambda length=length: seconds_of_tokens(model, length, options.tokens) for length in (SHORT, LONG)}
    found = speeds(round_robin(runs, options.rounds, print), LONG, options.tokens)
    ratio = found[SHORT].relative
    print(f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}")
    print(f"{options.preset}, {options.variant}, {options.tokens} tokens, {options.rounds} rounds")
    for length in (SHORT, LONG):
        print(f"after {length:>5,} tokens: {1000 / found[length].tokens_per_second:.2f} ms per token")
    print(f"time, long / short prompt: median {ratio.median:.3f}, quartiles {ratio.low:.3f} to {ratio.high:.3f}")


def seconds_of_tokens(model: TransformerLM, length: int, tokens: int) -> float:
    prompt = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    new = model.stream(prompt, tokens + 1, temperature=0.0)
    next(new)
    start = time.perf_counter()
    for _ in range(tokens):
        next(new)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
