"""`couple` for users of transformers: the model is unchanged at first, and coupled wherever it is used."""

import copy
import dataclasses
import importlib.metadata
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from couplable import built, coupled, fresh, logits, randomize_coupling, tiny_config, tokens, transformers
from coupledqk import VARIANTS, CoupledQKError, DynamicsConfig
from coupledqk.coupling.adapters import load_coupling, save_coupling
from coupledqk.coupling.couple import couple, uncouple
from coupledqk.coupling.versions import require_transformers
from coupledqk.dynamics import Dynamics

TOLERANCE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}


@torch.no_grad()
def new_tokens(model: Any, **kwargs: Any) -> Tensor:
    ids = tokens(2, 5)
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, **kwargs)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3_text", "cohere2", "bert"])
def test_generate_is_the_same_with_a_dynamic_cache_a_static_one_and_none(architecture: str) -> None:
    model = coupled(architecture)
    expected = new_tokens(model, use_cache=False)
    assert torch.equal(new_tokens(model), expected)
    assert torch.equal(new_tokens(model, cache_implementation="static", disable_compile=True), expected)


def couplable() -> list[str]:
    """The variants that differ from standard in their dynamics alone."""
    standard = VARIANTS["standard"]
    return [
        name
        for name, attention in VARIANTS.items()
        if attention != standard and attention == dataclasses.replace(standard, dynamics=attention.dynamics)
    ]


@pytest.mark.parametrize("variant", couplable())
def test_every_dynamics_starts_as_the_identity_and_decodes(variant: str) -> None:
    ids, model = tokens(2, 9), couple(fresh(), variant)
    assert torch.equal(logits(model, ids), logits(built("llama"), ids))
    randomize_coupling(model)
    assert not torch.allclose(logits(model, ids), logits(built("llama"), ids), atol=0.01)
    assert torch.equal(new_tokens(model), new_tokens(model, use_cache=False))


@pytest.mark.parametrize("verify", ["auto", "always"])
def test_a_model_coupled_in_inference_mode_can_be_trained(verify: Any, tmp_path: Path) -> None:
    ids, models = tokens(2, 9), [fresh(), fresh()]
    save_coupling(coupled(), tmp_path)
    with torch.inference_mode():
        couple(models[0], verify=verify)
        load_coupling(models[1], tmp_path, verify=verify)
    for model in models:
        model(input_ids=ids, labels=ids).loss.backward()
        assert all(p.grad is not None for name, p in model.named_parameters() if ".coupling." in name)


def test_a_new_coupling_with_fused_dynamics_is_the_identity_too() -> None:
    ids, model = tokens(16, 64), fresh("qwen2")
    before = logits(model, ids)
    couple(model)
    for layer in model.model.layers:
        layer.self_attn.coupling.impl = "fused"
    assert torch.equal(logits(model, ids), before)


def test_other_models_of_the_same_configuration_are_not_coupled() -> None:
    one = fresh()
    other = type(one)(one.config).eval()
    before, ids = logits(other, tokens(2, 9)), tokens(2, 9)
    randomize_coupling(couple(one))
    assert torch.equal(logits(other, ids), before)
    assert one.config.to_dict() == other.config.to_dict()


def test_beam_search_is_the_same_without_a_cache() -> None:
    model = coupled()
    assert torch.equal(new_tokens(model, num_beams=3), new_tokens(model, num_beams=3, use_cache=False))


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    model, ids = coupled().train(), tokens(2, 9)
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *grads))


def test_copies_and_pickles_are_coupled_and_independent() -> None:
    model, ids = coupled(), tokens(2, 9)
    expected = logits(model, ids)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(twin, ids), expected)
        assert torch.equal(logits(uncouple(twin), ids), logits(built("llama"), ids))
    assert torch.equal(logits(model, ids), expected)


def test_a_coupled_model_compiles_to_one_graph() -> None:
    torch.compiler.reset()
    model, ids = coupled(), tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(logits(compiled, ids), logits(model, ids), **TOLERANCE)


