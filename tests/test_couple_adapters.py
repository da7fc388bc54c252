"""Saving couplings: alone, with the whole model, and with LoRA."""

import copy
import json
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from couplable import TOWERS, coupled, fresh, logits, randomize_coupling, tiny_config, tokens, transformers
from coupledqk import CoupledQKError
from coupledqk.coupling.adapters import load_coupling, merge_coupling, save_coupling
from coupledqk.coupling.checkpoints import LostCouplingWarning, guard_checkpoints, load_coupled
from coupledqk.coupling.couple import couple, dynamics_of, uncouple
from coupledqk.coupling.peft_guard import guard_peft
from coupledqk.coupling.settings import to_table


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Progress bars and load reports would fill the tests' output; our warnings do not go through that logger."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    guard_checkpoints()
    guard_peft()
    yield
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_progress_bar()


def test_the_files_hold_the_coupling_and_nothing_else(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = coupled("llama", "affine")
    save_coupling(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coupling.safetensors", "coupling.toml"]
    names = {name for name, _ in model.named_parameters() if ".coupling." in name}
    assert load_file(tmp_path / "coupling.safetensors").keys() == names
    settings = tomllib.loads((tmp_path / "coupling.toml").read_text())
    assert (settings["model_type"], settings["dynamics"]["method"]) == ("llama", "affine")
    save_coupling(model, tmp_path)  # again, over the first


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "AutoModelForCausalLM"])
def test_plain_from_pretrained_warns_and_names_load_coupled(kind: str, tmp_path: Path) -> None:
    model, ids = coupled(), tokens(2, 9)
    model.save_pretrained(tmp_path)
    with pytest.warns(LostCouplingWarning, match=r"left its coupling out.*load_coupled\('.*'\)"):
        plain = getattr(transformers, kind).from_pretrained(pretrained_model_name_or_path=tmp_path)
    assert torch.equal(logits(plain, ids), logits(uncouple(model), ids))
    assert not hasattr(plain.config, "coupledqk")  # it is saved as a plain model
    with warnings.catch_warnings(action="error"):
        plain.save_pretrained(tmp_path / "plain")
        type(plain).from_pretrained(tmp_path / "plain")


def test_transformers_itself_reports_the_lost_weights(tmp_path: Path) -> None:
    """This is the only report if coupledqk is not imported."""
    coupled().save_pretrained(tmp_path)
    with pytest.warns(LostCouplingWarning):
        _, info = transformers.LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert "model.layers.0.self_attn.coupling.gate" in info["unexpected_keys"]
    assert json.loads((tmp_path / "config.json").read_text())["coupledqk"]["load_with"] == "coupledqk.hf.load_coupled"


