"""A trained run with its model, tokenizer and text, and methods to evaluate it and to generate text."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ..config import DataConfig, text_of
from ..data.batches import valid_batches
from ..data.corpora import data_dir_of
from ..data.shards import TokenizedCorpus, open_text
from ..data.tokenizers import Tokenizer
from ..errors import CoupledQKError
from ..model import TransformerLM
from ..run_folder import RunFolder
from ..tasks.lm import language_metrics, perplexity_definition
from ..tasks.models import pick_device, run_tokenizer, run_weights

Checkpoint = Literal["best", "final"] | Path
"""The weights to load: those with the lowest validation loss (best), the most recent ones (final), or those in the folder of a
checkpoint."""


class Run(RunFolder):
    """A run folder with the model that was trained in it: `Run.open("runs/NAME").model()`."""

    def model(self, checkpoint: Checkpoint = "best", device: str = "auto", int8: bool = False) -> TransformerLM:
        """The trained model in evaluation mode. `int8` quantizes its weight matrices to 8 bits."""
        with torch.device("meta"):
            model = TransformerLM(self.config.model)
        model.to_empty(device=pick_device(device))
        model.load_state_dict(run_weights(self, checkpoint))
        return model.to_int8().eval() if int8 else model.eval()

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the run was trained with."""
        return run_tokenizer(self)

    def text(self, corpus: str | None = None, data_dir: str | Path | None = None) -> DataConfig:
        """The settings of the text the run was trained on, or those of another corpus without token limits."""
        data = text_of(self.config)
        if corpus is not None:
            own = None if data_dir is not None else data_dir_of(corpus, data)
            data = replace(data, corpus=corpus, data_dir=own, max_tokens=None, max_valid_tokens=None)
        return data if data_dir is None else replace(data, data_dir=str(data_dir))

    def corpus(
        self, corpus: str | None = None, data_dir: str | Path | None = None, progress: bool = True
    ) -> TokenizedCorpus:
        """The text the run was trained on, or another corpus, tokenized with the run's tokenizer."""
        return open_text(self.text(corpus, data_dir), self.tokenizer(), progress)

    def evaluate(
        self,
        split: Literal["valid", "test", "train"] = "valid",
        corpus: str | None = None,
        data_dir: str | Path | None = None,
        checkpoint: Checkpoint = "best",
        device: str = "auto",
        progress: bool = True,
        int8: bool = False,
    ) -> dict[str, Any]:
        """Loss, perplexity and bits per byte on a split of the run's corpus or of another corpus, with their definitions."""
        model, data = self.model(checkpoint, device, int8), self.text(corpus, data_dir)
        tokens = self.corpus(corpus, data_dir, progress)
        seq_len = self.config.train.seq_len
        batches = valid_batches(getattr(tokens, split), seq_len, batch_size=8)
        return {
            "run": str(self.path),
            "corpus": data.corpus,
            "split": split,
            "hash": tokens.info.hash,
            **language_metrics(model, batches, tokens.info.splits[split].bytes),
            "perplexity_definition": perplexity_definition(split, seq_len, data, tokens.info.splits[split].tokens),
        }

    def generate(
        self,
        prompt: str,
        max_tokens: int = 100,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        checkpoint: Checkpoint = "best",
        device: str = "auto",
        int8: bool = False,
    ) -> Iterator[str]:
        """Continues a text and yields pieces as they are sampled: `"".join(run.generate("def "))`."""
        model, tokenizer = self.model(checkpoint, device, int8), self.tokenizer()
        # a command-line argument that is not UTF-8 contains lone surrogates
        ids = tokenizer.encode(prompt.encode("utf-8", "replace").decode())
        if not ids:
            raise CoupledQKError("the prompt is empty: give at least one character, such as 'def '")
        new = model.stream(
            torch.tensor([ids], device=next(model.parameters()).device),
            max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop_token=tokenizer.end_of_text,
        )
        tokens = (int(token) for token in new)
        yield from tokenizer.decode_stream(token for token in tokens if token != tokenizer.end_of_text)
