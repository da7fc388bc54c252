"""Fine-tuning a pretrained transformers model on a GLUE task: all weights or low-rank updates, with or without coupling."""

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import AttentionConfig, DynamicsConfig, PretrainedConfig, RunConfig
from ..data.batches import grouped_rows
from ..data.glue import GLUE_TASKS, Example, read_glue
from ..dynamics import METHODS
from ..errors import CoupledQKError
from ..files import digest
from ..training.loop import ALL
from ..training.mesh import SINGLE, Batch, Mesh
from .accuracy import score
from .lm import head_settings
from .lora import add_lora


class PretrainedClassifier(nn.Module):
    """A transformers model with a classification head, for rows that are padded on the right."""

    def __init__(self, model: Any, takes_types: bool, coupling_lr: float = 1.0) -> None:
        super().__init__()
        self.model, self.takes_types = model, takes_types
        names = (name for name, _ in self.named_parameters())
        self.lr_scales = {name: coupling_lr for name in names if ".coupling." in name}

    def forward(self, tokens: Tensor, types: Tensor, lengths: Tensor) -> Tensor:
        """Logits (B, labels)."""
        width = int(lengths.max())
        mask = torch.arange(width, device=tokens.device) < lengths[:, None]
        segments = {"token_type_ids": types[:, :width].long()} if self.takes_types else {}
        return self.model(input_ids=tokens[:, :width].long(), attention_mask=mask.long(), **segments).logits


class Rows(NamedTuple):
    """Examples as rows that are padded on the right."""

    tokens: Tensor
    """(rows, length)"""
    types: Tensor
    """(rows, length): 1 in the second sentence of a pair, if the tokenizer distinguishes them."""
    lengths: Tensor
    """(rows,)"""
    labels: Tensor
    """(rows,)"""


class PretrainedClassification:
    """The Task of classifying sentences or pairs of sentences with a pretrained model."""

    def __init__(self, config: RunConfig, pretrained: Any, tokenizer: Any, train: list[Example], dev: list[Example]):
        assert isinstance(config.task, PretrainedConfig)
        self.config, self.task, self.pretrained = config, config.task, pretrained
        self.seed = config.seed if config.data_seed is None else config.data_seed
        self.chance_loss = math.log(len(GLUE_TASKS[self.task.dataset].labels))
        self.takes_types = "token_type_ids" in tokenizer.model_input_names
        self.train_set = encode(train, tokenizer, config.train.seq_len)
        self.train_lengths = self.train_set.lengths.tolist()
        rows = encode(dev, tokenizer, config.train.seq_len)
        by_length = rows.lengths.argsort(stable=True)
        self.dev_set = Rows(*(part[by_length] for part in rows))
        self.about: dict[str, Any] = {
            "corpus": self.task.dataset,
            "hash": digest(train, dev, weights := _checksum(pretrained)),
            "examples": {"train": len(train), "dev": len(dev)},
            "pretrained": {"source": self.task.source, "sha256": weights},
        }
        self.files = {"tokenizer.json": tokenizer.backend_tokenizer.to_str()}
        self.definition = (
            f"the share of {len(dev):,} {GLUE_TASKS[self.task.dataset].dev} examples that are labelled right"
        )

    @classmethod
    def open(cls, config: RunConfig, on_bytes: Callable[[int], None] | None = None) -> "PretrainedClassification":
        task = config.task
        assert isinstance(task, PretrainedConfig)
        check_attention(config.model.attention)
        data_dir = Path(task.data_dir) if task.data_dir else None
        train = read_glue(task.dataset, "train", data_dir, task.max_examples)
        dev = read_glue(task.dataset, "dev", data_dir, task.max_dev_examples)
        return cls(config, *load_pretrained(task, config.seed), train, dev)

    def build_model(self) -> PretrainedClassifier:
        """The pretrained model with a new classifier. Coupling and low-rank updates are initially the identity."""
        model, task, dynamics = copy.deepcopy(self.pretrained), self.task, self.config.model.attention.dynamics
        projections = _projections(model) if task.method == "lora" else []
        if dynamics.method != "none":
            _couple(model, dynamics, self.config.seed)
        if projections:
            add_lora(model, task.rank, self.config.seed, projections)
            for name, parameter in model.named_parameters():
                if ".coupling." in name or ".pooler." in name or not name.startswith(f"{model.base_model_prefix}."):
                    parameter.requires_grad_(True)
        return PretrainedClassifier(model, self.takes_types, task.coupling_lr)

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        chosen = grouped_rows(self.train_lengths, self.config.train.batch_size, self.seed, step)[rows]
        return tuple(part[chosen] for part in self.train_set)

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        *inputs, labels = micro
        return F.cross_entropy(model(*inputs).float(), labels, reduction="sum")

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, Any]:
        device = next(model.parameters()).device
        size = self.config.runtime.micro_batch or self.config.train.batch_size
        parts = zip(*(part.to(device).split(size) for part in self.dev_set), strict=True)
        answers = ((model(*inputs), labels) for *inputs, labels in mesh.deal(parts))
        return {**score(answers, mesh), **head_settings(model)}

    def final_measures(self, model: nn.Module) -> dict[str, Any]:
        return {}