def test_from_pretrained_arguments_reach_the_coupling(tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    model = load_coupled(tmp_path, dtype=torch.bfloat16, attn_implementation="eager")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"


def test_transformers_report_on_the_weights_is_returned_on_request(tmp_path: Path) -> None:
    model, ids = coupled(), tokens(2, 9)
    model.save_pretrained(tmp_path)
    loaded, info = load_coupled(tmp_path, output_loading_info=True)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert isinstance(load_coupled(tmp_path, output_loading_info=False), transformers.LlamaForCausalLM)


def test_a_checkpoint_saved_after_loading_is_the_same(tmp_path: Path) -> None:
    model, ids = coupled(), tokens(2, 9)
    model.save_pretrained(tmp_path / "one")
    load_coupled(tmp_path / "one").save_pretrained(tmp_path / "two")
    assert torch.equal(logits(load_coupled(tmp_path / "two"), ids), logits(model, ids))


def test_a_trainer_resumes_a_coupled_model_bit_identically(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    rows = [{"input_ids": row, "labels": row} for row in tokens(8, 9)]
    arguments = transformers.TrainingArguments(
        tmp_path,
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    models = []
    for start in (None, str(tmp_path / "checkpoint-2")):
        models.append(couple(fresh()))
        with warnings.catch_warnings(action="error", category=LostCouplingWarning):
            transformers.Trainer(models[-1], arguments, train_dataset=rows).train(resume_from_checkpoint=start)
    assert all(map(torch.equal, *(model.state_dict().values() for model in models)))


def test_weights_of_another_coupling_are_refused_by_load_state_dict() -> None:
    model = couple(fresh(), n_steps=1)
    with pytest.raises(CoupledQKError, match="n_steps=3, and this model is coupled with n_steps=1"):
        model.load_state_dict(coupled().state_dict())
    old = {name: tensor for name, tensor in coupled().state_dict().items() if not name.endswith(".settings")}
    couple(fresh()).load_state_dict(old)  # as written before settings were recorded


def test_weights_are_loaded_into_a_model_that_has_none_yet() -> None:
    """The weights are not compared with the settings in the buffer, which has no values either."""
    model, ids = coupled(), tokens(2, 9)
    weights, rotary = model.state_dict(), model.model.rotary_emb
    for empty in (lambda m: m.to("meta"), lambda m: m.to_empty(device="cpu")):
        copied = empty(copy.deepcopy(model))
        copied.model.rotary_emb = rotary
        with pytest.raises(CoupledQKError, match="belongs to a coupling with method='leapfrog'"):
            copied.load_state_dict(couple(fresh(), "hamiltonian").state_dict(), assign=True)
        copied.load_state_dict(weights, assign=True)
        assert torch.equal(logits(copied, ids), logits(model, ids))


def test_merging_the_coupling_is_refused_with_the_reason() -> None:
    with pytest.raises(CoupledQKError, match=r"nonlinear.*save_coupling"):
        merge_coupling(coupled())


def change_format(folder: Path) -> None:
    path = folder / "coupling.toml"
    path.write_text(path.read_text().replace("format = 1", "format = 99"))


def damage_weights(folder: Path) -> None:
    path = folder / "coupling.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def spoil_numbers(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "coupling.safetensors")
    next(iter(tensors.values())).fill_(float("nan"))
    save_file(tensors, folder / "coupling.safetensors")


def make_integers(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "coupling.safetensors")
    save_file({name: tensor.int() for name, tensor in tensors.items()}, folder / "coupling.safetensors")


SPOILT = {
    "integers": (make_integers, r"as torch\.int32, expected floating point"),
    "format 0": (
        lambda folder: (folder / "coupling.toml").write_text('format = 0\n[dynamics]\nmethod = "euler"'),
        "does not hold the settings",
    ),
    "damaged": (damage_weights, r"coupling\.safetensors is damaged \(.*\): save the coupling again"),
    "not finite": (spoil_numbers, r"has NaN or infinite values in model\.layers\.0\.self_attn\.coupling"),
    "no file": (lambda folder: (folder / "coupling.toml").unlink(), "has no coupling.toml"),
    "newer": (change_format, r"format 99 .* reads up to 1: pip install --upgrade"),
    "no TOML": (lambda folder: (folder / "coupling.toml").write_text("{"), "not a TOML"),
    "no settings": (lambda folder: (folder / "coupling.toml").write_text(""), "does not hold the settings"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_adapter_is_rejected_and_the_model_unchanged(how: str, tmp_path: Path) -> None:
    save_coupling(coupled(), tmp_path)
    spoil, reason = SPOILT[how]
    spoil(tmp_path)
    model = fresh()
    with pytest.raises(CoupledQKError, match=reason):
        load_coupling(model, tmp_path)
    assert list(model.state_dict()) == list(fresh().state_dict())


def test_an_adapter_of_another_shape_is_rejected_and_the_model_unchanged(tmp_path: Path) -> None:
    wide = type(fresh())(tiny_config("llama", head_dim=16))
    save_coupling(couple(wide), tmp_path)
    model = fresh()
    with pytest.raises(CoupledQKError, match=r"w1 has the shape \(16, 16\) where the model needs \(8, 8\)"):
        load_coupling(model, tmp_path)
    with pytest.raises(CoupledQKError, match=r"model of type 'llama', and this GPT2LMHeadModel is of type 'gpt2'"):
        load_coupling(fresh("gpt2"), tmp_path)
    assert list(model.state_dict()) == list(fresh().state_dict())


def test_saving_an_uncoupled_model_and_loading_into_a_coupled_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match="not coupled"):
        save_coupling(fresh(), tmp_path)
    save_coupling(coupled(), tmp_path)
    with pytest.raises(CoupledQKError, match="coupled already"):
        load_coupling(coupled(), tmp_path)


def test_folders_that_hold_no_coupled_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match=r"no config\.json"):
        load_coupled(tmp_path)
    fresh().save_pretrained(tmp_path)
    with pytest.raises(CoupledQKError, match=r"does not contain a coupled model: load it with from_pretrained"):
        load_coupled(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"coupledqk": to_table(dynamics_of("euler", {}))}))
    with pytest.raises(CoupledQKError, match="lacks weights of its coupling"):
        load_coupled(tmp_path)


def hub_cache(cache: Path, repository: str) -> Path:
    """The folder that huggingface_hub keeps a downloaded repository in."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    return folder / "snapshots" / ("0" * 40)


def test_couplings_and_coupled_models_are_loaded_by_hub_id(tmp_path: Path) -> None:
    model, ids = coupled(), tokens(2, 9)
    save_coupling(model, hub_cache(tmp_path, "user/coupling"))
    model.save_pretrained(hub_cache(tmp_path, "user/whole"))
    options: dict[str, Any] = {"cache_dir": tmp_path, "local_files_only": True}
    assert torch.equal(logits(load_coupling(fresh(), "user/coupling", **options), ids), logits(model, ids))
    assert torch.equal(logits(load_coupled("user/whole", **options), ids), logits(model, ids))
    with pytest.raises(CoupledQKError, match="user/nothing is neither a folder nor a coupling on the hub"):
        load_coupling(fresh(), "user/nothing", **options)
    with pytest.raises(CoupledQKError, match=r"the config\.json of user/nothing cannot be read"):
        load_coupled("user/nothing", **options)


def test_a_model_whose_inner_model_was_coupled_is_saved_and_loaded(tmp_path: Path) -> None:
    model, ids = fresh(), tokens(2, 9)
    couple(model.model)
    randomize_coupling(model).save_pretrained(tmp_path)
    assert not hasattr(model.config, "coupledqk")
    assert torch.equal(logits(load_coupled(tmp_path), ids), logits(model, ids))


def test_damaged_and_missing_weights_of_a_coupled_model_give_one_line_errors(tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(
        CoupledQKError, match=r"weights of .* cannot be read \(.*deserializing header.*save the model again"
    ):
        load_coupled(tmp_path)
    weights.unlink()
    with pytest.raises(CoupledQKError, match=r"weights of .* cannot be read \(.*no file named model\.safetensors"):
        load_coupled(tmp_path)


def test_a_configuration_that_names_no_attention_module_is_refused(tmp_path: Path) -> None:
    model = fresh()
    couple(model.model)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for modules, reason in {
        ("model.layers.7.self_attn",): r"LlamaForCausalLM has no module 'model\.layers\.7\.self_attn' to couple",
        ("model.norm",): "its LlamaRMSNorm does not use transformers' attention interface",
        3: r"config\.json: coupledqk\.modules=3: expected a list",
    }.items():
        config["coupledqk"]["modules"] = modules
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CoupledQKError, match=reason):
            load_coupled(tmp_path)


def test_parts_that_are_coupled_with_different_settings_are_not_saved_together(tmp_path: Path) -> None:
    text, image = TOWERS["clip_text_model"][1], TOWERS["clip_vision_model"][1]
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=16))
    couple(model.text_model, n_steps=1)
    couple(model.vision_model, n_steps=2)
    for save in (save_coupling, type(model).save_pretrained):
        with pytest.raises(CoupledQKError, match="coupled with different settings: save each part on its own"):
            save(model, tmp_path)


def test_a_checkpoint_with_nan_in_its_coupling_is_refused(tmp_path: Path) -> None:
    model = coupled()
    model.model.layers[1].self_attn.coupling.gate.data[0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(CoupledQKError, match=r"NaN or infinite weights in model\.layers\.1\.self_attn\.coupling\.gate"):
        load_coupled(tmp_path)


def test_a_configuration_that_does_not_match_the_weights_is_refused(tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    with pytest.raises(CoupledQKError, match=r"shapes of the weights are not those of config\.json"):
        load_coupled(tmp_path)


def test_a_checkpoint_saved_before_settings_were_recorded_is_loaded(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, ids = coupled(), tokens(2, 9)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name: tensor for name, tensor in tensors.items() if not name.endswith(".settings")}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_coupled(tmp_path)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))
