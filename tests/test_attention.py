"""The Attention module: properties that all variants share, the order of its stages, and special cases that agree."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from conftest import double_randn, tiny_attention
from coupledqk import VARIANTS, Attention, CoupledQKError, DynamicsConfig, KVCache, rope_at

B, T = 2, 6
every_variant = pytest.mark.parametrize("name", VARIANTS)
coupled_variants = pytest.mark.parametrize("name", [n for n, c in VARIANTS.items() if c.dynamics.method != "none"])
stepping_variants = pytest.mark.parametrize(
    "name", [n for n, c in VARIANTS.items() if c.dynamics.method not in ("none", "affine") and n != "mlp_only"]
)


def project(attention, x):
    """q, k and v of every head, before the dynamics."""
    return [y.unflatten(-1, (-1, attention.width)) for y in attention.qkv(x).split(attention.split_sizes, dim=-1)]


def influences(attention, **options):
    """(T, T): how strongly output t depends on input s; exactly 0 where it does not."""
    x = double_randn(B, T, 64).requires_grad_()
    out, _ = attention(x, **options)
    rows = [torch.autograd.grad(out[:, t], x, double_randn(B, 64), retain_graph=True)[0] for t in range(T)]
    return torch.stack([row.abs().sum((0, 2)) for row in rows])


@every_variant
def test_each_token_attends_to_all_earlier_tokens_and_to_no_later_one(name):
    expected = torch.ones(T, T, dtype=torch.bool).tril()
    assert torch.equal(influences(tiny_attention(name)) > 0, expected)


@every_variant
def test_dynamics_are_local_to_a_token_and_to_a_group_of_heads(name):
    attention = tiny_attention(name)
    q, k, _ = project(attention, double_randn(B, T, 64))
    before = attention.dynamics(q, k)
    if attention.config.dynamics.method != "none":
        assert any((new - old).norm() > 0.1 * old.norm() for new, old in zip(before, (q, k), strict=True))
    group = q.shape[2] // k.shape[2]
    q, k = q.clone(), k.clone()
    q[:, 2, :group] += 1
    k[:, 2, 0] += 1
    after = attention.dynamics(q, k)
    for old, new, heads in zip(before, after, (group, 1), strict=True):
        changed = (old != new).any(-1)  # (B, T, H)
        expected = torch.zeros_like(changed)
        expected[:, 2, :heads] = True
        assert torch.equal(changed, expected)


@every_variant
def test_an_encoder_attends_to_all_tokens_and_is_permutation_equivariant(name):
    attention = tiny_attention(name, causal=False)
    assert (influences(attention) > 0).all()
    x, order = double_randn(B, T, 64), torch.randperm(T)
    torch.testing.assert_close(attention(x[:, order])[0], attention(x)[0][:, order])


@every_variant
def test_rope_makes_scores_depend_on_relative_position_only(name):
    attention, x, positions = tiny_attention(name), double_randn(B, T, 64), torch.arange(T)
    here, _ = attention(x, rope=rope_at(positions, attention.width))
    there, _ = attention(x, rope=rope_at(positions + 11, attention.width))
    apart, _ = attention(x, rope=rope_at(positions * 2, attention.width))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-5)  # angles are float32
    assert (here - apart).abs().max() > 1e-2


def test_rope_rotates_pairs_of_coordinates_like_complex_numbers():
    q, k = double_randn(B, T, 3, 8), double_randn(B, T, 2, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [7, 8, 9, 9, 3, 0]])
    for x, turned in zip((q, k), rope_at(positions, 8)(q, k), strict=True):
        angles = positions[..., None] * torch.tensor([10_000.0 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64)
        expected = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)[:, :, None]
        torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), dim=-1), rtol=0, atol=1e-5)


def test_rope_refuses_an_odd_width():
    with pytest.raises(CoupledQKError, match="each \\(sub-\\)head is 5 wide"):
        rope_at(torch.arange(3), 5)


@every_variant
@pytest.mark.parametrize("chunks", [(T,), (1,) * T, (3, 1, 2), (2, 4)], ids=str)
@pytest.mark.usefixtures("poisoned_memory")
def test_cached_attention_in_chunks_equals_the_full_forward(name, chunks):
    attention, x = tiny_attention(name, qk_norm=True), double_randn(B, T, 64)
    whole, _ = attention(x, rope=rope_at(torch.arange(T), attention.width))
    cache, parts, start = KVCache(T + 2), [], 0
    with torch.no_grad():
        for size in chunks:
            rope = rope_at(torch.arange(start, start + size), attention.width)
            parts.append(attention(x[:, start : start + size], rope=rope, cache=cache)[0])
            start += size
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@every_variant
def test_the_cache_holds_evolved_rotated_keys_of_the_key_heads(name):
    attention, x, cache = tiny_attention(name), double_randn(B, T, 64), KVCache(T)
    rope = rope_at(torch.arange(T), attention.width)
    with torch.no_grad():
        attention(x, rope=rope, cache=cache)
        q, k, v = project(attention, x)
        _, expected = rope(*attention.dynamics(q, k))
    torch.testing.assert_close(cache.k, expected)
    torch.testing.assert_close(cache.v, v)
    assert cache.k.shape[2:].numel() == 64 // attention.config.group_size


def test_a_full_cache_refuses_more_tokens():
    attention, cache = tiny_attention(), KVCache(T)
    attention(double_randn(B, T, 64), cache=cache)
    with pytest.raises(CoupledQKError, match=f"holds {T} tokens, but {T} are stored and 1 more"):
        attention(double_randn(B, 1, 64), cache=cache)


def test_a_cache_refuses_the_keys_of_another_attention():
    cache = KVCache(T)
    with torch.no_grad():
        tiny_attention()(double_randn(B, 3, 64), cache=cache)
        with pytest.raises(CoupledQKError, match="make a cache for each layer of each model"):
            tiny_attention("gqa")(double_randn(B, 1, 64), cache=cache)


@pytest.mark.parametrize("positions", [torch.arange(1), torch.arange(T + 1), torch.zeros(B + 1, T)])
def test_rope_with_the_wrong_number_of_positions_is_refused(positions):
    attention = tiny_attention()
    with pytest.raises(CoupledQKError, match=f"expected {T} positions, one per token"):
        attention(double_randn(B, T, 64), rope=rope_at(positions, attention.width))


@pytest.mark.parametrize("mask", [True, "causal", [[True]]])
def test_a_mask_that_is_not_a_tensor_is_refused(mask):
    with pytest.raises(CoupledQKError, match="expected a tensor of booleans"):
        tiny_attention()(double_randn(B, T, 64), mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((64, 8, "euler"), r"config='euler': expected an AttentionConfig.*Attention.from_variant"),
        ((64.0, 8), "d_model=64.0: expected a whole number"),
        ((64, -8), "n_heads=-8: expected a whole number of at least 1"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(arguments, message):
    with pytest.raises(CoupledQKError, match=message):
        Attention(*arguments)


@every_variant
def test_the_meta_device_gives_output_shapes(name):
    with torch.device("meta"):
        attention = Attention.from_variant(name, 64, 8)
        assert attention(torch.empty(B, T, 64))[0].shape == (B, T, 64)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_cache_refuses_another_batch_size(rows):
    attention, cache = tiny_attention(), KVCache(T)
    with torch.no_grad():
        attention(double_randn(2, 3, 64), cache=cache)
        with pytest.raises(CoupledQKError, match="cache"):
            attention(double_randn(rows, 1, 64), cache=cache)


@every_variant
@pytest.mark.parametrize("causal", [True, False])
def test_every_form_of_mask_restricts_attention(name, causal):
    attention, x = tiny_attention(name, causal=causal), double_randn(B, T, 64)
    seen = (torch.rand(B, 1, T, T) > 0.4) | torch.eye(T, dtype=torch.bool)
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1]], dtype=torch.bool)[:, None, None, :]
    for mask in (seen, seen[:1], seen[0, 0], padding, padding[1:]):
        allowed = mask.expand(B, 1, T, T) & (torch.ones(T, T, dtype=torch.bool).tril() if causal else True)
        q, k, v = project(attention, x)
        expected, _ = attention.scoring.plain(*attention.dynamics(q, k), v, allowed, x=x)
        torch.testing.assert_close(attention(x, mask)[0], attention.out(expected.flatten(2)))


@every_variant
def test_a_mask_covers_cached_tokens_too(name):
    attention, x = tiny_attention(name), double_randn(B, T, 64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None, :]
    whole, _ = attention(x, mask)
    cache, parts = KVCache(T), []
    with torch.no_grad():
        for start, end in ((0, 3), (3, 5), (5, 6)):
            parts.append(attention(x[:, start:end], mask[..., :end], cache=cache)[0])
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@every_variant
def test_a_fully_masked_token_gives_zero_with_finite_gradients(name):
    attention, x = tiny_attention(name), double_randn(B, T, 64).requires_grad_()
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    out, _ = attention(x, padding[:, None, None, :])
    assert (out[0, :2] == 0).all()
    assert (out[padding].abs().sum(-1) > 0).all()
    out.square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (x, *attention.parameters()))


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(B, T, dtype=torch.bool),
        torch.ones(T, T + 1, dtype=torch.bool),
        torch.ones(1, T, dtype=torch.bool),
        torch.ones(B, T, T, dtype=torch.bool),
        torch.ones(B, 8, T, T, dtype=torch.bool),
        torch.ones(3, 1, T, T, dtype=torch.bool),
        torch.ones(T, T),
        torch.zeros(T, T, dtype=torch.int64),
    ],
    ids=lambda mask: f"{tuple(mask.shape)}-{mask.dtype}",
)
def test_a_mask_of_the_wrong_shape_or_dtype_is_refused(mask):
    with pytest.raises(CoupledQKError, match=r"causal_mask of shape .* expected booleans.*mask\[:, None, None, :\]"):
        tiny_attention()(double_randn(B, T, 64), mask)


@pytest.mark.parametrize("shape", [(0, T, 64), (B, 0, 64), (B, T, 63), (T, 64), (B, T, 1, 64)])
def test_an_input_of_the_wrong_shape_is_refused(shape):
    with pytest.raises(CoupledQKError, match=r"expected \(batch, tokens, 64\)"):
        tiny_attention()(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "eular", "d_model": 64, "n_heads": 8}, "unknown variant 'eular': did you mean 'euler'"),
        ({"name": "euler", "d_model": 64, "n_heads": 7}, "d_model=64 is not divisible by n_heads=7"),
        ({"name": "gqa", "d_model": 64, "n_heads": 2}, "n_heads=2 is not divisible by group_size=4"),
        ({"name": "diff", "d_model": 24, "n_heads": 8}, "gives a width of 3"),
        ({"name": "euler", "d_model": 64, "n_heads": 8, "n_steps": 0}, "n_steps=0: expected at least 1"),
        ({"name": "euler", "d_model": 64, "n_heads": 8, "step_size": 0.0}, "step_size=0.0: expected greater than 0"),
        ({"name": "euler", "d_model": 64, "n_heads": 8, "step_size": -1.0}, "step_size=-1.0: expected greater than 0"),
        ({"name": "standard", "d_model": 64, "n_heads": 8, "n_steps": 2}, "n_steps=2 has no effect"),
        ({"name": "euler", "d_model": 64, "n_heads": 8, "dropout": 0.1}, "unknown setting 'dropout'"),
        ({"name": "euler", "d_model": 64, "n_heads": 8, "sliding_window": 9}, "unknown setting 'sliding_window'"),
    ],
)
def test_invalid_attention_settings_are_refused(arguments, message):
    with pytest.raises(CoupledQKError, match=message):
        Attention.from_variant(**arguments)


def test_standard_attention_equals_pytorchs():
    attention, x = tiny_attention("standard"), double_randn(B, T, 64)
    theirs = nn.MultiheadAttention(64, 8, bias=False, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict({"in_proj_weight": attention.qkv.weight, "out_proj.weight": attention.out.weight})
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=hidden)
    out, aux_loss = attention(x)
    torch.testing.assert_close(out, expected)
    assert aux_loss == 0


def ungroup(attention):
    """The same attention with one key head per query head: each grouped key head is repeated for all its queries."""
    single = tiny_attention("standard")
    q, k, v = attention.qkv.weight.detach().split(attention.split_sizes)
    k, v = (w.unflatten(0, (-1, 8)).repeat_interleave(4, dim=0).flatten(0, 1) for w in (k, v))
    single.load_state_dict({"qkv.weight": torch.cat((q, k, v)), "out.weight": attention.out.weight})
    return single


def test_grouped_queries_equal_repeated_key_and_value_heads():
    attention, x = tiny_attention("gqa"), double_randn(B, T, 64)
    torch.testing.assert_close(attention(x)[0], ungroup(attention)(x)[0])


def papers_dynamics(name, q, k, f, dt):
    """The paper's equations, written out."""
    if name == "mlp_only":
        return q + f(q), k
    for _ in range(3):
        if name == "euler":
            q, k = q + dt * k, k + dt * f(q)
        else:
            k_half = k + dt / 2 * f(q)
            q = q + dt * k_half
            k = k_half + dt / 2 * f(q)
    return q, k


