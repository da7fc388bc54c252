"""Initial weights as a function of (seed, name).

Every variant built from one seed starts from the same shared weights, whatever else it contains and in whatever order it
was built, so that runs of different variants are paired. A module that owns parameters has

    init_weights(normal)      which fills them, drawing with normal(tensor, name, std)

Built alone it draws from PyTorch's global generator; a model draws again for the whole tree with `initialize`.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

INIT_STD = 0.02

Normal = Callable[[Tensor, str, float], None]


def global_normal(tensor: Tensor, name: str, std: float) -> None:
    # on the meta device there is nothing to draw, and PyTorch would load its compiler for it
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Fills every parameter of the tree; `init_weights` is asked of each module that has it."""
    for path, module in model.named_modules():
        init_weights = getattr(module, "init_weights", None)
        if init_weights is not None:

            def named_normal(tensor: Tensor, name: str, std: float, path: str = path) -> None:
                digest = hashlib.sha256(f"{seed}:{path}.{name}".encode()).digest()
                # drawn on the CPU in float32, so the value depends on neither device nor dtype
                generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
                tensor.copy_(torch.randn(tensor.shape, generator=generator, device="cpu", dtype=torch.float32) * std)

            init_weights(named_normal)
