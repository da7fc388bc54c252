"""What torch.compile gains: the whole model, or each block on its own, against the uncompiled model.

The three forms of one model take turns, forward and backward pass. Printed are the median of their ratios within a round with
quartiles, the seconds that the first pass took longer than the later ones, and the number of passes after which compiling is
repaid.

    python benchmarks/compilation.py
    python benchmarks/compilation.py --variants standard hamiltonian --rounds 9 --save results/bench
    python benchmarks/compilation.py --recipe mini-modern --threads 1
"""

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from coupledqk.bench.conditions import available, observe
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


FORMS: dict[str, Callable[[TransformerLM], nn.Module]] = {"eager": uncompiled, "whole": whole, "blocks": by_block}


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
        f"recipe {options.recipe}, batch {options.batch}, fp32, forward and backward pass, {options.rounds} rounds",
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
    models = {form: make(TransformerLM(config.model)) for form, make in FORMS.items()}
    first = {form: seconds(model, tokens) for form, model in models.items()}
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    for number in range(options.rounds + 1):
        for form in list(FORMS)[number % 3 :] + list(FORMS)[: number % 3]:
            took = seconds(models[form], tokens)
            if number:
                times[form].append(took)
    return [row(config.model.attention.dynamics.method, form, times, first) for form in FORMS]


def row(name: str, form: str, times: dict[str, list[float]], first: dict[str, float]) -> str:
    ratios = [eager / own for eager, own in zip(times["eager"], times[form], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    own, eager = statistics.median(times[form]), statistics.median(times["eager"])
    compiling = first[form] - own
    repaid = f"{compiling / (eager - own):,.0f}" if form != "eager" and own < eager else "–"
    shown = "–" if form == "eager" else f"{compiling:.1f}"
    return f"| {name} | {form} | {1000 * own:.0f} | {middle:.3f} ({low:.3f}–{high:.3f}) | {shown} | {repaid} |"


def seconds(model: nn.Module, tokens: Tensor) -> float:
    model.zero_grad()
    start = time.perf_counter()
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
