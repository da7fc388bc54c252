"""Complete runs by name: the paper's recipes, exactly, and two for a laptop. Torch-free."""

from dataclasses import replace
from typing import Any

from .config import LMConfig, RunConfig, RuntimeConfig, TrainConfig, tokenizer_size
from .errors import unknown
from .schema import change
from .variants import preset, variant

_PAPER = RunConfig(
    model=preset("small"),
    task=LMConfig(corpus="wikitext-103"),
    train=TrainConfig(),
    runtime=RuntimeConfig(micro_batch=8),
)

RECIPES: dict[str, RunConfig] = {
    # 237,568 parameters see 2 unique and 8 total tokens each, the paper's proportions: four passes over the text
    "mini": RunConfig(
        model=preset("mini", vocab_size=1024, n_positions=128),
        task=LMConfig(tokenizer="bpe:1024", max_tokens=475_136, max_valid_tokens=65_536),
        train=TrainConfig(
            steps=928, batch_size=16, seq_len=128, lr=4e-3, warmup=62, precision="fp32", eval_every=116, log_every=4
        ),
        runtime=RuntimeConfig(save_every=116, threads=1),
    ),
    "nano": RunConfig(
        model=preset("nano", vocab_size=2048, n_positions=256),
        task=LMConfig(tokenizer="bpe:2048"),
        train=TrainConfig(steps=500, batch_size=16, seq_len=256, lr=2e-3, warmup=50, precision="fp32", eval_every=100),
        runtime=RuntimeConfig(save_every=100),
    ),
    "wikitext-103": _PAPER,
    # the paper's 152.3M parameters fit 512 positions, not 2048
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
    "openwebtext": replace(_PAPER, task=LMConfig(corpus="openwebtext")),
    "pubmed": replace(_PAPER, task=LMConfig(corpus="pubmed")),
}
"""By name, with standard attention; `recipe` puts in another."""


def recipe(name: str, attention: str = "standard", **settings: Any) -> RunConfig:
    """A run by recipe and attention variant, with any setting changed: `recipe("nano", "euler", steps=200, seed=1)`.

    The vocabulary follows the tokenizer unless it is set too.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    base = RECIPES[name]
    config = replace(base, model=replace(base.model, attention=variant(attention)))
    if config.model.attention.dynamics.method != "none" and base.runtime.gradient_checkpointing:
        # the paper halves the micro-batch of coupled models at 150M and 350M; the global batch stays
        config = change(config, {"micro_batch": (base.runtime.micro_batch or base.train.batch_size) // 2})
    if "tokenizer" in settings:
        settings = {"vocab_size": tokenizer_size(settings["tokenizer"]), **settings}
    return change(config, settings)
