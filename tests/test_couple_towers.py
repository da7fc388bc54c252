"""Bidirectional models and the towers of multimodal models have the same guarantees as causal language models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from couplable import TOWERS, built_tower, fresh_tower, randomize_coupling, tokens, transformers
from coupledqk import CoupledQKError, couple, uncouple
from coupledqk.coupling.adapters import load_coupling, save_coupling
from coupledqk.coupling.checkpoints import guard_checkpoints, load_coupled
from coupledqk.coupling.couple import coupled_modules
from coupledqk.coupling.small import example_inputs

each_tower = pytest.mark.parametrize("name", TOWERS)
TEXTS = ("bert", "roberta", "modernbert")
BLOCKS: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT: dict[str, Any] = {**BLOCKS, "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE: dict[str, Any] = {**BLOCKS, "image_size": 16, "patch_size": 4}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    guard_checkpoints()
    yield
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_progress_bar()


@torch.no_grad()
def states(model: Any, **inputs: Any) -> Tensor:
    return model(**(inputs or example_inputs(model))).last_hidden_state


@each_tower
def test_a_new_coupling_changes_no_bit_and_uncoupling_restores_the_output(name: str) -> None:
    model = fresh_tower(name)
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        before = states(model)
        assert torch.equal(states(couple(model)), before)
        randomize_coupling(model)
        assert not torch.allclose(states(model), before, atol=1e-3)
        assert torch.equal(states(uncouple(model)), before)


@each_tower
def test_every_parameter_of_the_coupling_has_a_gradient(name: str) -> None:
    model = randomize_coupling(couple(fresh_tower(name).requires_grad_(False)))
    model(**example_inputs(model)).last_hidden_state.pow(3).sum().backward()
    learning = [p for p in model.parameters() if p.requires_grad]
    assert learning
    assert all(p.grad.isfinite().all() and p.grad.any() for p in learning)


@pytest.mark.parametrize("name", TEXTS)
def test_padding_on_the_right_does_not_change_the_output(name: str) -> None:
    model, ids = randomize_coupling(couple(fresh_tower(name))), tokens(2, 9)
    real = torch.ones_like(ids)
    real[1, 5:] = 0
    padded = states(model, input_ids=ids.masked_fill(real == 0, 0), attention_mask=real)
    torch.testing.assert_close(padded[1, :5], states(model, input_ids=ids[1:, :5])[0], rtol=1e-3, atol=1e-4)


@each_tower
def test_couplings_are_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = randomize_coupling(couple(fresh_tower(name)))
    save_coupling(model, tmp_path)
    assert torch.equal(states(load_coupling(fresh_tower(name), tmp_path)), states(model))


def llava() -> Any:
    vision = {**IMAGE, "model_type": "clip_vision_model"}
    text = {**TEXT, "model_type": "llama", "num_key_value_heads": 2, "initializer_range": 0.4}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=60)
    torch.manual_seed(0)
    return transformers.LlavaForConditionalGeneration(config).eval()


@pytest.mark.parametrize("part", ["the whole", "its text model"])
def test_a_multimodal_model_is_coupled_in_its_text_model_and_saved_as_a_whole(part: str, tmp_path: Path) -> None:
    model, ids = llava(), tokens(2, 9) % 50
    couple(model if part == "the whole" else model.model.language_model)
    assert all(".language_model." in name for name in coupled_modules(model))
    with torch.no_grad():
        expected = randomize_coupling(model)(ids).logits
        model.save_pretrained(tmp_path)
        assert torch.equal(load_coupled(tmp_path)(ids).logits, expected)


def test_both_towers_of_clip_are_coupled_separately_and_saved_together(tmp_path: Path) -> None:
    text, vision = {**TEXT, "model_type": "clip_text_model"}, {**IMAGE, "model_type": "clip_vision_model"}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = transformers.CLIPModel(config).eval()
    couple(model.text_model)
    couple(model.vision_model)
    inputs = {"input_ids": tokens(2, 9), "pixel_values": torch.randn(2, 3, 16, 16)}
    with torch.no_grad():
        expected = randomize_coupling(model)(**inputs).logits_per_image
        model.save_pretrained(tmp_path)
        loaded = load_coupled(tmp_path)
        assert len(coupled_modules(loaded)) == 4
        assert torch.equal(loaded(**inputs).logits_per_image, expected)


def test_whisper_is_coupled_in_its_encoder(tmp_path: Path) -> None:
    settings = {name: value for name, value in TOWERS["whisper"][1].items() if name != "max_position_embeddings"}
    model = transformers.WhisperModel(transformers.WhisperConfig(**settings)).eval()
    with pytest.raises(CoupledQKError, match="WhisperModel cannot be coupled: its WhisperAttention is cross-attention"):
        couple(model)
    couple(model.encoder)
    randomize_coupling(model).save_pretrained(tmp_path)
    assert list(coupled_modules(load_coupled(tmp_path))) == list(coupled_modules(model))


def test_an_encoder_passes_the_check() -> None:
    model = couple(fresh_tower("vit"), verify="always")
    assert torch.equal(states(model), states(built_tower("vit")))


T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
AUDIO: dict[str, Any] = {
    **BLOCKS, "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
}  # fmt: skip
CHECKED: dict[str, dict[str, Any]] = {
    "T5Encoder": T5,  # its class is also that of the decoder, which has a cache
    "Wav2Vec2": AUDIO,  # samples as input
    "MLCDVision": {**IMAGE, "num_key_value_groups": 1},  # rotates before its heads are brought to the front
    "DINOv3ViT": IMAGE,  # its inner model has no embedding
    "DeiT": {**IMAGE, "image_size": (16, 24)},  # images that are not square
    "ViTMAE": {**IMAGE, "mask_ratio": 0.5},  # draws a random mask
    "Idefics3VisionTransformer": IMAGE,  # names the wrong main input
}
"""Encoders that the self-check has to run in different ways."""


@pytest.mark.parametrize("name", CHECKED)
def test_encoders_with_unusual_inputs_or_classes_pass_the_check(name: str) -> None:
    kind = getattr(transformers, f"{name}Model", None) or getattr(transformers, name)
    model = kind(kind.config_class(**CHECKED[name])).eval()
    inputs = example_inputs(model)
    with torch.no_grad():
        torch.manual_seed(0)
        before = model(**inputs)[0]
        couple(model)
        torch.manual_seed(0)
        assert torch.equal(model(**inputs)[0], before)
    assert len(coupled_modules(model)) == 2


def test_a_coupled_encoder_is_checked_separately_when_the_whole_model_is_loaded(tmp_path: Path) -> None:
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0)).eval()
    inputs = {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 5)}
    couple(model.encoder)
    randomize_coupling(model).save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(load_coupled(tmp_path)(**inputs).logits, model(**inputs).logits)


def test_inputs_that_the_check_cannot_generate_are_named() -> None:
    vision = {"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 4, "patch_size": 4}
    kind = transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel
    with pytest.raises(CoupledQKError, match="self-check cannot generate its input hidden_states, grid_thw"):
        couple(kind(kind.config_class(**vision)))


@pytest.mark.parametrize(("name", "settings"), [("T5Model", T5), ("InstructBlipQFormerModel", TEXT)])
def test_models_with_cross_attention_are_refused(name: str, settings: dict[str, Any]) -> None:
    kind = getattr(transformers, name)
    with pytest.raises(CoupledQKError, match="is cross-attention"):
        couple(kind(kind.config_class(**settings)), verify="never")
