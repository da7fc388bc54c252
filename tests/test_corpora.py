"""Names, files and folders become documents in splits: layouts, formats and invalid input."""

import gzip
import json
import re
import sys
import types
from collections import defaultdict
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coupledqk import CoupledQKError
from coupledqk.config import DataConfig
from coupledqk.data import corpora, text
from coupledqk.data.corpora import data_dir_of, open_corpus
from coupledqk.data.folders import find_files
from coupledqk.data.hub import HUB, HubCorpus
from coupledqk.data.shards import prepare
from coupledqk.data.text import pieces
from coupledqk.data.tokenizers import gpt2

MARKER = "<|endoftext|>"
MANY = [f"document {i}" for i in range(45)]


def documents(corpus: str | Path, **settings) -> dict[str, list[str]]:
    """The complete documents of each split."""
    found, open_texts = defaultdict(list), defaultdict(str)
    for split, piece in open_corpus(DataConfig(corpus=str(corpus), **settings)).stream():
        open_texts[split] += piece.text
        if piece.ends:
            found[split].append(open_texts.pop(split))
    assert not open_texts
    return dict(found)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def marked(*contents: str) -> str:
    """A document file of the pubmed, web and brown layouts: each document is followed by a line with the marker."""
    return "".join(f"{content}\n{MARKER}\n" for content in contents)


# documents and their pieces


@given(
    parts=st.lists(st.text("ab1 '\n\t.\u00a0é", max_size=30) | st.sampled_from([MARKER, f"\n{MARKER}\n"]), max_size=12),
    cut=st.integers(1, 9),
)
def test_documents_do_not_depend_on_block_boundaries_and_pieces_change_no_token(parts, cut):
    whole = "".join(parts)
    expected = [[]]
    for line in whole.split("\n"):
        if line == MARKER:
            expected.append([])
        else:
            expected[-1].append(line)
    found = [[]]
    with mock.patch.object(text, "PIECE", 8):
        for piece in pieces((whole[i : i + cut] for i in range(0, len(whole), cut)), separated=True):
            found[-1].append(piece.text)
            if piece.ends:
                found.append([])
    assert found.pop() == []
    assert ["".join(its_pieces) for its_pieces in found] == [
        document for lines in expected if (document := "\n".join(lines))
    ]
    for its_pieces in found:
        assert [i for piece in its_pieces for i in gpt2().encode(piece)] == gpt2().encode("".join(its_pieces))


def test_long_documents_are_split_into_short_pieces(tmp_path):
    file = write(tmp_path / "long.txt.gz", "words and words " * 100_000)
    lengths = [len(piece.text) for _, piece in open_corpus(DataConfig(corpus=str(file))).stream()]
    assert len(lengths) > 5
    assert max(lengths) <= 2 * text.PIECE
    assert sum(lengths) == 1_600_000


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "newline", "marker", "marker and newline"])
def test_a_marker_on_a_line_of_its_own_separates_documents(tmp_path, newline, end):
    content = f"one{newline}two{newline}{MARKER}{newline}{MARKER}{newline}not {MARKER} here"
    tail = {"": "", "newline": newline, "marker": newline + MARKER, "marker and newline": newline + MARKER + newline}[
        end
    ]
    file = write(tmp_path / "a.txt", content + tail)
    found = documents(tmp_path)
    rebuilt = [train + valid for train, valid in zip(found["train"], found["valid"], strict=True)]
    assert rebuilt == [f"one{newline}two", f"not {MARKER} here" + (newline if end == "newline" else "")]
    assert documents(file) == found


def test_the_marker_is_ordinary_text_in_other_formats(tmp_path):
    found = documents(write(tmp_path / "a.md", marked("one", "two")))
    assert "".join(found["train"] + found["valid"]) == marked("one", "two")


def test_each_line_of_jsonl_is_a_document(tmp_path):
    rows = [{"text": f"a\n{MARKER}\nb {i}", "other": 1} for i in range(30)]
    file = write(tmp_path / "a.jsonl.gz", "\n\n".join(map(json.dumps, rows)))
    found = documents(file)
    assert sorted(document for split in found.values() for document in split) == sorted(row["text"] for row in rows)


def test_the_case_of_a_suffix_makes_no_difference(tmp_path):
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    for folder, names in ((lower, ("a.txt", "b.jsonl.gz", "c.md")), (upper, ("a.TXT", "b.JSONL.GZ", "c.Md"))):
        for name, content in zip(names, (marked("one", "two"), '{"text": "three"}', "four"), strict=True):
            file = write(folder / name.lower(), content)
            file.rename(folder / name)
    assert documents(upper) == documents(lower)
    assert documents(upper / "a.TXT") == documents(lower / "a.txt")


