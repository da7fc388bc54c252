"""Every setting, once, as frozen dataclasses. Torch-free.

A configuration is checked when it is made, so one that exists is valid. How one is changed, written and read: `schema.py`.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import registry
from .errors import CoupledQKError, unknown
from .measure import ACCURACY, PERPLEXITY, Measure
from .plugins import Plugin
from .schema import check_fields, require, to_dict


@dataclass(frozen=True)
class DynamicsConfig:
    """The token-local map (q, k) -> (q, k) before scoring."""

    method: str = "none"
    """How q and k move: an integrator of q' = k, k' = f(q), a control in which only one of them moves, or affine coupling."""
    force: str = "mlp"
    """The function f; one per layer, shared by its heads."""
    n_steps: int = 3
    """Integration steps n."""
    step_size: float = 0.1
    """Initial step size dt."""
    learn_step_size: bool = True
    """Learn dt = exp(tau), one tau per key head; otherwise dt stays as it is."""
    force_std: float = 0.02
    """Standard deviation of the force's initial weights."""
    gate: bool = False
    """Multiply dt by a learned gate per key head that starts at 0, so that the map starts as the exact identity."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.n_steps >= 1, "n_steps", self.n_steps, "at least 1")
        require(self.step_size > 0, "step_size", self.step_size, "greater than 0")
        require(self.force_std >= 0, "force_std", self.force_std, "at least 0")
        registry.check_choice(self, "method", registry.DYNAMICS)
        if self.force not in registry.FORCES:
            raise unknown("force", self.force, registry.FORCES)


@dataclass(frozen=True)
class ScoringConfig:
    """From evolved q, k and v to the output."""

    kind: str = "softmax"
    """How weights and output are computed: one softmax map, the difference of two, and others (`registry.py`)."""
    flavour: Literal["paper", "official"] = "paper"
    """Of differential scoring: one learned scalar per head, or the four vectors of the published Differential Transformer."""

    def __post_init__(self) -> None:
        check_fields(self)
        registry.check_choice(self, "kind", registry.SCORINGS)


@dataclass(frozen=True)
class AttentionConfig:
    """One attention variant: dynamics, scoring and the geometry they share."""

    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    group_size: int = 1
    """Queries per key and value head (grouped-query attention); 1 gives each query head its own."""
    qk_norm: bool = False
    """RMSNorm on every query and key before the dynamics."""
    causal: bool = True
    """No token sees a later one. False serves encoders."""
    value_residual: bool = field(default=False, metadata={"absent": False})
    """Mix the values of the first layer into those of every later layer."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.group_size >= 1, "group_size", self.group_size, "at least 1")


