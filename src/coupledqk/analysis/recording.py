"""Recording what attention does inside a model.

    with record(model) as tape:
        model(tokens)
    tape.layers[3].pattern()                        # (B, H, T, S)
    tape["blocks.3.attn.hook_evolved_k"]            # the same things by name, in TransformerLens' manner

A tape holds the newest forward pass. Nothing is computed during it: hooks keep the tensors that pass by, and scores,
patterns and trajectories are worked out from them when asked for.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Attention
from ..dynamics import Dynamics
from ..dynamics.evolve import integrate
from ..errors import CoupledQKError, unknown
from ..torch_internals import is_compiled


@dataclass(eq=False, repr=False)
class LayerTape:
    """One attention's newest forward pass. Shapes are (B, T, H, d) for queries, (B, T, H_kv, d) for keys."""

    attention: Attention
    q: Tensor = field(init=False)
    """As projected (and normalised), before the dynamics."""
    k: Tensor = field(init=False)
    evolved_q: Tensor = field(init=False)
    """After the dynamics, before RoPE."""
    evolved_k: Tensor = field(init=False)
    scored_q: Tensor = field(init=False)
    """As scored: after RoPE, and with a cache `scored_k` and `v` hold the cached tokens too."""
    scored_k: Tensor = field(init=False)
    v: Tensor = field(init=False)
    mask: Tensor | None = field(init=False)
    causal: bool = field(init=False)

    def __getattr__(self, name: str) -> Any:
        """Only for what is not there: the tensors above, until a forward pass brings them."""
        if name in self.__dataclass_fields__:
            raise CoupledQKError(f"no {name} was recorded: run the model inside `with record(model) as tape:`")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def scores(self) -> Tensor:
        """q kᵀ / √d before masking, (B, H, T, S); for differential scoring a map per sub-head."""
        k = self.scored_k.repeat_interleave(self.scored_q.shape[2] // self.scored_k.shape[2], dim=2)
        return torch.einsum("bthd,bshd->bhts", self.scored_q, k) / math.sqrt(k.shape[-1])

    def pattern(self) -> Tensor:
        """The attention weights, (B, H, T, S); for differential scoring the signed difference of a head's two maps."""
        weights: Callable[..., Tensor] = self.attention.scoring.weights  # pyright: ignore[reportAssignmentType]
        return weights(self.scored_q, self.scored_k, self.mask, self.causal).detach()

    @property
    def integrator(self) -> Dynamics:
        """The dynamics, if they move in steps."""
        dynamics = self.attention.dynamics
        if not isinstance(dynamics, Dynamics):
            raise CoupledQKError(
                f"the dynamics {self.attention.config.dynamics.method!r} have no steps: trajectories are those of "
                "integrators such as euler and hamiltonian"
            )
        return dynamics

    def trajectory(self) -> tuple[Tensor, Tensor]:
        """q and k after 0, 1, ... n steps of the dynamics: (n + 1, B, T, H, d) and (n + 1, B, T, H_kv, d).

        The first state is the projected q and k, the last is `evolved_q` and `evolved_k` to the bit.
        """
        dynamics, config = self.integrator, self.integrator.config
        with torch.no_grad():
            between = [
                integrate(self.q, self.k, dynamics.step_size, dynamics.force, n, config.method)
                for n in range(1, config.n_steps)
            ]
        states = [(self.q, self.k), *between, (self.evolved_q, self.evolved_k)]
        return torch.stack([q for q, _ in states]), torch.stack([k for _, k in states])


HOOKS: dict[str, Callable[[LayerTape], Tensor]] = {
    "hook_q": lambda layer: layer.q,
    "hook_k": lambda layer: layer.k,
    "hook_v": lambda layer: layer.v,
    "hook_evolved_q": lambda layer: layer.evolved_q,
    "hook_evolved_k": lambda layer: layer.evolved_k,
    "hook_rot_q": lambda layer: layer.scored_q,
    "hook_rot_k": lambda layer: layer.scored_k,
    "hook_attn_scores": LayerTape.scores,
    "hook_pattern": LayerTape.pattern,
}
"""Stable names, those of TransformerLens where it has the thing."""


class Tape:
    def __init__(self, layers: dict[str, LayerTape]) -> None:
        self.paths = list(layers)
        self.layers = list(layers.values())

    def names(self) -> list[str]:
        return [f"{path}.{hook}" for path in self.paths for hook in HOOKS]

    def __getitem__(self, name: str) -> Tensor:
        path, _, hook = name.rpartition(".")
        if path not in self.paths or hook not in HOOKS:
            raise unknown("recording", name, self.names())
        return HOOKS[hook](self.layers[self.paths.index(path)])


@contextlib.contextmanager
def record(model: nn.Module) -> Iterator[Tape]:
    """Records every `Attention` of a model while the block runs."""
    if any(map(is_compiled, model.modules())):
        raise CoupledQKError(
            "a compiled model runs past its hooks: record the model that was given to torch.compile, or load it again"
        )
    layers = {path: LayerTape(module) for path, module in model.named_modules() if isinstance(module, Attention)}
    if not layers:
        raise CoupledQKError("nothing to record: the model has no coupledqk Attention")
    handles = []
    for layer in layers.values():
        handles.append(layer.attention.dynamics.register_forward_hook(partial(_keep_dynamics, layer)))
        handles.append(layer.attention.scoring.register_forward_hook(partial(_keep_scoring, layer)))
    try:
        yield Tape(layers)
    finally:
        for handle in handles:
            handle.remove()


def _keep_dynamics(
    layer: LayerTape, module: nn.Module, inputs: tuple[Tensor, Tensor], outputs: tuple[Tensor, Tensor]
) -> None:
    layer.q, layer.k = (x.detach() for x in inputs)
    layer.evolved_q, layer.evolved_k = (x.detach() for x in outputs)


def _keep_scoring(layer: LayerTape, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, layer.mask, layer.causal = inputs
    layer.scored_q, layer.scored_k, layer.v = (x.detach() for x in (q, k, v))
