"""Tokenized corpora in the cache have the right content and are created again if they are damaged."""

import hashlib
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coupledqk import CoupledQKError
from coupledqk.config import DataConfig
from coupledqk.data import Tokenizer, prepare, shards
from coupledqk.data import cache as cache_module
from coupledqk.data.corpora import Corpus
from coupledqk.data.parts import Parts
from coupledqk.data.text import PIECE, Piece
from coupledqk.data.tokenizers import byte_tokenizer, gpt2, train_bpe

DOCUMENTS = [f"Document {i}: naïve text, <|endoftext|> typed by someone.\n" * (1 + i % 3) for i in range(60)]
TRAIN = [document for i, document in enumerate(DOCUMENTS) if i % 20 > 1]
ALL_TOKENIZERS = pytest.mark.parametrize("tokenizer", ["gpt2", "bytes", "bpe:300"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    rows = "\n".join(json.dumps({"text": document}) for document in DOCUMENTS)
    (tmp_path / "corpus.jsonl").write_text(rows)
    return DataConfig(corpus=str(tmp_path / "corpus.jsonl"), tokenizer="bytes")


def prepare_quietly(config: DataConfig, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return prepare(config, **options)


def refuse(*args: object) -> None:
    raise AssertionError("tokenised again")


@ALL_TOKENIZERS
def test_a_split_is_its_documents_each_followed_by_end_of_text(config, tokenizer):
    corpus = prepare_quietly(replace(config, tokenizer=tokenizer))
    ids = (corpus.tokenizer.encode(document) for document in TRAIN)
    assert corpus.train.tolist() == [i for document in ids for i in [*document, corpus.tokenizer.end_of_text]]
    assert corpus.train.dtype == np.uint16
    assert isinstance(corpus.train, np.memmap)


def test_a_tokenizer_can_be_trained_on_another_corpus(config, tmp_path):
    (tmp_path / "other.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(300)))
    other = DataConfig(corpus=str(tmp_path / "other.txt"), tokenizer="bpe:300", max_tokens=50)
    common = prepare_quietly(replace(config, tokenizer=f"bpe:300@{other.corpus}", max_tokens=100))
    assert common.tokenizer.to_json() == prepare_quietly(other).tokenizer.to_json()
    assert common.tokenizer.to_json() != prepare_quietly(replace(config, tokenizer="bpe:300")).tokenizer.to_json()
    assert common.tokenizer.decode(common.valid[:-1]).startswith(DOCUMENTS[0])


@ALL_TOKENIZERS
def test_a_split_reports_its_size_and_a_hash_of_its_text(config, tokenizer):
    corpus = prepare_quietly(replace(config, tokenizer=tokenizer))
    texts = [document.encode() for document in TRAIN]
    content = b"".join(text + len(text).to_bytes(8, "little") for text in texts)
    train = corpus.info.splits["train"]
    assert (train.bytes, train.documents, train.tokens) == (sum(map(len, texts)), 54, len(corpus.train))
    assert train.sha256 == hashlib.sha256(content).hexdigest()
    assert [len(corpus.valid), len(corpus.test)] == [corpus.info.splits[s].tokens for s in ("valid", "test")]
    assert [corpus.info.splits[s].documents for s in ("valid", "test")] == [3, 3]


def test_the_hash_depends_on_the_text_and_not_on_the_tokenizer(config, tmp_path):
    first, second = (prepare(replace(config, tokenizer=name)).info.hash for name in ("bytes", "gpt2"))
    assert first == second
    (tmp_path / "corpus.jsonl").write_text((tmp_path / "corpus.jsonl").read_text().replace("typed", "written"))
    assert prepare(config).info.hash != first


@ALL_TOKENIZERS
def test_a_prepared_corpus_is_not_prepared_again(config, tokenizer, monkeypatch):
    config = replace(config, tokenizer=tokenizer)
    first = prepare_quietly(config)
    monkeypatch.setattr(shards, "build", refuse)
    again = prepare_quietly(config)
    assert again.info == first.info
    assert np.array_equal(again.train, first.train)
    assert again.tokenizer.to_json() == first.tokenizer.to_json()


def test_moved_files_are_not_tokenized_again_and_are_reported_by_their_new_path(config, tmp_path, monkeypatch):
    prepare(config)
    moved = tmp_path / "elsewhere" / "corpus.jsonl"
    moved.parent.mkdir()
    Path(config.corpus).rename(moved)
    monkeypatch.setattr(shards, "build", refuse)
    assert prepare(replace(config, corpus=str(moved))).info.corpus == str(moved)


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["train.bin", "valid.bin", "tokenizer.json", "header.json"])
@pytest.mark.parametrize("damage", [_flip, lambda file: os.truncate(file, file.stat().st_size - 2), Path.unlink])
def test_damaged_tokens_are_created_again_with_one_warning(config, cache, name, damage):
    before = prepare(config)
    tokens = before.train.tolist()
    (file,) = cache.rglob(name)
    content = file.read_bytes()
    damage(file)
    with pytest.warns(UserWarning, match=r"cached tokens in .* are damaged \(.+\): creating them again") as said:
        again = prepare(config)
    assert len(said) == 1
    assert again.train.tolist() == tokens
    assert file.read_bytes() == content
    prepare_quietly(config)


def test_every_flipped_bit_of_the_header_is_detected(config, cache):
    prepare(config)
    (file,) = cache.rglob("header.json")
    content = file.read_bytes()
    for position in range(0, len(content), 7):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(cache_module.DamagedError):
            shards._open(file.parent, shards.open_corpus(config))


def test_processes_that_prepare_a_corpus_at_the_same_time_all_get_it(config, cache):
    code = f"""
from coupledqk.config import DataConfig
from coupledqk.data import prepare
print(prepare(DataConfig(corpus={config.corpus!r}, tokenizer="bytes")).train.sum())
"""
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    sums = {process.communicate()[0] for process in started}
    assert sums == {f"{prepare_quietly(config).train.sum()}\n".encode()}
    assert len(list((cache / "tokens").iterdir())) == 1


def test_tokens_that_another_process_finished_first_are_used(config, monkeypatch):
    build, calls = shards.build, []

    def late(*args) -> None:
        calls.append(args)
        if len(calls) == 1:
            prepare(config)
        build(*args)

    monkeypatch.setattr(shards, "build", late)
    assert len(prepare_quietly(config).train) > 0
    assert len(calls) == 2


def test_a_failure_during_tokenization_leaves_no_files(config, cache, tmp_path):
    Path(config.corpus).write_text('{"text": "good"}\n' * 30 + '{"text": 1}')
    with pytest.raises(CoupledQKError, match=r"corpus.jsonl, line 31"):
        prepare(config)
    assert list((cache / "tokens").iterdir()) == []


def test_progress_counts_the_bytes_of_text(config):
    reported = []
    corpus = prepare(config, progress=reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == sum(split.bytes for split in corpus.info.splits.values())


def test_the_reader_is_never_far_ahead_of_the_writer(monkeypatch):
    """Memory therefore does not grow with the corpus."""
    produced, ahead = [0], []

    def stream():
        for _ in range(100):
            produced[0] += PIECE
            yield "train", Piece("x" * PIECE, True)

    monkeypatch.setattr(shards, "open_corpus", lambda config: Corpus("endless", "", "fingerprint", stream))
    prepare(DataConfig(tokenizer="bytes"), progress=lambda done: ahead.append(produced[0] - done))
    assert len(ahead) == 100
    assert max(ahead) <= (2 * len(os.sched_getaffinity(0)) + 1) * PIECE


def test_long_documents_get_the_same_ids_as_in_one_piece(tmp_path):
    text = "Some words, 'quoted'  and   spaced.\n\n\tThen more; " * 20_000
    (tmp_path / "long.md").write_text(text)
    corpus = prepare(DataConfig(corpus=str(tmp_path / "long.md")))
    cut = int(len(text) * 0.9)
    assert corpus.train.tolist() == [*gpt2().encode(text[:cut]), gpt2().end_of_text]
    assert corpus.valid.tolist() == [*gpt2().encode(text[cut:]), gpt2().end_of_text]
    assert len(corpus.test) == 0


@pytest.mark.parametrize(("split", "setting"), [("train", "max_tokens"), ("valid", "max_valid_tokens")])
@pytest.mark.parametrize("n", [2, 11, 10**9])
def test_sampling_first_takes_the_beginning_of_a_split(config, split, setting, n):
    whole, part = prepare(config), prepare(replace(config, sampling="first", **{setting: n}))
    for name in ("train", "valid", "test"):
        assert getattr(part, name).tolist() == getattr(whole, name)[: n if name == split else None].tolist()
    tokens, info = getattr(part, split), part.info.splits[split]
    ends = (tokens == 256).sum()
    assert (info.tokens, info.bytes) == (len(tokens), len(tokens) - ends)
    assert info.documents - ends in (0, 1)
    assert part.info.hash == whole.info.hash


def test_a_large_vocabulary_is_stored_in_wider_integers(config):
    few = byte_tokenizer()
    many = Tokenizer("bytes", [*few.tokens[:256], *(str(i).encode() for i in range(70_000))], few.encode_batch)
    built = Path(config.corpus).parent / "built"
    built.mkdir()
    shards.build(shards.open_corpus(config), many, built, Parts(built))
    tokens = np.fromfile(built / "train.bin", np.uint32)
    assert tokens.max() == many.end_of_text == 70_256
    assert many.decode(tokens[:20].tolist()) == TRAIN[0][:19]


def test_a_tokenizer_of_another_corpus_can_be_given(config):
    own = train_bpe("bpe:270", ["entirely different words"] * 9)
    corpus = prepare(replace(config, tokenizer="bpe:270"), tokenizer=own)
    assert corpus.tokenizer.tokens == own.tokens
    assert corpus.train[:30].tolist() == own.encode(TRAIN[0])[:30]
    assert prepare(replace(config, tokenizer="bpe:270")).tokenizer.tokens != own.tokens


def test_ids_outside_the_vocabulary_are_found_when_tokens_are_opened(config, tmp_path):
    np.array([3, 300], np.uint16).tofile(tmp_path / "tokens")
    with pytest.raises(CoupledQKError, match="token id 300 is outside the vocabulary: expected 0 to 256"):
        shards._memory_map(tmp_path / "tokens", byte_tokenizer())


@pytest.mark.parametrize("content", ["", "<|endoftext|>\n<|endoftext|>\n"])
def test_an_empty_corpus_is_refused(tmp_path, content):
    (tmp_path / "empty.txt").write_text(content)
    with pytest.raises(CoupledQKError, match=r"empty.txt is empty: expected some text"):
        prepare(DataConfig(corpus=str(tmp_path / "empty.txt"), tokenizer="bytes"))


def test_a_cache_that_cannot_be_written_is_reported(config, monkeypatch):
    monkeypatch.setenv("COUPLEDQK_CACHE", config.corpus)
    with pytest.raises(
        CoupledQKError, match=r"cannot write .*: there is a file where a folder is expected.*COUPLEDQK_CACHE"
    ):
        prepare(config)


def test_environment_variables_set_the_cache_folder(monkeypatch, tmp_path):
    assert shards.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("COUPLEDQK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert shards.cache_folder() == Path("/xdg/coupledqk")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert shards.cache_folder() == Path.home() / ".cache" / "coupledqk"
