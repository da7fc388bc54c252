"""The settings of an analysis: the runs, the text and the checkpoints. Torch is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import CoupledQKError
from ..files import in_shell
from ..run_folder import RunFolder
from ..statistics import scipy_special

if TYPE_CHECKING:
    from torch import Tensor

    from ..data import TokenizedCorpus
    from ..model import TransformerLM
    from ..runs import Run
    from .findings import Surveyed

Tracked = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Wraps an iterable to show progress, given a label and the number of items: `terminal.tracked`, or tqdm in a notebook."""


@dataclass(frozen=True)
class Analysis:
    """Rank and entropy of attention, sinks, distances, and how q and k move, for several runs on the same text."""

    run_folders: tuple[Path, ...]
    """Run folders; every run is compared with the first."""
    batches: int = 25
    """Number of sequences to measure, spread evenly over the text."""
    split: Literal["valid", "test", "train"] = "valid"
    """Split of the corpus to measure on."""
    length: tuple[int, ...] = ()
    """Context length in tokens, one or several; by default the training length."""
    checkpoint: Literal["final", "best", "all"] = "final"
    """Checkpoint to measure: the last, the best, or every checkpoint that was kept."""
    corpus: str | None = None
    """Corpus to measure on (a name, a file or a folder); by default that of the first run."""
    data_dir: Path | None = None
    """Folder with a local copy of a named corpus."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""

    def measure(self, tracked: Tracked = lambda items, label, total: items) -> Analyzed:
        runs = self.open_runs()
        if len(runs) > 1:
            scipy_special()  # raises before the measurement if intervals of differences cannot be computed
        corpus, lengths = self._open_text(runs)
        tokens = getattr(corpus, self.split)
        surveyed = list(self._survey(runs, tokens, lengths, tracked))
        text = {
            "corpus": corpus.info.corpus,
            "split": self.split,
            "hash": corpus.info.hash,
            "tokenizer": corpus.info.tokenizer,
            "length": max(lengths),
            "sequences": len(surveyed[0].longest.values["entropy"]),
        }
        return Analyzed(self, surveyed, text, tokens)

    def open_runs(self) -> dict[str, Run]:
        """The runs by name, after all checks that need no computation."""
        from ..runs import Run
        from .findings import names

        if not self.run_folders:
            raise CoupledQKError(
                "no run given: name one or several, such as `coupledqk analyze runs/NAME`, or use --sample"
            )
        if self.batches < 1 or any(length < 2 for length in self.length):
            raise CoupledQKError(
                f"--batches {self.batches} --length {' '.join(map(str, self.length))}: expected at least 1 sequence of at "
                "least 2 tokens"
            )
        runs = [Run.open(folder) for folder in self.run_folders]
        for run in runs:
            checkpoints(run, self.checkpoint)
        depths = {run.config.model.n_layers for run in runs}
        if len(depths) > 1:
            raise CoupledQKError(
                f"runs of {' and '.join(map(str, sorted(depths)))} layers cannot be compared layer by layer: analyze them "
                "separately"
            )
        return dict(zip(names(runs), runs, strict=True))

    def models(self, run: Run) -> Iterator[tuple[int, TransformerLM]]:
        """The step and the model of each checkpoint, oldest first."""
        for step, folder in sorted(checkpoints(run, self.checkpoint).items()):
            yield step, run.model(folder, self.device)

    def _open_text(self, runs: dict[str, Run]) -> tuple[TokenizedCorpus, list[int]]:
        """The text for all runs, and the context lengths to measure."""
        tokenizers = {name: run.tokenizer() for name, run in runs.items()}
        first, *others = tokenizers
        for other in others:
            if tokenizers[other].to_json() != tokenizers[first].to_json():
                raise CoupledQKError(
                    f"{first} and {other} have different tokenizers, so they cannot read the same tokens: analyze them "
                    "separately"
                )
        corpus = runs[first].corpus(self.corpus, self.data_dir)
        return corpus, sorted(self.length) or [min(run.config.train.seq_len for run in runs.values())]

    def _survey(
        self, runs: dict[str, Run], tokens: Any, lengths: Sequence[int], tracked: Tracked
    ) -> Iterator[Surveyed]:
        from .findings import Surveyed
        from .surveys import survey, windows

        for name, run in runs.items():
            for step, model in self.models(run):
                texts = windows(tokens, max(lengths), self.batches)
                yield Surveyed(
                    name, run, step, survey(model, tracked(texts, f"{name}, step {step}", self.batches), lengths)
                )


@dataclass(frozen=True)
class Analyzed:
    """The results of an analysis."""

    analysis: Analysis
    surveyed: list[Surveyed]
    """One entry per run and checkpoint."""
    text: dict[str, Any]
    """Description of the text that the runs were measured on."""
    tokens: Any
    """The split as an array of tokens."""

    @property
    def newest(self) -> dict[str, Surveyed]:
        """The last checkpoint of each run, by the run's name."""
        return {one.name: one for one in self.surveyed}

    def findings(self) -> dict[str, Any]:
        """Plain values for JSON: the text, the mean of every measure, and how the runs differ from the first."""
        from .findings import findings

        return {"text": self.text, **findings(self.surveyed)}

    def maps(self, name: str, layers: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Attention maps of a run's last checkpoint on the first sequence, (len(layers), len(heads), T, T)."""
        from .surveys import attention_maps, windows

        one = self.newest[name]
        *_, (_, model) = self.analysis.models(one.run)
        return attention_maps(model, next(windows(self.tokens, max(one.surveys), 1)), layers, heads)


def checkpoints(run: RunFolder, which: Literal["final", "best", "all"]) -> dict[int, Path]:
    """Checkpoint folders by step."""
    from ..tasks.models import final_checkpoint
    from ..training.checkpoints import Checkpoints, checkpoint_step

    kept = Checkpoints(run.path / "checkpoints", keep=1)
    earlier = [kept.newest(before=step + 1) for step in kept.steps()]
    folders = [kept.best()] if which == "best" else [*earlier, final_checkpoint(run)]
    there = {checkpoint_step(folder): folder for folder in folders if folder is not None}
    if not there:
        raise CoupledQKError(
            f"{run.path} has no checkpoint yet: train it with `coupledqk train --resume {in_shell(run.path)}`"
        )
    return there if which == "all" else dict([max(there.items())])
