"""What a model keeps for its backward pass, and what that pass needs besides, counted without data.

The real modules run on PyTorch's fake tensors, which have shapes and storages but no memory. So every variant is counted as
it is written, one that a user has registered too, and there is no formula to keep in step with the code.
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
    """How a micro-batch is computed: all that decides what is kept."""

    rows: int
    seq_len: int
    precision: str = "fp32"
    checkpointing: bool = False
    impl: str = "auto"
    kernels: Literal["cpu", "gpu"] = "gpu"


@dataclass(frozen=True)
class Kept:
    """Bytes of all blocks and the embedding, without the loss."""

    activations: int
    """Kept for the backward pass."""
    copies: int
    """Made of weights alone: under autocast their copies in half precision. Kept too, with checkpointing up to the loss."""
    workspace: int
    """The most that the backward pass of one block holds besides; with checkpointing, the block's activations among it."""


MANY = 64
"""Rows of the larger of two passes between which GPU passes are interpolated."""


def kept(model: ModelConfig, how: Pass) -> Kept:
    """By the whole model. On a GPU it is a line in the number of rows; on a CPU, small passes are computed in another way."""
    if how.kernels == "cpu":
        return _at_depth(model, how)
    few, many = (astuple(_at_depth(model, replace(how, rows=rows))) for rows in (1, MANY))
    share = (how.rows - 1) / (MANY - 1)
    return Kept(*(round(low + share * (high - low)) for low, high in zip(few, many, strict=True)))


def _at_depth(model: ModelConfig, how: Pass) -> Kept:
    """Layers are alike, so two depths tell what each of them keeps and what is kept once."""
    plain = replace(how, checkpointing=False)
    one, two = (trace(replace(model, n_layers=n), plain) for n in (1, 2))
    block, block_copies = two.activations - one.activations, two.copies - one.copies
    copies = one.copies + (model.n_layers - 1) * block_copies
    if not how.checkpointing:
        return Kept(one.activations + (model.n_layers - 1) * block, copies, one.workspace)
    # a block keeps its input, which is in float32; the rest is there again while its backward pass runs
    states = how.rows * how.seq_len * model.d_model * torch.float32.itemsize
    recomputed = block - states + block_copies
    return Kept(one.activations - block + model.n_layers * states, copies, one.workspace + recomputed)


@lru_cache(maxsize=1024)
def trace(model: ModelConfig, how: Pass) -> Kept:
    """One forward and backward pass up to the final norm, without checkpointing, with gradients that exist already."""
    with torch.device("meta"):
        network = TransformerLM(replace(model, vocab_size=1))  # the vocabulary matters to the loss alone
    on_gpu = how.kernels == "gpu"
    set_impl(network, {"auto": "reference", "triton": "fused"}.get(how.impl, how.impl) if on_gpu else how.impl)
    kernels: AbstractContextManager = GPUKernels() if on_gpu else nullcontext()
    with FakeTensorMode(), kernels, LiveBytes() as live:
        _make_fake(network)
        tokens = torch.zeros(how.rows, how.seq_len, dtype=torch.long)
        autocast = torch.autocast("cpu", AUTOCAST[how.precision], enabled=how.precision != "fp32")
        with saved_bytes(network) as saved, autocast:
            states = network.hidden(tokens)
        gradient = torch.empty_like(states)
        before = live.start()
        states.backward(gradient)
        return Kept(saved.activations, saved.copies, live.peak - before)


@lru_cache(maxsize=1024)
def loss_workspace(vocab_size: int, d_model: int, tokens: int, precision: str) -> int:
    """The most that the loss holds in its forward pass besides the two gradients that it returns."""
    tokens = min(tokens, 3 * max(1, loss.BLOCK // vocab_size))  # all blocks but the first are alike
    with FakeTensorMode():
        x, weight = torch.empty(tokens, d_model), torch.empty(vocab_size, d_model)
        with LiveBytes() as live:
            loss._blockwise._init_fn(x, weight, torch.empty(tokens, dtype=torch.long), AUTOCAST[precision], True)
    return live.peak - x.nbytes - weight.nbytes


def _make_fake(network: nn.Module) -> None:
    """Gives a model on the meta device weights and gradients with storages, inside of a `FakeTensorMode`."""
    for module in network.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            fake = nn.Parameter(torch.empty(weight.shape))
            fake.grad = torch.empty(weight.shape)
            module.register_parameter(name, fake)


@dataclass
class Saved:
    """Bytes of the storages that autograd has saved."""

    activations: int = 0
    copies: int = 0


@contextmanager
def saved_bytes(model: nn.Module) -> Iterator[Saved]:
    """Counts what is saved for the backward pass while the block runs, each storage once, weights left out."""
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
    """Whether x comes from a leaf that needs a gradient, which is a weight, by functions of a single tensor."""
    node = x.grad_fn
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is not None and hasattr(node, "variable")


class FusedRMSNorm(torch.autograd.Function):
    """The shapes of PyTorch's GPU kernel: it keeps its input and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1]))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


class GPUKernels(TorchFunctionMode):
    """Makes tensors on the CPU take the paths of a GPU, for their shapes: there RMSNorm is one kernel.

    Attention keeps the same there, q, k, v, its output and a number for each query, whichever of PyTorch's fused kernels runs.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.is_cpu.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return False
        if func in (torch.rms_norm, F.rms_norm):
            return FusedRMSNorm.apply(args[0], args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operators have made and that are still in use, and the most since `start`."""

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
