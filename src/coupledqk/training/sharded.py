"""Tensors of which every process holds a share."""

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether every process holds a share of it. PyTorch's type is not imported for that, which would take seconds."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which every process may hold a share, as one. All processes must ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor
