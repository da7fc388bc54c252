"""Language modelling: predicting each next token of a text."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..baselines import PositionLoss, context_gain
from ..config import DataConfig, RunConfig, text_of
from ..data.batches import train_batch, valid_batches
from ..data.shards import TokenizedCorpus, prepare
from ..dynamics import Dynamics
from ..errors import CoupledQKError
from ..loss import IGNORED, linear_cross_entropy
from ..model import TransformerLM
from ..run_folder import RunFolder
from ..scoring import Differential
from ..training.loop import ALL
from ..training.mesh import SINGLE, Batch, Mesh
from ..training.sharded import whole
from .models import new_model, tokenizer_for


class LanguageModelling:
    """The Task of predicting each next token of a corpus."""

    def __init__(self, config: RunConfig, corpus: TokenizedCorpus) -> None:
        n_valid = corpus.info.splits["valid"].tokens
        if n_valid < 2:  # reported before training instead of at the first evaluation
            raise CoupledQKError(
                f"the validation split of {text_of(config).corpus} has {n_valid} tokens: expected at least 2; use more text"
            )
        self.config, self.corpus = config, corpus
        self.seed = config.seed if config.data_seed is None else config.data_seed
        self.chance_loss = math.log(config.model.vocab_size)
        self.about: dict[str, Any] = {
            **dataclasses.asdict(corpus.info),
            "hash": corpus.info.hash,
            "sample_hash": corpus.info.sample_hash,
        }
        self.files = {"tokenizer.json": corpus.tokenizer.to_json()}
        self.definition = perplexity_definition("valid", config.train.seq_len, text_of(config), n_valid)

    @classmethod
    def open(cls, config: RunConfig, on_bytes: Callable[[int], None] | None = None) -> Self:
        """Opens the task. A run that starts from another run uses that run's tokenizer, to which the embeddings belong."""
        text, source = text_of(config), config.init_from
        return cls(config, prepare(text, on_bytes, tokenizer_for(text, RunFolder.open(source)) if source else None))

    def build_model(self) -> nn.Module:
        return new_model(self.config)

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        train = self.config.train
        return train_batch(self.corpus.train, train.seq_len, train.batch_size, self.seed, step, rows)

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        return model(*micro, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, Any]:
        rows = self.config.runtime.micro_batch or self.config.train.batch_size
        batches = valid_batches(self.corpus.valid, self.config.train.seq_len, rows * mesh.world, mesh.rows)
        n_bytes = self.corpus.info.splits["valid"].bytes
        return {**language_metrics(model, batches, n_bytes, mesh), **head_settings(model)}

    def final_measures(self, model: nn.Module) -> dict[str, Any]:
        """The hash of the tokens, n-gram baselines on them, and the loss by length of context."""
        from ..data.ngram import ngram_baselines

        assert isinstance(model, TransformerLM)
        rows = self.config.runtime.micro_batch or self.config.train.batch_size
        length = self.config.train.seq_len
        losses = position_losses(model, valid_batches(self.corpus.valid, length, rows), length)
        return {
            "sample_hash": self.corpus.info.sample_hash,
            "baselines": [dataclasses.asdict(baseline) for baseline in ngram_baselines(self.corpus)],
            "position_loss": [dataclasses.asdict(part) for part in losses],
            "context_gain": context_gain(losses),
        }


@torch.no_grad()
def language_metrics(model: nn.Module, batches: Iterable[Batch], n_bytes: int, mesh: Mesh = SINGLE) -> dict[str, float]:
    """Mean loss in nats per token, its exponential, and bits per byte of the text. Each process of a mesh passes its own
    batches."""
    device = next(model.parameters()).device
    total, count = 0.0, 0
    for inputs, targets in batches:
        total += float(model(inputs.to(device), targets.to(device), reduction="sum"))
        count += int((targets >= 0).sum())
    total, count = mesh.totals(total, count)
    loss = total / count
    return {"loss": loss, "perplexity": perplexity(loss), "bits_per_byte": total / math.log(2) / n_bytes}


@torch.no_grad()
def position_losses(model: TransformerLM, batches: Iterable[Batch], length: int) -> list[PositionLoss]:
    """The mean loss of targets with 1, 2, 3 to 4, 5 to 8, 9 to 16 ... tokens of context, in windows of `length` tokens."""
    device = next(model.parameters()).device
    powers = [2**i for i in range(length.bit_length()) if 2**i < length]
    spans = list(itertools.pairwise([0, *powers, length]))
    totals, counts = [0.0] * len(spans), [0] * len(spans)
    for inputs, targets in batches:
        states, targets = model.hidden(inputs.to(device)), targets.to(device)
        for i, (start, stop) in enumerate(spans):
            part = targets[:, start:stop]
            totals[i] += float(linear_cross_entropy(states[:, start:stop], model.embed.weight, part, "sum"))
            counts[i] += int((part != IGNORED).sum())
    return [
        PositionLoss(start + 1, stop, count, total / count)
        for (start, stop), total, count in zip(spans, totals, counts, strict=True)
        if count
    ]


def perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def perplexity_definition(split: str, seq_len: int, data: DataConfig, n_tokens: int) -> str:
    """The definition of perplexity on `n_tokens` tokens of a split. They are the whole split if there are fewer of
    them than the limit in the settings."""
    limit = {"train": data.max_tokens, "valid": data.max_valid_tokens}.get(split)
    if limit is None or n_tokens < limit:
        text = f"the whole {split} split ({n_tokens:,} tokens)"
    elif data.sampling == "first":
        text = f"the first {n_tokens:,} tokens of the {split} split"
    else:
        text = f"a sample of {n_tokens:,} tokens of the {split} split (documents in an order shuffled by a hash)"
    unit = "byte" if data.tokenizer == "bytes" else f"{data.tokenizer} token"
    return (
        f"exp of the mean loss per {unit} over {text}, end-of-text tokens included, in non-overlapping windows "
        f"of {seq_len} tokens, each target once"
    )


def head_settings(model: nn.Module) -> dict[str, list[list[float]]]:
    """Learned values of the heads: step sizes dt and differential λ, with one row per layer. Keys without values are absent."""
    dt = [m.step_size for m in model.modules() if isinstance(m, Dynamics)]
    lam = [m.strength() for m in model.modules() if isinstance(m, Differential)]
    rows = {"dt": [t for t in dt if isinstance(t, Tensor)], "lambda": lam}
    return {name: [whole(t).reshape(-1).tolist() for t in tensors] for name, tensors in rows.items() if tensors}
