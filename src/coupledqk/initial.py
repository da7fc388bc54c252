"""Initial weights as a function of (seed, name).

All variants built from one seed have the same initial values of shared weights, independent of their other modules and of the
order of construction, so that runs of different variants are paired. A module with parameters has a method

    init_weights(normal)      which fills them, drawing with normal(tensor, name, std)

On its own a module draws from PyTorch's global generator; a model initialises all of its modules again with `initialize`.
"""

import hashlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

INIT_STD = 0.02

Normal = Callable[[Tensor, str, float], None]


def global_normal(tensor: Tensor, name: str, std: float) -> None:
    # there is nothing to draw on the meta device, where PyTorch would load its compiler
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)


def with_own_initial(make: Callable[[], nn.Module]) -> nn.Module:
    """Builds a module defined by a user. If it has no `init_weights`, one is added that initialises it as its constructor does,
    with a generator seeded like that of any other weight."""
    module = make()
    if not hasattr(module, "init_weights"):
        module.__dict__["init_weights"] = partial(_draw_as_constructed, module, make)
    return module


def _draw_as_constructed(module: nn.Module, make: Callable[[], nn.Module], normal: Normal = global_normal) -> None:
    seed = torch.empty(1, device="cpu")
    normal(seed, "seed", 1.0)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(int(seed.view(torch.int32)))
        module.load_state_dict(make().state_dict())


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Initialises every parameter of the model by calling `init_weights` of each module that has it."""
    for path, module in model.named_modules():
        init_weights = getattr(module, "init_weights", None)
        if init_weights is not None:

            def named_normal(tensor: Tensor, name: str, std: float, path: str = path) -> None:
                digest = hashlib.sha256(f"{seed}:{path}.{name}".encode()).digest()
                # drawn on the CPU in float32, so the value depends on neither device nor dtype
                generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
                tensor.copy_(torch.randn(tensor.shape, generator=generator, device="cpu", dtype=torch.float32) * std)

            init_weights(named_normal)