# splits


def test_every_twentieth_document_is_for_validation_and_the_next_one_for_test(tmp_path):
    found = documents(write(tmp_path / "many.txt", marked(*MANY)))
    assert found["valid"] == [MANY[0], MANY[20], MANY[40]]
    assert found["test"] == [MANY[1], MANY[21], MANY[41]]
    assert found["train"] == [document for i, document in enumerate(MANY) if i % 20 > 1]


@settings(max_examples=150)
@given(
    contents=st.lists(st.text("ab \n", min_size=1, max_size=60).map(lambda s: s + "."), min_size=1, max_size=19),
    piece=st.integers(2, 16),
)
def test_the_last_tenth_of_each_of_few_documents_is_for_validation(tmp_path_factory, contents, piece):
    file = write(tmp_path_factory.mktemp("few") / "few.txt", marked(*contents))
    with mock.patch.object(text, "PIECE", piece):
        found = documents(file)
    assert found["train"] == [content[: int(len(content) * 0.9)] for content in contents]
    assert found["valid"] == [content[int(len(content) * 0.9) :] for content in contents]
    assert "test" not in found


@pytest.mark.parametrize(
    "names",
    [
        ("pubmed.train.txt.gz", "pubmed.valid.txt.gz", "pubmed.test.txt.gz"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("wiki.train-head.tokens.gz", "wiki.valid.tokens.gz", "wiki.test.tokens.gz"),
        ("train-00000-of-00001.txt", "validation-00000-of-00001.txt", "test-00000-of-00001.txt"),
        ("train.txt", "val.txt", "test.txt"),
        ("train.raw", "dev.raw", "test.raw"),
    ],
)
def test_file_names_mark_splits(tmp_path, names):
    for name in names:
        write(tmp_path / name, f"text of {name}")
    write(tmp_path / "README.md", "about the corpus")
    write(tmp_path / "index.tsv", "a\tb")
    assert documents(tmp_path) == dict(
        zip(("train", "valid", "test"), ([f"text of {name}"] for name in names), strict=True)
    )


@pytest.mark.parametrize(
    "names",
    [
        ("my_train.txt", "my_valid.txt"),
        ("a-train.jsonl", "a-val.jsonl"),
        ("train_0.txt", "dev_0.txt"),
        ("TRAIN.TXT", "VALID.TXT"),
    ],
)
def test_file_names_that_almost_mark_splits_are_refused(tmp_path, names):
    for name in names:
        write(tmp_path / name, '{"text": "some text"}')
    with pytest.raises(CoupledQKError, match=f"{names[0]} and {names[1]} are not recognised as splits"):
        documents(tmp_path)


def test_files_with_a_common_prefix_are_a_corpus(tmp_path):
    for name in ("web-1k.train.txt", "web-1k.valid.txt", "other.valid.txt"):
        write(tmp_path / name, name)
    assert documents(tmp_path / "web-1k") == {"train": ["web-1k.train.txt"], "valid": ["web-1k.valid.txt"]}
    assert documents(tmp_path)["valid"] == ["other.valid.txt", "web-1k.valid.txt"]


def test_programs_named_train_and_test_are_not_splits(tmp_path):
    for name in ("train.py", "test.py", "model.py", ".hidden/x.py", "data.bin"):
        write(tmp_path / name, "x = 1 # " + name)
    assert [len(split) for split in documents(tmp_path).values()] == [3, 3]


def test_splits_without_a_validation_file_are_refused(tmp_path):
    write(tmp_path / "train.txt", "a")
    write(tmp_path / "test.txt", "b")
    with pytest.raises(CoupledQKError, match="named for test and train but none for valid"):
        documents(tmp_path)


# corpora by name


def test_the_standard_library_is_a_corpus_without_its_tests():
    corpus = open_corpus(DataConfig())
    found = documents("python-stdlib")
    assert "the standard library of Python" in corpus.description
    assert len(found["train"]) > 400
    assert len(found["valid"]) == pytest.approx(len(found["train"]) / 18, abs=2)
    assert any("class JSONDecoder" in document for split in found.values() for document in split)
    assert not any("_sysconfigdata" in file.name or "test" in file.parts for file in _stdlib_files())


def _stdlib_files():
    root = Path(json.__file__).parents[1]
    return find_files(root, [".py"], corpora._NOT_SOURCES)


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    for split in ("train", "valid", "test"):
        write(tmp_path / f"wikitext-2/wiki.{split}.tokens.gz", f" \n = Title = \n \n A <unk> text of {split} . \n")
        write(tmp_path / f"wikitext-103-raw/wiki.{split}.raw", f" \n = Title = \n \n A text of {split} . \n = Two = \n")
        write(tmp_path / f"pubmed/pubmed.{split}.txt.gz", marked(f"title\nabstract of {split}"))
        write(tmp_path / f"web/openwebtext-1k.{split}.txt.gz", marked(f"page of {split}"))
    write(tmp_path / "web/webtext-openings.valid.txt.gz", marked("not of this corpus"))
    write(tmp_path / "README.md", "what is here")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "inside", "train"),
    [
        ("wikitext-2", "wikitext-2", " \n = Title = \n \n A <unk> text of train . \n"),
        ("wikitext-103", "wikitext-103-raw", " \n = Title = \n \n A text of train . \n = Two = \n"),
        ("pubmed", "pubmed", "title\nabstract of train"),
        ("openwebtext", "web", "page of train"),
    ],
)
def test_named_corpora_are_found_in_local_copies(copies, name, inside, train):
    for data_dir in (copies, copies / inside):
        found = documents(name, data_dir=str(data_dir))
        assert {split: len(texts) for split, texts in found.items()} == {"train": 1, "valid": 1, "test": 1}
        assert found["train"] == [train]


