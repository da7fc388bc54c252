"""Tensors that are sharded over processes."""

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is sharded over processes. The check does not import PyTorch's DTensor, which would take seconds."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all processes if it is sharded. All processes must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor
