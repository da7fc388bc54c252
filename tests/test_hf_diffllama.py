"""Our official flavour of differential attention and transformers' DiffLlama are the same function."""

import pytest
import torch

from conftest import random_tokens, tiny_model
from coupledqk.errors import CoupledQKError

pytest.importorskip("transformers")

from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

from coupledqk.hf import from_diffllama, to_diffllama


def official(**settings):
    return tiny_model("diff", flavour="official", positions="rope", **settings)


@pytest.mark.parametrize("group_size", [1, 2])
def test_conversion_to_diffllama_and_back_keeps_logits_and_weights(group_size) -> None:
    ours = official(group_size=group_size)
    theirs = to_diffllama(ours)
    tokens = random_tokens(2, 9)
    expected = ours(tokens)
    assert expected.abs().mean() > 0.1
    torch.testing.assert_close(
        theirs(tokens).logits, expected, rtol=1e-5, atol=1e-5
    )  # their λ and rotation are float32
    back = from_diffllama(theirs)
    assert back.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_a_converted_diffllama_generates_the_same_tokens() -> None:
    torch.manual_seed(1)
    config = DiffLlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=True, initializer_range=0.5,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    theirs = DiffLlamaForCausalLM(config).eval()
    prompt = random_tokens(2, 5)
    expected = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)
    assert torch.equal(from_diffllama(theirs).generate(prompt, 8, temperature=0.0), expected)
    assert len(set(expected[0, 5:].tolist())) > 2


def test_the_converted_model_has_its_own_weights() -> None:
    theirs = to_diffllama(official())
    ours = from_diffllama(theirs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert all(p.requires_grad and p.abs().sum() > 0 for p in ours.parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {"tie_word_embeddings": False},
        {"rms_norm_eps": 1e-5},
        {"attention_bias": True},
        {"head_dim": 32},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
)
def test_unsupported_settings_are_refused_by_name(settings) -> None:
    same = {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}
    config = DiffLlamaConfig(
        vocab_size=37,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        **{**same, **settings},
    )
    with pytest.raises(CoupledQKError, match=next(iter(settings))):
        from_diffllama(DiffLlamaForCausalLM(config))


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("diff", {"flavour": "official"}),
        ("diff", {"positions": "rope"}),
        ("euler_diff", {"flavour": "official", "positions": "rope"}),
        ("standard", {"positions": "rope"}),
    ],
)
def test_only_the_official_flavour_with_rope_can_be_converted(variant, settings) -> None:
    with pytest.raises(CoupledQKError, match='preset\\(size, "diff", flavour="official", positions="rope"\\)'):
        to_diffllama(tiny_model(variant, **settings))
