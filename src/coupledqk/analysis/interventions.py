"""Interventions: the loss without a head, or without the dynamics of queries and keys.

with record(model, without_head(1, 3)):         # head 3 of layer 1 contributes nothing; both count from 0
    loss = model(tokens, targets)
with record(model, without_dynamics(model)):    # dt = 0 everywhere: queries and keys are scored as projected
    loss = model(tokens, targets)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import Attention
from ..dynamics import Static
from ..errors import CoupledQKError
from ..loss import linear_cross_entropy
from ..model import TransformerLM
from .recording import Change, LayerTape, record


def without_head(layer: int, head: int) -> dict[str, Change]:
    """Sets the output of one head to 0 before the output projection."""

    def zero(z: Tensor, tape: LayerTape) -> Tensor:
        if not 0 <= head < z.shape[2]:
            raise CoupledQKError(f"there is no head {head} in layer {layer}: the model has heads 0 to {z.shape[2] - 1}")
        return z.index_fill(2, torch.tensor(head, device=z.device), 0.0)

    return {f"blocks.{layer}.attn.hook_z": zero}


def without_dynamics(model: TransformerLM, layers: Iterable[int] | None = None) -> dict[str, Change]:
    """Scores the queries and keys of some layers, or of all, as they were before the dynamics: the limit dt = 0."""
    hooks: dict[str, Change] = {
        "hook_evolved_q": lambda q, tape: tape.q,
        "hook_evolved_k": lambda k, tape: tape.k,
    }
    chosen = range(len(model.blocks)) if layers is None else layers
    return {f"blocks.{layer}.attn.{hook}": change for layer in chosen for hook, change in hooks.items()}


@dataclass(frozen=True)
class LossEffects:
    """Mean loss per token of one text, in nats, as trained and under interventions. Lists are indexed by layer, then head."""

    loss: float
    without_head: list[list[float]]
    """Loss when that head's output is set to 0."""
    without_motion: list[list[float]] | None
    """Loss when that head's query and the key head it uses do not move (dt = 0); None for a model without dynamics."""
    without_dynamics: float | None
    """Loss when no query and no key moves."""


@torch.no_grad()
def loss_effects(model: TransformerLM, tokens: Tensor) -> LossEffects:
    """Measures every intervention on a single head, on one sequence (1, T) of at least two tokens.

    The heads of a layer are measured together: row i of a batch intervenes on head i.
    """
    if tokens.ndim != 2 or len(tokens) != 1:
        raise CoupledQKError(f"tokens of shape {tuple(tokens.shape)}: expected one sequence, (1, tokens)")
    if tokens.shape[1] < 2:
        raise CoupledQKError("the loss of a single token is not defined: give a text of at least two tokens")
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    moves = not isinstance(attentions[0].dynamics, Static)
    n_heads = model.config.n_heads
    return LossEffects(
        loss=_losses(model, tokens, {})[0],
        without_head=[_losses(model, tokens.expand(n_heads, -1), _one_head_each(i)) for i in range(len(attentions))],
        without_motion=[
            _losses(model, tokens.expand(n_heads, -1), _one_still_each(i, attention, n_heads))
            for i, attention in enumerate(attentions)
        ]
        if moves
        else None,
        without_dynamics=_losses(model, tokens, without_dynamics(model))[0] if moves else None,
    )


def _losses(model: TransformerLM, tokens: Tensor, changes: Mapping[str, Change]) -> list[float]:
    """Mean loss of each row."""
    with record(model, changes):
        hidden = model.hidden(tokens)[:, :-1]
    rows = zip(hidden.split(1), tokens[:, 1:].split(1), strict=True)
    return [float(linear_cross_entropy(x, model.embed.weight, target, "mean")) for x, target in rows]


def _one_head_each(layer: int) -> dict[str, Change]:
    def zero(z: Tensor, tape: LayerTape) -> Tensor:
        keep = 1 - torch.eye(z.shape[2], dtype=z.dtype, device=z.device)
        return z * keep[:, None, :, None]

    return {f"blocks.{layer}.attn.hook_z": zero}


def _one_still_each(layer: int, attention: Attention, n_heads: int) -> dict[str, Change]:
    def still(moved: Tensor, before: Tensor) -> Tensor:
        """Restores the vectors of head i, or of the key head that it uses, in row i to their values before the dynamics."""
        n_vectors = moved.shape[2]
        n = n_vectors // (attention.d_model // n_heads // attention.width)  # per sub-head
        heads = torch.arange(n_heads, device=moved.device)[:, None] // max(1, n_heads // n)  # grouped heads share a key
        vectors = (
            torch.arange(n_vectors, device=moved.device) % n // max(1, n // n_heads)
        )  # a head may have two queries
        own = heads == vectors
        return torch.where(own[:, None, :, None], before, moved)

    return {
        f"blocks.{layer}.attn.hook_evolved_q": lambda q, tape: still(q, tape.q),
        f"blocks.{layer}.attn.hook_evolved_k": lambda k, tape: still(k, tape.k),
    }
