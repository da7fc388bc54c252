"""The transformer: exact parameter counts, cached decoding, and equal results in all modes of execution."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from conftest import TINY, random_tokens, tiny_model
from coupledqk import VARIANTS, CoupledQKError, KVCache, ModelConfig, TransformerLM
from coupledqk.initial import initialize

GOLDEN = Path(__file__).parent / "golden" / "state_dict_names.json"
every_variant = pytest.mark.parametrize("name", VARIANTS)


def count(size, name, **settings):
    with torch.device("meta"):
        return sum(p.numel() for p in TransformerLM.from_preset(size, name, **settings).parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("standard", 60_343_296),
        ("euler", 60_408_896),
        ("hamiltonian", 60_408_896),
        ("gqa", 57_197_568),
        ("diff", 60_343_360),
    ],
)
def test_parameter_counts_agree_with_the_papers_table(name, expected):
    assert count("small", name) == expected


SIZES = {
    "tiny": (256, 4, 6, 1024),
    "small": (512, 8, 8, 2048),
    "medium": (768, 12, 12, 3072),
    "large": (1024, 16, 24, 4096),
}


@pytest.mark.parametrize(("size", "n_positions"), [("tiny", 2048), ("small", 2048), ("medium", 512), ("large", 512)])
def test_parameter_counts_agree_with_the_formula(size, n_positions):
    d, heads, layers, d_ff = SIZES[size]
    d_k = d // heads
    norm = d
    layer = 4 * d * d + 3 * d * d_ff + 2 * norm  # q, k, v, out; gate, up, down
    standard = 50_257 * d + n_positions * d + layers * layer + norm

    mlp, tau = 2 * d_k * d_k, heads
    fewer_key_heads = -2 * d * (d - d // 4)  # k and v for a quarter of the heads
    half_mlp = 2 * (d_k // 2) ** 2  # of differential sub-heads, of which there are 2 · heads
    per_layer = {
        "standard": 0,
        "gqa": fewer_key_heads,
        "diff": heads,
        "mlp_only": mlp,
        "euler": mlp + tau,
        "hamiltonian": mlp + tau,
        "euler_diff": half_mlp + 2 * tau + heads,
        "hamiltonian_diff": half_mlp + 2 * tau + heads,
        "euler_gqa": fewer_key_heads + mlp + tau // 4,
        "hamiltonian_gqa": fewer_key_heads + mlp + tau // 4,
        "semi_implicit": mlp + tau,
        "potential": 2 * d_k * d_k + 2 * d_k + tau,  # W and c
        "linear": d_k * d_k + tau,
        "drift": tau,
        "kick": mlp + tau,
        "query_residual": mlp + tau,
        "key_residual": mlp + tau,
        "shared_mlp": mlp + tau,
        "affine": 2 * (d_k * d_k + d_k * 2 * d_k),
        "affine_diff": 2 * 3 * (d_k // 2) ** 2 + heads,
        "diff_v2": d * d + d * heads,  # the second queries and the projection to λ
        "hamiltonian_diff_v2": d * d + d * heads + mlp + tau,
        "gated": d * heads,
        "hamiltonian_gated": d * heads + mlp + tau,
        "sink": heads,
        "hamiltonian_sink": heads + mlp + tau,
        "value_residual": 0,
        "hamiltonian_value_residual": mlp + tau,
    }
    expected = {name: standard + layers * extra for name, extra in per_layer.items()}
    for name in ("value_residual", "hamiltonian_value_residual"):
        expected[name] += 2 * (layers - 1)  # all layers but the first
    assert {name: count(size, name, n_positions=n_positions) for name in VARIANTS} == expected


def test_parameter_counts_of_optional_parts():
    standard = count("small", "standard")
    assert count("small", "standard", positions="rope") == standard - 2048 * 512
    assert count("small", "standard", qk_norm=True) == standard + 8 * 2 * 64
    assert count("small", "hamiltonian", gate=True) == standard + 65_600 + 8 * 8
    assert count("small", "hamiltonian", learn_step_size=False) == standard + 65_536
    assert count("small", "diff", flavour="official") == standard + 8 * 4 * 32


def test_the_papers_medium_parameter_count_implies_512_positions():
    assert round(count("medium", "standard", n_positions=512) / 1e6, 1) == 152.3


def state_dict_shapes():
    builds = {name: (name, {}) for name in VARIANTS} | {
        "diff, official": ("diff", {"flavour": "official"}),
        "hamiltonian, gated": ("hamiltonian", {"gate": True}),
        "standard, qk_norm": ("standard", {"qk_norm": True}),
        "standard, rope": ("standard", {"positions": "rope"}),
        "value_residual, two layers": ("value_residual", {"n_layers": 2}),
    }
    shapes = {}
    for label, (name, options) in builds.items():
        state = TransformerLM.from_preset("nano", name, **{**TINY, "n_layers": 1, **options}).state_dict()
        shapes[label] = {n: " x ".join(map(str, p.shape)) for n, p in state.items()}
    return shapes


def test_state_dict_names_are_stable():
    assert state_dict_shapes() == json.loads(GOLDEN.read_text()), (
        "checkpoints of earlier versions would no longer load; if that is intended, run `python tests/test_model.py` "
        "to write the new names and say so in CHANGELOG.md"
    )


def flat_gradient(loss, model):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])


def test_the_loss_and_its_gradients_equal_the_cross_entropy_of_the_targets_that_count():
    model, tokens, targets = tiny_model(), random_tokens(2, 5), random_tokens(2, 5)
    targets[0, :3] = -100
    log_p = model(tokens).log_softmax(-1)
    counted = [log_p[b, t, targets[b, t]] for b in range(2) for t in range(5) if targets[b, t] != -100]
    for reduction, expected in (("mean", -sum(counted) / 7), ("sum", -sum(counted))):
        loss = model(tokens, targets, reduction=reduction)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(flat_gradient(loss, model), flat_gradient(expected, model))


def llama_weights(model):
    """Our weights under transformers' names."""
    weights = {
        "model.embed_tokens.weight": model.embed.weight,
        "lm_head.weight": model.embed.weight,
        "model.norm.weight": model.norm.weight,
    }
    for i, block in enumerate(model.blocks):
        q, k, v = block.attn.qkv.weight.split(block.attn.split_sizes)
        gate, up = block.ffn.gate_up.weight.chunk(2)
        layer = {
            "input_layernorm": block.attn_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.attn.out.weight,
            "post_attention_layernorm": block.ffn_norm.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": block.ffn.down.weight,
        }
        weights |= {f"model.layers.{i}.{name}.weight": weight for name, weight in layer.items()}
    return weights


