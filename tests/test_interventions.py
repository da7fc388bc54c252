"""Interventions change the chosen values in a model and nothing else."""

import pytest
import torch

from conftest import random_tokens, tiny_model
from coupledqk import VARIANTS, CoupledQKError
from coupledqk.analysis import loss_effects, record, without_dynamics, without_head
from coupledqk.analysis.motion import attention_moved

T = 7
MOVING = [name for name, config in VARIANTS.items() if config.dynamics.method != "none"]


def loss(model, tokens, changes=None):
    with torch.no_grad(), record(model, changes):
        return float(model(tokens[:, :-1], tokens[:, 1:]))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_head_set_to_zero_equals_a_head_whose_output_weights_are_zero(name):
    model, tokens = tiny_model(name), random_tokens(2, T)
    given = loss(model, tokens, without_head(1, 3))
    width = model.config.d_model // model.config.n_heads
    model.blocks[1].attn.out.weight.data[:, 3 * width : 4 * width] = 0
    assert given == pytest.approx(loss(model, tokens), rel=1e-12)


@pytest.mark.parametrize("name", ["hamiltonian", "euler", "hamiltonian_gqa", "euler_diff"])
def test_without_dynamics_is_the_limit_of_small_steps(name):
    model, tokens = tiny_model(name), random_tokens(2, T)
    still = loss(model, tokens, without_dynamics(model))
    assert still != pytest.approx(loss(model, tokens), rel=1e-6)
    for block in model.blocks:
        block.attn.dynamics.tau.data.fill_(-40.0)
    assert still == pytest.approx(loss(model, tokens), rel=1e-12)


def test_without_dynamics_in_one_layer_the_other_layers_still_evolve():
    model, tokens = tiny_model("hamiltonian"), random_tokens(1, T)
    with torch.no_grad(), record(model, without_dynamics(model, [1])) as tape:
        model(tokens)
    first, second = tape.layers
    assert not torch.equal(first.evolved_q, first.q)
    assert torch.equal(second.evolved_q, second.q)
    assert torch.equal(second.evolved_k, second.k)
    assert attention_moved(second).abs().max() < 1e-15


@pytest.mark.parametrize("hook", ["q", "k", "evolved_q", "evolved_k", "rot_q", "rot_k", "v", "z"])
def test_the_tape_holds_the_changed_value_and_gradients_pass_through_it(hook):
    model, tokens = tiny_model("euler", positions="rope"), random_tokens(1, T)
    name, seen = f"blocks.0.attn.hook_{hook}", []

    def double(value, layer):
        seen.append(value.detach())
        return 2 * value

    with record(model, {name: double}) as tape:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    assert torch.equal(tape[name], 2 * seen[0])
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_an_intervention_that_returns_the_value_changes_nothing():
    model, tokens = tiny_model("hamiltonian"), random_tokens(2, T)
    assert loss(model, tokens, {"blocks.0.attn.hook_v": lambda v, layer: v}) == loss(model, tokens)


@pytest.mark.parametrize(
    "name", ["standard", "gqa", "hamiltonian", "hamiltonian_gqa", "euler_diff", "affine", "hamiltonian_diff_v2"]
)
def test_loss_effects_equal_those_of_single_interventions(name):
    model, tokens = tiny_model(name), random_tokens(1, T)
    effects = loss_effects(model, tokens)
    assert effects.loss == pytest.approx(loss(model, tokens), rel=1e-9)
    for layer in range(2):
        for head in range(8):
            alone = loss(model, tokens, without_head(layer, head))
            assert effects.without_head[layer][head] == pytest.approx(alone, rel=1e-9)
    if name not in MOVING:
        assert effects.without_motion is effects.without_dynamics is None
        return
    assert effects.without_dynamics == pytest.approx(loss(model, tokens, without_dynamics(model)), rel=1e-9)
    assert effects.without_motion is not None
    alone = loss(model, tokens, one_still(1, 5, *shape_of(name)))
    assert effects.without_motion[1][5] == pytest.approx(alone, rel=1e-9)
    assert alone != pytest.approx(effects.loss, rel=1e-9)


