"""PEFT's adapters in coupled models: they include the coupling, and are refused by models with another coupling."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from couplable import coupled, fresh, logits, randomize_coupling, tiny_config, tokens, transformers
from coupledqk import CoupledQKError
from coupledqk.coupling.adapters import load_coupling, save_coupling
from coupledqk.coupling.couple import couple, uncouple
from coupledqk.coupling.peft_guard import UncoupledAdapterWarning
from test_couple_adapters import _quiet  # noqa: F401 (a fixture)


def lora(model: Any) -> Any:
    peft: Any = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["v_proj"], modules_to_save=["coupling"], init_lora_weights=False)
    return peft.get_peft_model(model, config)


def test_lora_trains_and_saves_the_coupling_with_it(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    model, ids = lora(couple(fresh())), tokens(2, 9)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or ".coupling." in name for name in trainable)
    randomize_coupling(model)
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    model.eval().save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(couple(fresh()), tmp_path).eval()
    assert torch.equal(logits(loaded, ids), logits(model, ids))


def saved_lora(folder: Path, **settings: Any) -> Any:
    model = randomize_coupling(lora(couple(fresh(), **settings))).eval()
    model.save_pretrained(folder)
    return model


def test_a_peft_adapter_is_refused_by_a_model_that_is_not_coupled(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    saved_lora(tmp_path)
    with pytest.raises(CoupledQKError, match=r"the adapter has weights of a coupling .* couple the model"):
        peft.PeftModel.from_pretrained(fresh(), tmp_path)
    with pytest.raises(CoupledQKError, match=r"the adapter has weights of a coupling .* couple the model"):
        fresh().load_adapter(str(tmp_path))


def test_a_peft_adapter_is_refused_by_a_model_that_is_coupled_differently(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    saved_lora(tmp_path, n_steps=2)
    reason = r"coupling with n_steps=2, and this model is coupled with n_steps=3"
    with pytest.raises(CoupledQKError, match=reason):
        peft.PeftModel.from_pretrained(couple(fresh()), tmp_path)
    with pytest.raises(CoupledQKError, match=reason):
        couple(fresh()).load_adapter(str(tmp_path))


def test_a_peft_adapter_with_nan_in_its_coupling_is_refused(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    model = randomize_coupling(lora(couple(fresh())))
    next(p for name, p in model.named_parameters() if "coupling" in name and p.requires_grad).data.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    with pytest.raises(CoupledQKError, match=r"the adapter has NaN or infinite values in .*coupling"):
        peft.PeftModel.from_pretrained(couple(fresh()), tmp_path)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_damaged_peft_adapter_is_refused_by_name(name: str, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    saved_lora(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:100])
    for load in (
        lambda: peft.PeftModel.from_pretrained(couple(fresh()), tmp_path),
        lambda: couple(fresh()).load_adapter(str(tmp_path)),
    ):
        with pytest.raises(CoupledQKError, match=rf"{tmp_path.name}.* is damaged \(.*\): save or download"):
            load()


@pytest.mark.parametrize("variant", ["euler", "affine"])
def test_an_adapter_without_a_coupling_warns_if_the_models_coupling_has_an_effect(variant: str, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    peft.get_peft_model(fresh(), peft.LoraConfig(r=2, target_modules=["v_proj"])).save_pretrained(tmp_path)
    with warnings.catch_warnings(action="error", category=UncoupledAdapterWarning):
        peft.PeftModel.from_pretrained(fresh(), tmp_path)
        peft.PeftModel.from_pretrained(couple(fresh(), variant), tmp_path)  # still the identity
    with pytest.warns(UncoupledAdapterWarning, match=r"trained without a coupling.*uncoupled model"):
        peft.PeftModel.from_pretrained(coupled("llama", variant), tmp_path)
    with pytest.warns(UncoupledAdapterWarning, match=r"trained without a coupling.*uncoupled model"):
        coupled("llama", variant).load_adapter(str(tmp_path))


def frozen_coupling(seed: int) -> Any:
    """LoRA on a model with a trained coupling, which PEFT freezes because `modules_to_save` does not name it."""
    peft: Any = pytest.importorskip("peft")
    model = coupled()
    generator = torch.Generator().manual_seed(seed)
    for gate in (parameter for name, parameter in model.named_parameters() if name.endswith("coupling.gate")):
        gate.data = torch.randn(gate.shape, generator=generator)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)).eval()


def test_an_adapter_includes_the_coupling_that_it_was_trained_with_even_if_frozen(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    model, ids = frozen_coupling(0), tokens(2, 9)
    assert not any(".coupling." in name for name, p in model.named_parameters() if p.requires_grad)
    model.save_pretrained(tmp_path / "one")
    loaded = peft.PeftModel.from_pretrained(couple(fresh()), tmp_path / "one").eval()
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    by_transformers = couple(fresh())
    by_transformers.load_adapter(str(tmp_path / "one"))
    assert torch.equal(logits(by_transformers, ids), logits(model, ids))
    with pytest.raises(CoupledQKError, match=r"the adapter has weights of a coupling .* couple the model"):
        peft.PeftModel.from_pretrained(fresh(), tmp_path / "one")
    frozen_coupling(1).save_pretrained(tmp_path / "other")
    with pytest.raises(CoupledQKError, match="trained with another coupling than the one that is loaded already"):
        loaded.load_adapter(tmp_path / "other", "other")


def test_a_frozen_coupling_is_not_lost_beside_an_adapter_with_its_own_coupling(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    own, frozen, ids = saved_lora(tmp_path / "own"), frozen_coupling(0), tokens(2, 9)
    frozen.save_pretrained(tmp_path / "frozen")
    loaded = peft.PeftModel.from_pretrained(couple(fresh()), tmp_path / "own")
    with pytest.raises(CoupledQKError, match="trained with another coupling than the one that is loaded already"):
        loaded.load_adapter(tmp_path / "frozen", "frozen")
    other = peft.PeftModel.from_pretrained(couple(fresh()), tmp_path / "frozen").eval()
    other.load_adapter(tmp_path / "own", "own")
    assert torch.equal(logits(other, ids), logits(frozen, ids))
    other.set_adapter("own")
    assert torch.equal(logits(other, ids), logits(own, ids))


def test_an_adapter_added_by_transformers_includes_the_coupling_too(tmp_path: Path) -> None:
    """`add_adapter` freezes the coupling, and `save_pretrained` then writes the adapter alone."""
    peft: Any = pytest.importorskip("peft")
    ids, loaded = tokens(2, 9), fresh()
    for folder, model in {"one": coupled(), "other": randomize_coupling(coupled())}.items():
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False))
        model.save_pretrained(tmp_path / folder)
        loaded = couple(fresh())
        loaded.load_adapter(str(tmp_path / folder))
        assert torch.equal(logits(loaded, ids), logits(model, ids))
    with pytest.raises(CoupledQKError, match=r"the adapter has weights of a coupling .* couple the model"):
        fresh().load_adapter(str(tmp_path / "one"))
    with pytest.raises(CoupledQKError, match="trained with another coupling than the one that is loaded already"):
        loaded.load_adapter(str(tmp_path / "one"), adapter_name="second")


def test_transformers_own_load_adapter_loads_a_coupling(tmp_path: Path) -> None:
    expected = logits(saved_lora(tmp_path), tokens(2, 9))
    model = couple(fresh())
    model.load_adapter(str(tmp_path))
    torch.testing.assert_close(logits(model, tokens(2, 9)), expected)


@pytest.mark.parametrize("imported", ["before", "after"])
def test_peft_is_patched_in_either_order_of_import(imported: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    order = ["import peft", "import coupledqk.hf"]
    lines = [
        *(order if imported == "before" else reversed(order)),
        "import peft.peft_model, sys",
        "assert hasattr(peft.peft_model.set_peft_model_state_dict, 'guards_couplings')",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_merging_lora_keeps_the_coupling(tmp_path: Path) -> None:
    model, ids = randomize_coupling(lora(couple(fresh()))).eval(), tokens(2, 9)
    expected = logits(model, ids)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, ids), expected, rtol=1e-4, atol=1e-4)
    save_coupling(merged, tmp_path)
    plain = uncouple(merged)
    assert not torch.allclose(logits(plain, ids), expected, atol=0.01)
    torch.testing.assert_close(logits(load_coupling(plain, tmp_path), ids), expected, rtol=1e-4, atol=1e-4)


def test_a_model_wrapped_by_peft_is_refused() -> None:
    with pytest.raises(
        CoupledQKError, match=r"a PeftModel is not a model of transformers: pass model\.get_base_model\(\)"
    ):
        couple(lora(couple(fresh())))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_hidden_layers": 3}, r"no coupling for model\.layers\.2\.self_attn, which is coupled in this model"),
        ({"head_dim": 16}, r"coupling\.force\.w1 with the shape \(8, 8\) where this model needs \(16, 16\)"),
    ],
)
def test_a_peft_adapter_of_another_depth_or_head_width_is_refused(settings: Any, reason: str, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    saved_lora(tmp_path)
    other = couple(transformers.LlamaForCausalLM(tiny_config("llama", **settings)))
    with pytest.raises(CoupledQKError, match=reason):
        peft.PeftModel.from_pretrained(other, tmp_path)


def test_a_coupling_trained_with_lora_can_be_saved_without_it(tmp_path: Path) -> None:
    """PEFT keeps the original coupling and trains a copy in its place."""
    model = randomize_coupling(lora(couple(fresh()))).get_base_model()
    save_coupling(model, tmp_path)
    loaded = load_coupling(fresh(), tmp_path)
    for trained, layer in zip(model.model.layers, loaded.model.layers, strict=True):
        coupling = trained.self_attn.coupling.modules_to_save["default"]
        assert all(map(torch.equal, coupling.parameters(), layer.self_attn.coupling.parameters()))