@pytest.mark.parametrize("name", ["standard", "gqa"])
def test_the_model_with_rope_equals_llama(name):
    from transformers import LlamaConfig, LlamaForCausalLM

    model, tokens = tiny_model(name, positions="rope"), random_tokens(2, 9)
    config = LlamaConfig(
        vocab_size=TINY["vocab_size"],
        hidden_size=64,
        intermediate_size=TINY["d_ff"],
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8 if name == "standard" else 2,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    llama = LlamaForCausalLM(config).double()
    llama.load_state_dict(llama_weights(model), strict=True)
    # Llama computes its norms in float32
    torch.testing.assert_close(model(tokens), llama(tokens).logits, rtol=1e-4, atol=1e-4)


def decode(model, tokens, sizes, padding=None):
    """Logits of the tokens when a cache receives them in chunks of these sizes."""
    cache, parts, end = model.new_cache(tokens.shape[1]), [], 0
    with torch.no_grad():
        for size in sizes:
            start, end = end, end + size
            seen = None if padding is None else padding[:, :end]
            parts.append(model(tokens[:, start:end], padding=seen, cache=cache))
    return torch.cat(parts, dim=1)


CHUNKS = {
    "prefill": (9,),
    "token by token": (1,) * 9,
    "chunked prefill": (4, 3, 2),
    "prefill, then tokens": (5, 1, 1, 1, 1),
}
chunked = pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)


@every_variant
@pytest.mark.parametrize("positions", ["learned", "rope"])
@chunked
@pytest.mark.usefixtures("poisoned_memory")
def test_cached_decoding_equals_the_full_forward(name, positions, sizes):
    model, tokens = tiny_model(name, positions=positions), random_tokens(2, 9)
    torch.testing.assert_close(decode(model, tokens, sizes), model(tokens))


@every_variant
@pytest.mark.parametrize("positions", ["learned", "rope"])
@chunked
@pytest.mark.usefixtures("poisoned_memory")
def test_left_padding_changes_nothing_with_or_without_a_cache(name, positions, sizes):
    model, tokens = tiny_model(name, positions=positions), random_tokens(3, 9)
    padding = torch.tensor([9, 4, 1])[:, None] > torch.arange(9).flip(0)
    expected = [model(row[real][None])[0] for row, real in zip(tokens, padding, strict=True)]
    for logits in (model(tokens, padding=padding), decode(model, tokens, sizes, padding)):
        assert logits.isfinite().all()
        for row, real, alone in zip(logits, padding, expected, strict=True):
            torch.testing.assert_close(row[real], alone)


