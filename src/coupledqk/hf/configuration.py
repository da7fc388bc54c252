"""Our ModelConfig as a configuration of transformers, which is flat and written to config.json."""

import dataclasses
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ..config import AttentionConfig, DynamicsConfig, ModelConfig, ScoringConfig, head_width
from ..errors import CoupledQKError
from ..schema import from_dict, to_dict
from ..variants import variant

FORMAT_VERSION = 1
"""Format version of config.json. It increases with any change that an older version of this package would misread."""

_SETTINGS_OF_ATTENTION = {
    "head_dim",
    "num_key_value_heads",
    *(field.name for kind in (AttentionConfig, DynamicsConfig, ScoringConfig) for field in dataclasses.fields(kind)),
}


@strict
class CoupledQKConfig(PreTrainedConfig):
    """The settings of `ModelConfig`. `attention` may be the name of a variant and is stored in full."""

    model_type = "coupledqk"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012  (transformers' own form)
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "n_positions",
    }

    format_version: int = FORMAT_VERSION
    d_model: int = ModelConfig.d_model
    n_heads: int = ModelConfig.n_heads
    n_layers: int = ModelConfig.n_layers
    d_ff: int = ModelConfig.d_ff
    vocab_size: int = ModelConfig.vocab_size
    n_positions: int = ModelConfig.n_positions
    positions: str = ModelConfig.positions
    attention: str | dict = "standard"
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.format_version > FORMAT_VERSION:
            raise CoupledQKError(
                f"config.json is of format version {self.format_version}, but this coupledqk reads up to {FORMAT_VERSION}: "
                "pip install --upgrade coupledqk"
            )
        for name in kwargs.keys() & _SETTINGS_OF_ATTENTION:
            raise CoupledQKError(
                f"{name}={kwargs[name]!r} is a setting of the attention: give attention as a table that contains it, or build "
                "the configuration with CoupledQKConfig.from_model_config(coupledqk.preset(...))"
            )
        self.attention = to_dict(self.to_model_config().attention)
        super().__post_init__(**kwargs)

    @property
    def head_dim(self) -> int:
        """Width of the heads in scoring, which is half the usual width for differential attention."""
        return head_width(self.d_model, self.n_heads, self.to_model_config().attention)

    @property
    def num_key_value_heads(self) -> int:
        """Number of heads in the cache, each of width `head_dim`."""
        return self.d_model // self.head_dim // self.to_model_config().attention.group_size

    @classmethod
    def from_model_config(cls, config: ModelConfig, **settings: Any) -> "CoupledQKConfig":
        return cls(**to_dict(config), **settings)

    def to_model_config(self) -> ModelConfig:
        if isinstance(self.attention, str):
            attention = variant(self.attention)
        else:
            attention = from_dict(AttentionConfig, self.attention, "attention.")
        if not attention.causal:
            raise CoupledQKError("attention.causal=False: a model that generates must be causal")
        return ModelConfig(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            d_ff=self.d_ff,
            vocab_size=self.vocab_size,
            n_positions=self.n_positions,
            positions=self.positions,  # pyright: ignore[reportArgumentType]  (checked there)
            attention=attention,
        )
