"""The settings of models, tasks, training and runs, as frozen dataclasses. Torch-free.

A configuration is validated when it is constructed. `schema.py` contains the functions that change, write and read one.
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
from .schema import check_fields, require, require_finite, require_range, to_dict

COUNT = 10**12
"""Maximum number of steps, tokens or examples: far beyond what can be trained, and well within 64 bits."""
SIZE = 2**24
"""Maximum number of rows or columns of a matrix."""
MOST_JOBS = 10_000
"""Maximum number of processes at a time."""
MOST_TOKENS = 2**28
"""Maximum number of tokens in a global batch."""
LARGEST_STEP_SIZE = 1000.0
"""Maximum of dt = exp(tau) in settings and in loaded weights. Learned values stay below 10; e^20 would overflow q and k."""


@dataclass(frozen=True)
class DynamicsConfig:
    """The token-local map (q, k) -> (q, k) before scoring."""

    method: str = "none"
    """Update rule of q and k: an integrator of q' = k, k' = f(q), a control that updates only q or k, or affine coupling."""
    force: str = "mlp"
    """The force f in k' = f(q). Each layer has one, shared by its heads."""
    n_steps: int = 3
    """Number of integration steps n."""
    step_size: float = 0.1
    """Initial step size dt."""
    learn_step_size: bool = True
    """Learn dt = exp(tau), one tau per key head. If false, dt is fixed at step_size."""
    force_std: float = 0.02
    """Standard deviation of the force's initial weights."""
    gate: bool = False
    """Multiply dt by a learned gate per key head that starts at 0, so that the map starts as the exact identity."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, 1_000, "n_steps")
        require(self.step_size > 0, "step_size", self.step_size, "greater than 0")
        require(self.step_size <= LARGEST_STEP_SIZE, "step_size", self.step_size, f"at most {LARGEST_STEP_SIZE:g}")
        require_finite(self, 0, "force_std")
        registry.check_choice(self, "method", registry.DYNAMICS)
        if self.force not in registry.FORCES:
            raise unknown("force", self.force, registry.FORCES)


@dataclass(frozen=True)
class ScoringConfig:
    """How the attention output is computed from the evolved q and k and from v."""

    kind: str = "softmax"
    """How attention weights and output are computed: softmax, the difference of two softmax maps, or another scoring in
    `registry.py`."""
    flavour: Literal["paper", "official"] = "paper"
    """Parametrisation of lambda in differential scoring: one learned scalar per head (paper), or the four vectors of the
    published Differential Transformer (official)."""

    def __post_init__(self) -> None:
        check_fields(self)
        registry.check_choice(self, "kind", registry.SCORINGS)


@dataclass(frozen=True)
class AttentionConfig:
    """One attention variant: dynamics, scoring and the geometry they share."""

    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    group_size: int = 1
    """Number of query heads per key and value head (grouped-query attention); 1 is multi-head attention."""
    qk_norm: bool = False
    """Apply RMSNorm to queries and keys before the dynamics."""
    causal: bool = True
    """Causal attention: no token attends to a later one. Encoders need false."""
    value_residual: bool = field(default=False, metadata={"absent": False})
    """Mix the values of the first layer into those of every later layer."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, SIZE, "group_size")


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer language model."""

    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 8
    d_ff: int = 2048
    vocab_size: int = 50_257
    n_positions: int = 2048
    """Number of learned position embeddings. It has no effect with RoPE."""
    positions: Literal["learned", "rope"] = "learned"
    attention: AttentionConfig = field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, SIZE, "d_model", "n_heads", "d_ff", "vocab_size", "n_positions")
        require_range(self, 1, 4_096, "n_layers")
        head_width(self.d_model, self.n_heads, self.attention)
        if self.positions == "rope":
            check_rope_width(head_width(self.d_model, self.n_heads, self.attention))


def head_width(d_model: int, n_heads: int, attention: AttentionConfig) -> int:
    """The width of a query: d_model / n_heads, divided by the number of sub-heads if the scoring splits each head."""
    for name, value in (("d_model", d_model), ("n_heads", n_heads)):
        require(hasattr(value, "__index__") and value >= 1, name, value, "a whole number of at least 1")
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
            f"n_heads={n_heads} gives a width of {width}: choose a width divisible by {sub_heads}"
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
    """A text corpus and how it is tokenized and sampled."""

    corpus: str = "python-stdlib"
    """The name of a corpus, or the path of a local file or folder."""
    tokenizer: str = "gpt2"
    """The tokenizer: gpt2, bytes, bpe:N for a byte-level BPE with N tokens trained on the corpus itself, or bpe:N@CORPUS for
    one trained on another corpus."""
    data_dir: str | None = None
    """Folder of a local copy of a named corpus. It is not part of the run's identity."""
    max_tokens: int | None = None
    """Number of training tokens to use; all by default."""
    max_valid_tokens: int | None = None
    """Number of validation tokens to use; all by default."""
    sampling: Literal["shuffled", "first"] = field(default="shuffled", metadata={"absent": "first"})
    """Which tokens are used if max_tokens or max_valid_tokens limits them: those of documents in an order shuffled by a hash,
    or the first tokens of the split. Runs made before this setting existed use the first tokens."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """How text that is not valid UTF-8 is handled: strict raises an error, replace converts invalid bytes to U+FFFD."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 2, COUNT, "max_tokens", "max_valid_tokens")
        tokenizer_size(self.tokenizer)

    @property
    def measure(self) -> Measure:
        """The measure by which runs of this task are compared."""
        return PERPLEXITY


