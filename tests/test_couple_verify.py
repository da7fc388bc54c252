"""The self-check of `couple`: correct unknown architectures pass, and every silent failure is detected and named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from couplable import built, coupled, fresh, logits, tiny_config, tiny_model, tokens, transformers
from coupledqk import CoupledQKError, couple, uncouple
from coupledqk.coupling import insertion, verify
from coupledqk.coupling.adapters import load_coupling, save_coupling
from coupledqk.coupling.architectures import attention_modules, head_shape, is_verified
from coupledqk.coupling.couple import coupled_modules, dynamics_of
from coupledqk.coupling.insertion import CoupledModule
from coupledqk.coupling.small import example_inputs, small_config, small_model

llama: Any = transformers.models.llama.modeling_llama
attention_functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
turn = llama.apply_rotary_pos_emb
"""RoPE under an unrelated name."""


def project(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*x.shape[:-1], -1, module.head_dim)
    q, k, v = (p(x).view(shape).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
    return q, k, v


def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Any]:
    interface = attention_functions.get_interface(module.config._attn_implementation, llama.eager_attention_forward)
    out, weights = interface(module, q, k, v, mask, scaling=module.scaling)
    return module.o_proj(out.flatten(2)), weights


class NewAttention(llama.LlamaAttention):
    """An attention class of a hypothetical future release, with different names."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        queries, keys, values = project(self, hidden_states)
        queries, keys = llama.apply_rotary_pos_emb(queries, keys, *position_embeddings)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        return attend(self, queries, keys, values, attention_mask)


