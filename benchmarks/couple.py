"""Cost of `couple` for an existing model: transformers' Llama of width 512 with 8 layers, 50,257 tokens and sdpa attention.

Prints the duration of the self-check first. The coupled and the uncoupled model then alternate; each round gives a ratio of
speeds. Forward + backward computes the gradients of all weights. Decoding is one call of `generate` for one sequence, greedy
and with the cache, including the prompt.

    python benchmarks/couple.py
    python benchmarks/couple.py --variant hamiltonian --rounds 30
"""

import argparse
import copy
import time
from functools import partial

import torch

from coupledqk import preset
from coupledqk.bench.conditions import available, observe, verdict
from coupledqk.bench.contenders import Setup
from coupledqk.bench.decode import seconds_of_call
from coupledqk.bench.peers import Llama, find_peer
from coupledqk.bench.throughput import seconds_of_pass
from coupledqk.bench.timing import round_robin, speeds
from coupledqk.coupling.couple import couple, uncouple
from coupledqk.provenance import commit, machine, versions

VOCABULARY = 50_257


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="euler")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="number of tokens in a training sequence")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = find_peer("llama").library()
    models = build(options.variant)
    print(f"{machine()}, torch {versions()['torch']}, transformers {library.__version__}")
    print(f"{options.threads} threads, {options.rounds} rounds, commit {commit()}")

    print(f"self-check {seconds_of_check(models['uncoupled'], options.variant):.2f} s")
    observed = observe(available(), options.threads)
    setup = Setup(options.batch, options.tokens, threads=options.threads)
    batch = setup.random_batch(VOCABULARY)
    passes = {name: partial(seconds_of_pass, model, batch, setup, training=True) for name, model in models.items()}
    report("forward + backward", passes, options.batch * options.tokens, options.rounds)
    prompt, _ = Setup(1, options.prompt).random_batch(VOCABULARY)
    calls = {name: partial(seconds_of_call, model, prompt, options.new_tokens, setup) for name, model in models.items()}
    report("decoding", calls, options.new_tokens, options.rounds)
    conditions = observed()
    print(verdict([conditions] if conditions else []))


def build(variant: str) -> dict[str, Llama]:
    """Two models with the same weights, of which one is coupled with all gates set to 1."""
    torch.manual_seed(0)
    uncoupled = Llama(preset("small"))
    coupled = copy.deepcopy(uncoupled)
    couple(coupled.model, variant)
    for name, parameter in coupled.named_parameters():
        if name.endswith("coupling.gate"):
            torch.nn.init.ones_(parameter)
    return {"uncoupled": uncoupled, variant: coupled}


def seconds_of_check(uncoupled: Llama, variant: str) -> float:
    """Duration of the self-check: couple(model, verify="always") minus couple(model, verify="never")."""
    model = copy.deepcopy(uncoupled.model)
    seconds = []
    for verify in ("always", "never"):
        start = time.perf_counter()
        couple(model, variant, verify=verify)
        seconds.append(time.perf_counter() - start)
        uncouple(model)
    return seconds[0] - seconds[1]


def report(what: str, runs: dict, tokens: int, rounds: int) -> None:
    found = speeds(round_robin(runs, rounds), "uncoupled", tokens)
    print(what)
    for name, speed in found.items():
        ratio = speed.relative
        print(
            f"{name:>14} {speed.tokens_per_second:8,.1f} tokens/s  {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        )


if __name__ == "__main__":
    main()
