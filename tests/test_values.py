"""Value residual: its equation, the use of the first layer's values, and equal results in all modes of execution."""

import pytest
import torch

from conftest import double_randn, random_tokens, stir, tiny_model
from coupledqk import Attention, CoupledQKError, FirstValues, variant


def layers(name="value_residual"):
    return [stir(Attention(64, 8, variant(name), layer)) for layer in range(3)]


def test_later_values_are_mixed_with_those_of_the_first_layer():
    first, _, third = layers()
    x, y, values = double_randn(2, 5, 64), double_randn(2, 5, 64), FirstValues()
    *_, v = first.evolved(x, first_values=values)
    assert torch.equal(v, first.project(x)[2])
    *_, v = third.evolved(y, first_values=values)
    own, other = third.value_residual.mix
    torch.testing.assert_close(v, own * third.project(y)[2] + other * first.project(x)[2])


def test_both_shares_start_at_one_half():
    assert Attention(64, 8, variant("value_residual"), layer=1).value_residual.mix.tolist() == [0.5, 0.5]


def test_the_error_for_a_later_layer_without_first_values_says_what_to_do():
    with pytest.raises(CoupledQKError, match=r"create one FirstValues\(\) for each forward pass"):
        layers()[1](double_randn(1, 3, 64))
    with pytest.raises(CoupledQKError, match="layer 0 first"):
        layers()[1](double_randn(1, 3, 64), first_values=FirstValues())


def test_gradient_checkpointing_changes_no_gradient():
    """The first layer's values reach the loss through every later layer, past the checkpoints."""
    model, tokens, targets = tiny_model("hamiltonian_value_residual", n_layers=3), *random_tokens(2, 2, 9).unbind()
    gradients = []
    for model.gradient_checkpointing in (False, True):
        gradients.append(torch.autograd.grad(model(tokens, targets), list(model.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    assert gradients[0][0].abs().sum() > 0


def test_the_model_compiles_in_one_graph():
    torch.compiler.reset()  # after many models the compiler would reach its limit of recompilations
    model, tokens = tiny_model("value_residual", n_layers=3), random_tokens(2, 9)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
