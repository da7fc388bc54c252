"""Initial weights: a function of (seed, name), the same in every variant, and with the paper's standard deviations."""

import itertools
import math

import pytest
import torch

from conftest import TINY
from coupledqk import VARIANTS, Attention, TransformerLM

every_variant = pytest.mark.parametrize("name", VARIANTS)
OPTIONS = [(name, {}) for name in VARIANTS] + [
    ("hamiltonian", {"gate": True, "qk_norm": True}),
    ("affine", {"qk_norm": True}),
    ("diff", {"flavour": "official", "positions": "rope"}),
]


def build(name="standard", seed=0, **settings):
    return TransformerLM.from_preset("nano", name, seed=seed, **{**TINY, **settings})


def equal_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def drawn(model):
    """The randomly initialised matrices by name, with qkv and gate_up split into their parts."""
    out = {}
    for name, weight in model.state_dict().items():
        if name.endswith("qkv.weight"):
            attention = model.get_submodule(name.removesuffix(".qkv.weight"))
            q, k, v = weight.split(attention.split_sizes)
            first, *second = q.unflatten(0, (-1, attention.queries, attention.width)).unbind(1)
            out |= {f"{name}.q": first.flatten(0, 1), f"{name}.k": k, f"{name}.v": v}
            out |= {f"{name}.q2": rows for rows in second}
        elif name.endswith("gate_up.weight"):
            out |= {f"{name}.{part}": rows for part, rows in zip(("gate", "up"), weight.chunk(2), strict=True)}
        elif weight.min() < weight.max():
            out[name] = weight
    return out


@every_variant
def test_weights_that_variants_share_are_equal(name):
    standard, other = drawn(build("standard")), drawn(build(name))
    shared = {n for n in standard if standard[n].shape == other[n].shape}
    different_shape = {n for n in standard if n.endswith((".k", ".v"))} if VARIANTS[name].group_size > 1 else set()
    assert shared == standard.keys() - different_shape
    assert all(torch.equal(standard[n], other[n]) for n in shared)


def test_key_and_value_heads_of_gqa_equal_the_first_heads_of_standard():
    standard, grouped = drawn(build("standard")), drawn(build("gqa"))
    for name in (f"blocks.{i}.attn.qkv.weight.{part}" for i in range(2) for part in "kv"):
        torch.testing.assert_close(grouped[name], standard[name][: 64 // 4])


@pytest.mark.parametrize("other", ["hamiltonian", "semi_implicit", "kick", "shared_mlp", "mlp_only", "hamiltonian_gqa"])
def test_forces_that_variants_share_are_equal(other):
    euler, other = drawn(build("euler")), drawn(build(other))
    force = [n for n in euler if "force" in n]
    assert len(force) == 2 * TINY["n_layers"]
    assert all(torch.equal(euler[n], other[n]) for n in force)


@every_variant
def test_weights_depend_on_the_seed_and_not_on_earlier_draws(name):
    first = build(name, seed=3)
    torch.manual_seed(99)
    build("euler")
    torch.rand(7)
    assert equal_weights(build(name, seed=3), first)
    assert not equal_weights(build(name, seed=4), first)


def test_building_a_model_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    build("hamiltonian_diff")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_no_two_matrices_start_with_the_same_values(name, options):
    heads = {n: weight.flatten()[:16] / weight.std() for n, weight in drawn(build(name, **options)).items()}
    for (a, left), (b, right) in itertools.combinations(heads.items(), 2):
        n = min(len(left), len(right))
        assert not torch.allclose(left[:n], right[:n], atol=0.5), f"{a} and {b} start alike"


def test_the_first_layers_of_a_deeper_model_differ_only_in_the_residual_scale():
    shallow, deep = drawn(build(n_layers=2)), drawn(build(n_layers=8))
    for name, weight in shallow.items():
        scale = 2 if name.endswith(("attn.out.weight", "ffn.down.weight")) else 1
        torch.testing.assert_close(weight, scale * deep[name])


def test_initial_weights_do_not_depend_on_the_default_dtype():
    expected = build("hamiltonian")
    torch.set_default_dtype(torch.float64)
    try:
        model = build("hamiltonian")
    finally:
        torch.set_default_dtype(torch.float32)
    assert model.embed.weight.dtype == torch.float64
    torch.testing.assert_close(model.float().state_dict(), expected.state_dict(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.usefixtures("poisoned_memory")
def test_every_parameter_is_initialised(name, options):
    assert torch.empty(3).isnan().all()
    for parameter_name, parameter in build(name, **options).named_parameters():
        assert parameter.isfinite().all(), parameter_name
    attention_options = {k: v for k, v in options.items() if k != "positions"}
    for parameter_name, parameter in Attention.from_variant(name, 64, 8, **attention_options).named_parameters():
        assert parameter.isfinite().all(), parameter_name


@every_variant
def test_matrices_start_with_the_papers_standard_deviations(name):
    settings = {"d_model": 256, "n_heads": 4, "vocab_size": 200, "n_positions": 100, "d_ff": 300}
    if VARIANTS[name].dynamics.method != "none":
        settings["force_std"] = 0.05
    for weight_name, weight in drawn(build(name, **settings)).items():
        expected = 0.05 if "dynamics" in weight_name else 0.02
        if weight_name.endswith(("attn.out.weight", "ffn.down.weight")):
            expected /= math.sqrt(2 * TINY["n_layers"])
        assert float(weight.std()) == pytest.approx(expected, rel=0.06), weight_name


def test_a_standalone_attention_layer_starts_with_the_papers_standard_deviations():
    attention = Attention.from_variant("hamiltonian", d_model=256, n_heads=4)
    rows = attention.qkv.weight.split(attention.split_sizes)
    for weight in (*rows, attention.out.weight, attention.dynamics.force.w1):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_vectors_start_at_their_neutral_values():
    model = build("hamiltonian", gate=True, qk_norm=True, step_size=0.25)
    for block in model.blocks:
        assert (block.attn.dynamics.tau.exp() - 0.25).abs().max() < 1e-6
        assert (block.attn.dynamics.gate == 0).all()
        for norm in (block.attn_norm, block.ffn_norm, block.attn.qk_norm.q, block.attn.qk_norm.k, model.norm):
            assert (norm.weight == 1).all()
    assert (build("potential").blocks[1].attn.dynamics.force.c == 1).all()
    for net in (build("affine").blocks[1].attn.dynamics.on_key, build("affine").blocks[1].attn.dynamics.on_query):
        assert (net.w2 == 0).all()
        assert net.w1.std() > 0.01
    torch.testing.assert_close(build("euler").blocks[0].attn.dynamics.step_size, torch.full((8,), 0.1))


def test_lambda_starts_at_the_value_for_its_layer():
    for layer, block in enumerate(build("diff", n_layers=3).blocks):
        torch.testing.assert_close(block.attn.scoring.lam, torch.full((8,), 0.8 - 0.6 * math.exp(-0.3 * layer)))


def test_official_lambda_vectors_start_with_a_standard_deviation_of_one_tenth():
    scoring = build("diff", flavour="official", d_model=2048, n_heads=2, n_layers=1).blocks[0].attn.scoring
    for vector in (scoring.lam_q1, scoring.lam_k1, scoring.lam_q2, scoring.lam_k2):
        assert float(vector.detach().std()) == pytest.approx(0.1, rel=0.15)
