"""Fine-tuning a language model on a GLUE task."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import GLUEConfig, RunConfig
from ..data.batches import shuffled_rows
from ..data.glue import GLUE_TASKS, Example, read_glue
from ..data.tokenizers import Tokenizer
from ..files import digest
from ..initial import INIT_STD, Normal, global_normal, initialize
from ..model import TransformerLM
from ..run_folder import RunFolder
from ..training.loop import ALL
from ..training.mesh import SINGLE, Batch, Mesh
from .accuracy import score
from .lm import head_settings
from .models import new_model, run_tokenizer


class Classifier(nn.Module):
    """A language model with a linear head on the state of each row's last token."""

    def __init__(self, lm: TransformerLM, n_labels: int, seed: int) -> None:
        super().__init__()
        self.lm = lm
        self.head = Head(lm.config.d_model, n_labels)
        initialize(self.head, seed)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits (B, labels) of rows padded on the right. Attention is causal, so no padding mask is needed."""
        states = self.lm.hidden(tokens[:, : int(lengths.max())])
        return self.head(states[torch.arange(len(states), device=states.device), lengths - 1])


class Head(nn.Linear):
    def __init__(self, d_model: int, n_labels: int) -> None:
        super().__init__(d_model, n_labels, bias=False)

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.weight, "head", INIT_STD)


class Encoded(NamedTuple):
    """Examples as padded rows."""

    tokens: Tensor
    """(rows, length)"""
    lengths: Tensor
    """(rows,)"""
    labels: Tensor
    """(rows,)"""


class SentenceClassification:
    """The Task of classifying sentences or pairs of sentences."""

    def __init__(
        self, config: RunConfig, task: GLUEConfig, tokenizer: Tokenizer, train: list[Example], dev: list[Example]
    ) -> None:
        self.config = config
        self.seed = config.seed if config.data_seed is None else config.data_seed
        self.n_labels = len(GLUE_TASKS[task.dataset].labels)
        self.chance_loss = math.log(self.n_labels)
        self.train_set, self.dev_set = (encode(part, tokenizer, config.train.seq_len) for part in (train, dev))
        counts = {"train": len(train), "dev": len(dev)}
        self.about: dict[str, Any] = {"corpus": task.dataset, "hash": digest(train, dev), "examples": counts}
        self.files = {"tokenizer.json": tokenizer.to_json()}
        self.definition = (
            f"the share of the {len(dev):,} {GLUE_TASKS[task.dataset].dev} examples that are labelled right"
        )

    @classmethod
    def open(cls, config: RunConfig, on_bytes: Callable[[int], None] | None = None) -> "SentenceClassification":
        task = config.task
        assert isinstance(task, GLUEConfig)
        data_dir = Path(task.data_dir) if task.data_dir else None
        train = read_glue(task.dataset, "train", data_dir, task.max_examples)
        dev = read_glue(task.dataset, "dev", data_dir)
        return cls(config, task, run_tokenizer(RunFolder.open(str(config.init_from))), train, dev)

    def build_model(self) -> nn.Module:
        return Classifier(new_model(self.config), self.n_labels, self.config.seed)

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        chosen = shuffled_rows(len(self.train_set.labels), self.config.train.batch_size, self.seed, step)[rows]
        return tuple(part[chosen] for part in self.train_set)

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        tokens, lengths, labels = micro
        return F.cross_entropy(model(tokens, lengths).float(), labels, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, Any]:
        device = next(model.parameters()).device
        rows = self.config.runtime.micro_batch or self.config.train.batch_size
        parts = zip(*(part.to(device).split(rows) for part in self.dev_set), strict=True)
        answers = ((model(tokens, lengths), labels) for tokens, lengths, labels in mesh.deal(parts))
        return {**score(answers, mesh), **head_settings(model)}

    def final_measures(self, model: nn.Module) -> dict[str, Any]:
        return {}


def encode(examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Encoded:
    """Encodes examples as rows. Pairs are joined by end-of-text, and rows that are too long are truncated at the end of their
    longer sentence."""
    columns = [
        tokenizer.encode_batch([example.sentences[i] for example in examples])
        for i in range(len(examples[0].sentences))
    ]
    tokens = torch.full((len(examples), length), tokenizer.end_of_text, dtype=torch.int32)
    lengths = torch.empty(len(examples), dtype=torch.int64)
    for i, sentences in enumerate(zip(*columns, strict=True)):
        ids = join([sentence.tolist() for sentence in sentences], tokenizer.end_of_text, length)
        tokens[i, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        lengths[i] = len(ids)
    return Encoded(tokens, lengths, torch.tensor([example.label for example in examples]))


def join(sentences: list[list[int]], end_of_text: int, length: int) -> list[int]:
    """Joins sentences to at most `length` tokens. An empty sentence becomes an end-of-text."""
    if len(sentences) == 1:
        return sentences[0][:length] or [end_of_text]
    first, second = sentences
    room = length - 1
    n_second = min(len(second), max(room - len(first), room // 2))
    return [*first[: room - n_second], end_of_text, *second[:n_second]]