def check_attention(attention: AttentionConfig) -> None:
    """Raises if the run's attention changes more than the dynamics, or if the dynamics are not initially the identity."""
    dynamics = attention.dynamics
    if attention != AttentionConfig(dynamics=dynamics):
        raise CoupledQKError(
            "the run's attention changes more than the dynamics of a pretrained model: choose standard, or a variant such as "
            "euler without further attention settings"
        )
    if dynamics.method != "none" and not dynamics.gate and not METHODS[dynamics.method].starts_as_identity:
        raise CoupledQKError(
            f"{dynamics.method} dynamics would change the pretrained model at the start: set gate=true, so that they start as "
            "the identity"
        )


def load_pretrained(task: PretrainedConfig, seed: int) -> tuple[Any, Any]:
    """The model in float32 without dropout, and its tokenizer. The seed is used for the new classifier."""
    from ..coupling.versions import quiet, require_transformers

    require_transformers()
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    source = task.model_dir or task.source
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tokenizer = AutoTokenizer.from_pretrained(source)
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            labels = GLUE_TASKS[task.dataset].labels
            config = AutoConfig.from_pretrained(source, num_labels=len(labels), pad_token_id=tokenizer.pad_token_id)
            for name, value in config.to_dict().items():
                if "drop" in name and isinstance(value, float):
                    setattr(
                        config, name, 0.0
                    )  # a step depends only on seed and step number, so that a run can be resumed
            model = AutoModelForSequenceClassification.from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",  # rows are short, and the fused kernel's backward pass is slow in bfloat16
            )
    except (OSError, ValueError) as error:
        raise CoupledQKError(
            f"the pretrained model {source!r} cannot be loaded ({str(error).strip().splitlines()[0]}): expected a folder with "
            "config.json, model.safetensors and tokenizer.json, or a model of the hub; see docs/coupling.md for how to get it"
        ) from None
    return model, tokenizer


def encode(examples: Sequence[Example], tokenizer: Any, length: int) -> Rows:
    """Encodes examples with the pretrained model's tokenizer. Rows that are too long are truncated in their longer sentence."""
    columns = [[example.sentences[i] for example in examples] for i in range(len(examples[0].sentences))]
    found = tokenizer(
        *columns, truncation="longest_first", max_length=length, padding="max_length", padding_side="right",
        return_token_type_ids=True, return_tensors="pt",
    )  # fmt: skip
    labels = torch.tensor([example.label for example in examples])
    return Rows(found["input_ids"].int(), found["token_type_ids"].int(), found["attention_mask"].sum(1), labels)


def _projections(model: Any) -> list[str]:
    """The names of the linear maps inside the attention modules."""
    from ..coupling.architectures import attention_modules

    return [
        f"{name}.{inner}"
        for name, module in attention_modules(model).items()
        for inner, part in module.named_modules()
        if inner and isinstance(weight := getattr(part, "weight", None), Tensor) and weight.ndim == 2
    ]


def _couple(model: Any, dynamics: DynamicsConfig, seed: int) -> None:
    from ..coupling.couple import couple_by

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        couple_by(model, dynamics)


def _checksum(model: Any) -> str:
    """Checksum of the pretrained weights, without the new classifier."""
    sha = hashlib.sha256()
    for name, weight in model.base_model.state_dict().items():
        sha.update(name.encode())
        sha.update(weight.contiguous().numpy())
    return sha.hexdigest()
