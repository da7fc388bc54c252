"""Finds the attention modules of a model that can be coupled, the reasons why others cannot, and the shapes of their heads."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ..errors import CoupledQKError
from .insertion import CoupledModule, InsertionError, coupled_class

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_VERIFIED = """
    AfmoeAttention ApertusAttention ArceeAttention AriaTextAttention BeamAttention BertGenerationSelfAttention
    BertSelfAttention BioGptAttention BitNetAttention CLIPAttention CamembertSelfAttention Cohere2Attention
    Cohere2MoeAttention CohereAttention CwmAttention Data2VecTextSelfAttention DiffLlamaAttention Dinov2Attention
    DogeAttention Dots1Attention ElectraSelfAttention Emu3Attention Ernie4_5Attention Ernie4_5_MoeAttention
    ErnieSelfAttention Exaone4Attention ExaoneMoeAttention FalconH1Attention FlexOlmoAttention FlintAttention
    GPT2Attention GPTBigCodeAttention GPTNeoXAttention Gemma2Attention Gemma3Attention GemmaAttention Glm4Attention
    Glm4MoeAttention GlmAttention GptOssAttention GraniteAttention GraniteMoeAttention GraniteMoeHybridAttention
    GraniteMoeSWAAttention GraniteMoeSharedAttention GraniteSWAAttention HYV3Attention HeliumAttention
    HunYuanDenseV1Attention HunYuanMoEV1Attention HyperCLOVAXAttention Inkling2FullAttention Inkling2SlidingAttention
    InklingAttention Jais2Attention JambaAttention JetMoeAttention Kolibri1Attention LagunaAttention Lfm2Attention
    Lfm2MoeAttention Lfm3Attention Llama4TextAttention LlamaAttention MellumAttention MiMoV2FlashAttention
    MiniMaxAttention MiniMaxM2Attention MiniMaxM3VLAttention Ministral3Attention MinistralAttention MistralAttention
    MixtralAttention ModernBertAttention ModernBertDecoderAttention NanoChatAttention NemotronAttention OPTAttention
    Olmo2Attention Olmo3Attention OlmoAttention OlmoHybridAttention OlmoeAttention PersimmonAttention Phi3Attention
    PhiAttention PhimoeAttention Qwen2Attention Qwen2MoeAttention Qwen3Attention Qwen3MoeAttention Qwen3NextAttention
    Qwen3_5Attention Qwen3_5MoeAttention RoCBertSelfAttention RobertaPreLayerNormSelfAttention RobertaSelfAttention
    SeedOssAttention SmolLM3Attention SolarOpenAttention StableLmAttention Starcoder2Attention VaultGemmaAttention
    ViTAttention WhisperAttention XLMRobertaSelfAttention XLMRobertaXLSelfAttention ZayaAttention
"""
VERIFIED = frozenset(_VERIFIED.split())
"""Attention classes of transformers that the tests verify; `couple` runs its self-check for others."""

_ATTENTION = re.compile(r"(Attention|Attn|MLA)\d*$")
_LINEAR = re.compile("(Delta|Lightning|TextLinear)Attention$")
_CROSS = re.compile(r"cross_?att|encoder_att|encoder_decoder_att|EncDecAttention", re.IGNORECASE)


def tower(model: "PreTrainedModel") -> "PreTrainedModel":
    """The part of a model whose attention is coupled: the text model of a multimodal model, otherwise the model itself."""
    config = model.config
    return model.get_decoder() if config.get_text_config(decoder=True) is not config else model


def attention_modules(model: "PreTrainedModel", names: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Every softmax attention module by name, or those with the given names. Raises an error unless all of them can be coupled.

    Linear-attention and state-space layers have no attention scores; they are not changed.
    """
    if names is None:
        inside = {id(module) for module in tower(model).modules()}
        found: dict[str, nn.Module] = {
            name: module
            for name, module in model.named_modules()
            if id(module) in inside and _is_softmax_attention(module)
        }
    else:
        found = {name: module for name, module in model.named_modules() if name in names}
        if missing := set(names) - found.keys():
            raise CoupledQKError(
                f"{type(model).__name__} has no module {min(missing)!r} to couple: save the model again"
            )
    for name, module in found.items():
        obstacle = _obstacle(name, module)
        if obstacle:
            raise CoupledQKError(f"{type(model).__name__} cannot be coupled: its {type(module).__name__} {obstacle}")
    if not found:
        raise CoupledQKError(f"{type(model).__name__} cannot be coupled: it has no softmax attention module")
    return found


def is_verified(module: nn.Module) -> bool:
    kind = module.uncoupled_class if isinstance(module, CoupledModule) else type(module)
    homes = (kind.__module__, kind.forward.__module__)  # another library may have replaced `forward`
    return all(home.startswith("transformers.models.") for home in homes) and kind.__name__ in VERIFIED


def _is_softmax_attention(module: nn.Module) -> bool:
    """Whether the class name is that of softmax attention. Wrappers of attention modules, like BertAttention, are not."""
    inner = (child for child in module.modules() if child is not module)
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _LINEAR.search(name) and not any(map(_is_named_attention, inner))


def _is_named_attention(module: nn.Module) -> bool:
    return bool(_ATTENTION.search(type(module).__name__))


def _obstacle(name: str, module: Any) -> str | None:
    if getattr(module, "is_cross_attention", False) or _CROSS.search(name) or _CROSS.search(type(module).__name__):
        return "is cross-attention, where queries and keys belong to different tokens"
    if hasattr(module, "kv_lora_rank") or type(module).__name__.endswith("MLA"):
        return "is latent attention (MLA): its keys are rebuilt from a compressed cache"
    if hasattr(module, "is_kv_shared_layer") or hasattr(module, "kv_shared_layer_index"):
        return "can take its keys from another layer"
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return "has a forward that was replaced on the instance: couple the model first"
    try:
        coupled_class(module.uncoupled_class if isinstance(module, CoupledModule) else type(module))
        head_shape(module)
    except InsertionError as obstacle:
        return str(obstacle)
    return None


def head_shape(module: Any) -> tuple[int, int]:
    """Width of a head and number of key heads."""
    config = getattr(module, "config", None)
    width = _first(module, "head_dim", "head_size", "attention_head_size", "attn_head_size", "key_value_proj_dim")
    heads = _first(module, "num_attention_heads", "num_heads", "n_heads") or _first(
        config, "num_attention_heads", "n_heads", "n_head"
    )
    keys: Any = _first(module, "k_proj", "key", "to_k")
    if width and isinstance(getattr(keys, "out_features", None), int):
        key_heads = keys.out_features // width
    else:
        names = ("num_key_value_heads", "num_kv_heads", "kv_heads")
        key_heads = _first(module, *names) or _first(config, names[0]) or heads
    if not isinstance(width, int) or not isinstance(key_heads, int):
        raise InsertionError("does not define the number and the width of its heads")
    return width, key_heads


def _first(owner: Any, *names: str) -> Any:
    """The first of these attributes that the owner has."""
    for name in names:
        try:
            value = getattr(owner, name, None)
        except RuntimeError:  # raised if the setting differs between layers
            continue
        if value is not None:
            return value
    return None