@dataclass(frozen=True)
class LMConfig(DataConfig):
    """Language modelling: predicting the next token of a text."""

    kind: Literal["lm"] = "lm"


@dataclass(frozen=True)
class AdaptConfig(DataConfig):
    """Continued training of a language model (`init_from`) on other text."""

    kind: Literal["adapt"] = "adapt"
    method: Literal["full", "lora", "lora_coupling", "coupling"] = "full"
    """What is trained: all weights (full), low-rank updates of the qkv projections (lora), low-rank updates and the dynamics
    (lora_coupling), or the dynamics alone (coupling)."""
    rank: int = 8
    """Rank of the low-rank updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, SIZE, "rank")
        if "lora" not in self.method and self.rank != 8:
            raise CoupledQKError(f"rank={self.rank} has no effect with method {self.method!r}: leave it at 8")


@dataclass(frozen=True)
class MQARConfig:
    """Multi-query associative recall: a list of key-value pairs, followed by keys whose values have to be recalled."""

    kind: Literal["mqar"] = "mqar"
    protocol: Literal["paper", "zoology"] = "paper"
    """The paper's protocol (new rows at every step, no fillers) or Zoology's (a fixed set of rows, fillers between queries)."""
    n_pairs: int = 4
    """Number of key-value pairs in a row. The length of a row is seq_len and its tokens are drawn from the model's
    vocabulary."""
    n_train: int = 100_000
    """Number of rows in the training set of the zoology protocol."""
    n_test: int = 3_000
    """Number of rows in the test set."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, SIZE, "n_pairs")
        require_range(self, 1, 10**8, "n_train", "n_test")
        if self.protocol == "paper" and self.n_train != 100_000:
            raise CoupledQKError(
                f"n_train={self.n_train} has no effect with protocol 'paper', which generates new rows at every step: leave it "
                "out, or choose protocol 'zoology'"
            )

    @property
    def measure(self) -> Measure:
        """The measure by which runs of this task are compared."""
        return ACCURACY