@torch.no_grad()
@pytest.mark.parametrize("name", ["mlp_only", "euler", "hamiltonian"])
def test_coupled_variants_follow_the_papers_equations(name):
    attention, x = tiny_attention(name), double_randn(B, T, 64)
    force = attention.dynamics.force
    dt = attention.dynamics.tau.exp()[:, None] if name != "mlp_only" else None  # (H, 1)
    q, k, v = project(attention, x)
    moved = papers_dynamics(name, q, k, lambda q: nn.functional.silu(q @ force.w1.T) @ force.w2.T, dt)
    torch.testing.assert_close(attention.dynamics(q, k), moved)
    expected = attention.scoring(*moved, v, causal=True)
    torch.testing.assert_close(attention(x)[0], expected.flatten(2) @ attention.out.weight.T)


def propagator(W, dt, n_steps):
    """The 2d × 2d matrix of n leapfrog steps with f(q) = W q."""
    identity, zero = torch.eye(len(W), dtype=W.dtype), torch.zeros_like(W)
    kick = torch.cat([torch.cat([identity, zero], 1), torch.cat([dt / 2 * W, identity], 1)])
    drift = torch.cat([torch.cat([identity, dt * identity], 1), torch.cat([zero, identity], 1)])
    return torch.linalg.matrix_power(kick @ drift @ kick, n_steps)


