"""coupledqk analyze"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..config import text_of
from ..errors import CoupledQKError
from ..run_folder import RunFolder
from .analyze_tables import labels, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from ..analysis.findings import Surveyed
    from ..data import TokenizedCorpus
    from ..model import TransformerLM


@dataclass(frozen=True)
class Analyze:
    """Look inside trained runs: rank and entropy of their attention, sinks, distances, how q and k move.

    Prints the paper's rank table and entropy profile and compares every run with the first, sequence by sequence on the same
    text. What each measure is: docs/analysis.md.

    Try it:

        coupledqk analyze demo/standard demo/euler demo/diff --figures
        coupledqk analyze runs/NAME --length 64 128 256 512       # against the length of the context
        coupledqk analyze runs/NAME --checkpoint all              # over the checkpoints there are
    """

    run_folders: tuple[Path, ...]
    """The runs; the others are compared with the first."""
    batches: int = 25
    """Sequences to measure, spread evenly over the text, one a batch."""
    split: Literal["valid", "test", "train"] = "valid"
    length: tuple[int, ...] = ()
    """Tokens of context, one or several; as in training unless given."""
    checkpoint: Literal["final", "best", "all"] = "final"
    corpus: str | None = None
    """Another corpus than the first run's: a name, a file or a folder."""
    data_dir: Path | None = None
    """Where a local copy of a named corpus lies."""
    out: Path = Path("analysis")
    """The folder for analysis.json and the figures."""
    figures: bool = False
    """Draw them too, as SVG, PDF and PNG."""
    layers: tuple[int, ...] = ()
    """Layers of the attention maps to draw; the first, the middle and the last unless given."""
    heads: tuple[int, ...] = ()
    """Heads of the attention maps to draw; the first four unless given."""
    from_step: int = 0
    """Draw convergence from this step on; the paper's is 5,000."""
    max_perplexity: float | None = None
    """Draw convergence up to this perplexity; the paper's is 200."""
    device: str = "auto"
    json: bool = False
    """Print the JSON instead of tables."""

    def run(self) -> None:
        from ..analysis.findings import findings
        from ..files import write_atomic

        runs = self.open_runs()
        corpus, lengths = self.open_text(runs)
        surveyed = list(self.survey(runs, corpus, lengths))
        text = {
            "corpus": corpus.info.corpus,
            "split": self.split,
            "hash": corpus.info.hash,
            "tokenizer": corpus.info.tokenizer,
            "length": max(lengths),
            "sequences": len(surveyed[0].longest.values["entropy"]),
        }
        found = {"text": text, **findings(surveyed)}
        written = json.dumps(found, indent=1, ensure_ascii=False)
        write_atomic(self.out / "analysis.json", written + "\n")
        print(written if self.json else f"{tables(found)}\n\n{self.out / 'analysis.json'}")
        if self.figures:
            drawn = ", ".join(self.draw(surveyed, corpus))
            print(f"{self.out}: {drawn}, each as .svg, .pdf and .png", file=sys.stderr if self.json else sys.stdout)

    def open_runs(self) -> dict[str, RunFolder]:
        """By name, after checking what can be checked before anything is computed."""
        from ..analysis.findings import names

        if not self.run_folders:
            raise CoupledQKError("no run given: name one or several, such as `coupledqk analyze runs/NAME`")
        if self.batches < 1 or any(length < 2 for length in self.length):
            raise CoupledQKError(
                f"--batches {self.batches} --length {' '.join(map(str, self.length))}: expected at least 1 sequence of at "
                "least 2 tokens"
            )
        runs = [RunFolder.open(folder) for folder in self.run_folders]
        for run in runs:
            checkpoints(run, self.checkpoint)
        if self.figures:
            self.check_figures(runs)
        depths = {run.config.model.n_layers for run in runs}
        if len(depths) > 1:
            raise CoupledQKError(
                f"runs of {' and '.join(map(str, sorted(depths)))} layers cannot be compared layer by layer: analyze them apart"
            )
        return dict(zip(names(runs), runs, strict=True))

    def check_figures(self, runs: Sequence[RunFolder]) -> None:
        from ..analysis.figures import drawn_maps
        from ..analysis.style import styled

        with styled():
            pass  # matplotlib is there
        for run in runs:
            drawn_maps(run.config.model, self.layers, self.heads)

    def open_text(self, runs: dict[str, RunFolder]) -> tuple[TokenizedCorpus, list[int]]:
        """The text for all runs, and the lengths of context to measure."""
        from ..data.shards import prepare
        from ..tasks.models import run_tokenizer
        from ..training.progress import tokenizing

        tokenizers = {name: run_tokenizer(run) for name, run in runs.items()}
        first, *others = tokenizers
        for other in others:
            if tokenizers[other].to_json() != tokenizers[first].to_json():
                raise CoupledQKError(
                    f"{first} and {other} have different tokenizers, so they cannot read the same tokens: analyze them apart"
                )
        data = text_of(runs[first].config)
        if self.corpus is not None:
            data = replace(data, corpus=self.corpus, max_tokens=None, max_valid_tokens=None)
        if self.data_dir is not None:
            data = replace(data, data_dir=str(self.data_dir))
        with tokenizing() as on_bytes:
            corpus = prepare(data, on_bytes, tokenizer=tokenizers[first])
        return corpus, sorted(self.length) or [min(run.config.train.seq_len for run in runs.values())]

    def survey(self, runs: dict[str, RunFolder], corpus: TokenizedCorpus, lengths: Sequence[int]) -> Iterator[Surveyed]:
        from ..analysis.findings import Surveyed
        from ..analysis.survey import survey, windows

        for name, run in runs.items():
            for step, model in models(run, self.checkpoint, self.device):
                texts = windows(getattr(corpus, self.split), max(lengths), self.batches)
                watched = watch(texts, f"{name}, step {step}", self.batches)
                yield Surveyed(name, run, step, survey(model, watched, lengths))

    def draw(self, surveyed: Sequence[Surveyed], corpus: TokenizedCorpus) -> list[str]:
        """The names of the figures."""
        from ..analysis import figures
        from ..analysis.style import save

        named = dict(zip(labels([(one.name, one.step) for one in surveyed]), surveyed, strict=True))
        newest = {one.name: one for one in surveyed}
        drawn = {
            "entropy": figures.entropy_figure({name: one.longest.by_layer("entropy") for name, one in named.items()}),
            "rank": figures.rank_figure({name: one.longest.by_layer("effective_rank") for name, one in named.items()}),
            "convergence": figures.convergence_figure(
                {name: one.run.path for name, one in newest.items()}, self.from_step, self.max_perplexity
            ),
        }
        for name, one in newest.items():
            drawn[f"attention-{name.replace('/', '-')}"] = self.draw_maps(one, corpus)
        for name, figure in drawn.items():
            save(figure, self.out / name)
        return list(drawn)

    def draw_maps(self, one: Surveyed, corpus: TokenizedCorpus) -> Figure:
        """Of the newest checkpoint, on the first sequence."""
        from ..analysis.figures import attention_figure, drawn_maps
        from ..analysis.survey import attention_maps, windows

        *_, (_, model) = models(one.run, self.checkpoint, self.device)
        layers, heads = drawn_maps(model.config, self.layers, self.heads)
        tokens = next(windows(getattr(corpus, self.split), max(one.surveys), 1))
        return attention_figure(attention_maps(model, tokens, layers, heads), layers, heads, one.name)


def checkpoints(run: RunFolder, which: str) -> dict[int, Path]:
    """By step."""
    from ..training.checkpoints import Checkpoints

    kept = Checkpoints(run.path / "checkpoints", keep=1)
    folders = [kept.best()] if which == "best" else [kept.newest(before=step + 1) for step in kept.steps()]
    there = {int(folder.name.rpartition("-")[2]): folder for folder in folders if folder is not None}
    if not there:
        raise CoupledQKError(f"{run.path} has no checkpoint yet: train it with `coupledqk train --resume {run.path}`")
    return there if which == "all" else dict([max(there.items())])


def models(run: RunFolder, which: str, device: str) -> Iterator[tuple[int, TransformerLM]]:
    """A run's model with the weights of one checkpoint after another."""
    from ..tasks.models import load_model

    for step, folder in sorted(checkpoints(run, which).items()):
        yield step, load_model(run, folder, device)


def watch(texts: Iterable[Tensor], label: str, total: int) -> Iterable[Tensor]:
    """The same, with a bar on a terminal."""
    if not sys.stderr.isatty():
        return texts
    from rich.console import Console
    from rich.progress import track

    return track(texts, label, total, console=Console(stderr=True), transient=True)