def test_the_local_copy_of_one_corpus_is_not_read_as_another(copies, monkeypatch):
    def config(corpus, inside, tokenizer="bytes"):
        return DataConfig(corpus=corpus, data_dir=str(copies / inside), tokenizer=tokenizer)

    assert data_dir_of("wikitext-2", config("pubmed", "")) == str(copies)
    assert data_dir_of("wikitext-2", config("my-texts", "wikitext-2")) == str(copies / "wikitext-2")
    assert data_dir_of("wikitext-2", config("pubmed", "pubmed")) is None

    def rows(self, split):
        raise CoupledQKError(f"{self.repository} would be read")

    monkeypatch.setattr(HubCorpus, "rows", rows)
    with pytest.raises(CoupledQKError, match="Salesforce/wikitext would be read"):
        prepare(config("pubmed", "pubmed", tokenizer="bpe:260@wikitext-2"))


def test_the_tokenised_form_of_wikitext_is_labelled(copies):
    def about(name):
        return open_corpus(DataConfig(corpus=name, data_dir=str(copies))).description

    assert about("wikitext-2").startswith("the tokenised form with <unk>, not comparable with the raw one")
    assert about("wikitext-103").startswith("the raw form")


def test_openwebtext_and_pubmed_are_truncated_to_about_the_papers_size(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "PAPER_BYTES", 360)
    write(tmp_path / "pubmed/all.txt.gz", marked(*["one two three four"] * 60))  # 18 bytes each
    assert sum(map(len, documents("pubmed", data_dir=str(tmp_path)).values())) == 20
    about = open_corpus(DataConfig(corpus="pubmed", data_dir=str(tmp_path))).description
    assert about.endswith(", at most the first 0 MB of text")
    assert open_corpus(DataConfig(corpus="openwebtext")).description.endswith(", at most the first 0 MB of text")


@pytest.mark.parametrize("name", HUB)
def test_a_corpus_on_the_hub_is_pinned_to_a_revision(name):
    assert re.fullmatch("[0-9a-f]{40}", HUB[name].revision)


def test_equal_files_have_equal_fingerprints_in_every_folder(tmp_path):
    def fingerprint(place, content="text", **settings):
        write(tmp_path / place, content)
        return open_corpus(DataConfig(corpus=str(tmp_path / place), **settings)).fingerprint

    assert fingerprint("a/x.txt") == fingerprint("b/x.txt")
    others = {fingerprint("c/x.txt", "text2"), fingerprint("d/y.md"), fingerprint("a/x.txt", encoding_errors="replace")}
    assert len(others | {fingerprint("a/x.txt")}) == 4


# the hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, list]:
    """Stands in for the library that reads the hub; keys are (repository, split)."""
    rows: dict = {}

    def load_dataset(repository, subset, *, revision, split, streaming):
        assert streaming
        if (repository, split) not in rows:
            raise ConnectionError("no route to host\nand a long story")
        return iter(rows[repository, split])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return rows


