"""Hostile corpora are rejected with one line that names the position, or read in bounded memory and linear time."""

import gzip
import os
import random
import re
import socket
import string
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coupledqk import CoupledQKError
from coupledqk.config import DataConfig
from coupledqk.data import prepare, text
from coupledqk.data.corpora import open_corpus
from coupledqk.data.text import pieces, read
from coupledqk.data.tokenizers import gpt2, train_bpe
from coupledqk.data.words import MAX_WORD, long_words, training_parts, word_parts
from coupledqk.files import digest, sha256

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid corpus."""
    (tmp_path / "corpus" / "deeper").mkdir(parents=True)
    for name in ("a.txt", "deeper/b.txt"):
        (tmp_path / "corpus" / name).write_text("some ordinary words\n" * 50)
    return tmp_path / "corpus"


def refused(corpus: Path | str, **settings) -> str:
    """The one-line error with which preparing the corpus ends."""
    with pytest.raises(CoupledQKError) as error:
        prepare(DataConfig(corpus=str(corpus), tokenizer="bytes", **settings))
    assert "\n" not in str(error.value)
    return str(error.value)


# what is neither a file nor a folder


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to(path)


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO": (os.mkfifo, "is a FIFO"),
    "socket": (_socket, "is a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "link to itself": (_loop, "symbolic links form a loop"),
}


@pytest.mark.parametrize("name", ["x.txt", "x"])
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("given", ["its folder", "itself"])
def test_special_files_are_refused_by_name(folder, monkeypatch, kind, name, given):
    make, message = SPECIAL[kind]
    monkeypatch.chdir(folder)  # the path of a socket must be short
    make(Path(name))
    said = refused(folder if given == "its folder" else folder / name)
    assert str(folder / name) in said
    assert message in said


@pytest.mark.parametrize("target", [".", "..", "../deeper"])
def test_a_link_to_a_folder_of_the_corpus_is_refused(folder, target):
    (folder / "deeper" / "link").symlink_to(target)
    if target == "..":
        assert "is the same folder as" in refused(folder)
    assert "remove the link" in refused(folder)


def test_linked_folders_are_read(folder, tmp_path):
    (folder / "deeper").rename(tmp_path / "elsewhere")
    whole = open_corpus(DataConfig(corpus=str(folder)))
    (folder / "deeper").symlink_to(tmp_path / "elsewhere")
    linked = open_corpus(DataConfig(corpus=str(folder)))
    assert ("1 file " in whole.description, "2 files " in linked.description) == (True, True)


def test_a_broken_link_is_refused_if_its_name_is_that_of_a_text_file(folder):
    (folder / "picture.png").symlink_to("nowhere")
    prepare(DataConfig(corpus=str(folder), tokenizer="bytes"))
    (folder / "x.txt").symlink_to("nowhere")
    assert re.search(r"x.txt is a link to a file that does not exist", refused(folder))


@pytest.mark.parametrize("place", ["deeper", "."])
def test_an_unreadable_folder_is_refused_by_name(folder, monkeypatch, place):
    listed = Path.iterdir

    def iterdir(path: Path):
        if path == folder / place:
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert f"cannot read the folder {folder / place}: Permission denied; change its permissions" in refused(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 300 + ".txt", "File name too long"),
        ("a\0b.txt", "is not a path"),
        ("~nobody-of-this-name/a.txt", "home folder of an unknown user"),
        ("caf\udce9.txt", "is not valid UTF-8: rename"),
    ],
)
def test_impossible_paths_are_refused(name, message):
    assert message in refused(name)
    assert message in refused("pubmed", data_dir=name) or "no such folder" in refused("pubmed", data_dir=name)


def test_a_file_that_changes_while_it_is_read_is_refused(folder):
    def change(done: int) -> None:
        (folder / "a.txt").write_text("other words")

    config = DataConfig(corpus=str(folder), tokenizer="bytes")
    with pytest.raises(CoupledQKError, match=r"a.txt has changed while it was read: start again"):
        prepare(config, progress=change)
    prepare(config)


# sizes


def test_a_gzip_bomb_is_refused_after_a_bounded_amount_of_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_UNPACKED_FREELY", 2 * MEGABYTE)
    bomb = tmp_path / "bomb.txt.gz"
    bomb.write_bytes(gzip.compress(b"words " * (64 * MEGABYTE // 6)))
    tracemalloc.start()
    assert "bomb.txt.gz unpacks to more than 200 times its size" in refused(bomb)
    assert tracemalloc.get_traced_memory()[1] < 32 * MEGABYTE
    tracemalloc.stop()


def test_ordinary_compressed_text_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_UNPACKED_FREELY", 0)
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress(Path(random.__file__).read_bytes() * 5))
    assert sum(len(piece.text) for piece in read(file, "strict")) == 5 * len(Path(random.__file__).read_text())


def test_lines_of_json_have_a_maximum_length(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MAX_LINE", MEGABYTE)
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "short"}\n{"text": "' + "long " * MEGABYTE + '"}\n')
    assert re.search(r"a.jsonl, line 2: more than 1,048,576 characters; put such a document into a .txt", refused(file))


LETTERS = "".join(random.Random(0).choices(string.ascii_lowercase, k=150_000))
WITHOUT_SPACES = {
    "one letter": "a" * 150_000,
    "letters": LETTERS,
    "digits": "1234567890" * 15_000,
    "spaces": " " * 150_000,
    "newlines": "\n" * 150_000,
    "symbols": "=-" * 75_000,
    "ideographs": "的是" * 50_000,
    "values": '{"a":1,"b":[2,3]},' * 9_000,
}


@pytest.mark.parametrize("kind", WITHOUT_SPACES)
def test_text_without_words_is_split_into_pieces_that_change_no_token(kind, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 6_000)
    monkeypatch.setattr(text, "MAX_PIECE", 30_000)
    whole = WITHOUT_SPACES[kind]
    found = list(pieces([whole[i : i + 6_000] for i in range(0, len(whole), 6_000)], separated=True))
    assert "".join(piece.text for piece in found) == whole
    assert max(len(piece.text) for piece in found) <= 36_000
    ids = [token for piece in found for token in gpt2().encode(piece.text)]
    assert ids == gpt2().encode(whole)


def test_the_work_for_text_without_words_is_linear(monkeypatch):
    """Each character is examined a bounded number of times."""
    looked_at = 0

    def counted(rest: str) -> list[str]:
        nonlocal looked_at
        looked_at += len(rest)
        return list(split(rest))

    split = text._split
    monkeypatch.setattr(text, "_split", counted)
    monkeypatch.setattr(text, "PIECE", 6_000)
    monkeypatch.setattr(text, "MAX_PIECE", 30_000)
    whole = LETTERS * 10
    assert len(list(pieces([whole[i : i + 6_000] for i in range(0, len(whole), 6_000)], separated=True))) > 40
    assert looked_at < 6 * len(whole)


@pytest.mark.parametrize("kind", ["one letter", "spaces", "letters"])
def test_tokenizer_training_uses_only_the_beginning_of_a_long_word(kind):
    """The library's time is proportional to a word's length times the number of merges."""
    assert [len(part) for part in training_parts(WITHOUT_SPACES[kind])] == [MAX_WORD, 0]
    with pytest.raises(
        CoupledQKError, match=r"bpe:9000: the training text gives only \d+ tokens; choose bpe:\d+ or less"
    ):
        train_bpe("bpe:9000", [WITHOUT_SPACES[kind]])


def test_long_words_are_split_independently_of_their_position():
    long = "x" * (2 * MAX_WORD + 5)
    for before in ("", "some words, ", "y1" * 777):
        whole = f"{before}{long} and {'7' * MAX_WORD} after"
        start = len(before)
        assert list(long_words(whole)) == [(start, start + len(long))]
        assert [len(part) for part in word_parts(whole)][:2] == [start + MAX_WORD, MAX_WORD]
        assert "".join(word_parts(whole)) == whole
    assert word_parts("") == [""]
    assert word_parts(long[:MAX_WORD]) == [long[:MAX_WORD]]


def test_a_long_line_takes_little_memory(tmp_path):
    file = tmp_path / "line.txt"
    file.write_text("0123456789abcdef" * MEGABYTE)
    tracemalloc.start()
    assert sum(len(piece.text) for piece in read(file, "strict")) == 16 * MEGABYTE
    assert tracemalloc.get_traced_memory()[1] < 12 * MEGABYTE
    tracemalloc.stop()


# JSON lines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, "line 2: nested too deeply"),
        ('{"text": "a", "x": ' + '{"x":' * 100_000, "line 2: nested too deeply"),
        ('{"text": "a", "n": ' + "9" * 10_000 + "}", "line 2: not JSON (Exceeds the limit"),
        ('{"text": NaN}', "line 2: not JSON (NaN is not a JSON value)"),
        ('{"text": "a", "n": -Infinity}', "line 2: not JSON (-Infinity is not a JSON value)"),
        ('{"text": "a", "text": "b"}', "line 2: not JSON (the key 'text' is repeated)"),
        ('{"text": null}', 'line 2: expected an object with a string "text", got {"text": null}'),
        ('{"text": ["a"]}', 'line 2: expected an object with a string "text"'),
        ('{"Text": "\x1b[2J\r"}', "line 2: not JSON (Invalid control character"),
        ('["\x7f"]', 'got ["\ufffd"]'),
        ('{"text": "a"} {"text": "b"}', "line 2: not JSON (Extra data"),
        ('{"text": "\\udc00 half"}', "line 2: half of a surrogate pair; set encoding_errors"),
        ("nul\0", "is binary: byte 17 is NUL"),
        ('\ufeff{"text": "a"}', "line 2: not JSON (Unexpected UTF-8 BOM"),
    ],
    ids=lambda value: value[:24],
)
def test_hostile_lines_are_refused_with_their_number(tmp_path, line, message):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n' + line)
    said = refused(file)
    assert f"{file}" in said
    assert message in said
    assert len(said) < len(str(file)) + 200


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", '{"text": "words and \ufeff"}\n'), ("a.txt", "words and \ufeff"), ("a.md", "words and \ufeff")],
)
def test_a_byte_order_mark_at_the_beginning_of_a_file_is_removed(tmp_path, name, content):
    (tmp_path / name).write_text("\ufeff" + content)
    assert [piece.text for piece in read(tmp_path / name, "strict")] == ["words and \ufeff"]


def test_positions_in_errors_include_the_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfcaf\xe9")
    assert "a.txt is not valid UTF-8 at byte 6" in refused(tmp_path / "a.txt")


def test_only_files_with_a_byte_order_mark_are_tokenized_again(tmp_path):
    """Cached tokens from before byte-order marks were removed contain them."""
    (tmp_path / "a.txt").write_text("words")
    config = DataConfig(corpus=str(tmp_path / "a.txt"))
    assert open_corpus(config).fingerprint == digest([("a.txt", sha256(tmp_path / "a.txt"))], "strict", None)
    (tmp_path / "a.txt").write_text("\ufeffwords")
    assert open_corpus(config).fingerprint != digest([("a.txt", sha256(tmp_path / "a.txt"))], "strict", None)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_other_encodings_are_refused_with_the_byte(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("café".encode(encoding))
    said = refused(tmp_path / "a.txt")
    assert re.search(r"a.txt is (not valid UTF-8 at byte \d+: convert it|binary: byte \d+ is NUL)", said)


def test_half_of_a_surrogate_pair_can_be_replaced(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "\\udc00 half of a pair, and some words"}')
    config = DataConfig(corpus=str(tmp_path / "a.jsonl"), tokenizer="bytes")
    found = prepare(replace(config, encoding_errors="replace"))
    assert found.tokenizer.decode(found.train[:10]).startswith("\ufffd half")