@dataclass(frozen=True)
class ModelConfig:
    """The transformer language model."""

    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 8
    d_ff: int = 2048
    vocab_size: int = 50_257
    n_positions: int = 2048
    """Rows of the learned position table; without effect under RoPE, which has no table."""
    positions: Literal["learned", "rope"] = "learned"
    attention: AttentionConfig = field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("d_model", "n_heads", "n_layers", "d_ff", "vocab_size", "n_positions"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        head_width(self.d_model, self.n_heads, self.attention)
        if self.positions == "rope":
            check_rope_width(head_width(self.d_model, self.n_heads, self.attention))


def head_width(d_model: int, n_heads: int, attention: AttentionConfig) -> int:
    """The width of a query: d_model / n_heads, or half of that if the scoring splits each head in two sub-heads."""
    if d_model % n_heads:
        raise CoupledQKError(
            f"d_model={d_model} is not divisible by n_heads={n_heads}: choose n_heads among the divisors of d_model"
        )
    if n_heads % attention.group_size:
        raise CoupledQKError(
            f"n_heads={n_heads} is not divisible by group_size={attention.group_size}: each key head serves group_size query "
            "heads, so choose group_size among the divisors of n_heads"
        )
    width, sub_heads = d_model // n_heads, registry.SCORINGS[attention.scoring.kind].sub_heads
    if width % sub_heads:
        raise CoupledQKError(
            f"{attention.scoring.kind} scoring splits each head into {sub_heads} sub-heads, but d_model={d_model} over "
            f"n_heads={n_heads} gives a width of {width}: choose one that {sub_heads} divides"
        )
    return width // sub_heads


def check_rope_width(width: int) -> None:
    if width % 2:
        raise CoupledQKError(
            f"RoPE rotates pairs of coordinates, but each (sub-)head is {width} wide: choose d_model and n_heads for an "
            "even width"
        )


@dataclass(frozen=True)
class DataConfig:
    """The text and how it becomes tokens."""

    corpus: str = "python-stdlib"
    """A corpus by name, or a local file or folder."""
    tokenizer: str = "gpt2"
    """gpt2, bytes, or bpe:N for a byte-level BPE of N tokens trained on the corpus itself."""
    data_dir: str | None = None
    """Where a local copy of a named corpus lies. A place, not a choice: it does not change what is trained."""
    max_tokens: int | None = None
    """Number of training tokens to use; all unless given."""
    max_valid_tokens: int | None = None
    """Number of validation tokens to use; all unless given."""
    sampling: Literal["shuffled", "first"] = field(default="shuffled", metadata={"absent": "first"})
    """Which tokens are used if not all: those of the documents that come first in an order shuffled by a hash, or the first
    tokens of the split. Runs made before this setting existed use the first tokens."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """Refuse text that is not UTF-8, or replace what cannot be read."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_tokens", "max_valid_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 2, name, value, "at least 2")
        tokenizer_size(self.tokenizer)

    @property
    def measure(self) -> Measure:
        """What the task is judged by."""
        return PERPLEXITY


@dataclass(frozen=True)
class LMConfig(DataConfig):
    """Language modelling: each next token of a text."""

    kind: Literal["lm"] = "lm"


@dataclass(frozen=True)
class AdaptConfig(DataConfig):
    """Continued training of a language model (`init_from`) on other text."""

    kind: Literal["adapt"] = "adapt"
    method: Literal["full", "lora", "lora_coupling", "coupling"] = "full"
    """What is trained: all weights, low-rank updates of the qkv projections, these and the dynamics, or the dynamics alone."""
    rank: int = 8
    """Of the low-rank updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rank >= 1, "rank", self.rank, "at least 1")
        if "lora" not in self.method and self.rank != 8:
            raise CoupledQKError(f"rank={self.rank} has no effect with method {self.method!r}: leave it at 8")


@dataclass(frozen=True)
class MQARConfig:
    """Multi-query associative recall: pairs of keys and values, then keys whose values are asked for."""

    kind: Literal["mqar"] = "mqar"
    protocol: Literal["paper", "zoology"] = "paper"
    """The paper's (fresh rows at every step, no fillers) or Zoology's (a fixed set of rows, fillers between the queries)."""
    n_pairs: int = 4
    """Pairs of a key and a value in a row; its length is seq_len, its tokens are those of the model's vocabulary."""
    n_train: int = 100_000
    """Rows of Zoology's training set."""
    n_test: int = 3_000
    """Rows of the test set."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("n_pairs", "n_train", "n_test"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        if self.protocol == "paper" and self.n_train != 100_000:
            raise CoupledQKError(
                f"n_train={self.n_train} has no effect with protocol 'paper', whose rows are fresh at every step: leave it "
                "out, or choose protocol 'zoology'"
            )

    @property
    def measure(self) -> Measure:
        """What the task is judged by."""
        return ACCURACY


@dataclass(frozen=True)
class SentenceConfig:
    """Sentences or pairs of them to classify: a GLUE task."""

    dataset: Literal["sst2", "mnli", "qnli"] = "sst2"
    data_dir: str | None = None
    """Where a local copy lies; from the hub unless given. A place, not a choice."""
    max_examples: int | None = None
    """Training examples to use, from the beginning; all unless given."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.max_examples is None or self.max_examples >= 1, "max_examples", self.max_examples, "at least 1")

    @property
    def measure(self) -> Measure:
        """What the task is judged by."""
        return ACCURACY


@dataclass(frozen=True)
class GLUEConfig(SentenceConfig):
    """A GLUE task: a language model (`init_from`) learns to classify sentences."""

    kind: Literal["glue"] = "glue"


@dataclass(frozen=True)
class PretrainedConfig(SentenceConfig):
    """A GLUE task: a pretrained model of transformers learns to classify sentences.

    It is coupled by the dynamics of the run's attention variant. Its sizes are its own, whatever the run's model settings say.
    """

    kind: Literal["pretrained"] = "pretrained"
    source: str = "sentence-transformers/all-MiniLM-L6-v2"
    """The pretrained model: an id of the Hugging Face hub, or a local folder with weights and tokenizer."""
    model_dir: str | None = None
    """Where a local copy of a hub's model lies. A place, not a choice: it does not change what is trained."""
    max_dev_examples: int | None = None
    """Validation examples to use, from the beginning; all unless given."""
    method: Literal["full", "lora"] = "full"
    """Which pretrained weights are trained: all of them, or low-rank updates of the attention projections. The coupling and the
    classifier are trained in either case."""
    rank: int = 8
    """Of the low-rank updates."""
    coupling_lr: float = 1.0
    """Learning rate of the coupling, as a multiple of the learning rate of the other weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rank >= 1, "rank", self.rank, "at least 1")
        require(0 < self.coupling_lr < math.inf, "coupling_lr", self.coupling_lr, "a positive number")
        count = self.max_dev_examples
        require(count is None or count >= 1, "max_dev_examples", count, "at least 1")
        if self.method == "full" and self.rank != 8:
            raise CoupledQKError(f"rank={self.rank} has no effect with method 'full': leave it at 8")


TaskConfig = LMConfig | AdaptConfig | MQARConfig | GLUEConfig | PretrainedConfig


def tokenizer_size(name: str) -> int:
    """The number of tokens of a tokenizer, known from its name."""
    sizes = {"gpt2": 50_257, "bytes": 257}
    if name in sizes:
        return sizes[name]
    kind, _, size = name.partition(":")
    if kind != "bpe" or not size.isdecimal():
        raise CoupledQKError(f"unknown tokenizer {name!r}: choose gpt2, bytes, or bpe:N with the number of tokens N")
    require(int(size) > 257, "tokenizer", name, "more than 257 tokens: every byte and the end of text have one already")
    return int(size)


@dataclass(frozen=True)
class TrainConfig:
    """AdamW with linear warm-up from 0 and a decay to 0, as in the paper."""

    steps: int = 30_000
    batch_size: int = 32
    """Sequences in the global batch, whatever the micro-batch."""
    seq_len: int = 512
    lr: float = 6e-4
    """Peak learning rate."""
    warmup: int = 2_000
    """Steps of linear warm-up."""
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    """On all matrices, the tied embedding included, and on nothing else."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the learning rate falls to 0 after the warm-up."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp16"
    """Of the products, by autocast; weights stay float32. fp16 scales the loss."""
    eval_every: int = 1_000
    log_every: int = 10

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("steps", "batch_size", "seq_len", "eval_every", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("lr", "adam_eps", "clip"):
            require(0 < getattr(self, name) < math.inf, name, getattr(self, name), "a positive number")
        require(
            0 <= self.warmup <= self.steps, "warmup", self.warmup, f"0 to {self.steps}, the number of steps; set both"
        )
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "at least 0")
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "at least 0 and below 1")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "at least 0 and below 1")


