"""Samples of a split are representative, nested, the same for every tokenizer, and part of a run's identity."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupledqk.config import DataConfig, LMConfig, RunConfig, identity
from coupledqk.data import prepare, samples
from coupledqk.data.samples import unit_starts
from coupledqk.data.tokenizers import byte_tokenizer, gpt2, train_bpe
from coupledqk.recipes import recipe
from coupledqk.schema import change, from_dict, from_toml, to_toml
from coupledqk.tasks.lm import perplexity_definition

WORDS = "some words, then others; and numbers 1 2 3."
TOKENIZERS = [byte_tokenizer(), gpt2(), train_bpe("bpe:280", [WORDS + " = \n \n  = = "] * 9)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_documents(folder: Path, documents: list[str]) -> DataConfig:
    folder.mkdir()
    for number, document in enumerate(documents):
        (folder / f"{number:05}.md").write_text(document)
    return DataConfig(corpus=str(folder), tokenizer="bytes")


def text_of(corpus, split: str = "train") -> str:
    return corpus.tokenizer.decode(getattr(corpus, split))


def texts(corpus, split: str = "train") -> list[str]:
    return text_of(corpus, split).split("<|endoftext|>")


@pytest.fixture
def documents(tmp_path: Path) -> DataConfig:
    return write_documents(tmp_path / "many", [f"document {i}: {WORDS * (1 + i % 5)}\n" for i in range(400)])


@pytest.mark.parametrize(("split", "setting"), [("train", "max_tokens"), ("valid", "max_valid_tokens")])
def test_a_sample_is_made_of_whole_documents_of_its_split_each_once(documents, split, setting):
    whole, part = prepare(documents), prepare(replace(documents, **{setting: 1_000}))
    *complete, last = texts(part, split)
    assert len(getattr(part, split)) == part.info.splits[split].tokens == 1_000
    assert set(complete) < set(texts(whole, split))
    assert len(set(complete)) == len(complete)
    assert any(document.startswith(last) for document in texts(whole, split))
    assert part.info.splits[split].documents == len(complete) + bool(last)
    assert part.info.splits[split].bytes == 1_000 - len(complete)
    assert part.info.hash == whole.info.hash
    others = [name for name in ("train", "valid", "test") if name != split]
    assert all(texts(part, name) == texts(whole, name) for name in others)


def test_a_smaller_sample_is_the_beginning_of_a_larger_one(documents):
    tokens = [prepare(replace(documents, max_tokens=n)).train for n in (3_000, 6_000, 12_000)]
    assert np.array_equal(tokens[0], tokens[1][:3_000])
    assert np.array_equal(tokens[1], tokens[2][:6_000])


def test_a_sample_comes_from_the_whole_split_and_not_from_its_beginning(documents):
    numbers = [
        int(number) for number in re.findall(r"document (\d+):", text_of(prepare(replace(documents, max_tokens=9_000))))
    ]
    assert len(numbers) > 50
    assert numbers != sorted(numbers)
    quarters = Counter(number // 100 for number in numbers)
    assert all(0.15 < quarters[quarter] / len(numbers) < 0.35 for quarter in range(4))


def test_every_source_of_a_joined_corpus_is_represented_in_proportion(tmp_path):
    """Three long files without documents inside, one of them twice as long as the others."""
    config = write_documents(
        tmp_path / "joined", [f"{letter * 60}\n" * (9_000 * (1 + (letter == "c"))) for letter in "abc"]
    )
    corpus = prepare(replace(config, max_tokens=500_000))
    counts = Counter(text_of(corpus))
    shares = [counts[letter] / 500_000 for letter in "abc"]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.1)


def test_samples_for_different_tokenizers_contain_the_same_text(tmp_path):
    config = write_documents(tmp_path / "few", [f"{letter}: {WORDS}\n\n  indented\n" * 2_000 for letter in "xyz"])
    found = [
        text_of(prepare(replace(config, tokenizer=name, max_tokens=n)))
        for name, n in (("bytes", 60_000), ("gpt2", 15_000), ("bpe:280", 30_000))
    ]
    length = min(map(len, found))
    assert length > 20_000
    assert len({text[:length] for text in found}) == 1


def test_a_sample_of_all_tokens_or_more_is_the_whole_split(documents):
    whole = prepare(documents)
    for n in (len(whole.train), 10**9):
        part = prepare(replace(documents, max_tokens=n))
        assert np.array_equal(part.train, whole.train)
        assert part.info == whole.info


def article(title: str, n_lines: int = 3) -> str:
    body = f" The {title} , in short .\n" * n_lines
    return f" = {title} = \n \n{body} \n = = History = = \n \n{body} = 2 = \n{body} \n"


def test_wikitext_is_sampled_by_article_and_read_as_one_text(tmp_path):
    titles = [f"Title {i}" for i in range(40)]
    (tmp_path / "wikitext-2").mkdir()
    for split in ("train", "valid", "test"):
        content = " \n" + "".join(article(title) for title in titles)
        (tmp_path / "wikitext-2" / f"wiki.{split}.tokens").write_text(content)
    config = DataConfig(corpus="wikitext-2", data_dir=str(tmp_path), tokenizer="bytes")
    whole, part = prepare(config), prepare(replace(config, max_tokens=2_000))
    assert whole.info.splits["train"].documents == 1
    assert text_of(whole) == content + "<|endoftext|>"
    sampled = re.findall(r" = (Title \d+) = \n", text_of(part))
    assert len(sampled) > 5
    assert sampled != titles[: len(sampled)]
    assert all(article(title) in text_of(part) for title in sampled[:-1])


@given(
    lines=st.lists(
        st.sampled_from(["", " ", "a", " b c", "  d", " = T = ", " = = S = = ", "\té", "<eot>"]), max_size=60
    ),
    piece=st.integers(2, 30),
    stretch=st.integers(3, 40),
)
def test_units_do_not_depend_on_the_tokenizer_or_on_how_tokens_are_read(lines, piece, stretch):
    documents = [text for text in "\n".join(lines).split("<eot>") if text] or ["x"]
    found = []
    for tokenizer in TOKENIZERS:
        ids = [token for text in documents for token in [*tokenizer.encode(text), tokenizer.end_of_text]]
        for size in (piece, 10**6):
            with mock.patch.object(samples, "PIECE", size), mock.patch.object(samples, "STRETCH", stretch):
                starts = unit_starts(np.array(ids), tokenizer)
            assert starts[0] == 0
            assert all(np.diff(starts) > 0)
            found.append([tokenizer.decode(ids[a:b]) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)])
            ends = sum(unit.endswith("<|endoftext|>") for unit in found[-1])
            assert ends == len(documents)
    assert all(units == found[0] for units in found)


def test_a_sample_is_written_once_and_again_if_it_is_damaged(documents, cache):
    config = replace(documents, max_tokens=1_000)
    before = prepare(config)
    tokens = before.train.tolist()
    with mock.patch.object(samples, "write_sample", side_effect=AssertionError("written again")):
        assert prepare(config).info == before.info
    (file,) = cache.rglob("tokens.bin")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.warns(UserWarning, match=r"damaged \(tokens.bin does not match its checksum"):
        assert prepare(config).train.tolist() == tokens


def test_the_sample_hash_identifies_the_tokens_that_are_used(documents):
    parts = [
        documents,
        replace(documents, max_tokens=1_000),
        replace(documents, max_tokens=1_000, sampling="first"),
        replace(documents, max_valid_tokens=1_000),
        replace(documents, max_tokens=999),
    ]
    hashes = [prepare(part).info.sample_hash for part in parts]
    assert len(set(hashes)) == len(parts)
    assert prepare(parts[1]).info.sample_hash == hashes[1]


# the setting

BEFORE = """
seed = 3
[model]
d_model = 64
n_heads = 4
n_layers = 2
d_ff = 128
vocab_size = 1024
n_positions = 128
positions = "learned"
[model.attention]
group_size = 1
qk_norm = false
causal = true
[model.attention.dynamics]
method = "leapfrog"
force = "mlp"
n_steps = 3
step_size = 0.1
learn_step_size = true
force_std = 0.02
gate = false
[model.attention.scoring]
kind = "softmax"
flavour = "paper"
[task]
corpus = "python-stdlib"
tokenizer = "bpe:1024"
max_tokens = 311296
max_valid_tokens = 65536
encoding_errors = "strict"
kind = "lm"
[train]
steps = 608
batch_size = 16
seq_len = 128
lr = 0.002
warmup = 40
beta1 = 0.9
beta2 = 0.95
adam_eps = 1e-08
weight_decay = 0.1
clip = 1.0
schedule = "cosine"
precision = "fp32"
eval_every = 76
log_every = 4
[runtime]
device = "auto"
threads = 1
gradient_checkpointing = false
compile = false
impl = "auto"
save_every = 76
keep = 2
"""
"""The config.toml of a run from before there was `sampling`, whose identity was 48642d4dc968."""


def test_a_run_from_before_sampling_uses_the_first_tokens_and_keeps_its_identity():
    old = from_toml(RunConfig, BEFORE)
    assert isinstance(old.task, LMConfig)
    assert old.task.sampling == "first"
    assert identity(old) == "48642d4dc968"
    assert from_toml(RunConfig, to_toml(old)) == old


def test_a_new_run_takes_a_sample_which_is_part_of_its_identity():
    task = recipe("mini").task
    assert isinstance(task, LMConfig)
    assert task.sampling == "shuffled"
    old = from_toml(RunConfig, BEFORE)
    new = change(old, {"sampling": "shuffled"})
    assert from_toml(RunConfig, to_toml(new)) == new
    assert identity(new) != identity(old)


def test_the_sampling_setting_does_not_change_the_identity_if_all_tokens_are_used():
    assert identity(recipe("nano")) == identity(recipe("nano", sampling="first")) == "0a44b5572f68"


def test_settings_without_a_sampling_method_use_shuffled_samples():
    task = from_dict(RunConfig, {"task": {"corpus": "text.txt", "max_tokens": 1_000}}).task
    assert isinstance(task, LMConfig)
    assert task.sampling == "shuffled"


@pytest.mark.parametrize(
    ("settings", "n_tokens", "text"),
    [
        ({"tokenizer": "bytes"}, 90_000, "mean loss per byte over the whole valid split (90,000 tokens),"),
        ({"max_valid_tokens": 65_536, "sampling": "first"}, 65_536, "over the first 65,536 tokens of the valid split,"),
        (
            {"max_valid_tokens": 65_536},
            65_536,
            "over a sample of 65,536 tokens of the valid split (documents in an order shuffled",
        ),
        ({"max_valid_tokens": 65_536}, 9_000, "over the whole valid split (9,000 tokens),"),
        ({"max_valid_tokens": 65_536, "sampling": "first"}, 9_000, "over the whole valid split (9,000 tokens),"),
    ],
)
def test_the_definition_of_perplexity_states_the_text_and_its_number_of_tokens(settings, n_tokens, text):
    assert text in perplexity_definition("valid", 128, DataConfig(**settings), n_tokens)
