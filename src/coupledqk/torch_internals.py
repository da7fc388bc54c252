"""All private PyTorch APIs that this package depends on, which have to be checked with each new version of PyTorch, and small
functions that several implementations share."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def is_transformed() -> bool:
    """Whether a transformation of torch.func (vmap, grad, jacrev) or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def is_fake(x: Tensor) -> bool:
    """Whether a tensor has a shape and a device but no values, as in the estimates of `planning`."""
    return isinstance(x, torch._subclasses.FakeTensor)


def autocasts(device: torch.device) -> bool:
    """Whether autocast is enabled on a device. PyTorch raises an error for the meta device, which has no autocast."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def again(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a function, which are themselves differentiable; None for inputs that need no gradient."""
    inputs = tuple(x.view_as(x) for x in inputs)  # views, because one input may depend on another (tied weights)
    needed = [x for x in inputs if x.requires_grad]
    grads = iter(torch.autograd.grad(function(*inputs), needed, grad, create_graph=True))
    return tuple(next(grads) if x.requires_grad else None for x in inputs)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has been applied to this module itself."""
    return isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None


def is_compiler_error(error: Exception) -> bool:
    """Whether torch.compile raised the error. The check does not import the compiler."""
    loaded = sys.modules.get("torch._dynamo.exc")
    return loaded is not None and isinstance(error, loaded.TorchDynamoException)


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def int8_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x (m, k) times the transposed int8 weight (n, k) and the scale of each row; k is a multiple of 16, memory is aligned."""
    return torch.ops.aten._weight_int8pack_mm(x, weight, scale)


def default_store() -> Any:
    """The key-value store that the processes of a torch.distributed job share."""
    return torch.distributed.distributed_c10d._get_default_store()
