"""The memory of one training step on one device, by part, at the points where it may reach its peak."""

from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Literal

from ..config import ModelConfig
from ..costs import FLOAT32, count_parameters
from .trace import Pass, kept, loss_workspace

Strategy = Literal["single", "ddp", "fsdp"]

_parameters = lru_cache(maxsize=1024)(count_parameters)


@dataclass(frozen=True)
class Memory:
    """Memory of one device at one point of a training step, in bytes."""

    weights: float
    gradients: float
    optimizer: float
    """AdamW's two moments."""
    activations: float
    """Activations saved for the backward pass."""
    copies: float
    """Half-precision copies of the weights, created by autocast."""
    loss: float
    """A block of logits, and the gradients that the loss computes in the forward pass."""
    workspace: float
    """Temporaries of the backward pass of one block; with checkpointing, including its recomputed activations."""
    communication: float
    """DDP's gradient buckets, or FSDP's gathered weights and the gradients before they are sharded."""

    @property
    def total(self) -> float:
        return sum(astuple(self))


@dataclass(frozen=True)
class Peak:
    """The peak memory of a training step on one device, after the first step."""

    total: float
    parts: Memory
    """The maximum of each part. The maxima occur at different times, so their sum may exceed the peak."""


def peak_memory(
    model: ModelConfig, how: Pass, accumulates: bool, strategy: Strategy = "single", devices: int = 1
) -> Peak:
    found = moments(model, how, accumulates, strategy, devices)
    return Peak(max(memory.total for memory in found), Memory(*map(max, zip(*map(astuple, found), strict=True))))


def moments(
    model: ModelConfig, how: Pass, accumulates: bool, strategy: Strategy = "single", devices: int = 1
) -> list[Memory]:
    """The memory at the loss, in its backward pass, in that of the last block, and in that of the embedding.

    `accumulates` means that gradients of earlier micro-batches exist; otherwise gradients are allocated while activations are
    freed.
    """
    found = kept(model, how)
    weights = FLOAT32 * _parameters(model)
    embedding = FLOAT32 * model.vocab_size * model.d_model
    states = FLOAT32 * how.rows * how.seq_len * model.d_model
    shards = devices if strategy == "fsdp" else 1
    earlier = weights / shards if accumulates else 0.0
    common = Memory(
        weights=weights / shards,
        gradients=earlier,
        optimizer=2 * weights / shards,
        activations=found.activations,
        copies=0 if how.checkpointing else found.copies,
        loss=0,
        workspace=0,
        communication=_communication(model, strategy),
    )
    logits = loss_workspace(model.vocab_size, model.d_model, how.rows * how.seq_len, how.precision)
    return [
        # the states, their gradient and that of the embedding, which exist from the forward pass on
        replace(common, copies=found.copies, loss=2 * states + embedding + logits),
        replace(common, loss=2 * states + 2 * embedding),
        replace(common, loss=embedding, workspace=found.workspace),
        # the tied embedding has two gradients, which are added at the end
        replace(
            common,
            gradients=weights / shards,
            activations=0,
            copies=0,
            loss=(2 if accumulates else 1) * embedding,
            workspace=states,
        ),
    ]


def _communication(model: ModelConfig, strategy: Strategy) -> int:
    if strategy == "single":
        return 0
    total = FLOAT32 * _parameters(model)
    if strategy == "ddp":
        return total
    one, two = (_parameters(replace(model, n_layers=n)) for n in (1, 2))
    block = FLOAT32 * (two - one)
    root = total - model.n_layers * block
    # gathered: the embedding throughout, a block and the next one; a block's gradients, and they again in order of the shards
    return root + 2 * block + 2 * block
