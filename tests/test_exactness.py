"""Rounding in many layers: the fused dynamics and their gradients are as accurate as the reference in the same precision."""

from contextlib import nullcontext

import pytest
import torch

from conftest import random_tokens
from coupledqk import TransformerLM
from coupledqk.dynamics import set_impl

DEEP = {"d_model": 32, "n_heads": 4, "n_layers": 24, "d_ff": 48, "vocab_size": 37, "n_positions": 32, "force_std": 0.3}


def loss_and_gradients(model, impl, tokens, targets, dtype=None):
    set_impl(model, impl)
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        loss = model(tokens, targets)
    # without step sizes: their gradients are sums of terms of either sign, and some are close to 0
    weights = [p for name, p in model.named_parameters() if not name.endswith("tau")]
    return [loss.detach(), *torch.autograd.grad(loss, weights)]


def error(found, truth):
    """Root mean square, over the loss and all parameters, of the relative errors."""
    errors = [(x.double() - y).norm() / y.norm() for x, y in zip(found, truth, strict=True)]
    return float(torch.stack(errors).square().mean().sqrt())


VARIANTS = [("hamiltonian", "learned"), ("hamiltonian", "rope"), ("semi_implicit", "rope"), ("euler", "rope")]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("variant", "positions"), VARIANTS)
def test_fused_dynamics_are_as_accurate_as_the_reference_through_24_layers(variant, positions, dtype):
    model = TransformerLM.from_preset("nano", variant, positions=positions, **DEEP)
    batch = random_tokens(2, 2, 17).unbind()
    truth = loss_and_gradients(model.double(), "reference", *batch)
    model.float()
    reference, ours = (error(loss_and_gradients(model, impl, *batch, dtype), truth) for impl in ("reference", "fused"))
    assert 0 < ours <= 1.1 * reference + torch.finfo(dtype or torch.float32).eps
