"""Our models in transformers: the same numbers, and the features that users expect of a model."""

import dataclasses
import importlib.metadata
from pathlib import Path

import pytest
import torch

from conftest import TINY, random_tokens, tiny_model
from coupledqk.config import ModelConfig
from coupledqk.errors import CoupledQKError
from coupledqk.model import TransformerLM

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    StaticCache,
    Trainer,
    TrainingArguments,
)

from coupledqk.coupling.versions import require_transformers  # noqa: E402
from coupledqk.hf import CoupledQKConfig, CoupledQKForCausalLM, from_transformers, to_transformers  # noqa: E402

KINDS = {
    "standard": {},
    "gqa": {},
    "diff": {},
    "hamiltonian": {},
    "euler_diff": {"positions": "rope"},
    "euler_gqa": {"positions": "rope", "qk_norm": True},
    "affine": {},
    "hamiltonian_diff_v2": {"positions": "rope"},
    "gated": {},
    "hamiltonian_sink": {},
    "value_residual": {},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _no_bars() -> None:
    transformers.utils.logging.disable_progress_bar()


def pair(kind: str = "hamiltonian"):
    """One of our models and the same for transformers, in float64."""
    ours = tiny_model(kind, **KINDS[kind])
    return ours, to_transformers(ours, pad_token_id=0)


def padded(B: int = 3, T: int = 9):
    """Prompts whose rows begin with 0, 2 and 5 tokens of padding."""
    tokens = random_tokens(B, T).clamp(min=1)
    real = torch.ones(B, T, dtype=torch.long)
    real[1, :2] = real[2, :5] = 0
    return tokens.masked_fill(real == 0, 0), real


# the model


@each_kind
def test_logits_are_bit_identical_to_ours(kind) -> None:
    ours, theirs = pair(kind)
    tokens, real = padded()
    assert torch.equal(theirs(tokens).logits, ours(tokens))
    assert torch.equal(theirs(tokens, attention_mask=real).logits, ours(tokens, padding=real.bool()))


@each_kind
def test_generation_with_every_cache_equals_ours(kind) -> None:
    ours, theirs = pair(kind)
    tokens, real = padded()

    def generate(**options):
        return theirs.generate(tokens, attention_mask=real, max_new_tokens=8, do_sample=False, **options)

    expected = ours.generate(tokens, 8, temperature=0.0, padding=real.bool())
    assert torch.equal(generate(use_cache=False), expected)
    assert torch.equal(generate(), expected)
    assert torch.equal(generate(cache_implementation="static", disable_compile=True), expected)
    assert torch.equal(generate(num_beams=3), generate(num_beams=3, use_cache=False))


@each_kind
def test_eager_attention_gives_the_same_logits_and_the_attention_maps(kind) -> None:
    ours, theirs = pair(kind)
    tokens, real = padded()
    fast = theirs(tokens, attention_mask=real).logits
    theirs.set_attn_implementation("eager")
    eager = theirs(tokens, attention_mask=real, output_attentions=True, output_hidden_states=True)
    visible = real.bool()[..., None]
    torch.testing.assert_close(eager.logits * visible, fast * visible)
    assert len(eager.attentions) == 2
    assert len(eager.hidden_states) == 3
    assert eager.attentions[0].shape == (3, ours.config.n_heads, 9, 9)
    assert torch.equal(eager.attentions[0].triu(1), torch.zeros(3, ours.config.n_heads, 9, 9, dtype=torch.double))
    if "diff" not in kind and "sink" not in kind:
        torch.testing.assert_close(eager.attentions[1][0].sum(-1), torch.ones(8, 9, dtype=torch.double))


def test_a_mask_may_be_as_long_as_a_static_cache() -> None:
    _, theirs = pair()
    tokens, real = padded()
    cache = StaticCache(config=theirs.config, max_cache_len=16)
    mask = torch.cat((real, torch.ones(3, 7, dtype=torch.long)), dim=1)
    logits = [theirs(part, past_key_values=cache, attention_mask=mask).logits for part in tokens.split(5, dim=1)]
    expected = theirs(tokens, attention_mask=real).logits
    torch.testing.assert_close(torch.cat(logits, dim=1)[real.bool()], expected[real.bool()])


@pytest.mark.parametrize("kind", ["hamiltonian", "hamiltonian_diff_v2"])
def test_assisted_generation_gives_the_same_tokens(kind) -> None:
    _, theirs = pair(kind)
    assistant = to_transformers(tiny_model("standard", positions=theirs.config.positions))
    prompt, options = random_tokens(1, 8), {"max_new_tokens": 6, "do_sample": False}
    expected = theirs.generate(prompt, **options)
    for how in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}, {"assistant_early_exit": 1}):
        assert torch.equal(theirs.generate(prompt, **how, **options), expected)


