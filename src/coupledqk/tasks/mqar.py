"""Multi-query associative recall: recalling the value that followed a key."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..config import MQARConfig, RunConfig
from ..data.batches import shuffled_rows
from ..data.mqar import paper_mqar, paper_test_set, zoology_mqar
from ..schema import require
from ..training.loop import ALL
from ..training.mesh import SINGLE, Batch, Mesh
from .accuracy import score
from .lm import head_settings
from .models import new_model

ZOOLOGY_TEST_SEED = 2**32 - 1
"""Seed of the test set. Runs must not use it."""


class AssociativeRecall:
    """The Task of predicting the value of each queried key, at the position of the query."""

    def __init__(self, config: RunConfig, task: MQARConfig) -> None:
        self.config, self.task = config, task
        self.seed = config.seed if config.data_seed is None else config.data_seed
        self.chance_loss = math.log(config.model.vocab_size)
        length, vocab_size = config.train.seq_len, config.model.vocab_size
        if task.protocol == "zoology":
            require(self.seed != ZOOLOGY_TEST_SEED, "seed", self.seed, "another seed: this is that of the test set")
            self.train_set = zoology_mqar(vocab_size, task.n_train, length, task.n_pairs, self.seed)
            self.test_set = zoology_mqar(vocab_size, task.n_test, length, task.n_pairs, ZOOLOGY_TEST_SEED)
        else:
            self.test_set = paper_test_set(task.n_pairs, length, task.n_test, vocab_size)
        content = b"".join(rows.numpy().tobytes() for rows in self.test_set)
        name = f"mqar, {task.protocol} protocol, {task.n_pairs} pairs in {length} of {vocab_size} tokens"
        self.about: dict[str, Any] = {"corpus": name, "hash": hashlib.sha256(content).hexdigest()}
        self.files: dict[str, str] = {}
        self.definition = (
            f"the share of all queries in {task.n_test:,} test rows that are answered with their value; choosing among the "
            f"values of the row gives {1 / task.n_pairs:.3f}"
        )

    @classmethod
    def open(cls, config: RunConfig, on_bytes: Callable[[int], None] | None = None) -> "AssociativeRecall":
        assert isinstance(config.task, MQARConfig)
        return cls(config, config.task)

    def build_model(self) -> nn.Module:
        return new_model(self.config)

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        train = self.config.train
        if self.task.protocol == "zoology":
            chosen = shuffled_rows(self.task.n_train, train.batch_size, self.seed, step)[rows]
            return tuple(part[chosen] for part in self.train_set)
        vocab_size = self.config.model.vocab_size
        batch = paper_mqar(self.task.n_pairs, train.seq_len, self.seed, step, train.batch_size, vocab_size)
        return tuple(part[rows] for part in batch)

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        return model(*micro, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, Any]:
        device = next(model.parameters()).device
        rows = self.config.runtime.micro_batch or self.config.train.batch_size
        parts = zip(*(part.split(rows) for part in self.test_set), strict=True)
        answers = ((model(inputs.to(device)), labels.to(device)) for inputs, labels in mesh.deal(parts))
        return {**score(answers, mesh), **head_settings(model)}

    def final_measures(self, model: nn.Module) -> dict[str, Any]:
        return {}
