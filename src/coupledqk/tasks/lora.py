"""Low-rank updates of a model's qkv projections, by PEFT."""

import re

import torch
from torch import Tensor

from ..errors import CoupledQKError
from ..model import TransformerLM

SCALE = 2
"""What the product of the two factors is multiplied with, whatever the rank."""

_FACTOR = re.compile(r"(?P<module>.*)\.lora_A\.default\.weight")


def add_lora(model: TransformerLM, rank: int, seed: int) -> None:
    """Freezes the model and gives every qkv projection trainable factors, whose product is 0 at the start."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise CoupledQKError("low-rank updates are an extra: pip install 'coupledqk[adapt]'") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=["qkv"]), model)


def merged(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the plain model that computes the same, to rounding; those without low-rank updates as they are."""
    plain = {name.replace(".base_layer.", "."): weight for name, weight in weights.items() if ".lora_" not in name}
    for name, a in weights.items():
        if match := _FACTOR.fullmatch(name):
            b = weights[name.replace("lora_A", "lora_B")]
            target = f"{match['module']}.weight"
            plain[target] = plain[target] + SCALE * (b @ a)
    return plain