def test_chunks_with_a_larger_static_cache_equal_the_full_forward() -> None:
    ours, theirs = pair("hamiltonian")
    tokens = random_tokens(2, 12)
    cache = StaticCache(config=theirs.config, max_cache_len=20)
    chunks = [theirs(part, past_key_values=cache).logits for part in tokens.split([5, 1, 4, 2], dim=1)]
    torch.testing.assert_close(torch.cat(chunks, dim=1), ours(tokens))


@pytest.mark.parametrize("kind", ["hamiltonian", "euler_gqa"])
def test_tokens_that_do_not_fit_into_a_static_cache_are_refused_and_leave_it_as_it_is(kind) -> None:
    ours, theirs = pair(kind)
    tokens = random_tokens(2, 12)
    cache = StaticCache(config=theirs.config, max_cache_len=8)
    with pytest.raises(CoupledQKError, match="12 more tokens do not fit into a static cache of 8 with 0 in use"):
        theirs(tokens, past_key_values=cache)
    first = theirs(tokens[:, :6], past_key_values=cache).logits
    with pytest.raises(CoupledQKError, match="of 8 with 6 in use: create it with a max_cache_len of at least 9"):
        theirs(tokens[:, 6:9], past_key_values=cache)
    second = theirs(tokens[:, 6:8], past_key_values=cache).logits
    torch.testing.assert_close(torch.cat((first, second), dim=1), ours(tokens[:, :8]))


def test_a_converted_model_has_its_own_weights() -> None:
    ours, theirs = pair()
    untied = to_transformers(ours, tie_word_embeddings=False)
    tokens = random_tokens(2, 8)
    assert torch.equal(untied(tokens).logits, theirs(tokens).logits)
    back = from_transformers(theirs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    for model in (ours, back):
        assert torch.equal(model(tokens), untied(tokens).logits)
    assert all(p.requires_grad for p in back.parameters())


def test_models_without_weights_or_with_int8_weights_are_not_converted() -> None:
    config = pair()[1].config
    with torch.device("meta"):
        empty, ours = CoupledQKForCausalLM(config), TransformerLM(config.to_model_config())
    for convert in (lambda: to_transformers(ours), lambda: from_transformers(empty)):
        with pytest.raises(CoupledQKError, match="is on the meta device and has no weights"):
            convert()
    with pytest.raises(CoupledQKError, match=r"int8 weights cannot be converted: convert it before to_int8\(\)"):
        to_transformers(tiny_model("hamiltonian").float().to_int8())


def test_a_model_with_adapters_is_converted_after_they_are_merged() -> None:
    peft = pytest.importorskip("peft")
    _, theirs = pair()
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules=["qkv"], init_lora_weights=False))
    with pytest.raises(CoupledQKError, match=r"have been changed .*merge or remove its adapters first"):
        from_transformers(adapted.get_base_model())
    tokens = random_tokens(2, 8)
    expected = adapted(input_ids=tokens).logits
    torch.testing.assert_close(from_transformers(adapted.merge_and_unload())(tokens), expected)


@each_kind
def test_save_and_load_through_the_auto_classes(kind, tmp_path: Path, poisoned_memory) -> None:
    _, theirs = pair(kind)
    tokens = random_tokens(2, 7)
    theirs.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is CoupledQKForCausalLM
    for (name, a), b in zip(loaded.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b), name
    torch.testing.assert_close(loaded(tokens).logits, theirs(tokens).logits)
    assert loaded.lm_head.weight is loaded.model.embed.weight
    hidden = AutoModel.from_pretrained(tmp_path)(tokens).last_hidden_state
    torch.testing.assert_close(loaded.lm_head(hidden), theirs(tokens).logits)
    assert from_transformers(loaded).config == from_transformers(theirs).config
    assert {p.name for p in tmp_path.iterdir()} >= {"config.json", "model.safetensors"}