@every_variant
def test_right_padding_changes_nothing(name):
    model, tokens = tiny_model(name), random_tokens(2, 9)
    padding = torch.tensor([9, 4])[:, None] > torch.arange(9)
    logits = model(tokens, padding=padding)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[1, :4], model(tokens[1:, :4])[0])


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), name=st.sampled_from(list(VARIANTS)))
def test_cached_decoding_equals_the_full_forward_for_any_chunks(sizes, name):
    model, tokens = tiny_model(name, n_positions=40), random_tokens(1, sum(sizes))
    torch.testing.assert_close(decode(model, tokens, sizes), model(tokens))


@every_variant
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_checkpointing_changes_neither_the_loss_nor_its_gradients(name, positions):
    model, tokens, targets = tiny_model(name, positions=positions), random_tokens(2, 9), random_tokens(2, 9)
    results = []
    for model.gradient_checkpointing in (False, True):
        model.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_checkpointing_runs_every_block_again_in_the_backward_pass():
    model, tokens = tiny_model("hamiltonian"), random_tokens(2, 9)
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.gradient_checkpointing = True
    model(tokens, tokens).backward()
    assert len(calls) == 2


@pytest.mark.parametrize("positions", ["learned", "rope"])
@every_variant
def test_every_variant_compiles_to_one_graph(name, positions):
    torch.compiler.reset()
    model, tokens = tiny_model(name, n_layers=1, positions=positions), random_tokens(2, 5)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, tokens), model(tokens, tokens))


@pytest.mark.parametrize(("name", "positions"), [("hamiltonian_gqa", "learned"), ("hamiltonian_diff", "rope")])
def test_compiled_equals_eager_forward_and_backward(name, positions):
    torch.compiler.reset()
    model, tokens, targets = tiny_model(name, positions=positions, n_layers=1), random_tokens(2, 7), random_tokens(2, 7)
    results = []
    for run in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        loss = run(tokens, targets)
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize("name", ["standard", "hamiltonian", "euler_gqa", "diff"])
def test_a_traced_model_equals_the_original(name, positions):
    model = tiny_model(name, positions=positions).eval()
    with torch.no_grad():
        traced = torch.jit.trace(model, random_tokens(2, 7))
        tokens = random_tokens(2, 7)
        torch.testing.assert_close(traced(tokens), model(tokens))


@every_variant
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_close_to_full_precision(name, dtype):
    model, tokens, targets = tiny_model(name, qk_norm=True).float(), random_tokens(2, 9), random_tokens(2, 9)
    loss = model(tokens, targets)
    gradient = flat_gradient(loss, model)
    with torch.autocast("cpu", dtype):
        assert model(tokens).dtype == dtype
        low_loss = model(tokens, targets)
    assert low_loss.dtype == torch.float32
    torch.testing.assert_close(low_loss, loss, rtol=0.01, atol=0)
    assert (flat_gradient(low_loss, model) - gradient).norm() < 0.05 * gradient.norm()


@every_variant
def test_a_saved_and_loaded_model_gives_the_same_logits(name, tmp_path):
    from safetensors.torch import load_file, save_file

    model, tokens = tiny_model(name), random_tokens(2, 9)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = TransformerLM.from_preset("nano", name, seed=1, **TINY).double()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert torch.equal(other(tokens), model(tokens))


