"""coupledqk eval"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..config import text_of
from ..run_folder import RunFolder
from .output import table
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
    """The run."""
    corpus: str | None = None
    """Another corpus: a name, a file or a folder. It is read with the run's own tokenizer."""
    data_dir: Path | None = None
    """Where a local copy of a named corpus lies."""
    split: Literal["valid", "test", "train"] = "valid"
    checkpoint: Literal["best", "final"] = "best"
    device: str = "auto"
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..data.batches import valid_batches
        from ..data.shards import prepare
        from ..tasks.lm import language_metrics, perplexity_definition
        from ..tasks.models import load_model, run_tokenizer
        from ..terminal import tokenizing

        run = RunFolder.open(self.run_folder)
        model = load_model(run, self.checkpoint, self.device)
        data = text_of(run.config)
        if self.corpus is not None:
            data = replace(data, corpus=self.corpus, max_tokens=None, max_valid_tokens=None)
        if self.data_dir is not None:
            data = replace(data, data_dir=str(self.data_dir))
        with tokenizing() as on_bytes:
            corpus = prepare(data, on_bytes, tokenizer=run_tokenizer(run))
        seq_len = run.config.train.seq_len
        batches = valid_batches(getattr(corpus, self.split), seq_len, batch_size=8)
        measures = language_metrics(model, batches, corpus.info.splits[self.split].bytes)
        definition = perplexity_definition(self.split, seq_len, data)
        if self.json:
            about = {"run": str(run.path), "corpus": data.corpus, "split": self.split, "hash": corpus.info.hash}
            print(json.dumps({**about, **measures, "perplexity_definition": definition}, indent=2))
            return
        row = [data.corpus, self.split, f"{measures['perplexity']:.3f}", f"{measures['bits_per_byte']:.4f}"]
        print(table(["corpus", "split", "perplexity", "bits per byte"], [row]))
        print(f"\nPerplexity: {definition}.\nCorpus hash: {corpus.info.hash}")
