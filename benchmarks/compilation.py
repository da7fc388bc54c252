"""Speedup of torch.compile, for the whole model or for each block separately, and of bfloat16, on a CPU.

The forms of one model alternate, each with a forward and backward pass. The script prints the median of their ratios within a
round with quartiles, the additional seconds of the first pass, and the number of passes after which compilation is repaid.

    python benchmarks/compilation.py
    python benchmarks/compilation.py --variants standard hamiltonian --rounds 9 --save results/bench
    python benchmarks/compilation.py --recipe mini-modern --threads 1
"""

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from coupledqk.bench.conditions import available, observe
from coupledqk.bench.timing import round_robin
from coupledqk.config import RunConfig
from coupledqk.files import write_atomic
from coupledqk.model import TransformerLM
from coupledqk.provenance import commit, machine, versions
from coupledqk.recipes import recipe
from coupledqk.training.compilation import keep_many_models


def uncompiled(model: TransformerLM) -> nn.Module:
    return model


def whole(model: TransformerLM) -> nn.Module:
    model.compile(dynamic=False)
    return model


def by_block(model: TransformerLM) -> nn.Module:
    for block in model.blocks:
        block.compile(dynamic=False)
    return model


@dataclass(frozen=True)
class Form:
    """A way to compute a model: how it is compiled, and whether matrix products are in bfloat16."""

    make: Callable[[TransformerLM], nn.Module]
    half: bool = False


FORMS = {
    "eager": Form(uncompiled),
    "whole": Form(whole),
    "blocks": Form(by_block),
    "eager, bf16": Form(uncompiled, half=True),
    "whole, bf16": Form(whole, half=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="wikitext-103")
    parser.add_argument("--variants", nargs="+", default=["standard", "hamiltonian"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--save", type=Path, help="folder for DATE-compilation-RECIPE.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_many_models()
    lines = [
        f"{machine()}, torch {versions()['torch']}, {options.threads} threads, commit {commit()}",
        "",
        f"recipe {options.recipe}, batch {options.batch}, forward and backward pass, {options.rounds} rounds",
        "",
        "| | form | ms | speed relative to eager (quartiles) | seconds to compile | repaid after passes |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    observed = observe(available(), options.threads)
    for variant in options.variants:
        lines += rows(recipe(options.recipe, variant), options)
    found = observed()
    busy = f"other processes used {found.other_cores:.2f} of {found.cores} cores" if found else "load not observed"
    text = "\n".join([*lines, "", busy, ""])
    print(text)
    if options.save:
        write_atomic(options.save / f"{datetime.date.today()}-compilation-{options.recipe}.md", text)


def rows(config: RunConfig, options: argparse.Namespace) -> list[str]:
    tokens = torch.randint(config.model.vocab_size, (options.batch, config.train.seq_len + 1))
    models = {name: form.make(TransformerLM(config.model)) for name, form in FORMS.items()}
    runs = {name: partial(seconds, models[name], tokens, FORMS[name].half) for name in FORMS}
    first = {name: run() for name, run in runs.items()}
    times = round_robin(runs, options.rounds)
    return [row(config.model.attention.dynamics.method, form, times, first) for form in FORMS]


def row(name: str, form: str, times: dict[str, list[float]], first: dict[str, float]) -> str:
    ratios = [eager / own for eager, own in zip(times["eager"], times[form], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    own, eager = statistics.median(times[form]), statistics.median(times["eager"])
    compiling = first[form] - own
    repaid = f"{compiling / (eager - own):,.0f}" if not form.startswith("eager") and own < eager else "–"
    shown = "–" if form.startswith("eager") else f"{compiling:.1f}"
    return f"| {name} | {form} | {1000 * own:.0f} | {middle:.3f} ({low:.3f}–{high:.3f}) | {shown} | {repaid} |"


def seconds(model: nn.Module, tokens: Tensor, half: bool) -> float:
    model.zero_grad()
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