@torch.no_grad()
@pytest.mark.parametrize("name", ["linear", "drift"])
def test_a_linear_force_folds_into_the_projections(name):
    attention, x = tiny_attention(name), double_randn(B, T, 64)
    W = attention.dynamics.force.w if name == "linear" else torch.zeros(8, 8, dtype=torch.float64)
    # (H, d, d_model)
    q, k, v = (w.unflatten(0, (8, 8)).clone() for w in attention.qkv.weight.split(attention.split_sizes))
    for h, dt in enumerate(attention.dynamics.tau.exp()):
        q[h], k[h] = (propagator(W, dt, 3) @ torch.cat((q[h], k[h]))).chunk(2)
    folded = tiny_attention("standard")
    unfolded = {"qkv.weight": attention.qkv.weight, "out.weight": attention.out.weight}
    rope = rope_at(torch.arange(T), 8)
    folded.load_state_dict(unfolded)
    assert (folded(x, rope=rope)[0] - attention(x, rope=rope)[0]).abs().max() > 1e-2
    folded.load_state_dict({**unfolded, "qkv.weight": torch.cat((q, k, v)).flatten(0, 1)})
    torch.testing.assert_close(folded(x, rope=rope)[0], attention(x, rope=rope)[0])


def without_dynamics(attention):
    """The same attention, which scores q and k as projected."""
    config = dataclasses.replace(attention.config, dynamics=DynamicsConfig())
    plain = Attention(64, 8, config).to(attention.out.weight.dtype)
    plain.load_state_dict({n: p for n, p in attention.state_dict().items() if not n.startswith("dynamics")})
    return plain