@each_kind
def test_a_new_model_is_initialized_like_ours(kind, poisoned_memory) -> None:
    config = AutoConfig.for_model(
        "coupledqk", attention=kind, **TINY, positions=KINDS[kind].get("positions", "learned")
    )
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.model.named_parameters():
        assert parameter.isfinite().all(), name
    qkv, out = model.model.blocks[0].attn.qkv.weight, model.model.blocks[0].attn.out.weight
    assert qkv.std().item() == pytest.approx(0.02, rel=0.1)
    assert out.std().item() == pytest.approx(0.01, rel=0.1)  # scaled by 1/√(2 · 2 layers)
    assert model.model.norm.weight.eq(1).all()


def test_missing_weights_are_initialized_and_existing_ones_loaded(tmp_path: Path, poisoned_memory) -> None:
    _, theirs = pair("standard")
    theirs.save_pretrained(tmp_path)
    coupled = AutoConfig.from_pretrained(tmp_path, attention="hamiltonian")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, config=coupled)
    assert torch.equal(model.model.blocks[1].attn.qkv.weight, theirs.model.blocks[1].attn.qkv.weight)
    assert torch.equal(model.model.blocks[1].ffn.gate_up.weight, theirs.model.blocks[1].ffn.gate_up.weight)
    dynamics = model.model.blocks[1].attn.dynamics
    torch.testing.assert_close(dynamics.step_size, torch.full((8,), 0.1, dtype=dynamics.tau.dtype))
    assert dynamics.force.w1.std().item() == pytest.approx(0.02, rel=0.3)


def test_embeddings_can_be_resized_and_stay_tied() -> None:
    _, theirs = pair()
    tokens = random_tokens(2, 6)
    before = theirs(tokens).logits
    theirs.resize_token_embeddings(41)
    assert theirs.config.vocab_size == theirs.config.to_model_config().vocab_size == 41
    assert theirs.lm_head.weight is theirs.model.embed.weight
    torch.testing.assert_close(theirs(tokens).logits[..., :37], before)


def test_the_configuration_equals_ours_and_has_transformers_names() -> None:
    fields = {f.name: f.default for f in dataclasses.fields(ModelConfig) if f.name != "attention"}
    config = CoupledQKConfig()
    assert {name: getattr(config, name) for name in fields} == fields
    assert config.to_model_config() == ModelConfig()
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (512, 8, 2048)


# training


@pytest.mark.parametrize("kind", ["hamiltonian", "euler_diff", "value_residual"])
def test_gradient_checkpointing_changes_no_gradient(kind) -> None:
    _, theirs = pair(kind)
    tokens = random_tokens(2, 8)
    theirs.train()
    theirs(tokens, labels=tokens).loss.backward()
    plain = {name: p.grad.clone() for name, p in theirs.named_parameters()}
    theirs.zero_grad()
    theirs.gradient_checkpointing_enable()
    runs = []
    theirs.model.blocks[0].attn.register_forward_hook(lambda *_: runs.append(1))
    theirs(tokens, labels=tokens).loss.backward()
    assert len(runs) == 2
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter.grad, plain[name]), name


def test_reentrant_checkpointing_with_value_residuals_is_refused() -> None:
    """Reentrant checkpointing passes gradients only through tensor arguments, and the first layer's values are not one."""
    theirs = pair("value_residual")[1].train()
    with pytest.raises(CoupledQKError, match=r'value_residual=True does not support reentrant.*"use_reentrant": False'):
        theirs.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    pair()[1].train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})


