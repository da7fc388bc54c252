"""Features of transformers beyond the forward pass: compilation, caches, attention back ends, batching, heads."""

from typing import Any

import pytest
import torch

from conftest import random_tokens, tiny_model
from coupledqk import VARIANTS
from coupledqk.errors import CoupledQKError

transformers: Any = pytest.importorskip("transformers")

from coupledqk.hf import to_transformers  # noqa: E402


def model_of(variant: str, **settings: Any) -> Any:
    return to_transformers(tiny_model(variant, **settings), pad_token_id=0).float()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_with_rope_compiles_to_one_graph(variant: str) -> None:
    model, tokens = model_of(variant, positions="rope"), random_tokens(2, 9)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens, use_cache=False).logits, model(tokens, use_cache=False).logits)


@pytest.mark.parametrize("variant", ["standard", "euler_gqa", "hamiltonian_diff"])
def test_the_configuration_gives_the_shape_of_the_cache(variant: str) -> None:
    model = model_of(variant)
    keys = model(random_tokens(2, 9)).past_key_values.layers[0].keys
    assert keys.shape == (2, model.config.num_key_value_heads, 9, model.config.head_dim)
    assert "head_dim" not in model.config.to_dict()


def test_attention_modules_have_the_configuration_of_the_model() -> None:
    model = model_of("euler")
    assert all(module.attn.config is model.config for module in model.model.blocks)


@pytest.mark.parametrize("variant", ["standard", "euler_gqa", "hamiltonian_diff"])
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_continuous_batching_generates_the_same_as_generate(variant: str, positions: str) -> None:
    model = model_of(variant, positions=positions)
    prompts = [random_tokens(1, n)[0].clamp(min=1).tolist() for n in (5, 9, 7)]
    config = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0)
    memory = transformers.ContinuousBatchingConfig(num_blocks=16)
    results = model.generate_batch(prompts, generation_config=config, continuous_batching_config=memory)
    assert len(results) == 3
    for prompt, result in zip(prompts, results.values(), strict=True):
        alone = model.generate(torch.tensor([prompt]), generation_config=config)
        assert result.generated_tokens == alone[0, len(prompt) :].tolist()


def spy_on(seen: list[Any]) -> None:
    def spy(module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(module.layer_idx)
        return transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"](module, *args, **kwargs)

    transformers.AttentionInterface.register("spy", spy)
    transformers.AttentionMaskInterface.register("spy", transformers.masking_utils.sdpa_mask)


@pytest.mark.parametrize("variant", ["hamiltonian", "euler_gqa"])
def test_other_attention_functions_are_used_through_the_interface(variant: str) -> None:
    """Flash and flex attention are used in the same way; this function needs no GPU."""
    seen: list[Any] = []
    spy_on(seen)
    model, tokens = model_of(variant, positions="rope"), random_tokens(2, 9)
    real = torch.ones_like(tokens)
    real[1, :4] = 0
    expected = model(tokens, attention_mask=real).logits
    model.set_attn_implementation("spy")
    torch.testing.assert_close(model(tokens, attention_mask=real).logits, expected)
    assert seen == [0, 1]


def test_other_attention_functions_are_refused_for_differential_scoring() -> None:
    spy_on([])
    model = model_of("diff")
    model.set_attn_implementation("spy")
    with pytest.raises(
        CoupledQKError, match=r"'spy' computes softmax attention, and .* Differential: use 'sdpa' or 'eager'"
    ):
        model(random_tokens(2, 9))


def test_heads_for_token_classification_and_question_answering_can_be_trained(tmp_path) -> None:
    model_of("euler").save_pretrained(tmp_path)
    transformers.utils.logging.set_verbosity_error()
    tokens = random_tokens(2, 9)
    tagger = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path, num_labels=3)
    out = tagger(tokens, labels=tokens % 3)
    out.loss.backward()
    assert out.logits.shape == (2, 9, 3)
    reader = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    out = reader(tokens, start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([3, 4]))
    out.loss.backward()
    assert out.start_logits.shape == out.end_logits.shape == (2, 9)
    for head in (tagger, reader):
        assert torch.equal(head.model.embed.weight, transformers.AutoModel.from_pretrained(tmp_path).embed.weight)
    transformers.utils.logging.set_verbosity_warning()


@pytest.mark.parametrize("head", ["CausalLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_the_embedding_of_every_head_can_be_read_resized_and_replaced(head: str) -> None:
    kind = getattr(transformers, f"AutoModelFor{head}")
    model = kind.from_config(model_of("euler").config)
    assert model.get_input_embeddings() is model.model.embed
    model.resize_token_embeddings(model.config.vocab_size + 3)
    assert len(model.model.embed.weight) == model.config.vocab_size
    model.enable_input_require_grads()
    new = torch.nn.Embedding(7, model.config.d_model)
    model.set_input_embeddings(new)
    assert model.model.embed is new
