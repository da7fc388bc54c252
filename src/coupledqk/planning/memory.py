"""The memory of one training step on one device, by part, at the points where it may reach its peak."""

from dataclasses import astuple, dataclass, replace
from functools import cached_property, lru_cache
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
    """Gradients on this device; with FSDP, the reduced ones."""
    optimizer: float
    """AdamW's two moments."""
    activations: float
    """Activations saved for the backward pass."""
    copies: float
    """Half-precision copies of the weights, created by autocast."""
    loss: float
    """A block of logits, and the gradients that the loss computes in the forward pass."""
    workspace: float
    """Temporaries of the backward pass of one block, including new gradients and, with checkpointing, its recomputed
    activations."""
    communication: float
    """DDP's buckets if gradients are accumulated, or FSDP's gathered weights and the gradients that are being reduced."""

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
    """The peak of a training step.

    `accumulates` means that gradients of earlier micro-batches exist; otherwise gradients are allocated while activations are
    freed.
    """
    find_moments = sharded_moments if strategy == "fsdp" else whole_moments
    found = find_moments(Step(model, how, accumulates, replicated=strategy == "ddp", devices=devices))
    return Peak(max(memory.total for memory in found), Memory(*map(max, zip(*map(astuple, found), strict=True))))


@dataclass(frozen=True)
class Step:
    """A training step, and the sizes of its tensors in bytes."""

    model: ModelConfig
    how: Pass
    accumulates: bool
    replicated: bool
    """Whether DDP is used."""
    devices: int

    @cached_property
    def weights(self) -> int:
        return FLOAT32 * _parameters(self.model)

    @cached_property
    def block(self) -> int:
        """Weights of one block."""
        one, two = (_parameters(replace(self.model, n_layers=n)) for n in (1, 2))
        return FLOAT32 * (two - one)

    @cached_property
    def root(self) -> int:
        """Weights outside of the blocks: the embedding, the positions and the final norm."""
        return self.weights - self.model.n_layers * self.block

    @cached_property
    def embedding(self) -> int:
        return FLOAT32 * self.model.vocab_size * self.model.d_model

    @cached_property
    def states(self) -> int:
        """The hidden states between two blocks."""
        return FLOAT32 * self.how.rows * self.how.seq_len * self.model.d_model

    @cached_property
    def loss(self) -> int:
        """The final states, their gradient and that of the embedding, and the temporaries of the loss."""
        tokens = self.how.rows * self.how.seq_len
        logits = loss_workspace(self.model.vocab_size, self.model.d_model, tokens, self.how.precision)
        return 2 * self.states + self.embedding + logits


def whole_moments(step: Step) -> list[Memory]:
    """The memory of a device that holds the whole model: at the loss, in the backward pass of the loss, of the last block, of
    the first block and of the embedding.

    With DDP there are always buckets for all gradients. Without accumulation the buckets are the gradients: each new gradient
    is copied to its bucket and freed. With accumulation the gradients of earlier micro-batches are separate tensors, because
    the loop clears gradients to None, and buckets are needed in addition.
    """
    model = step.model
    adds = step.accumulates or step.replicated
    found = kept(model, step.how, adds)
    common = Memory(
        weights=step.weights,
        gradients=step.weights if adds else 0,
        optimizer=2 * step.weights,
        activations=found.activations,
        copies=0 if step.how.checkpointing else found.copies,
        loss=0,
        workspace=0,
        communication=step.weights if step.accumulates and step.replicated else 0,
    )
    last_block = replace(common, loss=step.embedding, workspace=found.workspace)
    return [
        replace(common, copies=found.copies, loss=step.loss),
        replace(common, loss=2 * step.states + 2 * step.embedding),
        last_block,
        replace(
            last_block,
            gradients=step.weights if adds else (model.n_layers - 1) * step.block,
            activations=found.activations - (model.n_layers - 1) * found.block,
        ),
        # the two gradients of the tied embedding are added; without `adds` one of them becomes the gradient
        replace(
            common,
            gradients=step.weights,
            activations=0,
            copies=0,
            loss=(2 if adds else 1) * step.embedding,
            workspace=step.states,
        ),
    ]


def sharded_moments(step: Step) -> list[Memory]:
    """The memory of a device with FSDP: at the loss, in the backward pass of the loss, of the last block, of the block before
    it, of the second block and of the embedding.

    The weights of a group (a block, or the root) are gathered into a buffer and copied from there. The root stays gathered from
    the start of the forward pass to the end of the backward pass. At the loss, the buffer of the last block still exists.
    During the backward pass of a block, its weights are gathered, the weights of the next block are in a buffer, and the
    gradients of the previous block are in another one. Gradients are whole until they are reduced, after every micro-batch.

    The internal buffers of gloo and NCCL are not counted. gloo copies a group once more when it gathers weights or reduces
    gradients, at moments when the other parts are smaller, so that this copy does not determine the peak.
    """
    model, block, root = step.model, step.block, step.root
    found = kept(model, step.how, adds_gradients=False)
    common = Memory(
        weights=step.weights / step.devices,
        gradients=step.weights / step.devices if step.accumulates else 0,
        optimizer=2 * step.weights / step.devices,
        activations=found.activations,
        copies=0 if step.how.checkpointing else found.copies,
        loss=0,
        workspace=0,
        communication=root + block,
    )

    def block_backward(finished: int) -> Memory:
        """Memory in the backward pass of a block, after the backward passes of `finished` later blocks."""
        groups = 1 + (finished > 0) + (finished < model.n_layers - 1)
        return replace(
            common,
            gradients=common.gradients or finished * block / step.devices,
            activations=found.activations - finished * found.block,
            loss=step.embedding,
            workspace=found.workspace,
            communication=root + groups * block,
        )

    return [
        replace(common, copies=found.copies, loss=step.loss),
        replace(common, loss=2 * step.states + 2 * step.embedding),
        *(block_backward(finished) for finished in {0, 1, model.n_layers - 2} if 0 <= finished < model.n_layers),
        # the weights of the root, their whole gradients and the second gradient of the tied embedding
        replace(
            common,
            gradients=step.weights / step.devices,
            activations=0,
            copies=0,
            loss=step.embedding,
            workspace=step.states,
            communication=2 * root + block,
        ),
    ]