class HiddenRotationAttention(llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        queries, keys, values = project(self, hidden_states)
        queries, keys = turn(queries, keys, *position_embeddings)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        return attend(self, queries, keys, values, attention_mask)


class HiddenCacheAttention(llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        queries, keys, values = project(self, hidden_states)
        store = past_key_values.update if past_key_values is not None else lambda keys, values, layer: (keys, values)
        queries, keys = turn(queries, keys, *position_embeddings)
        keys, values = store(keys, values, self.layer_idx)
        return attend(self, queries, keys, values, attention_mask)


class SkippedLayerAttention(llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        queries, keys, values = project(self, hidden_states)
        plain = queries, keys
        queries, keys = llama.apply_rotary_pos_emb(queries, keys, *position_embeddings)
        if self.layer_idx == 1:
            queries, keys = llama.apply_rotary_pos_emb(*plain, *position_embeddings)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        return attend(self, queries, keys, values, attention_mask)


class NoEffectAttention(llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        queries, keys, values = project(self, hidden_states)
        plain = queries, keys
        queries, keys = llama.apply_rotary_pos_emb(queries, keys, *position_embeddings)
        queries, keys = llama.apply_rotary_pos_emb(*plain, *position_embeddings)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        return attend(self, queries, keys, values, attention_mask)


def model_of(attention: type[Any]) -> Any:
    """A model whose class builds that attention, as the self-check needs it."""

    def build(self: Any, config: Any) -> None:
        llama.LlamaModel.__init__(self, config)
        for layer in self.layers:
            layer.self_attn.__class__ = attention

    torch.manual_seed(0)
    return type("NewModel", (llama.LlamaModel,), {"__init__": build})(tiny_config("llama")).eval()


@torch.no_grad()
def states(model: Any) -> Tensor:
    return model(tokens(2, 9)).last_hidden_state


def assert_refused(model: Any, reason: str, **kwargs: Any) -> None:
    before, kinds, names = states(model), list(map(type, model.modules())), list(model.state_dict())
    with pytest.raises(CoupledQKError, match=f'NewModel cannot be coupled: the self-check {reason}.*verify="never"'):
        couple(model, **kwargs)
    assert list(map(type, model.modules())) == kinds
    assert list(model.state_dict()) == names
    assert torch.equal(states(model), before)


def test_an_untested_architecture_is_coupled_after_the_check() -> None:
    model = model_of(NewAttention)
    assert not any(map(is_verified, attention_modules(model).values()))
    before = states(model)
    assert len(coupled_modules(couple(model))) == 2
    assert torch.equal(states(model), before)


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (HiddenRotationAttention, "'relative positions' failed"),
        (HiddenCacheAttention, "'decoding' failed"),
        (SkippedLayerAttention, "'gradients' failed: that of 1"),
        (NoEffectAttention, "'effect' failed"),
    ],
)
def test_an_architecture_that_would_be_coupled_incorrectly_is_refused(attention: type[Any], reason: str) -> None:
    model = model_of(attention)
    assert_refused(model, reason)
    couple(model, verify="never")
    uncouple(model)


def test_an_architecture_whose_cache_cannot_be_tested_is_refused() -> None:
    """Otherwise its decoding would not be checked: HRM's layers, which run several times, index the cache out of range."""
    model = model_of(NewAttention)
    plain = type(model).forward

    def forward(
        self: Any, input_ids: Any = None, past_key_values: Any = None, use_cache: Any = None, **kwargs: Any
    ) -> Any:
        if use_cache:
            raise IndexError("list index out of range")
        return plain(self, input_ids, past_key_values=past_key_values, use_cache=use_cache, **kwargs)

    type(model).forward = forward
    with pytest.raises(
        CoupledQKError, match=r"could not run the uncoupled model with its cache \(IndexError: list index"
    ):
        couple(model)


def mixing_tokens(self: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    q, k = self.coupling(q.transpose(1, 2), k.transpose(1, 2))
    drift = self.coupling.gate.abs().sum()
    return q.transpose(1, 2) + drift * q.mean(1)[:, :, None], k.transpose(1, 2)


def not_the_identity(self: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return 1.001 * q, k


def without_gradients(self: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    q, k = self.coupling(q.transpose(1, 2), k.transpose(1, 2))
    return q.transpose(1, 2).detach(), k.transpose(1, 2).detach()


@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [
        (mixing_tokens, "'decoding' failed"),
        (not_the_identity, "'identity' failed: a new coupling changes the output under sdpa"),
        (without_gradients, "'gradients' failed: that of 0"),
    ],
)
def test_an_incorrect_mechanism_is_refused(
    mechanism: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoupledModule, "couple_heads", mechanism)
    assert_refused(model_of(NewAttention), reason)


def test_mixing_tokens_in_an_encoder_is_detected_as_dependence_on_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoupledModule, "couple_heads", mixing_tokens)
    model = transformers.AutoModel.from_config(tiny_config("bert", is_decoder=False)).eval()
    with pytest.raises(CoupledQKError, match="'left padding' failed"):
        couple(model, verify="always")


def test_a_forward_that_bypasses_the_coupling_is_detected_in_the_model_itself() -> None:
    """The small model is built from the configuration, so it lacks the patch that was applied to this model."""
    model = model_of(NewAttention).requires_grad_(False)
    for layer in model.layers:
        plain = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, plain=plain, **kwargs: plain(*args, **kwargs)
        layer.self_attn._hf_hook = None
    assert_refused(model, "'gradients' failed.* in layers.0.self_attn")


def test_a_forward_that_was_replaced_in_the_class_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other libraries replace the `forward` of classes that may have been coupled before."""
    couple(fresh())
    model = fresh()
    original = type(model.model.layers[0].self_attn)
    plain = original.forward
    monkeypatch.setattr(original, "forward", lambda self, x, *args, **kwargs: plain(self, 0 * x, *args, **kwargs))
    with pytest.raises(CoupledQKError, match="LlamaAttention has a forward with a closure"):
        couple(model)
    monkeypatch.setattr(original, "forward", NewAttention.forward)
    assert not is_verified(model.model.layers[0].self_attn)


def test_a_verified_architecture_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "run_checks", lambda *args: pytest.fail("checked"))
    couple(fresh())
    with pytest.raises(CoupledQKError, match="unknown verify 'sometimes': choose from auto"):
        couple(fresh(), verify="sometimes")  # pyright: ignore[reportArgumentType]


def test_a_trained_coupling_passes_the_check_and_is_not_changed_by_it(tmp_path: Path) -> None:
    """The check tests the mechanism: a loaded coupling need not be the identity."""
    model = coupled()
    save_coupling(model, tmp_path)
    loaded = load_coupling(fresh(), tmp_path, verify="always")
    assert torch.equal(logits(loaded, tokens(2, 9)), logits(model, tokens(2, 9)))


def test_the_check_does_not_change_the_callers_random_state() -> None:
    unchecked, checked = fresh(), fresh()  # before seeding: the first model of a process draws its weights
    torch.manual_seed(0)
    couple(unchecked, verify="never")
    expected = torch.randn(3)
    torch.manual_seed(0)
    couple(checked, verify="always")
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize("variant", ["hamiltonian", "affine", "potential", "drift"])
def test_the_check_passes_for_other_dynamics(variant: str) -> None:
    small = small_model(built("llama"))
    applied = verify.run_checks(small, example_inputs(small), dynamics_of(variant, {}))
    assert applied == ["identity", "effect", "gradients", "decoding", "left padding", "relative positions"]


def test_the_small_model_has_one_layer_of_each_kind() -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 4
    config = tiny_config("cohere2", num_hidden_layers=12, layer_types=kinds)
    small = small_config(config, {"vocab_size": 64})
    assert small.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert small.num_hidden_layers == 3


def test_layers_without_rope_are_coupled_too() -> None:
    """Cohere 2 rotates in its sliding layers only."""
    model = couple(tiny_model("cohere2"), verify="always")
    with torch.no_grad():
        for module in coupled_modules(model).values():
            before = logits(model, tokens(2, 9))
            module.coupling.gate.fill_(1.0)
            assert not torch.allclose(logits(model, tokens(2, 9)), before, atol=1e-3)


def test_heads_are_read_from_the_module_if_the_configuration_has_them_per_layer() -> None:
    class ByLayer:
        @property
        def num_key_value_heads(self) -> int:
            raise RuntimeError("'num_key_value_heads' may vary across layers")

    module: Any = torch.nn.Module()
    module.head_dim, module.config, module.k_proj = 8, ByLayer(), torch.nn.Linear(32, 16)
    assert head_shape(module) == (8, 2)
    module.k_proj = None
    with pytest.raises(insertion.InsertionError, match="does not define the number and the width of its heads"):
        head_shape(module)


def test_the_inserted_line_is_the_only_change_to_the_source() -> None:
    kind = insertion.coupled_class(llama.LlamaAttention)
    plain, new = (cls.forward.__code__ for cls in (llama.LlamaAttention, kind))
    assert set(new.co_names) - set(plain.co_names) == {"couple_heads"}
    assert set(plain.co_names) <= set(new.co_names)
    assert new.co_filename == plain.co_filename
