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
    """Corpus to evaluate on (a name, a file or a folder), tokenized with the run's tokenizer. The default is the run's
    corpus."""
    data_dir: Path | None = None
    """Folder with a local copy of a named corpus."""
    split: Literal["valid", "test", "train"] = "valid"
    """Split of the corpus to evaluate on."""
    checkpoint: Literal["best", "final"] = "best"
    """Weights to evaluate: those with the lowest validation loss (best), or those after the last step (final)."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
    int8: bool = False
    """Also evaluate with weight matrices quantized to 8 bits, as `coupledqk generate --int8` uses them."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..runs import Run

        run = Run.open(self.run_folder)
        chosen = self.split, self.corpus, self.data_dir, self.checkpoint, self.device
        found = run.evaluate(*chosen)
        rows = [["as trained", found]]
        if self.int8:
            rounded = run.evaluate(*chosen, int8=True)
            rows.append(["int8", rounded])
            found["int8"] = {name: rounded[name] for name in ("loss", "perplexity", "bits_per_byte")}
        if self.json:
            print(json.dumps(found, indent=2))
            return
        cells = [
            [found["corpus"], found["split"], weights, f"{of['perplexity']:.3f}", f"{of['bits_per_byte']:.4f}"]
            for weights, of in rows
        ]
        print(table(["corpus", "split", "weights", "perplexity", "bits per byte"], cells))
        print(wrapped(f"\nPerplexity: {found['perplexity_definition']}.\nCorpus hash: {found['hash']}"))
