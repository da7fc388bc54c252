"""Couplings of models whose weights are offloaded or quantized."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from couplable import coupled, fresh, logits, randomize_coupling, tokens
from coupledqk import CoupledQKError
from coupledqk.hf import couple, load_coupled, load_coupling, save_coupling, uncouple


@pytest.mark.parametrize("variant", ["euler", "affine"])
def test_a_coupled_model_can_be_offloaded_and_its_coupling_saved(variant: str, tmp_path: Path) -> None:
    """Fast implementations read the weights of the force directly, which an offloaded module does not have."""
    accelerate: Any = pytest.importorskip("accelerate")
    model, ids = coupled("llama", variant), tokens(2, 9)
    expected, one_token = logits(model, ids), logits(model, ids[:1, :1])
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert all(p.is_meta for name, p in model.named_parameters() if ".coupling." in name)
    torch.testing.assert_close(logits(model, ids), expected)
    torch.testing.assert_close(logits(model, ids[:1, :1]), one_token)
    save_coupling(model, tmp_path)
    assert torch.equal(logits(load_coupling(fresh(), tmp_path), ids), expected)


def test_a_coupled_model_can_be_loaded_partly_to_disk(tmp_path: Path) -> None:
    model, ids = coupled(), tokens(2, 9)
    model.save_pretrained(tmp_path / "model")
    parts = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    loaded = load_coupled(tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk")
    assert loaded.model.layers[1].self_attn.coupling.force.w1.is_meta
    torch.testing.assert_close(logits(loaded, ids), logits(model, ids))


class Int8Linear(torch.nn.Module):
    """A quantized projection: it computes in float32 and has no parameters."""

    weight: Tensor

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        weight = linear.weight.detach()
        self.scale = float(weight.abs().max()) / 127
        self.register_buffer("weight", (weight / self.scale).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).T


def test_a_quantized_model_is_coupled_in_its_compute_precision() -> None:
    model, ids = fresh(), tokens(2, 9)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Int8Linear(getattr(layer.self_attn, name)))
    before = logits(model, ids)
    couple(model, verify="always")
    assert torch.equal(logits(model, ids), before)
    assert {p.dtype for name, p in model.named_parameters() if ".coupling." in name} == {torch.float32}
    assert not torch.allclose(logits(randomize_coupling(model), ids), before, atol=0.01)
    assert torch.equal(logits(uncouple(model), ids), before)


class ForwardOnly(Int8Linear):
    """A projection that is quantized for inference."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


def test_a_model_quantized_for_inference_is_refused_since_its_coupling_cannot_be_trained(tmp_path: Path) -> None:
    model, ids = fresh(), tokens(2, 9)
    save_coupling(coupled(), tmp_path)
    for layer in model.model.layers:
        layer.self_attn.o_proj = ForwardOnly(layer.self_attn.o_proj)
    before = logits(model, ids)
    with pytest.raises(CoupledQKError, match=r"'gradients' failed: none reaches .*, in .* are quantized"):
        couple(model)
    assert torch.equal(logits(model, ids), before)
    load_coupling(model, tmp_path, verify="never")  # a trained coupling can be used
    assert not torch.allclose(logits(model, ids), before, atol=0.01)


def test_an_offloaded_model_is_coupled_on_its_execution_device() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    model, ids = fresh(), tokens(2, 9)
    before = logits(model, ids)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.model.layers[0].self_attn.q_proj.weight.is_meta
    couple(model, verify="always")
    assert torch.equal(logits(model, ids), before)
    randomize_coupling(model)
    torch.testing.assert_close(logits(model, ids), logits(coupled(), ids))
    uncouple(model)
    assert torch.equal(logits(model, ids), before)