@every_variant
def test_a_model_built_on_the_meta_device_and_initialised_later_is_the_same(name):
    with torch.device("meta"):
        model = TransformerLM.from_preset("nano", name, **TINY)
    assert all(p.is_meta for p in model.parameters())
    initialize(model.to_empty(device="cpu"), seed=5)
    expected = TransformerLM.from_preset("nano", name, seed=5, **TINY).state_dict()
    assert all(torch.equal(p, expected[n]) for n, p in model.state_dict().items())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TransformerLM.from_preset("smal"), "unknown preset 'smal': did you mean 'small'"),
        (lambda: TransformerLM.from_preset("nano", "eular"), "unknown variant 'eular': did you mean 'euler'"),
        (lambda: TransformerLM.from_preset("nano", n_heads=3), "d_model=128 is not divisible by n_heads=3"),
        (lambda: TransformerLM.from_preset("nano", "gqa", n_heads=2), "n_heads=2 is not divisible by group_size=4"),
        (lambda: TransformerLM.from_preset("nano", d_model=36, positions="rope"), "9 wide"),
        (lambda: TransformerLM.from_preset("nano", "diff", d_model=24, positions="rope"), "3 wide"),
        (lambda: TransformerLM.from_preset("nano", "euler", n_steps=0), "n_steps=0: expected at least 1"),
        (lambda: TransformerLM.from_preset("nano", "euler", step_size=0), "step_size=0.0: expected greater than 0"),
        (lambda: TransformerLM.from_preset("nano", n_layer=3), "unknown setting 'n_layer': did you mean 'n_layers'"),
        (lambda: ModelConfig(vocab_size=0), "vocab_size=0: expected at least 1"),
    ],
)
def test_an_impossible_model_is_refused(build, message):
    with pytest.raises(CoupledQKError, match=message):
        build()


ONES = torch.ones(2, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": ONES[0]}, r"tokens of shape \(5,\): expected \(batch, tokens\)"),
        ({"tokens": ONES[:0]}, r"tokens of shape \(0, 5\).*at least one sequence"),
        ({"tokens": ONES[:, :0]}, r"tokens of shape \(2, 0\).*at least one sequence and one token"),
        ({"tokens": torch.ones(1, 33, dtype=torch.int64)}, "33 tokens is longer than the model's 32 learned positions"),
        ({"tokens": ONES, "targets": ONES[:, 1:]}, r"targets of shape \(2, 4\): expected that of the tokens, \(2, 5\)"),
        ({"tokens": ONES.byte()}, "tokens of dtype torch.uint8: expected token ids as int64 or int32"),
        ({"tokens": 1000 * ONES}, "token ids from 1000 to 1000 in the tokens"),
        ({"tokens": ONES, "targets": ONES.float()}, "targets of dtype torch.float32: expected token ids"),
        ({"tokens": ONES, "targets": -ONES}, "target -1 is outside the vocabulary: .* or -100 for targets to ignore"),
        ({"tokens": ONES, "targets": ONES, "reduction": "none"}, "unknown reduction 'none': choose from mean, sum"),
        ({"tokens": ONES, "cache": []}, r"a cache of 0 different parts for \d layers: make it with new_cache"),
        ({"tokens": ONES, "cache": [KVCache(9)] * 2}, "a cache of 1 different parts"),
        ({"tokens": ONES, "padding": ONES}, "dtype torch.int64: expected booleans"),
        ({"tokens": ONES, "padding": ONES[:, 1:].bool()}, r"padding of shape \(2, 4\).*booleans of shape \(2, 5\)"),
        ({"tokens": ONES, "padding": ONES[0].bool()}, r"padding of shape \(5,\)"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(CoupledQKError, match=message):
        tiny_model()(**arguments)


def test_cached_tokens_count_towards_the_number_of_positions():
    model = tiny_model()
    cache = model.new_cache(40)
    model(random_tokens(1, 30), cache=cache)
    with pytest.raises(CoupledQKError, match="33 tokens is longer"):
        model(random_tokens(1, 3), cache=cache)


def test_rope_has_no_maximum_sequence_length():
    assert tiny_model(positions="rope")(random_tokens(1, 50)).shape == (1, 50, 37)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(state_dict_shapes(), indent=1) + "\n")


def test_torch_func_computes_the_gradients_of_each_sequence():
    model, tokens = tiny_model(), random_tokens(2, 5)
    weights = dict(model.named_parameters())

    def loss(weights, row):
        return torch.func.functional_call(model, weights, (row[None], row[None]))

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, tokens)
    for row, x in enumerate(tokens):
        plain = torch.autograd.grad(model(x[None], x[None]), list(weights.values()))
        torch.testing.assert_close([each[name][row] for name in weights], list(plain))


def test_second_derivatives_of_the_loss_are_correct_with_tied_embeddings():
    model, tokens = tiny_model().double(), random_tokens(2, 5)
    weights = list(model.parameters())

    def curvature(loss: torch.Tensor) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in gradients), weights))

    with sdpa_kernel(SDPBackend.MATH):
        logits = model(tokens).flatten(0, 1)
        plain = curvature(F.cross_entropy(logits, tokens.flatten()))
        torch.testing.assert_close(curvature(model(tokens, tokens)), plain)
