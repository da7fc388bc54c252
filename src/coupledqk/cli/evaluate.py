"""coupledqk eval"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..terminal import table, wrapped
from .plugin import WithPlugin


@dataclass(frozen=True)
class Eval(WithPlugin):
    """Evaluate a trained run: perplexity, with its definition, and bits per byte, on its own corpus or another.

    Try it:

        coupledqk eval runs/NAME
        coupledqk eval runs/NAME --split test
        coupledqk eval runs/NAME --corpus other-texts/ --json
    """

    run_folder: Path
    """Run folder."""
    corpus: str | None = None
    """Corpus to evaluate on, by name, file or folder; the run's own unless given. It is read with the run's tokenizer."""
    data_dir: Path | None = None
    """Folder with a local copy of a named corpus."""
    split: Literal["valid", "test", "train"] = "valid"
    """Split of the corpus to evaluate on."""
    checkpoint: Literal["best", "final"] = "best"
    """Weights to evaluate: those with the lowest validation loss, or the final ones."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..runs import Run

        run = Run.open(self.run_folder)
        found = run.evaluate(self.split, self.corpus, self.data_dir, self.checkpoint, self.device)
        if self.json:
            print(json.dumps(found, indent=2))
            return
        row = [found["corpus"], found["split"], f"{found['perplexity']:.3f}", f"{found['bits_per_byte']:.4f}"]
        print(table(["corpus", "split", "perplexity", "bits per byte"], [row]))
        print(wrapped(f"\nPerplexity: {found['perplexity_definition']}.\nCorpus hash: {found['hash']}"))
