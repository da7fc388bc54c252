"""The private parts of PyTorch that this package depends on, in one place: check them when PyTorch changes."""

import torch
from torch import nn


def inside_torch_func() -> bool:
    """Whether a transformation of torch.func (vmap, grad, jacrev) is active."""
    return torch._C._are_functorch_transforms_active()


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has been applied to this very module."""
    return isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