@torch.no_grad()
@stepping_variants
def test_the_effect_of_the_dynamics_is_proportional_to_small_step_sizes(name):
    attention, x = tiny_attention(name), double_randn(B, T, 64)
    expected, _ = without_dynamics(attention)(x)
    distances = []
    for dt in (1e-3, 1e-5, 1e-7):
        attention.dynamics.tau.fill_(math.log(dt))
        distances.append(float((attention(x)[0] - expected).norm()))
    assert distances[0] > 1e-6
    assert distances[1] == pytest.approx(distances[0] / 100, rel=0.1)
    assert distances[2] == pytest.approx(distances[1] / 100, rel=0.1)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@coupled_variants
def test_a_closed_gate_and_a_new_affine_coupling_are_exactly_the_identity(name, dtype):
    affine = VARIANTS[name].dynamics.method == "affine"
    attention = tiny_attention(name) if affine else tiny_attention(name, gate=True)
    attention.to(dtype)
    x = torch.randn(B, T, 64, dtype=dtype)
    expected, _ = without_dynamics(attention)(x)
    assert not torch.equal(attention(x)[0], expected)
    attention.dynamics.apply(lambda module: module.init_weights() if hasattr(module, "init_weights") else None)
    assert torch.equal(attention(x)[0], expected)


