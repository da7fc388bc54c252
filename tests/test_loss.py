"""The chunked loss equals the plain loss, including gradients, and needs less memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import double_randn
from coupledqk import loss
from coupledqk.loss import IGNORED, linear_cross_entropy, plain_loss

REDUCTIONS = st.sampled_from(["mean", "sum"])


def make(rows: int, d: int, vocab: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    x, weight = double_randn(2, rows, d).to(dtype), double_randn(vocab, d).to(dtype)
    targets = torch.randint(vocab, (2, rows))
    targets[0, 0] = IGNORED
    return x.requires_grad_(), weight.requires_grad_(), targets


def with_gradients(function, x, weight, *args, scale: float = 1.0):
    value = function(x, weight, *args)
    return value.detach(), *torch.autograd.grad(value * scale, (x, weight))


@given(
    rows=st.integers(1, 9),
    d=st.integers(1, 5),
    vocab=st.integers(1, 11),
    block=st.integers(1, 60),
    reduction=REDUCTIONS,
)
def test_lean_equals_plain_for_every_block_size(rows, d, vocab, block, reduction) -> None:
    x, weight, targets = make(rows + 1, d, vocab)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "BLOCK", block)
        lean = with_gradients(linear_cross_entropy, x, weight, targets, reduction)
    plain = with_gradients(plain_loss, x, weight, targets, reduction)
    torch.testing.assert_close(lean, plain, rtol=1e-10, atol=1e-12)


def test_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "BLOCK", 20)
    x, weight, targets = make(4, 3, 7)
    assert torch.autograd.gradcheck(lambda x, w: linear_cross_entropy(x, w, targets), (x, weight))


def test_second_derivatives_are_correct_also_with_frozen_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "BLOCK", 20)
    x, weight, targets = make(4, 3, 7)
    assert torch.autograd.gradgradcheck(lambda x, w: linear_cross_entropy(x, w, targets), (x, weight))
    frozen = weight.detach()
    assert torch.autograd.gradgradcheck(lambda x: linear_cross_entropy(x, frozen, targets), (x,))


def test_the_operator_passes_opcheck() -> None:
    x, weight, targets = make(4, 3, 7, torch.float32)
    arguments = (x.flatten(0, 1), weight, targets.flatten(), torch.float32, True)
    torch.library.opcheck(loss._blockwise, arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_the_loss_is_as_accurate_as_the_plain_loss_under_a_large_loss_scale(
    dtype: torch.dtype,
) -> None:
    x, weight, targets = make(40, 16, 300, torch.float32)
    scale = 65536.0
    truth = with_gradients(plain_loss, x.double(), weight.double(), targets, scale=scale)
    with torch.autocast("cpu", dtype):
        lean = with_gradients(linear_cross_entropy, x, weight, targets, scale=scale)
        plain = with_gradients(plain_loss, x, weight, targets, scale=scale)
    for ours, theirs, exact in zip(lean, plain, truth, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() <= 1.05 * (theirs - exact).norm() + 1e-6 * exact.norm()


def test_a_very_unlikely_target_has_a_finite_loss() -> None:
    x, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [500.0]])
    assert linear_cross_entropy(x, weight, torch.tensor([0])).item() == 500.0
    # also together with a likely one
    rows, targets = torch.ones(2, 1, requires_grad=True), torch.tensor([0, 1])
    assert linear_cross_entropy(rows, weight, targets, "sum").item() == 500.0


def test_no_gradients_are_computed_under_no_grad() -> None:
    x, weight, targets = make(4, 3, 7)
    with torch.no_grad():
        value = linear_cross_entropy(x, weight, targets)
    assert not value.requires_grad
    torch.testing.assert_close(value, plain_loss(x, weight, targets).detach())


def test_a_tied_matrix_gets_the_gradients_of_both_uses() -> None:
    _, weight, targets = make(5, 3, 7)
    tokens = torch.randint(7, targets.shape)
    lean, plain = (
        torch.autograd.grad(function(weight[tokens].tanh(), weight, targets), weight)[0]
        for function in (linear_cross_entropy, plain_loss)
    )
    torch.testing.assert_close(lean, plain)


def test_no_operation_writes_into_its_own_input(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = torch.softmax

    def checked(logits: torch.Tensor, dim: int, *, out: torch.Tensor) -> torch.Tensor:
        assert out.untyped_storage().data_ptr() != logits.untyped_storage().data_ptr()
        return softmax(logits, dim, out=out)

    monkeypatch.setattr(torch, "softmax", checked)
    x, weight, targets = make(3, 4, 7, torch.float32)
    torch.testing.assert_close(linear_cross_entropy(x, weight, targets), plain_loss(x, weight, targets))