def shape_of(name):
    """The query sub-heads and the key sub-heads of head 5 of 8."""
    special = {
        "hamiltonian_gqa": ([5], [1]),
        "euler_diff": ([5, 13], [5, 13]),
        "hamiltonian_diff_v2": ([10, 11], [5]),
    }
    return special.get(name, ([5], [5]))


def one_still(layer, head, queries, keys):
    def still(moved, before, heads):
        return moved.index_copy(2, torch.tensor(heads), before[:, :, heads])

    return {
        f"blocks.{layer}.attn.hook_evolved_q": lambda q, tape: still(q, tape.q, queries),
        f"blocks.{layer}.attn.hook_evolved_k": lambda k, tape: still(k, tape.k, keys),
    }


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize("name", ["standard", "hamiltonian", "euler_diff", "hamiltonian_gqa", "affine"])
def test_patterns_by_step_start_without_the_dynamics_and_end_with_them(name, positions):
    model, tokens = tiny_model(name, positions=positions), random_tokens(2, T)
    with torch.no_grad(), record(model) as tape:
        model(tokens)
    patterns = tape.layers[0].patterns()
    assert len(patterns) == {"standard": 1, "affine": 2}.get(name, 4)
    assert torch.equal(patterns[-1], tape.layers[0].pattern())
    with torch.no_grad(), record(model, without_dynamics(model)) as still:
        model(tokens)
    torch.testing.assert_close(patterns[0], still.layers[0].pattern(), rtol=1e-12, atol=1e-14)


def test_attention_moved_is_the_weight_that_other_tokens_gain():
    model, tokens = tiny_model("hamiltonian"), random_tokens(1, T)
    with torch.no_grad(), record(model) as tape:
        model(tokens)
    layer = tape.layers[0]
    before, after = layer.patterns()[0], layer.pattern()
    expected = (after - before).clamp(min=0).sum(-1).mean(-1)  # weight that some tokens gain is lost by others
    torch.testing.assert_close(attention_moved(layer), expected)


MISTAKES = [
    ({"blocks.0.attn.hook_pattern": lambda x, layer: x}, "unknown value to change 'blocks.0.attn.hook_pattern'"),
    ({"blocks.9.attn.hook_q": lambda x, layer: x}, "unknown value to change"),
    ({"blocks.0.attn.hook_q": lambda x, layer: x[:1, :1]}, r"gave shape \(1, 1, 8, 8\): expected a tensor of shape"),
    ({"blocks.0.attn.hook_z": lambda x, layer: None}, "gave None: expected a tensor"),
    (without_head(0, 8), "there is no head 8 in layer 0: the model has heads 0 to 7"),
]


@pytest.mark.parametrize(("changes", "says"), MISTAKES, ids=[says for _, says in MISTAKES])
def test_an_invalid_intervention_is_reported_and_leaves_no_hook(changes, says):
    model, tokens = tiny_model("euler"), random_tokens(2, T)
    before = loss(model, tokens)
    with pytest.raises(CoupledQKError, match=says):
        loss(model, tokens, changes)
    assert loss(model, tokens) == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_text_of_one_token_has_no_loss():
    with pytest.raises(CoupledQKError, match="at least two tokens"):
        loss_effects(tiny_model(), random_tokens(1, 1))


def test_patterns_of_steps_are_refused_with_a_cache():
    model, tokens = tiny_model("euler"), random_tokens(1, T)
    cache = model.new_cache(T)
    with torch.no_grad(), record(model) as tape:
        model(tokens[:, :4], cache=cache)
        model(tokens[:, 4:], cache=cache)
    with pytest.raises(CoupledQKError, match="without a cache"):
        tape.layers[0].patterns()


@pytest.mark.parametrize("shape", [(2, T), (T,)])
def test_loss_effects_require_one_sequence(shape):
    with pytest.raises(CoupledQKError, match="expected one sequence"):
        loss_effects(tiny_model("hamiltonian"), torch.zeros(shape, dtype=torch.int64))