def test_wikitext_from_the_hub_equals_the_raw_file(hub, copies):
    for ours, theirs in (("train", "train"), ("valid", "validation"), ("test", "test")):
        lines = (copies / f"wikitext-103-raw/wiki.{ours}.raw").read_text().splitlines(keepends=True)
        hub["Salesforce/wikitext", theirs] = [{"text": "" if line == " \n" else line} for line in lines]
    assert documents("wikitext-103") == documents("wikitext-103", data_dir=str(copies))
    assert open_corpus(DataConfig(corpus="wikitext-103")).description == "the raw form, from Salesforce/wikitext"


def test_rows_of_the_hub_are_documents(hub):
    hub["Skylion007/openwebtext", "train"] = [{"text": document} for document in MANY]
    hub["MedRAG/pubmed", "train"] = [{"title": document, "content": "abstract"} for document in MANY]
    assert documents("openwebtext")["valid"] == [MANY[0], MANY[20], MANY[40]]
    assert documents("pubmed")["test"][0] == f"{MANY[1]}\nabstract"


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103", "openwebtext", "pubmed"])
def test_without_a_network_the_local_alternative_is_named(hub, name):
    with pytest.raises(CoupledQKError, match=r"\(no route to host\): .* local copy, as --corpus or with --data-dir$"):
        documents(name)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CoupledQKError, match=r"pip install 'coupledqk\[hub\]'.*--data-dir"):
        documents("pubmed")


# bad input


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"text\0more", r"a.txt is binary: byte 4 is NUL"),
        ("a.txt.gz", b"x" * 300_000 + b"\0", r"a.txt.gz is binary: byte 300000 is NUL"),
        ("a.txt", b"caf\xe9 au lait", r"a.txt is not valid UTF-8 at byte 3: .* set encoding_errors to 'replace'"),
        ("a.md", "é".encode() * 200_000 + b"\xc3", r"a.md is not valid UTF-8 at byte 400000"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"txt": "b"}',
            r'a.jsonl, line 2: expected an object with a string "text", got {"txt": "b"}',
        ),
        ("a.jsonl", '{"text": 3}', r"a.jsonl, line 1: expected"),
        ("a.jsonl", '\n\n["text"]', r"a.jsonl, line 3: expected"),
        ("a.jsonl", '{"text": "a"}\n{"text"', r"a.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"text": "\\ud800"}', r"a.jsonl, line 1: half of a surrogate pair"),
        ("a.csv", "a,b", r"a.csv is not one of .txt, .jsonl"),
    ],
)
def test_files_that_are_not_text_are_refused_with_the_position(tmp_path, name, content, message):
    with pytest.raises(CoupledQKError, match=message):
        documents(write(tmp_path / name, content))


@pytest.mark.parametrize("damage", ["cut", "plain"])
def test_a_broken_gzip_file_is_refused(tmp_path, damage):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress(b"text " * 1000)[:-9] if damage == "cut" else b"text")
    with pytest.raises(CoupledQKError, match=r"a.txt.gz is not a complete gzip file"):
        documents(file)


@pytest.mark.parametrize("content", [b"caf\xe9", b'{"text": "caf\\udce9"}'])
def test_undecodable_characters_can_be_replaced(tmp_path, content):
    file = write(tmp_path / ("a.jsonl" if b"{" in content else "a.txt"), content)
    found = documents(file, encoding_errors="replace")
    assert found["train"][0] + found["valid"][0] == "caf\ufffd"


def test_the_correct_name_is_suggested_for_a_misspelled_corpus():
    with pytest.raises(CoupledQKError, match=r"unknown corpus 'wikitext2': did you mean 'wikitext-2'\?"):
        documents("wikitext2")
    with pytest.raises(CoupledQKError, match="unknown corpus ''"):
        documents("")


@pytest.mark.parametrize("path", ["/nowhere/at/all", "missing.txt"])
def test_a_missing_path_is_refused(path):
    with pytest.raises(
        CoupledQKError, match=f"there is no file or folder {path}; corpora known by name: python-stdlib"
    ):
        documents(path)


def test_a_folder_without_text_is_refused(tmp_path):
    write(tmp_path / "a.png", b"\0")
    with pytest.raises(CoupledQKError, match=f"{tmp_path} contains no text: expected .txt"):
        documents(tmp_path)


def test_a_data_dir_without_the_corpus_is_refused(tmp_path):
    with pytest.raises(CoupledQKError, match=f"no copy of pubmed in {tmp_path}: expected {tmp_path / 'pubmed'}"):
        documents("pubmed", data_dir=str(tmp_path))
    with pytest.raises(CoupledQKError, match="there is no such folder"):
        documents("pubmed", data_dir=str(tmp_path / "no"))
