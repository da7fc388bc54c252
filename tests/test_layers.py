"""Layers around attention: fused operators agree with their plain definitions, including first and second derivatives."""

import pytest
import torch

from conftest import double_randn
from coupledqk import rope_at
from coupledqk.layers import RMS_EPS, plain_rms_norm, plain_swiglu, rms_norm, swiglu
from coupledqk.rope import plain_rotate, rotate, rotate_back


def normalised(x, weight):
    return rms_norm(x, weight, RMS_EPS)


def rotated(x):
    rope = rope_at(torch.arange(3), x.shape[-1])
    return rotate(x, rope.cos, rope.sin)


def plainly_rotated(x):
    rope = rope_at(torch.arange(3), x.shape[-1])
    return plain_rotate(x, rope.cos, rope.sin)


FORMS = {
    "swiglu": (swiglu, plain_swiglu, [(2, 3, 8)]),
    "rms_norm": (normalised, lambda x, weight: plain_rms_norm(x, weight, RMS_EPS), [(2, 3, 8), (8,)]),
    "rms_norm of transposed heads": (
        lambda x, weight: normalised(x.transpose(1, 2), weight),
        lambda x, weight: plain_rms_norm(x.transpose(1, 2), weight, RMS_EPS),
        [(2, 3, 2, 4), (4,)],
    ),
    "rotate": (rotated, plainly_rotated, [(2, 3, 2, 4)]),
}


@pytest.mark.parametrize(("lean", "plain", "shapes"), FORMS.values(), ids=FORMS)
@pytest.mark.usefixtures("poisoned_memory")
def test_a_fused_operator_equals_the_plain_one_including_first_and_second_derivatives(lean, plain, shapes) -> None:
    inputs = [double_randn(*shape).requires_grad_() for shape in shapes]
    results = [[f(*inputs), *torch.autograd.grad(f(*inputs).square().sum(), inputs)] for f in (lean, plain)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)
    with torch.no_grad():
        torch.testing.assert_close(lean(*inputs), plain(*inputs), rtol=1e-12, atol=1e-13)
    assert torch.autograd.gradcheck(lean, inputs)
    assert torch.autograd.gradgradcheck(lean, inputs)


def test_second_derivatives_are_correct_with_frozen_weights_and_with_weights_used_twice() -> None:
    x, weight = double_randn(2, 4).requires_grad_(), double_randn(4).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: normalised(x, weight.detach()), x)
    assert torch.autograd.gradgradcheck(lambda weight: normalised(normalised(x.detach(), weight), weight), weight)


@pytest.mark.parametrize(("lean", "plain", "shapes"), FORMS.values(), ids=FORMS)
def test_torch_func_gradients_equal_those_of_the_plain_operator(lean, plain, shapes) -> None:
    inputs = [double_randn(*shape) for shape in shapes]
    ours, theirs = (torch.func.grad(lambda *x, f=f: f(*x).square().sum())(*inputs) for f in (lean, plain))
    torch.testing.assert_close(ours, theirs)


def test_a_single_row_is_normalised_like_any_other() -> None:
    x, weight = torch.randn(3, 1, 1, 40), torch.randn(40)
    with torch.no_grad():
        torch.testing.assert_close(torch.stack([normalised(row, weight) for row in x]), normalised(x, weight))


@torch.no_grad()
@pytest.mark.parametrize("positions", [torch.tensor([70]), torch.tensor([[7], [90]])], ids=["shared", "per row"])
def test_a_single_token_is_rotated_like_any_other(positions) -> None:
    q, k, rope = torch.randn(2, 1, 6, 8), torch.randn(2, 1, 3, 8), rope_at(positions, 8)
    expected = [plain_rotate(x, rope.cos, rope.sin) for x in (q, k)]
    torch.testing.assert_close(list(rope(q, k)), expected)


def kept_by(function, *inputs: torch.Tensor) -> list[torch.Tensor]:
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        function(*inputs)
    return kept


def test_fused_operators_save_only_their_inputs_and_one_scale_per_row() -> None:
    x, weight = double_randn(2, 3, 8).requires_grad_(), double_randn(8).requires_grad_()
    assert [t.data_ptr() for t in kept_by(swiglu, x)] == [x.data_ptr()]
    *given, scale = kept_by(normalised, x, weight)
    assert [t.data_ptr() for t in given] == [x.data_ptr(), weight.data_ptr()]
    assert scale.numel() == 6  # one for each row


@pytest.mark.parametrize(("dtype", "little"), [(torch.float32, 3e-7), (torch.float64, 1e-15)], ids=str)
def test_rotating_back_restores_vectors_to_the_precision_of_their_dtype(dtype, little) -> None:
    x, rope = torch.randn(2, 500, 3, 16, dtype=dtype), rope_at(torch.arange(500), 16)
    back = rotate_back(rotate(x, rope.cos, rope.sin), rope.cos, rope.sin)
    assert (back - x).norm() <= little * x.norm()
