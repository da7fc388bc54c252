"""Our models as models of transformers.

Modules and parameters have the names of our models, with a prefix. Caches, masks (which include causality), heads and losses
are those of transformers.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
    GradientCheckpointingLayer,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..attention import Attention
from ..errors import CoupledQKError
from ..layers import KVCache, RMSNorm
from ..loss import IGNORED
from ..model import Block, embedding
from ..rope import Rope, rope_at
from ..scoring import Softmax
from ..values import FirstValues
from .configuration import CoupledQKConfig
from .inputs import (
    check_additive,
    check_cache,
    check_labels,
    check_room,
    check_shapes,
    look_up,
    out_of_range,
    refuse_filled,
)


class LayerCache(KVCache):
    """One layer of a transformers cache with the interface that our Attention expects."""

    def __init__(self, cache: Cache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.cache.update(k.transpose(1, 2), v.transpose(1, 2), self.layer)  # transformers uses (B, H, S, d)
        return k.transpose(1, 2), v.transpose(1, 2)


class PagedLayerCache(KVCache):
    """One layer of the cache that `generate_batch` shares between requests; `indices` are the entries of this call."""

    def __init__(self, cache: Any, layer: int, indices: dict[str, Any]) -> None:
        self.cache, self.layer, self.indices = cache, layer, indices

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        indices = dict(self.indices)  # a copy, because update() modifies its argument
        k, v = self.cache.update(
            key_states=k.transpose(1, 2), value_states=v.transpose(1, 2), layer_idx=self.layer, kwargs=indices
        )
        return k.transpose(1, 2), v.transpose(1, 2)


class CoupledQKAttention(Attention):
    """Our Attention with the masks of transformers. Eager attention also returns the attention weights."""

    scoring: Any
    config: Any
    """The configuration of transformers, which its attention functions read from the module; not an AttentionConfig."""
    layer_idx: Any
    is_causal = True

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Tensor,
        causal_mask: Tensor | None = None,
        rope: Rope | None = None,
        cache: KVCache | None = None,
        first_values: FirstValues | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`causal_mask` is None for a single new token, or for causal attention over tokens without cached predecessors."""
        q, k, v = self.evolved(x, rope, first_values)
        if cache is not None:
            k, v = cache.append(k, v)
        causal = causal_mask is None and x.shape[1] > 1
        if causal:  # without the unused entries of a static cache
            k, v = k[:, : x.shape[1]], v[:, : x.shape[1]]
        implementation = self.config._attn_implementation
        if implementation == "eager":
            out, weights = self.scoring.plain(q, k, v, causal_mask, causal, x)
        elif implementation == "sdpa":
            out, weights = self.scoring(q, k, v, causal_mask, causal, x), None
        else:
            out, weights = self._attend_by(implementation, q, k, v, causal_mask)
        return self.out(out.flatten(2)), weights

    def _attend_by(
        self, implementation: str, q: Tensor, k: Tensor, v: Tensor, mask: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention with another attention function of transformers: flash, flex or one registered by the user."""
        if type(self.scoring) is not Softmax:
            raise CoupledQKError(
                f"attn_implementation={implementation!r} computes softmax attention, and this model's scoring is "
                f"{type(self.scoring).__name__}: use 'sdpa' or 'eager'"
            )
        self.num_key_value_groups = q.shape[2] // k.shape[2]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return ALL_ATTENTION_FUNCTIONS[implementation](self, q, k, v, mask, dropout=0.0, scaling=self.width**-0.5)


class CoupledQKBlock(GradientCheckpointingLayer, Block):
    attention = CoupledQKAttention
    attn: CoupledQKAttention

    def __init__(self, config: CoupledQKConfig, layer: int) -> None:
        Block.__init__(self, config.to_model_config(), layer)
        self.attn.config, self.attn.layer_idx = config, layer


class CoupledQKPreTrainedModel(PreTrainedModel):
    config_class = CoupledQKConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CoupledQKBlock"]  # noqa: RUF012
    _input_embed_layer = "embed"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": CoupledQKBlock, "attentions": CoupledQKAttention}  # noqa: RUF012

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # for custom code, transformers assumes that modules without direct parameters, such as Attention, have been loaded
        super()._initialize_weights(module, is_custom_code=False)

    def _set_gradient_checkpointing(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, enable: bool = True, gradient_checkpointing_func: Any = checkpoint, **options: Any
    ) -> None:
        # reentrant checkpointing passes gradients only through tensor arguments, and FirstValues is not a tensor
        reentrant = getattr(gradient_checkpointing_func, "keywords", {}).get("use_reentrant", False)
        if enable and reentrant and self.config.to_model_config().attention.value_residual:
            raise CoupledQKError(
                "value_residual=True does not support reentrant gradient checkpointing, which would lose gradients of the "
                "first layer's values: pass "
                'gradient_checkpointing_kwargs={"use_reentrant": False}'
            )
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func, **options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialises our modules with `init_weights`, except for loaded weights. They are recognised by their storage, because
        q, k and v are views of one tensor, and transformers marks only the tensor as loaded."""
        init_weights = getattr(module, "init_weights", None)
        if isinstance(module, PreTrainedModel) or init_weights is None:
            super()._init_weights(module)
            return
        loaded = {_storage(p) for p in module.parameters() if getattr(p, "_is_hf_initialized", False)}

        def normal(tensor: Tensor, name: str, std: float) -> None:
            if _storage(tensor) not in loaded:
                nn.init.normal_(tensor, std=std)

        init_weights(normal)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class CoupledQKModel(CoupledQKPreTrainedModel):
    """The transformer without a language-modelling head."""

    def __init__(self, config: CoupledQKConfig) -> None:
        super().__init__(config)
        self.embed = embedding(config.vocab_size, config.d_model)
        self.positions = embedding(config.n_positions, config.d_model) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(CoupledQKBlock(config, layer) for layer in range(config.n_layers))
        self.norm = RMSNorm(config.d_model)
        self.gradient_checkpointing = False
        self.head_dim, self.n_key_heads = config.head_dim, config.num_key_value_heads
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        x = self._embedded(input_ids, inputs_embeds)
        check_cache(past_key_values, self.config.n_layers, x.shape[0], self.n_key_heads)
        if self.gradient_checkpointing and self.training:
            refuse_filled(past_key_values)
            past_key_values, use_cache = None, False  # a recomputed block would append to the cache twice
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        check_shapes(x, attention_mask, position_ids, past_key_values)
        check_room(past_key_values, x.shape[1])
        mask = self._mask(x, attention_mask, position_ids, past_key_values)
        if kwargs.get("cache") is None:  # with a paged cache, the tokens are those of many sequences
            self._check_length(x.shape[1], past_key_values)
        if position_ids is None:
            position_ids = self._positions(x, attention_mask, past_key_values)
        rope = None
        if self.positions is not None:
            x = x + look_up(self.positions, position_ids, "position_ids")
        else:
            rope = rope_at(position_ids, self.head_dim)
        first_values = FirstValues()
        for i in range(self.config.n_layers):  # `generate` reduces n_layers for assistant_early_exit
            x = self.blocks[i](x, mask, rope, _layer_cache(past_key_values, i, kwargs), first_values)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if input_ids is not None and inputs_embeds is None:
            if input_ids.ndim != 2:
                raise CoupledQKError(f"input_ids of shape {tuple(input_ids.shape)}: expected (batch, tokens)")
            return look_up(self.embed, input_ids, "input_ids")
        if inputs_embeds is None or input_ids is not None:
            raise CoupledQKError("expected exactly one of input_ids and inputs_embeds")
        if inputs_embeds.ndim != 3 or inputs_embeds.shape[2] != self.config.d_model:
            raise CoupledQKError(
                f"inputs_embeds of shape {tuple(inputs_embeds.shape)}: expected (batch, tokens, {self.config.d_model})"
            )
        return inputs_embeds

    def _mask(
        self, x: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> Tensor | None:
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=cache,
            position_ids=position_ids,
        )
        if not isinstance(mask, Tensor) or mask.dtype == torch.bool:
            return mask
        # the mask for eager attention is added to the scores: 0 where a query may attend
        if mask is attention_mask and not torch.compiler.is_compiling():
            check_additive(mask)
        return mask == 0

    def _positions(self, x: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor:
        """Positions (B or 1, T), counted from each row's first real token."""
        past = 0 if cache is None else cache.get_seq_length()
        new = torch.arange(x.shape[1], device=x.device) + past
        if attention_mask is not None and attention_mask.ndim == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, new]
        return new[None]

    def _check_length(self, T: int, cache: Cache | None) -> None:
        past = 0 if cache is None else cache.get_seq_length()
        # the length of a static cache is a tensor, which cannot be read in a compiled graph
        if self.positions is not None and isinstance(past, int) and past + T > self.config.n_positions:
            raise CoupledQKError(
                f"a sequence of {past + T} tokens is longer than the model's {self.config.n_positions} learned positions: "
                'shorten it, or train a model with a larger n_positions or with positions="rope"'
            )


def _layer_cache(cache: Cache | None, layer: int, kwargs: dict[str, Any]) -> KVCache | None:
    """One layer of the model's cache, or of the paged cache that `generate_batch` passes as `cache`."""
    if kwargs.get("cache") is not None:
        return PagedLayerCache(kwargs["cache"], layer, kwargs)
    return None if cache is None else LayerCache(cache, layer)


class CoupledQKForCausalLM(CoupledQKPreTrainedModel, GenerationMixin):
    """The transformer with a language-modelling head, which is tied to the embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.embed.weight"}  # noqa: RUF012

    def __init__(self, config: CoupledQKConfig) -> None:
        super().__init__(config)
        self.model = CoupledQKModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and with `labels` (the input ids themselves; −100 is ignored) the mean loss of the next tokens."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self._loss(logits, labels, kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(self, logits: Tensor, labels: Tensor, kwargs: dict[str, Any]) -> Tensor:
        check_labels(labels, logits)
        n = self.config.vocab_size
        try:
            return self.loss_function(logits=logits, labels=labels.long(), vocab_size=n, **kwargs)
        except IndexError:
            raise out_of_range(labels, n, kwargs.get("ignore_index", IGNORED)) from None


class CoupledQKForSequenceClassification(GenericForSequenceClassification, CoupledQKPreTrainedModel):
    """The transformer with a linear head on the last token that is not padding, for padding on either side."""


class CoupledQKForTokenClassification(GenericForTokenClassification, CoupledQKPreTrainedModel):
    """The transformer with a linear head on every token."""


class CoupledQKForQuestionAnswering(GenericForQuestionAnswering, CoupledQKPreTrainedModel):
    """The transformer with a linear head that scores every token as the start and as the end of the answer."""

    base_model_prefix = "model"
    model: CoupledQKModel

    # The generic head expects the name embed_tokens.
    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed = value  # pyright: ignore[reportAttributeAccessIssue]


def register() -> None:
    """Registers our models with the Auto classes."""
    AutoConfig.register("coupledqk", CoupledQKConfig)
    AutoModel.register(CoupledQKConfig, CoupledQKModel)
    AutoModelForCausalLM.register(CoupledQKConfig, CoupledQKForCausalLM)
    AutoModelForSequenceClassification.register(CoupledQKConfig, CoupledQKForSequenceClassification)
    AutoModelForTokenClassification.register(CoupledQKConfig, CoupledQKForTokenClassification)
    AutoModelForQuestionAnswering.register(CoupledQKConfig, CoupledQKForQuestionAnswering)
