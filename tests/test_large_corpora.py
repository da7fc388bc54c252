"""Corpora that need several processes or several starts, or that are too large to be hashed at every start."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from coupledqk import CoupledQKError
from coupledqk.cli import main
from coupledqk.config import DataConfig
from coupledqk.data import building, cache, encoders, parts, prepare, shards, text
from coupledqk.data.encoders import Encoders
from coupledqk.data.tokenizers import Tokenizer, byte_tokenizer, gpt2, train_bpe

WORDS = "naïve text, <|endoftext|> typed by someone; "


@pytest.fixture(autouse=True)
def small_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces the size limits, so that small corpora are treated like large ones."""
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    for module in (text, building):
        monkeypatch.setattr(module, "PIECE", 500)
    for module in (encoders, building):
        monkeypatch.setattr(module, "ENCODED_HERE", 2_000)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", 3)


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    (tmp_path / "corpus").mkdir()
    for i in range(60):
        (tmp_path / "corpus" / f"{i:02}.txt").write_text(f"Document {i}: {WORDS * (i % 7)}\n" * 3)
    return DataConfig(corpus=str(tmp_path / "corpus"), tokenizer="bytes")


def contents(place: Path) -> dict[str, bytes]:
    """The files of a cached corpus."""
    (folder,) = (place / "tokens").glob("[!.]*")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# several processes


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_result_does_not_depend_on_the_number_of_processes(config, tokenizer, tmp_path, monkeypatch):
    found = []
    for jobs in (1, 2, 3):
        monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / str(jobs)))
        reported = []
        corpus = prepare(DataConfig(config.corpus, tokenizer), progress=reported.append, jobs=jobs)
        assert reported == sorted(reported)
        assert reported[-1] == sum(split.bytes for split in corpus.info.splits.values())
        found.append(contents(tmp_path / str(jobs)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "tokenizer", [byte_tokenizer(), gpt2(), train_bpe("bpe:280", [WORDS * 9])], ids=lambda t: t.name
)
def test_another_process_gives_the_same_ids(tokenizer, monkeypatch):
    monkeypatch.setattr(encoders, "ENCODED_HERE", 0)
    texts = [WORDS, "", "狐狸 🦊\n" * 9, "x" * 20_000]
    with Encoders(tokenizer, 2) as started:
        for _ in range(2):
            found = started.encode(texts)
            assert [ids.tolist() for ids in found] == [tokenizer.encode(each) for each in texts]
        (process,) = started._started
    assert process.returncode == 0


def test_a_failed_process_is_reported_and_finished_parts_are_kept(config, monkeypatch):
    start = Encoders._start

    def start_and_kill(self: Encoders) -> subprocess.Popen[bytes]:
        process = start(self)
        process.kill()
        return process

    monkeypatch.setattr(Encoders, "_start", start_and_kill)
    with pytest.raises(CoupledQKError, match=r"a tokenizing process exited with code -9.* finished parts are kept"):
        prepare(config, jobs=2)


SCRIPT = """
import sys
from coupledqk.config import DataConfig
from coupledqk.data import encoders, prepare, text, building, parts
text.PIECE = building.PIECE = 500
encoders.ENCODED_HERE = 1000
parts.PART = 3

start, started = encoders.Encoders._start, []

def start_and_tell(self):
    started.append(start(self))
    return started[-1]

encoders.Encoders._start = start_and_tell

def on_bytes(done):
    if done > 9000:
        print(*(process.pid for process in started), flush=True)
        sys.stdin.read()  # until it is killed

prepare(DataConfig(sys.argv[1], "bytes"), progress=on_bytes, jobs=2)
"""


@pytest.mark.usefixtures("short_parts")
def test_after_a_kill_finished_parts_are_reused_and_no_process_is_left(config, tmp_path, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, config.corpus], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    children = process.stdout.readline().decode().split()
    assert children
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = sorted((tmp_path / "cache" / "tokens").glob("*.parts/*.npz"))
    assert len(kept) >= 4

    encoded = _count_encoded(monkeypatch)
    corpus = prepare(config)
    whole = sum(split.bytes for split in corpus.info.splits.values())
    assert 0 < encoded[0] < whole - 8 * 500
    resumed = contents(tmp_path / "cache")
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "other"))
    prepare(config, jobs=1)
    assert contents(tmp_path / "other") == resumed
    deadline = time.monotonic() + 60
    while any(map(_runs, children)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process: str) -> bool:
    try:
        return b"coupledqk.data.encoders" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of characters encoded in this process."""
    encode, count = Tokenizer.encode_batch, [0]

    def counted(self: Tokenizer, texts: list[str]):
        count[0] += sum(map(len, texts))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    return count


def _stop_after(n: int):
    def on_bytes(done: int) -> None:
        if done > n:
            raise KeyboardInterrupt

    return on_bytes


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("damage", ["flip", "cut", "other text"])
def test_damaged_parts_are_tokenized_again(config, tmp_path, monkeypatch, damage):
    with pytest.raises(KeyboardInterrupt):
        prepare(config, _stop_after(9_000), jobs=1)
    first, second, *_ = sorted((tmp_path / "cache" / "tokens").glob("*.parts/*.npz"))
    data = bytearray(first.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    first.write_bytes({"flip": data, "cut": data[:-50], "other text": second.read_bytes()}[damage])
    prepare(config, jobs=1)
    resumed = contents(tmp_path / "cache")
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "other"))
    prepare(config)
    assert contents(tmp_path / "other") == resumed


@pytest.mark.usefixtures("short_parts")
def test_a_trained_tokenizer_is_not_trained_again(config, monkeypatch):
    config = DataConfig(config.corpus, "bpe:300")
    with pytest.raises(KeyboardInterrupt):
        prepare(config, _stop_after(5_000), jobs=1)
    monkeypatch.setattr(building, "train_bpe", None)
    assert prepare(config).tokenizer.vocab_size == 300


# verification


def _refuse(*args: object) -> str:
    raise AssertionError("hashed")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "ALWAYS_HASHED", 100)
    monkeypatch.setattr(shards, "ALWAYS_HASHED", 100)


@pytest.mark.usefixtures("large")
def test_large_files_are_hashed_when_they_are_written_and_not_at_every_start(config, monkeypatch):
    sampled = DataConfig(config.corpus, "bytes", max_tokens=400)
    first = prepare(sampled)
    monkeypatch.setattr(cache, "sha256", _refuse)
    monkeypatch.setattr(shards, "check_ids", _refuse)
    assert prepare(sampled).info == first.info


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.usefixtures("large")
def test_a_large_file_that_was_written_to_is_hashed_again(config, tmp_path):
    before = prepare(config).train.tolist()
    (file,) = (tmp_path / "cache").rglob("train.bin")
    _flip(file)
    with pytest.warns(UserWarning, match=r"damaged \(train.bin does not match its checksum"):
        assert prepare(config).train.tolist() == before


@pytest.mark.usefixtures("large")
def test_a_large_text_that_was_written_to_is_hashed_again(config):
    before = prepare(config).info.hash
    file = Path(config.corpus, "10.txt")
    status = file.stat()
    file.write_text(file.read_text().replace("Document", "document"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert prepare(config).info.hash != before


@pytest.mark.usefixtures("large")
def test_damaged_cached_checksums_are_ignored(config, tmp_path):
    first = prepare(config)
    for file in (tmp_path / "cache" / "checksums").iterdir():
        _flip(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prepare(config).info == first.info


@pytest.mark.usefixtures("large")
def test_a_cache_that_cannot_be_written_to_can_be_used(config, tmp_path):
    first = prepare(config)
    shutil.rmtree(tmp_path / "cache" / "checksums")
    (tmp_path / "cache" / "checksums").write_text("a file where a folder is expected")
    assert prepare(config).info == first.info


@pytest.mark.usefixtures("large")
def test_damage_not_visible_in_file_metadata_is_found_by_verify_and_repaired(config, tmp_path, monkeypatch, capsys):
    """Simulates a disk that returns wrong bytes, which the size, the times and the inode of a file do not reveal."""
    before = prepare(config).train.tolist()
    (file,) = (tmp_path / "cache").rglob("train.bin")
    stamp = cache.stamp
    stamps = {path: stamp(path) for path in file.parent.iterdir()}
    monkeypatch.setattr(cache, "stamp", lambda path: stamps.get(path) or stamp(path))
    main(["data", "verify", "--corpus", config.corpus, "--tokenizer", "bytes"])
    assert "bytes of tokens match their checksums" in capsys.readouterr().out
    _flip(file)
    prepare(config)
    with pytest.raises(SystemExit):
        main(["data", "verify", "--corpus", config.corpus, "--tokenizer", "bytes"])
    assert "damaged (train.bin does not match its checksum)" in capsys.readouterr().err
    with pytest.raises(cache.DamagedError):
        cache.read_header(file.parent)
    monkeypatch.setattr(cache, "stamp", stamp)
    with pytest.warns(UserWarning, match="creating them again"):
        assert prepare(config).train.tolist() == before


def test_verifying_a_corpus_that_is_not_tokenized_says_what_to_do(config, capsys):
    with pytest.raises(SystemExit):
        main(["data", "verify", "--corpus", config.corpus, "--tokenizer", "bytes"])
    assert "is not tokenized with bytes yet: run `coupledqk data prepare` first" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "prepare", "--corpus", config.corpus, "--jobs", "0"])
    assert "--jobs 0: expected 1 to 10,000" in capsys.readouterr().err


def test_tokens_that_read_back_differently_are_refused(config, monkeypatch):
    """Simulates a disk that loses writes."""

    def write_and_lose(*args: object) -> None:
        building.build(*args)
        (args[2] / "train.bin").write_bytes(b"")

    monkeypatch.setattr(shards, "build", write_and_lose)
    with pytest.raises(
        CoupledQKError, match=r"reads back differently \(train.bin does not match its checksum.* check the disk"
    ):
        prepare(config)


def test_twenty_gigabytes_of_tokens_are_opened_without_reading_them(tmp_path):
    """Uses a sparse file, which takes no space; reading it would take half a minute and all of the memory."""
    file = tmp_path / "tokens.bin"
    with file.open("wb") as sparse:
        try:
            sparse.truncate(20 * 10**9)
        except OSError:
            pytest.skip("the file system has no sparse files of this size")
    tokens = shards._memory_map(file, byte_tokenizer())
    assert len(tokens) == 10**10
    assert isinstance(tokens, np.memmap)
    assert tokens[10**10 - 5 :].tolist() == [0] * 5
