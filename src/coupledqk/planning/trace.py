"""Counts the memory that a model saves for its backward pass, and the temporary memory of that pass, without allocating it.

The modules are run on PyTorch's fake tensors, which have shapes and storages but no memory. Every variant, including those
registered by a user, is therefore counted from its own code instead of a formula.
"""

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import loss
from ..config import ModelConfig
from ..dynamics import set_impl
from ..model import TransformerLM
from ..training.loop import AUTOCAST


@dataclass(frozen=True)
class Pass:
    """The settings of a forward and backward pass that determine its memory."""

    rows: int
    seq_len: int
    precision: str = "fp32"
    checkpointing: bool = False
    impl: str = "auto"
    kernels: Literal["cpu", "gpu"] = "gpu"


@dataclass(frozen=True)
class Traced:
    """Memory of all blocks and the embedding in bytes, without the loss."""

    activations: int
    """Activations saved for the backward pass."""
    copies: int
    """Saved tensors that are computed from weights alone: their half-precision copies under autocast. With checkpointing they
    are kept until the loss."""
    workspace: int
    """Maximum additional memory in the backward pass of one block; with checkpointing it includes the block's activations."""


@dataclass(frozen=True)
class Kept(Traced):
    """Memory of a model of any depth."""

    block: int
    """The part of `activations` that belongs to one block."""


MANY = 64
"""Number of rows in the larger of the two passes from which GPU passes are interpolated."""


def kept(model: ModelConfig, how: Pass, adds_gradients: bool = True) -> Kept:
    """The memory of the whole model. On a GPU it is linear in the number of rows; on a CPU small passes use other code paths.

    `adds_gradients` means that a gradient is freed as soon as it has been added to an existing one; otherwise the gradients of
    a block are kept, and are part of the workspace.
    """
    if how.kernels == "cpu":
        return _at_depth(model, how, adds_gradients)
    few, many = (astuple(_at_depth(model, replace(how, rows=rows), adds_gradients)) for rows in (1, MANY))
    share = (how.rows - 1) / (MANY - 1)
    return Kept(*(round(low + share * (high - low)) for low, high in zip(few, many, strict=True)))


def _at_depth(model: ModelConfig, how: Pass, adds_gradients: bool) -> Kept:
    """The memory at the model's depth, from traces of two depths: all layers need the same memory."""
    plain = replace(how, checkpointing=False)
    one, two = (trace(replace(model, n_layers=n), plain, adds_gradients) for n in (1, 2))
    block, block_copies = two.activations - one.activations, two.copies - one.copies
    copies = one.copies + (model.n_layers - 1) * block_copies
    if not how.checkpointing:
        return Kept(one.activations + (model.n_layers - 1) * block, copies, one.workspace, block)
    # a block keeps its input in float32; everything else is recomputed in its backward pass
    states = how.rows * how.seq_len * model.d_model * torch.float32.itemsize
    recomputed = block - states + block_copies
    return Kept(one.activations - block + model.n_layers * states, copies, one.workspace + recomputed, states)


@lru_cache(maxsize=1024)
def trace(model: ModelConfig, how: Pass, adds_gradients: bool) -> Traced:
    """Traces one forward and backward pass of all blocks up to the final norm, without checkpointing."""
    with torch.device("meta"):
        network = TransformerLM(replace(model, vocab_size=1))  # the vocabulary affects only the loss
    on_gpu = how.kernels == "gpu"
    set_impl(network, {"auto": "reference", "triton": "fused"}.get(how.impl, how.impl) if on_gpu else how.impl)
    kernels: AbstractContextManager = GPUKernels() if on_gpu else nullcontext()
    with FakeTensorMode(), kernels, LiveBytes() as live:
        _make_fake(network, adds_gradients)
        tokens = torch.zeros(how.rows, how.seq_len, dtype=torch.long)
        autocast = torch.autocast("cpu", AUTOCAST[how.precision], enabled=how.precision != "fp32")
        with saved_bytes(network) as saved, autocast:
            states = network.hidden(tokens)
        gradient = torch.empty_like(states)
        before = live.start()
        states.backward(gradient)
        return Traced(saved.activations, saved.copies, live.peak - before)


@lru_cache(maxsize=1024)
def loss_workspace(vocab_size: int, d_model: int, tokens: int, precision: str) -> int:
    """Maximum memory of the loss in its forward pass, in addition to the two gradients that it returns."""
    tokens = min(tokens, 3 * max(1, loss.BLOCK // vocab_size))  # all blocks but the first need the same memory
    with FakeTensorMode():
        x, weight = torch.empty(tokens, d_model), torch.empty(vocab_size, d_model)
        with LiveBytes() as live:
            loss._blockwise._init_fn(x, weight, torch.empty(tokens, dtype=torch.long), AUTOCAST[precision], True)
    return live.peak - x.nbytes - weight.nbytes


def _make_fake(network: nn.Module, with_gradients: bool) -> None:
    """Gives a model on the meta device weights and optionally gradients with storages, inside a `FakeTensorMode`."""
    for module in network.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            fake = nn.Parameter(torch.empty(weight.shape))
            if with_gradients:
                fake.grad = torch.empty(weight.shape)
            module.register_parameter(name, fake)


@dataclass
class Saved:
    """Size of the storages that autograd has saved, in bytes."""

    activations: int = 0
    copies: int = 0


@contextmanager
def saved_bytes(model: nn.Module) -> Iterator[Saved]:
    """Counts the storages saved for the backward pass inside the context, each once, excluding weights."""
    saved = Saved()
    storages = {weight.untyped_storage()._cdata: weight.untyped_storage() for weight in model.parameters()}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage
            if _made_of_weights(x):
                saved.copies += storage.nbytes()
            else:
                saved.activations += storage.nbytes()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        yield saved
    storages.clear()


def _made_of_weights(x: Tensor) -> bool:
    """Whether x is computed by functions of a single tensor from a leaf that requires a gradient, that is a weight."""
    node = x.grad_fn
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is not None and hasattr(node, "variable")


class FusedRMSNorm(torch.autograd.Function):
    """RMSNorm with the memory of PyTorch's GPU kernel, which saves its input and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1]))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


class GPUKernels(TorchFunctionMode):
    """Makes CPU tensors take the code paths of a GPU, where RMSNorm is one kernel.

    Attention saves q, k, v, its output and one number per query with any of PyTorch's fused kernels.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.is_cpu.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return False
        if func in (torch.rms_norm, F.rms_norm):
            return FusedRMSNorm.apply(args[0], args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


class LiveBytes(TorchDispatchMode):
    """Size of the storages created by operators and still in use, and its maximum since `start`, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, weakref.ref] = {}

    def start(self) -> int:
        self.peak = self.now
        return self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self.known:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def forget(_: weakref.ref) -> None:
            del self.known[key]
            self.now -= size

        self.known[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)


def _storages(tensors: Any) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in tree_leaves(tensors) if isinstance(tensor, Tensor))