@dataclass(frozen=True)
class SentenceConfig:
    """The data of a GLUE task: classification of sentences or pairs of sentences."""

    dataset: Literal["sst2", "mnli", "qnli"] = "sst2"
    data_dir: str | None = None
    """Folder of a local copy of the data; the data is loaded from the Hugging Face hub by default. It is not part of the run's
    identity."""
    max_examples: int | None = None
    """Number of training examples to use, from the beginning of the training set; all by default."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, COUNT, "max_examples")

    @property
    def measure(self) -> Measure:
        """The measure by which runs of this task are compared."""
        return ACCURACY


@dataclass(frozen=True)
class GLUEConfig(SentenceConfig):
    """Fine-tuning of a language model (`init_from`) on a GLUE task."""

    kind: Literal["glue"] = "glue"


@dataclass(frozen=True)
class PretrainedConfig(SentenceConfig):
    """Fine-tuning of a pretrained model of the transformers library on a GLUE task.

    The dynamics of the run's attention variant are inserted into the pretrained model. The sizes in the run's model settings
    are ignored.
    """

    kind: Literal["pretrained"] = "pretrained"
    source: str = "sentence-transformers/all-MiniLM-L6-v2"
    """The pretrained model: an id of the Hugging Face hub, or a local folder with weights and tokenizer."""
    model_dir: str | None = None
    """Folder of a local copy of a model from the hub. It is not part of the run's identity."""
    max_dev_examples: int | None = None
    """Number of validation examples to use, from the beginning of the validation set; all by default."""
    method: Literal["full", "lora"] = "full"
    """Which pretrained weights are trained: all of them, or low-rank updates of the attention projections. The coupling and the
    classifier are trained in either case."""
    rank: int = 8
    """Rank of the low-rank updates."""
    coupling_lr: float = 1.0
    """Learning rate of the coupling, as a multiple of the learning rate of the other weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, SIZE, "rank")
        require(0 < self.coupling_lr < math.inf, "coupling_lr", self.coupling_lr, "a positive number")
        require_range(self, 1, COUNT, "max_dev_examples")
        if self.method == "full" and self.rank != 8:
            raise CoupledQKError(f"rank={self.rank} has no effect with method 'full': leave it at 8")


TaskConfig = LMConfig | AdaptConfig | MQARConfig | GLUEConfig | PretrainedConfig


def tokenizer_size(name: str) -> int:
    """The vocabulary size of a tokenizer, from its name."""
    sizes = {"gpt2": 50_257, "bytes": 257}
    if name in sizes:
        return sizes[name]
    bpe, at, corpus = name.partition("@")
    kind, _, size = bpe.partition(":")
    if kind != "bpe" or not size.isdecimal() or (at and not corpus):
        raise CoupledQKError(
            f"unknown tokenizer {name!r}: choose gpt2, bytes, or bpe:N or bpe:N@CORPUS with the number of tokens N"
        )
    require(len(size) < 9 and int(size) <= SIZE, "tokenizer", name[:40], f"at most {SIZE:,} tokens")
    require(int(size) > 257, "tokenizer", name, "more than 257 tokens: every byte and the end of text have one already")
    return int(size)


@dataclass(frozen=True)
class TrainConfig:
    """Training with AdamW and a learning-rate schedule with linear warm-up from 0 and decay to 0, as in the paper."""

    steps: int = 30_000
    batch_size: int = 32
    """Number of sequences in the global batch. It does not depend on the micro-batch."""
    seq_len: int = 512
    lr: float = 6e-4
    """Peak learning rate."""
    warmup: int = 2_000
    """Number of steps of linear warm-up."""
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    """Weight decay, applied to all matrices including the tied embedding, and to no other parameter."""
    clip: float = 1.0
    """Maximum norm of the gradient; larger gradients are scaled down to it."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """Shape of the learning-rate decay to 0 after the warm-up."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp16"
    """Autocast dtype for matrix products. Weights are kept in float32, and fp16 uses loss scaling."""
    eval_every: int = 1_000
    log_every: int = 10

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, COUNT, "steps", "eval_every", "log_every")
        require_range(self, 1, SIZE, "batch_size", "seq_len")
        if self.batch_size * self.seq_len > MOST_TOKENS:
            raise CoupledQKError(
                f"batch_size={self.batch_size} times seq_len={self.seq_len}: expected at most {MOST_TOKENS:,} tokens in a batch"
            )
        for name in ("lr", "adam_eps", "clip"):
            require(0 < getattr(self, name) < math.inf, name, getattr(self, name), "a positive number")
        require(
            0 <= self.warmup <= self.steps, "warmup", self.warmup, f"0 to {self.steps}, the number of steps; set both"
        )
        require_finite(self, 0, "weight_decay")
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "at least 0 and below 1")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "at least 0 and below 1")


