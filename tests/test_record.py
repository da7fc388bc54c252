"""Recording shows the intermediate values of a model and does not change its output."""

import math

import pytest
import torch
from torch import nn

from conftest import double_randn, random_tokens, tiny_model
from coupledqk import VARIANTS, CoupledQKError, KVCache, evolve, rope_at
from coupledqk.analysis import record

B, T = 2, 6
every_variant = pytest.mark.parametrize("name", VARIANTS)
stepping_variants = pytest.mark.parametrize(
    "name", [name for name, config in VARIANTS.items() if config.dynamics.method not in ("none", "affine")]
)


def recorded(name, **settings):
    model = tiny_model(name, **settings)
    with torch.no_grad(), record(model) as tape:
        model(random_tokens(B, T))
    return tape


def n_hooks(model):
    return sum(len(module._forward_hooks) for module in model.modules())


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_bit_identical_when_recording(name, dtype):
    model, tokens = tiny_model(name).to(dtype), random_tokens(B, T + 1)

    def loss_and_gradient():
        model.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    before = [x.clone() for x in loss_and_gradient()]
    with record(model):
        during = loss_and_gradient()
    assert all(map(torch.equal, before, during))


def test_recording_does_not_replace_the_fast_implementation():
    model, tokens = tiny_model("hamiltonian"), random_tokens(32, 32)  # q is large enough for the fast implementation
    with torch.no_grad():
        before = model(tokens)
        with record(model) as tape:
            assert torch.equal(model(tokens), before)
    q, k = tape.layers[0].trajectory()
    assert torch.equal(q[-1], tape.layers[0].evolved_q)
    assert torch.equal(k[-1], tape.layers[0].evolved_k)


@every_variant
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_recorded_values_are_the_outputs_of_each_stage(name, positions):
    for layer in recorded(name, positions=positions).layers:
        q, k = layer.attention.dynamics(layer.q, layer.k)
        torch.testing.assert_close((layer.evolved_q, layer.evolved_k), (q, k))
        if positions == "rope":
            q, k = rope_at(torch.arange(T), layer.attention.width)(q, k)
        torch.testing.assert_close((layer.scored_q, layer.scored_k), (q, k))


@every_variant
def test_the_recorded_pattern_is_the_one_used_for_the_output(name):
    model, tokens, outputs = tiny_model(name), random_tokens(B, T), []
    for block in model.blocks:
        block.attn.scoring.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad(), record(model) as tape:
        model(tokens)
        for layer, output in zip(tape.layers, outputs, strict=True):
            plain, weights = layer.attention.scoring.plain(
                layer.scored_q, layer.scored_k, layer.v, layer.mask, layer.causal, layer.x
            )
            torch.testing.assert_close(plain, output)
            torch.testing.assert_close(layer.pattern(), weights)
            assert torch.equal(layer.pattern().triu(1), torch.zeros(B, 8, T, T, dtype=weights.dtype))


@pytest.mark.parametrize("name", ["standard", "gqa", "hamiltonian"])
def test_the_softmax_of_the_visible_scores_is_the_pattern(name):
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    for layer in recorded(name).layers:
        expected = layer.scores().masked_fill(hidden, -math.inf).softmax(-1)
        torch.testing.assert_close(layer.pattern(), expected)


def test_differential_scores_have_a_map_per_sub_head_and_patterns_one_per_head():
    layer = recorded("diff").layers[0]
    assert layer.scores().shape == (B, 16, T, T)
    assert layer.pattern().shape == (B, 8, T, T)
    assert (layer.pattern() < 0).any()
    assert not layer.pattern().requires_grad, "what is recorded is data"