@dataclass(frozen=True)
class RuntimeConfig:
    """How a run is carried out. None of this is part of what is computed, and all of it may change on resuming."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps ..."""
    threads: int | None = None
    """CPU threads; PyTorch's own choice unless given. Bitwise resume needs the same number."""
    micro_batch: int | None = None
    """Sequences a pass; the whole batch unless given. Smaller needs less memory."""
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory, about a third more time."""
    compile: bool = False
    """torch.compile the model; of several processes, each of its layers."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How the processes that torchrun starts train one model: each with all of the model, or with a share of its weights,
    gradients and optimiser state. Without effect in a single process."""
    impl: Literal["auto", "reference", "fused", "triton"] = "auto"
    """How the dynamics are computed: the fastest that was timed on such a device, or one by name. All give the same values."""
    save_every: int = 1_000
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints to keep, the newest ones; the best weights are kept besides."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("save_every", "keep"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("threads", "micro_batch"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")


@dataclass(frozen=True)
class RunConfig:
    """One training run, complete."""

    seed: int = 0
    """Of everything that is drawn, unless the next two are set."""
    init_seed: int | None = None
    """Of the initial weights."""
    data_seed: int | None = None
    """Of the order of the training windows."""
    init_from: str | None = None
    """A run whose best weights this one starts from."""
    plugin: Plugin | None = None
    """The file that defines the model's dynamics or scoring; set by itself if a plugin has registered them."""
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=LMConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.model.positions == "learned" and self.train.seq_len > self.model.n_positions:
            raise CoupledQKError(
                f"seq_len={self.train.seq_len} is longer than the model's {self.model.n_positions} learned positions: "
                "shorten it or raise n_positions"
            )
        if isinstance(self.task, DataConfig):
            n_tokens = tokenizer_size(self.task.tokenizer)
            if self.model.vocab_size < n_tokens:
                raise CoupledQKError(
                    f"vocab_size={self.model.vocab_size} is less than the {n_tokens} tokens of {self.task.tokenizer!r}: set "
                    f"vocab_size={n_tokens}"
                )
        if not self.model.attention.causal:
            raise CoupledQKError("causal=False: a language model is trained on what comes next and must be causal")
        if self.init_from and self.init_seed is not None:
            raise CoupledQKError("init_seed and init_from are both set: the weights come from one or the other")
        if self.init_from is None and isinstance(self.task, AdaptConfig | GLUEConfig):
            raise CoupledQKError(f"task {self.task.kind!r} starts from a trained run: name it with init_from")
        attention = self.model.attention
        object.__setattr__(self, "plugin", registry.plugin_of(attention.dynamics.method, attention.scoring.kind))


def text_of(config: RunConfig) -> DataConfig:
    """The text of a run, for what only makes sense with one."""
    if isinstance(config.task, DataConfig):
        return config.task
    raise CoupledQKError(f"this run's task is {config.task.kind!r}, which has no text: expected a language model's run")


def identity(config: RunConfig) -> str:
    """A hash of all that decides what is computed: everything but where data and runs lie and how the run is carried out."""
    data = to_dict(config)
    del data["runtime"]
    for place in ("data_dir", "model_dir"):
        data["task"].pop(place, None)
    data.get("plugin", {}).pop("path", None)
    if not {"max_tokens", "max_valid_tokens"} & data["task"].keys():
        data["task"].pop("sampling", None)
    if config.init_from:
        data["init_from"] = Path(config.init_from).name
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