def test_the_configured_back_end_receives_the_original_configuration() -> None:
    """Flash attention reads the kernel to use from the configuration of the module. A substitute needs no GPU."""
    seen = []

    def spy(module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(module.config._attn_implementation)
        return transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"](module, *args, **kwargs)

    transformers.AttentionInterface.register("spy", spy)
    transformers.AttentionMaskInterface.register("spy", transformers.masking_utils.sdpa_mask)
    model, ids = coupled(), tokens(2, 9)
    expected = logits(model, ids)
    model.set_attn_implementation("spy")
    assert torch.equal(logits(model, ids), expected)
    assert seen == ["spy"] * 2


def test_the_coupling_has_the_dtype_of_the_model() -> None:
    model = couple(fresh().to(torch.bfloat16))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(logits(model, tokens(2, 9)), logits(fresh().to(torch.bfloat16), tokens(2, 9)))


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("method", ["euler", "leapfrog", "semi_implicit"])
def test_dynamics_of_a_single_token_are_the_same_without_gradients(method: Any, key_heads: int) -> None:
    dynamics = Dynamics(DynamicsConfig(method=method, gate=True, force_std=0.3), 8, key_heads)
    with torch.no_grad():
        dynamics.gate.copy_(torch.randn(key_heads))  # pyright: ignore[reportOptionalMemberAccess]
        q, k = torch.randn(2, 1, 4, 8), torch.randn(2, 1, key_heads, 8)
        decoded = dynamics(q, k)
    for x, y in zip(decoded, dynamics(q, k), strict=True):
        torch.testing.assert_close(x, y.detach())


def test_attention_weights_can_be_returned() -> None:
    model = coupled()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(tokens(2, 9), output_attentions=True).attentions
    assert [w.shape for w in weights] == [(2, 4, 9, 9)] * 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({}, "does not use .* attention interface"),
    "gptj": ({}, "does not use .* attention interface"),
    "deepseek_v3": ({}, r"latent attention \(MLA\)"),
    "gemma3n_text": (
        {"num_kv_shared_layers": 1, "layer_types": ["full_attention"] * 2, "vocab_size_per_layer_input": 64},
        "can take its keys from another layer",
    ),
    "gpt2": ({"add_cross_attention": True}, "is cross-attention"),
    "bart": ({}, "is cross-attention"),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_unsupported_models_are_rejected_with_the_reason_and_left_unchanged(architecture: str) -> None:
    settings, reason = REFUSED[architecture]
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(architecture, **settings))
    names = list(model.state_dict())
    with pytest.raises(CoupledQKError, match=f"cannot be coupled: its .*Attention .*{reason}"):
        couple(model)
    assert list(model.state_dict()) == names


def test_a_model_without_weights_is_refused() -> None:
    with torch.device("meta"):
        model = type(built("llama"))(built("llama").config)
    with pytest.raises(CoupledQKError, match="on the meta device and has no weights: load them, then couple"):
        couple(model)


def test_coupling_on_the_meta_device_is_refused() -> None:
    model = fresh()
    with torch.device("meta"), pytest.raises(CoupledQKError, match="built on the meta device: couple outside"):
        couple(model)
    assert not any(".coupling." in name for name in model.state_dict())


def test_coupling_twice_and_uncoupling_what_is_not_coupled_are_refused() -> None:
    model, ids = coupled(), tokens(2, 9)
    expected = logits(model, ids)
    with pytest.raises(CoupledQKError, match=r"coupled already: call uncouple\(model\) first"):
        couple(model)
    assert torch.equal(logits(model, ids), expected)
    with pytest.raises(CoupledQKError, match=r"not coupled: call couple\(model\) first"):
        uncouple(fresh())


@pytest.mark.parametrize(
    ("variant", "settings", "reason"),
    [
        ("eular", {}, "did you mean 'euler'"),
        ("standard", {}, "no dynamics to couple with"),
        ("diff", {}, "no dynamics to couple with"),
        ("hamiltonian_diff", {}, "heads and scoring are the model's own: choose 'hamiltonian'"),
        ("euler_gqa", {}, "heads and scoring are the model's own: choose 'euler'"),
        ("euler", {"gate": False}, "starts as it is"),
        ("euler", {"n_step": 1}, "did you mean 'n_steps'"),
        ("affine", {"n_steps": 1}, "has no effect"),
    ],
)
def test_invalid_settings_are_refused(variant: str, settings: dict, reason: str) -> None:
    model = fresh()
    with pytest.raises(CoupledQKError, match=reason):
        couple(model, variant, **settings)
    assert list(model.state_dict()) == list(built("llama").state_dict())


def test_a_model_with_dynamics_of_its_own_is_refused() -> None:
    kind = pytest.importorskip("coupledqk.hf")
    settings = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "vocab_size": 64}
    with pytest.raises(CoupledQKError, match="has dynamics of its own: select them in its configuration"):
        couple(kind.CoupledQKForCausalLM(kind.CoupledQKConfig(**settings)))


def test_a_module_that_is_not_a_transformers_model_is_refused() -> None:
    with pytest.raises(CoupledQKError, match="a Linear is not a model of transformers"):
        couple(torch.nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]


def test_an_unsupported_version_of_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.57.1")
    with pytest.raises(CoupledQKError, match=r"transformers 4\.57\.1 .*pip install 'coupledqk\[hf\]'"):
        couple(model)


@pytest.mark.parametrize("version", ["5.16rc1", "5.15", "5.23.0.dev0+abc"])
def test_release_candidates_and_development_versions_of_transformers_are_accepted(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    require_transformers()