@stepping_variants
@pytest.mark.parametrize("n_steps", [1, 4])
def test_trajectories_run_step_by_step_from_the_projected_to_the_evolved_values(name, n_steps):
    for layer in recorded(name, n_steps=n_steps).layers:
        dynamics, (q, k) = layer.attention.dynamics, layer.trajectory()
        assert (len(q), len(k)) == (n_steps + 1, n_steps + 1)
        assert torch.equal(q[0], layer.q)
        assert torch.equal(k[0], layer.k)
        assert torch.equal(q[-1], layer.evolved_q)
        assert torch.equal(k[-1], layer.evolved_k)
        assert torch.equal(q[-1], layer.scored_q), "without RoPE what is scored is what has evolved"
        for before, after in zip(range(n_steps), range(1, n_steps + 1), strict=True):
            step = evolve(q[before], k[before], dynamics.step_size, dynamics.force, 1, dynamics.config.method)
            torch.testing.assert_close((q[after], k[after]), step)


@pytest.mark.parametrize("name", ["standard", "affine"])
def test_the_trajectory_of_a_variant_without_steps_is_refused(name):
    with pytest.raises(CoupledQKError, match="have no steps: trajectories are those of integrators"):
        recorded(name).layers[0].trajectory()


def test_names_are_those_of_transformerlens_and_give_the_same_tensors():
    tape = recorded("hamiltonian_gqa", positions="rope")
    layer = tape.layers[1]
    expected = {
        "hook_q": layer.q,
        "hook_k": layer.k,
        "hook_v": layer.v,
        "hook_evolved_q": layer.evolved_q,
        "hook_evolved_k": layer.evolved_k,
        "hook_rot_q": layer.scored_q,
        "hook_rot_k": layer.scored_k,
        "hook_attn_scores": layer.scores(),
        "hook_pattern": layer.pattern(),
        "hook_z": layer.z,
    }
    assert [f"blocks.1.attn.{hook}" for hook in expected] == tape.names()[len(expected) :]
    for hook, tensor in expected.items():
        assert torch.equal(tape[f"blocks.1.attn.{hook}"], tensor)
    assert expected["hook_q"].shape == (B, T, 8, 8)
    assert expected["hook_k"].shape == (B, T, 2, 8)
    assert expected["hook_pattern"].shape == (B, 8, T, T)


def test_a_tape_holds_the_last_pass_and_remains_valid_after_the_block():
    model, first, second = tiny_model("euler"), random_tokens(B, T), random_tokens(1, T - 2)
    with torch.no_grad(), record(model) as tape:
        model(first)
        model(second)
    with torch.no_grad(), record(model) as other:
        model(second)
    assert torch.equal(tape["blocks.0.attn.hook_pattern"], other["blocks.0.attn.hook_pattern"])


def test_with_a_cache_the_pattern_spans_the_cached_tokens():
    attention = tiny_model("euler").blocks[0].attn
    x, cache = double_randn(B, T, 64), KVCache(T)
    with torch.no_grad(), record(attention) as tape:
        attention(x)
        whole = tape.layers[0].pattern()
        attention(x[:, : T - 2], cache=cache)
        attention(x[:, T - 2 :], cache=cache)
    torch.testing.assert_close(tape.layers[0].pattern(), whole[:, :, T - 2 :])


def test_hooks_are_removed_after_the_block_however_it_ends():
    model = tiny_model("euler")
    with record(model):
        assert n_hooks(model) == 4
    assert n_hooks(model) == 0
    with pytest.raises(RuntimeError, match="interrupted"), record(model):
        raise RuntimeError("interrupted")
    assert n_hooks(model) == 0


@pytest.mark.parametrize("compile_", [torch.compile, lambda model: model.compile() or model], ids=["wrap", "in_place"])
def test_a_compiled_model_is_refused_with_the_reason(compile_):
    with pytest.raises(CoupledQKError, match="a compiled model bypasses its hooks"), record(compile_(tiny_model())):
        pass


def test_missing_values_and_unknown_names_are_reported():
    model = tiny_model("euler")
    with record(model) as tape:
        with pytest.raises(CoupledQKError, match="no scored_q was recorded: run the model inside"):
            tape.layers[0].pattern()
        with pytest.raises(CoupledQKError, match=r"did you mean 'blocks.1.attn.hook_pattern'"):
            tape["blocks.1.attn.hook_patern"]
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            tape.layers[0].colour  # noqa: B018
    with pytest.raises(CoupledQKError, match="the model has no coupledqk Attention"), record(nn.Linear(2, 2)):
        pass