@dataclass(frozen=True)
class RuntimeConfig:
    """How a run is executed. These settings are not part of the run's identity and may change when the run is resumed."""

    device: str = "auto"
    """The device to train on: auto, cpu, cuda, cuda:1, mps ..."""
    threads: int | None = None
    """Number of CPU threads; PyTorch's default if not given. Resuming bit-identically requires the same number."""
    micro_batch: int | None = None
    """Number of sequences per forward and backward pass; the whole batch by default. Smaller values need less memory."""
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass, which saves memory and takes about a third more time."""
    compile: bool | None = None
    """Compile the model with torch.compile; with several processes, compile each layer separately. By default, a language model
    is compiled if it trains in one process on a CPU for long enough to repay the compilation."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How the processes that torchrun starts train one model: each holds the whole model (ddp), or a shard of its weights,
    gradients and optimizer state (fsdp). It has no effect in a single process."""
    impl: Literal["auto", "reference", "fused", "triton"] = "auto"
    """Implementation of the dynamics: auto selects the fastest one benchmarked on this kind of device. All give the same
    values up to rounding."""
    save_every: int = 1_000
    """Number of steps between checkpoints."""
    keep: int = 2
    """Number of most recent checkpoints to keep. The best weights are kept in addition."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, 1, COUNT, "save_every", "keep")
        require_range(self, 1, 4_096, "threads")
        require_range(self, 1, SIZE, "micro_batch")


@dataclass(frozen=True)
class RunConfig:
    """The complete configuration of one training run."""

    seed: int = 0
    """Random seed of the run. init_seed and data_seed override it for the initial weights and the order of the data."""
    init_seed: int | None = None
    """Random seed of the initial weights; equal to seed by default."""
    data_seed: int | None = None
    """Random seed of the order of the training windows; equal to seed by default."""
    init_from: str | None = None
    """Folder of the run whose best weights this run starts from."""
    plugin: Plugin | None = None
    """The plugin that registered the model's dynamics or scoring. It is set automatically."""
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=LMConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        require_range(self, -(2**63), 2**63 - 1, "seed", "init_seed", "data_seed")
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
            raise CoupledQKError("causal=False: a language model predicts the next token and must be causal")
        if self.init_from and self.init_seed is not None:
            raise CoupledQKError(
                "init_seed and init_from are both set: set one of them, the initial weights have one source"
            )
        if self.init_from is None and isinstance(self.task, AdaptConfig | GLUEConfig):
            raise CoupledQKError(f"task {self.task.kind!r} starts from a trained run: name it with init_from")
        attention = self.model.attention
        object.__setattr__(self, "plugin", registry.plugin_of(attention.dynamics.method, attention.scoring.kind))


def text_of(config: RunConfig) -> DataConfig:
    """The text settings of a run. Raises if the run's task has no text."""
    if isinstance(config.task, DataConfig):
        return config.task
    raise CoupledQKError(
        f"this run's task is {config.task.kind!r}, which has no text: expected the run of a language model"
    )


def identity(config: RunConfig) -> str:
    """A hash of all settings that affect the result: all but the runtime settings and the locations of data and runs."""
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
