"""Scoring: the fast path uses the fast kernel and agrees with the definition and an independent implementation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from conftest import double_randn, stir
from coupledqk import Attention, registry, rope_at
from coupledqk.config import ScoringConfig
from coupledqk.layers import RMS_EPS
from coupledqk.scoring import SCORINGS as SCORING_RECORDS
from coupledqk.scoring import blocks, build_scoring
from coupledqk.scoring.softmax import attend
from coupledqk.variants import variant

SCORINGS = {
    "softmax": ScoringConfig(),
    "differential": ScoringConfig(kind="differential"),
    "official": ScoringConfig(kind="differential", flavour="official"),
    "differential_v2": ScoringConfig(kind="differential_v2"),
    "gated": ScoringConfig(kind="gated"),
    "sink": ScoringConfig(kind="sink"),
}
H, WIDTH, T = 4, 6, 5


def test_every_kind_of_scoring_is_tested():
    assert {config.kind for config in SCORINGS.values()} == set(registry.SCORINGS)


def build(name, layer=1):
    return stir(build_scoring(SCORINGS[name], n_heads=H, width=WIDTH, layer=layer, eps=RMS_EPS))


def qkv(name, group_size=1, queries=T, keys=T):
    entry = registry.SCORINGS[SCORINGS[name].kind]
    q = double_randn(2, queries, entry.queries * entry.sub_heads * H, WIDTH)
    k, v = double_randn(2, 2, keys, entry.sub_heads * H // group_size, WIDTH).unbind()
    return q, k, v


def given_x(name):
    """The input of the attention, for a scoring that reads it."""
    return {"x": double_randn(2, T, H * WIDTH).requires_grad_()} if SCORING_RECORDS[SCORINGS[name].kind].gates else {}


VISIBLE = {
    "all": {},
    "causal": {"causal": True},
    "mask": {"mask": torch.eye(T, dtype=torch.bool) | (torch.arange(T * T).view(T, T) % 3 == 0)},
    "padding": {"mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None]},
}


@pytest.mark.parametrize("visible", VISIBLE)
@pytest.mark.parametrize("group_size", [1, 2, 4])
@pytest.mark.parametrize("name", SCORINGS)
def test_fast_equals_plain_forward_and_backward(name, group_size, visible):
    scoring, inputs = build(name), [x.requires_grad_() for x in qkv(name, group_size)]
    options = {**VISIBLE[visible], **(x := given_x(name))}
    wanted = [*inputs, *x.values(), *scoring.parameters()]
    fast, (plain, _) = scoring(*inputs, **options), scoring.plain(*inputs, **options)
    torch.testing.assert_close(fast, plain)
    cotangent = double_randn(*fast.shape)
    fast_gradients, plain_gradients = (torch.autograd.grad(out, wanted, cotangent) for out in (fast, plain))
    torch.testing.assert_close(fast_gradients, plain_gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 1 << 18], ids=["head by head", "all heads"])
@pytest.mark.parametrize("rows", [1, 2, T, T + 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group_size", [1, 2, 4])
@pytest.mark.parametrize("name", ["differential", "official"])
def test_blocks_equal_plain_forward_and_backward(name, group_size, causal, rows, chunk, monkeypatch):
    for setting, value in {"WORTH_BLOCKS": 1, "ROWS": rows, "CHUNK": chunk}.items():
        monkeypatch.setattr(blocks, setting, value)
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):  # a call to the flash kernel would be an error
        test_fast_equals_plain_forward_and_backward(name, group_size, "causal" if causal else "all")


def test_blocks_are_as_accurate_as_the_flash_kernel(monkeypatch):
    scoring = build("differential").float()
    q, k, v = (torch.randn(2, 200, 2 * H, WIDTH, requires_grad=True) for _ in range(3))
    wanted, results = [q, k, v, scoring.lam], {}
    for way, worth in {"blocks": 1, "flash": 10**6}.items():
        monkeypatch.setattr(blocks, "WORTH_BLOCKS", worth)
        out = scoring(q, k, v, causal=True)
        results[way] = [out, *torch.autograd.grad(out.square().sum(), wanted)]
    exact, (q, k, v) = build("differential"), (x.detach().double().requires_grad_() for x in (q, k, v))
    exact.load_state_dict(scoring.state_dict())
    out = exact.plain(q, k, v, causal=True)[0]
    expected = [out, *torch.autograd.grad(out.square().sum(), [q, k, v, exact.lam])]
    for mine, flash, truth in zip(results["blocks"], results["flash"], expected, strict=True):
        error, allowed = ((x - truth).norm() / truth.norm() for x in (mine, flash))
        assert error <= 1.1 * allowed + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_training_in_half_precision_is_as_accurate_as_the_kernel_in_that_precision(dtype, autocast):
    """On a CPU the kernel then runs in float32. Outputs and gradients keep the dtype of the inputs."""
    exact = [torch.randn(2, 33, H, WIDTH, dtype=torch.float64) for _ in range(3)]
    given = [x.to(dtype).requires_grad_() for x in exact]
    truth = [x.detach().double().requires_grad_() for x in given]
    cotangent = torch.randn(2, 33, H, WIDTH).to(dtype)
    results = []
    for fast, inputs in ((True, given), (False, given), (True, truth)):
        with torch.autocast("cpu", dtype, enabled=autocast and inputs is given):
            if fast:
                out = attend(*inputs, causal=True)
            else:
                out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), is_causal=True).transpose(
                    1, 2
                )
        results.append([out, *torch.autograd.grad(out, inputs, cotangent.to(out.dtype))])
    for mine, naive, true in zip(*results, strict=True):
        assert mine.dtype == naive.dtype == dtype
        error, allowed = ((x.double() - true).norm() for x in (mine, naive))
        assert error <= 1.05 * allowed


@pytest.mark.parametrize("group_size", [1, 2])
def test_softmax_equals_its_formula_for_each_query(group_size):
    q, k, v = qkv("softmax", group_size, queries=3)
    out = build("softmax")(q, k, v)
    for b in range(2):
        for t in range(3):
            for h in range(H):
                key_head = h // group_size
                scores = torch.stack([q[b, t, h] @ k[b, s, key_head] for s in range(T)]) / math.sqrt(WIDTH)
                expected = sum(weight * v[b, s, key_head] for s, weight in enumerate(scores.exp() / scores.exp().sum()))
                torch.testing.assert_close(out[b, t, h], expected)


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("name", ["differential", "official"])
def test_differential_equals_its_formula_for_each_head(name, group_size):
    """Sub-heads i and i + H form a head, whose V concatenates their values; the output is (A₁ − λ A₂) V, normalised."""
    scoring, (q, k, v) = build(name), qkv(name, group_size)
    out = scoring(q, k, v)
    lam_init = 0.8 - 0.6 * math.exp(-0.3 * 1)
    for h in range(H):
        g = h // group_size
        maps = []
        for i, j in ((h, g), (h + H, g + H // group_size)):
            maps.append(torch.softmax(q[:, :, i] @ k[:, :, j].mT / math.sqrt(WIDTH), dim=-1))
        if name == "official":
            first, second = scoring.lam_q1 @ scoring.lam_k1, scoring.lam_q2 @ scoring.lam_k2
            lam = first.exp() - second.exp() + lam_init
        else:
            lam = scoring.lam[h]
        value = torch.cat([v[:, :, g], v[:, :, g + H // group_size]], dim=-1)
        head = (maps[0] - lam * maps[1]) @ value
        head = head / (head.square().mean(-1, keepdim=True) + RMS_EPS).sqrt() * (1 - lam_init)
        torch.testing.assert_close(out[:, :, h], head)


LAMBDAS = {
    "differential": lambda scoring, x: scoring.strength()[:, None],
    "official": lambda scoring, x: scoring.strength()[..., None],
    "differential_v2": lambda scoring, x: (x @ scoring.lam.weight.T).sigmoid().mT,
}


@pytest.mark.parametrize("name", SCORINGS)
def test_weights_are_causal_and_their_rows_have_the_expected_sums(name):
    """Rows sum to 1 for softmax, to 1 − λ for a difference and to less than 1 with a sink; only signed weights are negative."""
    scoring, (q, k, _), x = build(name), qkv(name), double_randn(2, T, H * WIDTH)
    weights = scoring.weights(q, k, causal=True, x=x)
    assert weights.shape == (2, H, T, T)
    assert torch.equal(weights, weights.tril())
    assert bool((weights < 0).any()) == SCORING_RECORDS[SCORINGS[name].kind].signed
    total = weights.sum(-1)
    if name == "sink":
        assert ((total > 0) & (total < 1)).all()
    else:
        expected = 1 - LAMBDAS[name](scoring, x) if name in LAMBDAS else torch.ones((), dtype=torch.float64)
        torch.testing.assert_close(total, expected.expand(2, H, T))


@pytest.mark.parametrize("group_size", [1, 2])
def test_differential_v2_equals_its_formula_for_each_head(group_size):
    """Queries 2h and 2h + 1 share a key and a value head; λ is a sigmoid of the token's own input."""
    scoring, (q, k, v), x = build("differential_v2"), qkv("differential_v2", group_size), double_randn(2, T, H * WIDTH)
    out = scoring(q, k, v, x=x)
    for h in range(H):
        key, value = k[:, :, h // group_size], v[:, :, h // group_size]
        first, second = ((q[:, :, i] @ key.mT / math.sqrt(WIDTH)).softmax(-1) for i in (2 * h, 2 * h + 1))
        lam = 1 / (1 + (-x @ scoring.lam.weight[h]).exp())
        torch.testing.assert_close(out[:, :, h], (first - lam[..., None] * second) @ value)


def test_a_gate_multiplies_the_output_of_its_head_at_its_token_only():
    scoring, (q, k, v), x = build("gated"), qkv("gated"), double_randn(2, T, H * WIDTH)
    out, ungated = scoring(q, k, v, causal=True, x=x), build("softmax")(q, k, v, causal=True)
    for t in range(T):
        for h in range(H):
            gate = 1 / (1 + (-x[:, t] @ scoring.gate.weight[h]).exp())
            torch.testing.assert_close(out[:, t, h], gate[:, None] * ungated[:, t, h])


def test_a_sink_is_one_more_term_in_the_softmax_without_a_value():
    scoring, (q, k, v) = build("sink"), qkv("sink")
    out = scoring(q, k, v)
    for h in range(H):
        scores = (q[:, :, h] @ k[:, :, h].mT / math.sqrt(WIDTH)).exp()
        expected = scores / (scoring.logit[h].exp() + scores.sum(-1, keepdim=True)) @ v[:, :, h]
        torch.testing.assert_close(out[:, :, h], expected)
    with torch.no_grad():
        scoring.logit.fill_(-1e4)
    torch.testing.assert_close(scoring(q, k, v), build("softmax")(q, k, v))


@pytest.mark.parametrize("layer", [0, 1, 7])
def test_lambda_starts_at_the_papers_value_for_its_layer(layer):
    expected = 0.8 - 0.6 * math.exp(-0.3 * layer)
    paper = build_scoring(SCORINGS["differential"], n_heads=H, width=WIDTH, layer=layer, eps=RMS_EPS)
    torch.testing.assert_close(paper.strength(), torch.full((H,), expected))
    assert paper.lam_init == pytest.approx(expected)
    if layer == 0:
        assert expected == pytest.approx(0.2)


@pytest.mark.parametrize("visible", VISIBLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group_size", [1, 2, 4])
@pytest.mark.parametrize("name", SCORINGS)
def test_the_fast_path_uses_the_flash_kernel(name, group_size, dtype, visible):
    scoring, inputs = build(name).to(dtype), [x.to(dtype).requires_grad_() for x in qkv(name, group_size)]
    x = {key: value.to(dtype) for key, value in given_x(name).items()}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        scoring(*inputs, **VISIBLE[visible], **x).sum().backward()


@pytest.mark.filterwarnings("ignore:Flash attention")
def test_the_flash_kernel_does_not_support_values_wider_than_queries():
    """This is the reason for the geometry of differential scoring, and shows that a test of the flash kernel can fail."""
    q, k, _ = qkv("softmax")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        build("softmax")(q, k, double_randn(2, T, H, 2 * WIDTH))


@pytest.mark.parametrize("path", ["fast", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", SCORINGS)
def test_a_fully_masked_row_is_zero_with_finite_gradients(name, dtype, path):
    scoring, inputs = build(name).to(dtype), [x.to(dtype).requires_grad_() for x in qkv(name)]
    mask = torch.ones(2, 1, T, T, dtype=torch.bool)
    mask[0, :, :2] = False
    x = {key: value.to(dtype) for key, value in given_x(name).items()}
    out = scoring(*inputs, mask, **x) if path == "fast" else scoring.plain(*inputs, mask, **x)[0]
    assert (out[0, :2] == 0).all()
    assert (out[0, 2:].abs().sum(-1) > 0).all()
    out.float().square().sum().backward()
    for tensor in (*inputs, *scoring.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert (inputs[0].grad[0, :2] == 0).all()


@pytest.mark.parametrize("name", SCORINGS)
def test_masked_tokens_have_no_influence(name):
    scoring, (q, k, v), x = build(name), qkv(name), given_x(name)
    mask = VISIBLE["padding"]["mask"]
    expected = scoring(q, k, v, mask, **x)
    k, v = k.clone(), v.clone()
    k[0, :2], v[0, :2] = 1e3, -1e3
    torch.testing.assert_close(scoring(q, k, v, mask, **x), expected, rtol=0, atol=0)


def as_diff_llama(attention, group_size):
    """The transformers module with the same weights: qkv = q_proj | k_proj | v_proj by rows, out = o_proj,
    lam_x = lambda_x, and their heads are our sub-heads."""
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaConfig

    config = DiffLlamaConfig(
        hidden_size=attention.d_model,
        num_attention_heads=2 * H,
        num_key_value_heads=2 * H // group_size,
        rms_norm_eps=RMS_EPS,
        attn_implementation="sdpa",
    )
    theirs = DiffLlamaAttention(config, layer_idx=3).double()
    q, k, v = attention.qkv.weight.split(attention.split_sizes)
    weights = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": attention.out.weight}
    weights |= {f"lambda_{x}": getattr(attention.scoring, f"lam_{x}") for x in ("q1", "k1", "q2", "k2")}
    theirs.load_state_dict(weights, strict=True)
    return theirs


@pytest.mark.parametrize("group_size", [1, 2])
def test_official_differential_attention_equals_diff_llama(group_size):
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaRotaryEmbedding

    config = variant("diff", flavour="official", group_size=group_size)
    attention = stir(Attention(2 * WIDTH * H, H, config, layer=3))
    theirs = as_diff_llama(attention, group_size)
    x, positions = double_randn(2, 7, attention.d_model), torch.arange(7)
    ours, _ = attention(x, rope=rope_at(positions, attention.width))
    their_rope = DiffLlamaRotaryEmbedding(theirs.config)(x, positions[None])
    expected, _ = theirs(x, their_rope, attention_mask=None)
    assert expected.abs().mean() > 0.1
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)  # their λ and both rotations are float32
