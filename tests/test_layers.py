"""The parts around attention."""

import torch

from conftest import double_randn
from coupledqk.layers import plain_swiglu, swiglu


def test_lean_swiglu_is_the_plain_one_with_first_and_second_derivatives() -> None:
    x = double_randn(2, 3, 8).requires_grad_()
    assert torch.equal(swiglu(x), plain_swiglu(x))
    assert torch.autograd.gradcheck(swiglu, (x,))
    assert torch.autograd.gradgradcheck(swiglu, (x,))
    grads = [torch.autograd.grad(function(x).square().sum(), x)[0] for function in (swiglu, plain_swiglu)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)


def test_lean_swiglu_keeps_nothing_but_its_input() -> None:
    x = double_randn(2, 3, 8).requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        swiglu(x)
    assert [t.data_ptr() for t in kept] == [x.data_ptr()]
