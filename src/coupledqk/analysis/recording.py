"""Records and changes the intermediate values of attention in a model.

    with record(model) as tape:
        model(tokens)
    tape.layers[3].pattern()                        # (B, H, T, S)
    tape["blocks.3.attn.hook_evolved_k"]            # the same values by name, as in TransformerLens

    def no_first_key(k, layer):
        return k.index_fill(1, torch.tensor(0), 0.0)

    with record(model, {"blocks.3.attn.hook_evolved_k": no_first_key}) as tape:
        model(tokens)                               # uses the changed keys, which are also recorded

A tape contains the values of the most recent forward pass. Hooks store tensors; scores, patterns and trajectories are computed
from them on demand. Without changes, the model's output is bit-identical to that of an unrecorded pass.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..attention import Attention
from ..dynamics import Dynamics, Static
from ..dynamics.evolve import integrate
from ..errors import CoupledQKError, unknown
from ..rope import Rope
from ..torch_internals import is_compiled


@dataclass(eq=False, repr=False)
class LayerTape:
    """The most recent forward pass of one attention module. Shapes are (B, T, H, d) for queries, (B, T, H_kv, d) for keys."""

    attention: Attention
    q: Tensor = field(init=False)
    """Projected (and normalised) queries, before the dynamics."""
    k: Tensor = field(init=False)
    evolved_q: Tensor = field(init=False)
    """Queries after the dynamics and before RoPE."""
    evolved_k: Tensor = field(init=False)
    scored_q: Tensor = field(init=False)
    """Queries as scored, after RoPE. With a cache, `scored_k` and `v` include the cached tokens."""
    scored_k: Tensor = field(init=False)
    v: Tensor = field(init=False)
    z: Tensor = field(init=False)
    """Output of the scoring, (B, T, H, d), before the output projection."""
    mask: Tensor | None = field(init=False)
    causal: bool = field(init=False)
    rope: Rope | None = field(init=False)
    x: Tensor = field(init=False)
    """Input of the attention."""

    def __getattr__(self, name: str) -> Any:
        """Called only for missing attributes: tensors that no forward pass has set yet."""
        if name in self.__dataclass_fields__:
            raise CoupledQKError(f"no {name} was recorded: run the model inside `with record(model) as tape:`")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def scores(self) -> Tensor:
        """q kᵀ / √d before masking, (B, H, T, S); for differential scoring a map per sub-head."""
        k = self.scored_k.repeat_interleave(self.scored_q.shape[2] // self.scored_k.shape[2], dim=2)
        return torch.einsum("bthd,bshd->bhts", self.scored_q, k) / math.sqrt(k.shape[-1])

    def pattern(self) -> Tensor:
        """The attention weights, (B, H, T, S); for differential scoring the signed difference of a head's two maps."""
        return self._weights(self.scored_q, self.scored_k)

    def patterns(self) -> Tensor:
        """The attention weights after 0, 1, ... n steps of the dynamics of this layer on the same input, (n + 1, B, H, T, T).
        The last are equal to `pattern()`."""
        if self.scored_k.shape[1] != self.k.shape[1]:
            raise CoupledQKError(
                "patterns of single steps need a pass without a cache: record the whole sequence at once"
            )
        states = [(q, k) if self.rope is None else self.rope(q, k) for q, k in zip(*self.states(), strict=True)]
        return torch.stack([self._weights(q, k) for q, k in states])

    @torch.no_grad()
    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        weights: Callable[..., Tensor] = self.attention.scoring.weights  # pyright: ignore[reportAssignmentType]
        return weights(q, k, self.mask, self.causal, self.x)

    def states(self) -> tuple[Tensor, Tensor]:
        """The states of q and k: the `trajectory()` of an integrator, the states before and after dynamics without steps, or a
        single state without dynamics."""
        if isinstance(self.attention.dynamics, Dynamics):
            return self.trajectory()
        if isinstance(self.attention.dynamics, Static):
            return self.q[None], self.k[None]
        return torch.stack((self.q, self.evolved_q)), torch.stack((self.k, self.evolved_k))

    @property
    def integrator(self) -> Dynamics:
        """The dynamics. Raises an error if they do not integrate in steps."""
        dynamics = self.attention.dynamics
        if not isinstance(dynamics, Dynamics):
            raise CoupledQKError(
                f"the dynamics {self.attention.config.dynamics.method!r} have no steps: trajectories are those of "
                "integrators such as euler and hamiltonian"
            )
        return dynamics

    def trajectory(self) -> tuple[Tensor, Tensor]:
        """q and k after 0, 1, ... n steps of the dynamics: (n + 1, B, T, H, d) and (n + 1, B, T, H_kv, d).

        The first state is the projected q and k, and the last is bit-identical to `evolved_q` and `evolved_k`.
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
    "hook_z": lambda layer: layer.z,
}
"""Recorded values by name. The names are those of TransformerLens where it records the same value."""

Change = Callable[[Tensor, LayerTape], Tensor]
"""Function that returns the replacement for a value. The layer's tape contains the values that have been computed before it,
such as `layer.q` when `hook_evolved_q` is changed."""

CHANGEABLE = [hook for hook in HOOKS if hook not in ("hook_attn_scores", "hook_pattern")]
"""Names of the values that can be changed. The fused kernel of the forward pass never materialises scores and patterns."""


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
def record(model: nn.Module, changes: Mapping[str, Change] | None = None) -> Iterator[Tape]:
    """Records every `Attention` of a model within the context, and replaces values by name."""
    if any(map(is_compiled, model.modules())):
        raise CoupledQKError(
            "a compiled model bypasses its hooks: record the model that was given to torch.compile, or load it again"
        )
    layers = {path: LayerTape(module) for path, module in model.named_modules() if isinstance(module, Attention)}
    if not layers:
        raise CoupledQKError("nothing to record: the model has no coupledqk Attention")
    changes = dict(changes or {})
    for name in changes:
        if name not in (changeable := [f"{path}.{hook}" for path in layers for hook in CHANGEABLE]):
            raise unknown("value to change", name, changeable)
    handles = [handle for path, layer in layers.items() for handle in _hooked(layer, path, changes)]
    try:
        yield Tape(layers)
    finally:
        for handle in handles:
            handle.remove()


def _hooked(layer: LayerTape, path: str, changes: Mapping[str, Change]) -> Iterator[RemovableHandle]:
    """Registers hooks that store the values of a layer in the order in which they are computed, each after its change."""
    attention = layer.attention

    def changed(hook: str, value: Tensor) -> Tensor:
        name = f"{path}.{hook}"
        if name not in changes:
            return value
        new = changes[name](value, layer)
        if not isinstance(new, Tensor) or new.shape != value.shape:
            given = f"shape {tuple(new.shape)}" if isinstance(new, Tensor) else repr(new)
            raise CoupledQKError(f"the change of {name} gave {given}: expected a tensor of shape {tuple(value.shape)}")
        return new.to(value.dtype)

    def enter(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        layer.rope = inputs[2] if len(inputs) > 2 else keywords.get("rope")

    def before_dynamics(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        q, k = changed("hook_q", inputs[0]), changed("hook_k", inputs[1])
        layer.q, layer.k = q.detach(), k.detach()
        return q, k

    def after_dynamics(module: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        q, k = changed("hook_evolved_q", outputs[0]), changed("hook_evolved_k", outputs[1])
        layer.evolved_q, layer.evolved_k = q.detach(), k.detach()
        return q, k

    def before_scoring(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        q, k, v = (changed(hook, x) for hook, x in zip(("hook_rot_q", "hook_rot_k", "hook_v"), inputs, strict=False))
        layer.scored_q, layer.scored_k, layer.v = (x.detach() for x in (q, k, v))
        layer.mask, layer.causal, layer.x = inputs[3], inputs[4], inputs[5].detach()
        return q, k, v, *inputs[3:]

    def after_scoring(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        z = changed("hook_z", output)
        layer.z = z.detach()
        return z

    yield attention.register_forward_pre_hook(enter, with_kwargs=True)
    yield attention.dynamics.register_forward_pre_hook(before_dynamics)
    yield attention.dynamics.register_forward_hook(after_dynamics)
    yield attention.scoring.register_forward_pre_hook(before_scoring)
    yield attention.scoring.register_forward_hook(after_scoring)