def test_the_loss_is_that_of_the_next_tokens() -> None:
    ours, theirs = pair()
    tokens = random_tokens(2, 8)
    expected = ours(tokens[:, :-1], tokens[:, 1:].contiguous())
    torch.testing.assert_close(theirs(tokens, labels=tokens).loss.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_resumed_trainer_gives_the_same_weights(tmp_path: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in random_tokens(16, 8)]

    def train(folder: str, resume: bool = False):
        arguments = TrainingArguments(
            output_dir=str(tmp_path / folder),
            max_steps=4,
            save_steps=2,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_steps=1,
        )
        _, theirs = pair()
        trainer = Trainer(model=theirs.float(), args=arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2") if resume else None)
        return trainer

    whole, resumed = train("whole"), train("resumed", resume=True)
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    for (name, a), b in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("kind", ["hamiltonian", "diff", "euler_diff"])
def test_classification_does_not_depend_on_where_the_padding_is(kind, tmp_path: Path) -> None:
    _, theirs = pair(kind)
    theirs.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    assert torch.equal(model.model.embed.weight, theirs.model.embed.weight)
    row = random_tokens(1, 6).clamp(min=1)
    pad, real = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 6, dtype=torch.long)
    alone = model(row, labels=torch.tensor([1]))
    left = model(torch.cat((pad, row), 1), attention_mask=torch.cat((pad, real), 1)).logits
    right = model(torch.cat((row, pad), 1), attention_mask=torch.cat((real, pad), 1)).logits
    torch.testing.assert_close(left, alone.logits)
    torch.testing.assert_close(right, alone.logits)
    assert alone.loss.isfinite()


# bad input


def test_bad_arguments_are_reported() -> None:
    with pytest.raises(CoupledQKError, match="unknown variant 'hamiltonain': did you mean 'hamiltonian'"):
        CoupledQKConfig(attention="hamiltonain")
    with pytest.raises(CoupledQKError, match="d_model=10 is not divisible by n_heads=8"):
        CoupledQKConfig(d_model=10)
    with pytest.raises(CoupledQKError, match="must be causal"):
        CoupledQKConfig(attention={"causal": False})
    _, theirs = pair()
    with pytest.raises(CoupledQKError, match="one of input_ids and inputs_embeds"):
        theirs()
    with pytest.raises(CoupledQKError, match="33 tokens is longer than the model's 32 learned positions"):
        theirs(random_tokens(1, 33))
    with pytest.raises(CoupledQKError, match="33 tokens is longer"):
        theirs.generate(random_tokens(1, 30), max_new_tokens=10, do_sample=False)


def test_attention_settings_outside_the_attention_table_are_refused() -> None:
    for settings in ({"n_steps": 7}, {"qk_norm": True}, {"num_key_value_heads": 2}):
        with pytest.raises(CoupledQKError, match=r"is a setting of the attention: give attention as a table"):
            CoupledQKConfig(attention="hamiltonian", **settings)
    config = CoupledQKConfig(attention={"dynamics": {"method": "leapfrog", "n_steps": 7}})
    assert config.to_model_config().attention.dynamics.n_steps == 7


def test_invalid_labels_are_refused() -> None:
    _, theirs = pair()
    tokens = random_tokens(2, 8)
    assert theirs(tokens, labels=tokens.int()).loss == theirs(tokens, labels=tokens).loss
    for labels, message in (
        (tokens.T, r"labels of shape \(8, 2\) for logits of \(2, 8\)"),
        (tokens.flatten(), r"labels of shape \(16,\)"),
        (tokens.double(), r"labels of dtype torch\.float64: expected token ids"),
        (tokens.masked_fill(tokens > 3, -1), r"labels from -1 .* expected 0 to 36, or -100 for tokens to ignore"),
    ):
        with pytest.raises(CoupledQKError, match=message):
            theirs(tokens, labels=labels)
    with pytest.raises(CoupledQKError, match="leave out logits_to_keep"):
        theirs(tokens, labels=tokens, logits_to_keep=3)


@pytest.mark.parametrize("kind", ["hamiltonian", "euler_gqa"])
def test_invalid_inputs_are_refused(kind) -> None:
    _, theirs = pair(kind)
    tokens, positions = random_tokens(2, 8), torch.arange(8)[None]
    for given, message in (
        ({"position_ids": positions[:, :1]}, r"position_ids of shape \(1, 1\): expected \(2 or 1, 8\)"),
        ({"position_ids": positions.expand(3, 8)}, r"position_ids of shape \(3, 8\)"),
        ({"attention_mask": torch.ones(2, 16)}, r"attention_mask of shape \(2, 16\): expected \(2, 8\)"),
        ({"attention_mask": torch.ones(1, 8)}, r"attention_mask of shape \(1, 8\): expected \(2, 8\)"),
        ({"attention_mask": torch.ones(2, 1, 8)}, r"attention_mask of shape \(2, 1, 8\)"),
    ):
        with pytest.raises(CoupledQKError, match=message):
            theirs(tokens, **given)
    for ids, message in (
        (tokens + 100, r"input_ids from 1\d\d to 1\d\d: this model has 0 to 36"),
        (tokens[0], r"input_ids of shape \(8,\): expected \(batch, tokens\)"),
        (tokens.float(), r"input_ids of dtype torch\.float32"),
    ):
        with pytest.raises(CoupledQKError, match=message):
            theirs(ids)
    with pytest.raises(CoupledQKError, match=r"inputs_embeds of shape \(2, 8, 9\): expected \(batch, tokens, 64\)"):
        theirs(inputs_embeds=torch.ones(2, 8, 9))


def test_positions_beyond_the_table_are_refused() -> None:
    with pytest.raises(CoupledQKError, match="position_ids from 30 to 37: this model has 0 to 31"):
        pair()[1](random_tokens(2, 8), position_ids=torch.arange(30, 38)[None])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_four_dimensional_masks_hide_tokens_and_other_biases_are_refused(implementation) -> None:
    _, theirs = pair()
    theirs.set_attn_implementation(implementation)
    tokens, real = padded()
    visible = real.bool()[:, None, None, :] & torch.ones(9, 9, dtype=torch.bool).tril()
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    expected = theirs(tokens, attention_mask=real).logits[real.bool()]
    for hidden in (float("-inf"), torch.finfo(torch.float64).min, -1e4):
        added = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, hidden)
        for mask in (visible, added):
            logits = theirs(tokens, attention_mask=mask, position_ids=positions).logits[real.bool()]
            torch.testing.assert_close(logits, expected)
    for mask in (visible.double(), added + 0.1, visible.long()):
        with pytest.raises(
            CoupledQKError, match="expected booleans, True where a query may attend, or floats that are 0"
        ):
            theirs(tokens, attention_mask=mask, position_ids=positions)


