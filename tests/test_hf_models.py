"""Our models in transformers: the same numbers, and the features that users expect of a model."""

import dataclasses
import importlib.metadata
from pathlib import Path

import pytest
import torch

from conftest import TINY, random_tokens, tiny_model
from coupledqk.config import ModelConfig
from coupledqk.errors import CoupledQKError

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
def test_logits_are_ours_to_the_bit(kind) -> None:
    ours, theirs = pair(kind)
    tokens, real = padded()
    assert torch.equal(theirs(tokens).logits, ours(tokens))
    assert torch.equal(theirs(tokens, attention_mask=real).logits, ours(tokens, padding=real.bool()))


@each_kind
def test_generation_is_the_same_with_every_cache_and_as_ours(kind) -> None:
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
def test_eager_attention_gives_the_same_and_its_maps(kind) -> None:
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


def test_chunks_through_a_static_cache_with_room_left_are_the_whole() -> None:
    ours, theirs = pair("hamiltonian")
    tokens = random_tokens(2, 12)
    cache = StaticCache(config=theirs.config, max_cache_len=20)
    chunks = [theirs(part, past_key_values=cache).logits for part in tokens.split([5, 1, 4, 2], dim=1)]
    torch.testing.assert_close(torch.cat(chunks, dim=1), ours(tokens))


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
def test_a_new_model_starts_as_ours_do(kind, poisoned_memory) -> None:
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


def test_what_a_checkpoint_lacks_is_drawn_and_what_it_has_is_kept(tmp_path: Path, poisoned_memory) -> None:
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


def test_the_configuration_mirrors_ours_and_knows_transformers_names() -> None:
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


def test_the_loss_is_that_of_the_next_tokens() -> None:
    ours, theirs = pair()
    tokens = random_tokens(2, 8)
    expected = ours(tokens[:, :-1], tokens[:, 1:].contiguous())
    torch.testing.assert_close(theirs(tokens, labels=tokens).loss.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_trainer_stopped_and_resumed_arrives_at_the_same_weights(tmp_path: Path) -> None:
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


def test_mistakes_are_named() -> None:
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


@pytest.mark.parametrize("version", ["4.57.0", "5.14.2", "6.0.0"])
def test_another_transformers_is_refused(version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(CoupledQKError, match=rf"transformers {version} is installed.*5\.15.*coupledqk\[hf\]"):
        require_transformers()


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(CoupledQKError, match=r"not installed: pip install 'coupledqk\[hf\]'"):
        require_transformers()
