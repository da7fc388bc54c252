"""Measures of the dynamics: how q and k move before they are scored. The docstring of each function is its definition.

Values are (B, H) for queries and (B, H_kv) for keys and for measures of a key with its queries; for differential
scoring, H counts sub-heads. A run without dynamics has none of these measures.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev

from ..dynamics import Dynamics, PotentialForce, Static, build_dynamics
from ..dynamics.evolve import group_heads, ungroup_heads
from ..errors import CoupledQKError
from .recording import LayerTape


def q_moved(layer: LayerTape) -> Tensor:
    """|q′ − q| / |q|; mean over tokens."""
    return _moved(layer.q, layer.evolved_q)


def k_moved(layer: LayerTape) -> Tensor:
    """|k′ − k| / |k|; mean over tokens."""
    return _moved(layer.k, layer.evolved_k)


def q_turned(layer: LayerTape) -> Tensor:
    """The angle between q and q′ in degrees; mean over tokens."""
    return _turned(layer.q, layer.evolved_q)


def k_turned(layer: LayerTape) -> Tensor:
    """The angle between k and k′ in degrees; mean over tokens."""
    return _turned(layer.k, layer.evolved_k)


def _moved(before: Tensor, after: Tensor) -> Tensor:
    norm = before.norm(dim=-1).clamp(min=torch.finfo(before.dtype).tiny)
    return ((after - before).norm(dim=-1) / norm).mean(1)


def _turned(before: Tensor, after: Tensor) -> Tensor:
    a, b = F.normalize(before, dim=-1), F.normalize(after, dim=-1)
    # unlike the arc cosine, this is also accurate for small angles
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))).mean(1)


def attention_moved(layer: LayerTape) -> Tensor:
    """½ Σₛ |a′ₛ − aₛ|, the share of a query's attention that the dynamics move to other tokens; mean over all rows.

    a′ is a row of the attention map, a the same row with q and k as they are before the dynamics.
    """
    maps = layer.patterns()
    return (maps[-1] - maps[0]).abs().sum(-1).mean(-1) / 2


def volume_change(layer: LayerTape) -> Tensor:
    """|det J| − 1 of the map (q, k) ↦ (q′, k′) of a key head and its queries, at the sequence's middle token.

    J is the Jacobian, computed by automatic differentiation in float64. The value is 0 for a map that preserves volume.
    """
    middle = layer.q.shape[1] // 2
    q, k = (x[:, [middle]].cpu().double() for x in (layer.q, layer.k))
    logarithms = torch.linalg.slogdet(_jacobians(_in_float64(layer, k), q, k)).logabsdet
    return torch.expm1(logarithms).squeeze(1)


def _jacobians(dynamics: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    """The Jacobians (B, T, H_kv, n, n), where n is the total width of a key and its queries."""
    group, d = q.shape[2] // k.shape[2], q.shape[3]

    def summed(state: Tensor) -> Tensor:
        q, k = state.unflatten(-1, (-1, d)).split((group, 1), dim=3)
        moved = group_heads(*dynamics(*ungroup_heads(q, k, axis=2)), axis=2)
        return torch.cat(moved, dim=3).flatten(3).sum((0, 1, 2))

    # Tokens and key heads are independent, so the derivative of the sum with respect to one of them is that of its own term.
    state = torch.cat(group_heads(q, k, axis=2), dim=3).flatten(3)
    return jacrev(summed)(state).movedim(0, -2)


def _in_float64(layer: LayerTape, k: Tensor) -> nn.Module:
    """A copy of the dynamics in float64, without hooks. Building it draws no random numbers."""
    with torch.device("meta"):
        copy = build_dynamics(layer.attention.config.dynamics, layer.attention.width, k.shape[2])
    copy.to_empty(device="cpu").double().load_state_dict(layer.attention.dynamics.state_dict())
    return copy.requires_grad_(False)


def step_size(layer: LayerTape) -> Tensor:
    """dt of each key head; the same for every sequence."""
    dt = torch.as_tensor(layer.integrator.step_size, device=layer.k.device)
    return dt.expand(layer.k.shape[0], layer.k.shape[2])


@torch.no_grad()
def energy(layer: LayerTape) -> Tensor:
    """H = ½|k|² + V(q) after each step, (n + 1, B, T, H_kv); V is averaged over grouped queries, like their force."""
    force = layer.integrator.force
    if not isinstance(force, PotentialForce):
        raise CoupledQKError(
            f"the force {layer.integrator.config.force!r} has no potential: only the variant potential has an energy"
        )
    q, k = layer.trajectory()
    potential = force.potential(q).unflatten(-1, (k.shape[3], -1)).mean(-1)
    return k.square().sum(-1) / 2 + potential


def initial_energy(layer: LayerTape) -> Tensor:
    """H₀, before the first step; mean over tokens."""
    return energy(layer)[0].mean(1)


def energy_drift(layer: LayerTape) -> Tensor:
    """Hₙ − H₀, with its sign; mean over tokens."""
    along = energy(layer)
    return (along[-1] - along[0]).mean(1)


def energy_error(layer: LayerTape) -> Tensor:
    """max |Hᵢ − H₀| over the steps i; mean over tokens."""
    along = energy(layer)
    return (along - along[0]).abs().amax(0).mean(1)


OF_MOTION: dict[str, Callable[[LayerTape], Tensor]] = {
    "q_moved": q_moved,
    "k_moved": k_moved,
    "q_turned": q_turned,
    "k_turned": k_turned,
    "attention_moved": attention_moved,
    "volume_change": volume_change,
}
OF_STEPS: dict[str, Callable[[LayerTape], Tensor]] = {"dt": step_size}
OF_ENERGY: dict[str, Callable[[LayerTape], Tensor]] = {
    "energy": initial_energy,
    "energy_drift": energy_drift,
    "energy_error": energy_error,
}


@torch.no_grad()
def measure_motion(layer: LayerTape) -> dict[str, Tensor]:
    """Every measure that applies to the layer's dynamics, (B, H) or (B, H_kv) each."""
    dynamics, measures = layer.attention.dynamics, {}
    if not isinstance(dynamics, Static):
        measures |= OF_MOTION
    if isinstance(dynamics, Dynamics):
        measures |= OF_STEPS
        if isinstance(dynamics.force, PotentialForce):
            measures |= OF_ENERGY
    return {name: measure(layer) for name, measure in measures.items()}