def test_incompatible_caches_are_refused() -> None:
    _, theirs = pair()
    tokens = random_tokens(2, 8)

    def cache_of(model, ids=tokens[:, :5]):
        return model(ids, use_cache=True).past_key_values

    deeper = to_transformers(tiny_model("hamiltonian", n_layers=5))
    for cache, message in (
        (cache_of(deeper), "a cache of 5 layers, for a model with 2"),
        (cache_of(theirs, tokens[:1, :5]), "a cache of 1 sequences with 8 key heads: expected 2 with 8"),
        (cache_of(pair("gqa")[1]), "a cache of 2 sequences with 2 key heads: expected 2 with 8"),
        (((tokens, tokens),) * 2, "past_key_values of type tuple: expected a Cache"),
    ):
        with pytest.raises(CoupledQKError, match=message):
            theirs(tokens[:, 5:], past_key_values=cache)
    with pytest.raises(
        CoupledQKError, match=r"attention_mask of shape \(2, 3\): expected \(2, 8\).*cached ones included"
    ):
        theirs(tokens[:, 5:], past_key_values=cache_of(theirs), attention_mask=torch.ones(2, 3))
    cache = cache_of(theirs)
    theirs.train().gradient_checkpointing_enable()
    with pytest.raises(CoupledQKError, match="cannot be used in training with gradient checkpointing"):
        theirs(tokens[:, 5:], past_key_values=cache)


@pytest.mark.parametrize("version", ["4.57.0", "5.14.2", "6.0.0"])
def test_an_unsupported_version_of_transformers_is_refused(version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(CoupledQKError, match=rf"transformers {version} is installed.*5\.15.*coupledqk\[hf\]"):
        require_transformers()


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(CoupledQKError, match=r"not installed: pip install 'coupledqk\[hf\]'"):
        require_transformers()
