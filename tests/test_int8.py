"""Generation with 8-bit weights is close to the original model, works on CPUs only, and its perplexity is reported."""

import json

import pytest
import torch

from conftest import random_tokens, tiny_model
from coupledqk import VARIANTS, CoupledQKError, TransformerLM
from coupledqk.cli import main
from coupledqk.linear import Int8Linear

LOGITS_ERROR = 0.05
"""Of the norm of the logits, for models with two layers and random weights."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "d"), [(1, 4), (37, 20), (7, 64), (300, 48)])
def test_the_product_with_an_8_bit_matrix_is_within_one_percent(n, d, dtype):
    weight, x = torch.randn(n, d), torch.randn(2, 3, 2 * d).to(dtype)[..., d:]  # neither aligned nor contiguous
    expected = x.float() @ weight.T
    found = Int8Linear(weight)(x)
    assert found.dtype == dtype
    assert (found.float() - expected).norm() <= 0.01 * expected.norm()
    assert torch.equal(Int8Linear(torch.zeros(n, d))(x), torch.zeros(2, 3, n, dtype=dtype))


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_int8_logits_are_within_the_stated_error_and_the_loss_is_computed_from_them(name):
    model, tokens = tiny_model(name, positions="rope").float(), random_tokens(2, 16)
    exact = model(tokens)
    logits = model.to_int8()(tokens)
    assert 0 < (logits - exact).norm() <= LOGITS_ERROR * exact.norm()
    targets = random_tokens(2, 16)
    targets[0, :5] = -100
    for reduction in ("mean", "sum"):
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
        torch.testing.assert_close(model(tokens, targets, reduction=reduction), expected)


def test_greedy_generation_follows_the_int8_logits():
    model, prompt = tiny_model("hamiltonian").float().to_int8(), random_tokens(1, 6)
    expected = prompt
    for _ in range(5):
        expected = torch.cat([expected, model(expected)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(model.generate(prompt, 5, temperature=0), expected)
    assert not any(p.requires_grad for p in model.parameters())


def test_int8_on_a_device_other_than_a_cpu_is_refused():
    with torch.device("meta"):
        model = TransformerLM.from_preset("nano")
    with pytest.raises(
        CoupledQKError, match="int8 weights run on a CPU, not on meta: leave out int8, or set the device"
    ):
        model.to_int8()


def test_the_commands_generate_with_int8_and_show_its_perplexity_beside_that_of_the_trained_weights(source, capsys):
    main(["generate", str(source.path), "--prompt", "1", "--tokens", "3", "--int8", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("1")
    main(["eval", str(source.path), "--int8", "--device", "cpu"])
    out = capsys.readouterr().out
    assert "as trained" in out
    assert "int8" in out
    main(["eval", str(source.path), "--int8", "--json", "--device", "cpu"])
    found = json.loads(capsys.readouterr().out)
    assert found["int8"]["perplexity"] == pytest.approx(found["perplexity"], rel=0.01)
    assert found["int8"]["perplexity"] != found["perplexity"]
