"""Named run configurations: the paper's recipes, and smaller ones for a laptop. Torch-free."""

import math
from dataclasses import replace
from typing import Any

from .config import GLUEConfig, LMConfig, MQARConfig, RunConfig, RuntimeConfig, TrainConfig, tokenizer_size
from .errors import unknown
from .schema import change, require
from .variants import preset, variant

_PAPER = RunConfig(
    model=preset("small"),
    task=LMConfig(corpus="wikitext-103"),
    train=TrainConfig(),
    runtime=RuntimeConfig(micro_batch=8),
)

_MINI_MODERN = RunConfig(
    model=preset("mini", vocab_size=1024, n_positions=128, positions="rope", qk_norm=True),
    task=LMConfig(tokenizer="bpe:1024", max_valid_tokens=131_072),
    train=TrainConfig(
        steps=4_000, batch_size=8, seq_len=128, lr=6e-3, warmup=400, precision="fp32", eval_every=1_000, log_every=20
    ),
    runtime=RuntimeConfig(save_every=1_000, threads=1),
)

RECIPES: dict[str, RunConfig] = {
    # The paper's architecture for grids of many runs: 4.1M tokens, one pass over WikiText-2, about two CPU-minutes. Windows
    # of 64 tokens reached 2.10 bits per byte after a CPU-minute, windows of 128 tokens 2.20 (one seed).
    "mini": replace(
        _MINI_MODERN,
        model=preset("mini", vocab_size=1024, n_positions=64),
        train=replace(_MINI_MODERN.train, batch_size=16, seq_len=64),
    ),
    # The same number of tokens with RoPE and qk_norm reaches 1.85 bits per byte on WikiText-2, against 1.92 for `mini` and
    # 2.09 for a Kneser-Ney bigram model (one seed). `coupledqk reproduce recipe-search` compares vocabularies, widths, numbers
    # of heads, batch sizes and learning rates.
    "mini-modern": _MINI_MODERN,
    "nano": RunConfig(
        model=preset("nano", vocab_size=2048, n_positions=256),
        task=LMConfig(tokenizer="bpe:2048"),
        train=TrainConfig(steps=500, batch_size=16, seq_len=256, lr=2e-3, warmup=50, precision="fp32", eval_every=100),
        runtime=RuntimeConfig(save_every=100),
    ),
    "wikitext-103": _PAPER,
    # the paper's 152.3M parameters correspond to 512 positions, not 2048
    "wikitext-103-medium": replace(
        _PAPER,
        model=preset("medium", n_positions=512),
        train=TrainConfig(lr=3e-4),
        runtime=RuntimeConfig(micro_batch=8, gradient_checkpointing=True),
    ),
    "wikitext-103-large": replace(
        _PAPER,
        model=preset("large", n_positions=512),
        train=TrainConfig(lr=2e-4),
        runtime=RuntimeConfig(micro_batch=4, gradient_checkpointing=True),
    ),
    # the paper trains for 10,000 and 20,000 steps; its longest level has 256 tokens
    "mqar": RunConfig(
        model=preset("tiny", vocab_size=64, n_positions=256),
        task=MQARConfig(n_pairs=4),
        train=TrainConfig(
            steps=20_000, batch_size=64, seq_len=64, lr=3e-4, warmup=500, weight_decay=0.01, precision="fp32"
        ),
    ),
    # accuracy rises abruptly: at this size between 500 and 1,000 steps, and later with more pairs, more tokens or a higher lr
    "mqar-mini": RunConfig(
        model=preset("mini", n_layers=2, vocab_size=32, n_positions=16),
        task=MQARConfig(n_pairs=3, n_test=1_000),
        train=TrainConfig(
            steps=1_500,
            batch_size=64,
            seq_len=16,
            lr=1e-3,
            warmup=100,
            weight_decay=0.01,
            precision="fp32",
            eval_every=100,
        ),
        runtime=RuntimeConfig(save_every=500, threads=1),
    ),
    "openwebtext": replace(_PAPER, task=LMConfig(corpus="openwebtext")),
    "pubmed": replace(_PAPER, task=LMConfig(corpus="pubmed")),
}
"""Run configurations by name, with standard attention; `recipe` replaces the attention variant."""


def recipe(name: str, attention: str = "standard", **settings: Any) -> RunConfig:
    """A run configuration by recipe and attention variant, with some settings changed.

    For example, `recipe("nano", "euler", steps=200, seed=1)`. Unless they are given, the vocabulary size follows the tokenizer
    and the warm-up is scaled with the number of steps.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    base = RECIPES[name]
    attention_config = variant(attention, qk_norm=base.model.attention.qk_norm)
    config = replace(base, model=replace(base.model, attention=attention_config))
    if config.model.attention.dynamics.method != "none" and base.runtime.gradient_checkpointing:
        # the paper halves the micro-batch of coupled models at 150M and 350M and keeps the global batch
        config = change(config, {"micro_batch": (base.runtime.micro_batch or base.train.batch_size) // 2})
    if "tokenizer" in settings:
        settings = {"vocab_size": tokenizer_size(settings["tokenizer"]), **settings}
    if isinstance(steps := settings.get("steps"), int) and "warmup" not in settings:
        settings = {"warmup": base.train.warmup * steps // base.train.steps, **settings}
    return change(config, settings)


GLUE_EPOCHS = {"sst2": 5, "mnli": 3, "qnli": 5}
"""Number of epochs of each GLUE task in the paper."""


def glue_recipe(
    pretrained: RunConfig, init_from: str, dataset: str, n_examples: int, epochs: int | None = None, **settings: Any
) -> RunConfig:
    """The configuration that fine-tunes a pretrained run on a GLUE task, with the seed of the pretrained run.

    The number of steps follows from the numbers of epochs and examples. Learning rate and epochs are the paper's. It describes
    the other settings only as "BERT-style", so they are our choice.
    """
    if dataset not in GLUE_EPOCHS:
        raise unknown("GLUE task", dataset, GLUE_EPOCHS)
    epochs = GLUE_EPOCHS[dataset] if epochs is None else epochs
    require(epochs >= 1, "epochs", epochs, "at least 1")
    model, batch_size = pretrained.model, 32
    steps = math.ceil(epochs * n_examples / batch_size)
    epoch = math.ceil(n_examples / batch_size)
    train = TrainConfig(
        steps=steps,
        batch_size=batch_size,
        seq_len=min(128, model.n_positions) if model.positions == "learned" else 128,
        lr=2e-5,
        warmup=steps // 10,
        beta2=0.999,
        weight_decay=0.01,
        schedule="linear",
        precision=pretrained.train.precision,
        eval_every=epoch,
    )
    config = replace(
        pretrained,
        init_seed=None,
        init_from=init_from,
        task=GLUEConfig(dataset=dataset),  # pyright: ignore[reportArgumentType]
        train=train,
        runtime=replace(pretrained.runtime, save_every=epoch),
    )
    return change(config, settings)
