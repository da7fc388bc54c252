"""Computed costs agree with PyTorch's counts."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from coupledqk import VARIANTS, KVCache, TransformerLM, preset
from coupledqk.config import ModelConfig
from coupledqk.costs import count_parameters, flops, sizes
from coupledqk.dynamics import Dynamics
from coupledqk.dynamics.fused import fused_dynamics, fused_dynamics_backward

T = 12
SHAPE = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 24, "vocab_size": 37, "n_positions": T}


def tiny(variant: str, **settings) -> ModelConfig:
    return preset("nano", variant, **SHAPE, **settings)


def counted(run) -> int:
    """FLOPs counted by PyTorch, with the attention kernel written out and in-place products added, which it cannot count."""
    in_place = {torch.ops.aten.baddbmm_: lambda total, left, right, **_: 2 * math.prod(left) * right[-1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter, sdpa_kernel(SDPBackend.MATH):
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("variant", VARIANTS)
def test_flops_of_every_variant_equal_pytorchs_counts(variant: str) -> None:
    # the written-out attention also computes the masked half of the scores, like non-causal attention
    config = tiny(variant, causal=False)
    model = TransformerLM(config)
    for module in model.modules():
        if isinstance(module, Dynamics):
            module.impl = "reference"
    tokens = torch.randint(37, (3, T))
    with torch.no_grad():
        assert counted(lambda: model(tokens)) == 3 * T * flops(config, T).forward
    assert counted(lambda: model(tokens).sum().backward()) == 3 * T * flops(config, T).training


@pytest.mark.parametrize("n_steps", [1, 3, 4])
@pytest.mark.parametrize("variant", ["euler", "euler_gqa", "hamiltonian", "hamiltonian_gqa", "semi_implicit"])
def test_the_fused_dynamics_recompute_as_many_products_as_estimated(variant: str, n_steps: int) -> None:
    config = tiny(variant, n_steps=n_steps)
    attention = TransformerLM(config).blocks[0].attn
    method, force = config.attention.dynamics.method, attention.dynamics.force
    weights = torch.ones(4 // config.attention.group_size), force.w1.detach(), force.w2.detach()

    def counts(tokens: int) -> tuple[int, int]:
        q, k = torch.randn(1, tokens, 4, 8), torch.randn(1, tokens, len(weights[0]), 8)
        arguments = q, k, *weights, None, None, n_steps, method
        return (
            counted(lambda: fused_dynamics._init_fn(*arguments)),
            counted(lambda: fused_dynamics_backward._init_fn(q, k, *arguments)),
        )

    # products of two weight matrices do not depend on the number of tokens
    forward, backward = (many - few for many, few in zip(counts(2 * T), counts(T), strict=True))
    expected, layers = flops(config, T, fused=True), config.n_layers
    assert forward == T * expected.dynamics / layers
    assert backward == T * (2 * expected.dynamics + expected.recomputed) / layers


@pytest.mark.parametrize("variant", [name for name in VARIANTS if not name.endswith(("gqa", "v2"))])
def test_fused_dynamics_take_no_more_products_than_the_reference_and_the_recomputation(variant: str) -> None:
    plain, fused = flops(tiny(variant), T), flops(tiny(variant), T, fused=True)
    assert fused.forward <= plain.forward
    assert 0 <= fused.recomputed <= plain.dynamics


@pytest.mark.parametrize(
    ("variant", "settings", "relative", "recomputing"),
    [
        ("hamiltonian", {}, 0.967, 0.958),
        ("euler", {}, 0.975, 0.975),
        ("euler", {"n_steps": 1}, 0.992, 0.990),
        ("diff", {}, 0.967, 0.967),
        ("gqa", {}, 1.054, 1.054),
    ],
)
def test_flops_relative_to_standard_attention_at_60m(
    variant: str, settings: dict, relative: float, recomputing: float
) -> None:
    standard = flops(preset("small"), 512)
    config = preset("small", variant, **settings)
    assert round(standard.forward / flops(config, 512).forward, 3) == relative
    assert round(standard.training / flops(config, 512).training, 3) == relative
    assert round(standard.training / flops(config, 512, fused=True).training, 3) == recomputing


def test_only_the_flops_of_the_scores_grow_with_the_number_of_keys() -> None:
    short, long = flops(tiny("diff"), 15), flops(tiny("diff"), 31)
    assert long.scores == 2 * short.scores
    assert long.forward - long.scores == short.forward - short.scores


@pytest.mark.parametrize("variant", ["standard", "gqa", "diff", "hamiltonian"])
def test_sizes_equal_the_bytes_of_the_tensors(variant: str) -> None:
    config = tiny(variant)
    model, tokens, cache = TransformerLM(config), torch.zeros(1, 5, dtype=torch.long), [KVCache(5), KVCache(5)]
    model(tokens, cache=cache)
    assert 5 * sizes(config).cache_per_token == sum(t.nbytes for layer in cache for t in (layer.k, layer.v))
    model(tokens, tokens).backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    weights = [p.detach() for p in model.parameters()]
    gradients = [p.grad for p in model.parameters()]
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert sizes(config).weights == sum(t.nbytes for t in weights) == 4 * count_parameters(config)
    assert sizes(config).training_state == sum(t.nbytes for t in weights + gradients + moments)
