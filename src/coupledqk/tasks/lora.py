"""Low-rank updates of a model's attention projections, with PEFT."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import CoupledQKError

SCALE = 2
"""Factor of the product of the two low-rank matrices. It does not depend on the rank."""

_FACTOR = re.compile(r"(?P<module>.*)\.lora_A\.default\.weight")


def add_lora(model: nn.Module, rank: int, seed: int, targets: Sequence[str] = ("qkv",)) -> None:
    """Freezes the model and adds trainable low-rank factors, whose product is initially 0, to the projections with these
    names."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise CoupledQKError("low-rank updates are an extra: pip install 'coupledqk[adapt]'") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=list(targets)), model)


def merged(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights with low-rank updates merged: those of a plain model with the same output up to rounding."""
    plain = {name.replace(".base_layer.", "."): weight for name, weight in weights.items() if ".lora_" not in name}
    for name, a in weights.items():
        if match := _FACTOR.fullmatch(name):
            b = weights[name.replace("lora_A", "lora_B")]
            target = f"{match['module']}.weight"
            plain[target] = plain[target] + SCALE * (b @ a)
    return plain