@stepping_variants
def test_an_open_gate_equals_ungated_attention_and_a_closed_gate_has_a_gradient(name):
    gated, plain, x = tiny_attention(name, gate=True), tiny_attention(name), double_randn(B, T, 64)
    nn.init.ones_(gated.dynamics.gate)
    plain.load_state_dict({n: p for n, p in gated.state_dict().items() if n != "dynamics.gate"})
    torch.testing.assert_close(gated(x)[0], plain(x)[0])
    nn.init.zeros_(gated.dynamics.gate)
    gated(x)[0].square().sum().backward()
    assert (gated.dynamics.gate.grad.abs() > 1e-8).all()


@every_variant
@pytest.mark.parametrize("head_dim", [20, 60])
@pytest.mark.parametrize("tokens", [1, 63, 111])
def test_odd_shapes_agree_with_the_definition(name, tokens, head_dim):
    d_model = 4 * head_dim
    attention, x = tiny_attention(name, d_model, n_heads=4), double_randn(1, tokens, d_model)
    rope = rope_at(torch.arange(tokens), attention.width)
    with torch.no_grad():
        q, k, v = project(attention, x)
        expected, _ = attention.scoring.plain(*rope(*attention.dynamics(q, k)), v, causal=True, x=x)
        torch.testing.assert_close(attention(x, rope=rope)[0], attention.out(expected.flatten(2)))


def test_normalised_queries_and_keys_ignore_the_scale_of_the_projections():
    attention, x = tiny_attention("hamiltonian", qk_norm=True), double_randn(B, T, 64)
    expected, _ = attention(x)
    q, k, _ = attention.qkv.weight.data.split(attention.split_sizes)
    q.mul_(10)
    k.mul_(0.1)
    torch.testing.assert_close(attention(x)[0], expected, rtol=1e-3, atol=1e-3)  # not exactly: ε = 1e-6


@every_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_accurate_and_keeps_its_dtype(name, dtype):
    attention, x = tiny_attention(name, qk_norm=True), double_randn(B, T, 64)
    rope = rope_at(torch.arange(T), attention.width)
    truth, _ = attention(x, rope=rope)
    out, _ = attention.to(dtype)(x.to(dtype), rope=rope)
    assert out.dtype == dtype
    assert (out.double() - truth).norm() < 16 * torch.finfo(dtype).eps * truth.norm()


@every_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cached_attention_under_autocast_equals_the_full_forward(name, dtype):
    attention, x = tiny_attention(name, qk_norm=True).float(), torch.randn(B, T, 64)
    cache = KVCache(T)
    with torch.autocast("cpu", dtype), torch.no_grad():
        whole, _ = attention(x)
        parts = [attention(x[:, :4], cache=cache)[0], attention(x[:, 4:], cache=cache)[0]]
    assert whole.dtype == cache.k.dtype == cache.v.dtype == dtype
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0.05, atol=0.05)
