"""Tokenised corpora: one memory-mapped array of token ids per split, cached under a name made from what is in them.

A cached corpus is a folder that appears whole or not at all: train.bin, valid.bin and test.bin (little-endian unsigned
integers of 2 bytes, or 4 if the vocabulary needs them; each document followed by end-of-text), tokenizer.json, header.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from ..config import DataConfig
from ..errors import CoupledQKError
from ..files import atomic_path, digest, sha256
from .corpora import Corpus, open_corpus
from .splits import SPLITS, Stream
from .text import PIECE, Piece
from .tokenizers import Tokenizer, check_ids, from_json, from_name, train_bpe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = 1
"""Part of every cached name. It changes when the same corpus and tokenizer would give other ids."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class SplitInfo:
    bytes: int
    """Of text, in UTF-8."""
    documents: int
    tokens: int
    """With one end-of-text after each document."""
    sha256: str
    """Of every document's bytes followed by their number, in order."""


@dataclass(frozen=True)
class CorpusInfo:
    corpus: str
    description: str
    tokenizer: str
    splits: dict[str, SplitInfo]

    @property
    def hash(self) -> str:
        """Names the text of all splits, whatever the tokenizer."""
        return digest([self.splits[split].sha256 for split in SPLITS])


@dataclass(frozen=True)
class TokenizedCorpus:
    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]
    tokenizer: Tokenizer
    info: CorpusInfo
    """Of a split of which only a part is used, the counts are those of the part, the hash still that of the whole."""


def prepare(
    config: DataConfig, progress: Progress | None = None, tokenizer: Tokenizer | None = None
) -> TokenizedCorpus:
    """The tokenised corpus, from the cache or made now. `progress` is told the bytes of text done so far.

    A given tokenizer, such as a trained run's own, takes the place of the one that the settings name.
    """
    corpus = open_corpus(config)
    tokenizer = tokenizer or from_name(config.tokenizer)
    name = digest(VERSION, corpus.fingerprint, tokenizer.to_json() if tokenizer else config.tokenizer)
    folder = cache_folder() / "tokens" / name[:32]
    found = _open_cached(folder, corpus)
    if found is None:
        try:
            with atomic_path(folder) as temporary:
                _build(corpus, tokenizer, config.tokenizer, temporary, progress)
        except FileExistsError:
            pass  # another process was first, with the same content
        except OSError as error:
            raise CoupledQKError(
                f"cannot write {folder}: {error.strerror}; set COUPLEDQK_CACHE to another folder"
            ) from error
        found = _open(folder, corpus, verify=False)  # the checksums were taken from what was written a moment ago
    return _first_part(_first_part(found, "train", config.max_tokens), "valid", config.max_valid_tokens)


def cache_folder() -> Path:
    """Where tokenised corpora are kept: $COUPLEDQK_CACHE, or `coupledqk` in the user's cache folder."""
    if own := os.environ.get("COUPLEDQK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "coupledqk")


def _first_part(corpus: TokenizedCorpus, split: Literal["train", "valid"], n: int | None) -> TokenizedCorpus:
    """The first n tokens of a split. A tokenizer trained on the corpus has seen all of it, so that the perplexities of
    different parts of the training text can be compared."""
    tokens = getattr(corpus, split)[:n]
    if n is None or len(tokens) < n:
        return corpus
    lengths, end_of_text = corpus.tokenizer.byte_lengths, corpus.tokenizer.end_of_text
    n_bytes = n_documents = 0
    for start in range(0, n, PIECE):
        part = tokens[start : start + PIECE]
        n_bytes += int(lengths[part].sum())
        n_documents += int((part == end_of_text).sum())
    n_documents += int(tokens[-1] != end_of_text)
    part = replace(corpus.info.splits[split], bytes=n_bytes, documents=n_documents, tokens=n)
    info = replace(corpus.info, splits={**corpus.info.splits, split: part})
    return replace(corpus, **{split: tokens}, info=info)


class _DamagedError(CoupledQKError):
    """A cached folder is not what was written."""


def _open_cached(folder: Path, corpus: Corpus) -> TokenizedCorpus | None:
    if not folder.exists():
        return None
    try:
        return _open(folder, corpus)
    except _DamagedError as damage:
        warnings.warn(f"the cached tokens in {folder} are damaged ({damage}): making them again", stacklevel=3)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _open(folder: Path, corpus: Corpus, verify: bool = True) -> TokenizedCorpus:
    """Verifying reads everything for its checksum, in a fraction of the time that training on it takes."""
    try:
        header = json.loads((folder / "header.json").read_bytes())
        if header.pop("checksum") != digest(header):
            raise _DamagedError("header.json has another checksum than when it was written")
        for name, checksum in header["checksums"].items():
            if verify and sha256(folder / name) != checksum:
                raise _DamagedError(f"{name} has another checksum than when it was written")
        splits = {split: SplitInfo(**header["splits"][split]) for split in SPLITS}
        tokenizer = from_json((folder / "tokenizer.json").read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CoupledQKError):
            raise
        raise _DamagedError(str(error)) from error
    train, valid, test = (_memory_map(folder / f"{split}.bin", tokenizer) for split in SPLITS)
    info = CorpusInfo(corpus.name, corpus.description, tokenizer.name, splits)
    return TokenizedCorpus(train, valid, test, tokenizer, info)


def _memory_map(path: Path, tokenizer: Tokenizer) -> NDArray[Any]:
    import numpy as np

    if path.stat().st_size == 0:
        return np.empty(0, _dtype(tokenizer))
    with path.open("rb") as file:  # what is looked at through the map would stay in memory
        while (ids := np.fromfile(file, _dtype(tokenizer), PIECE)).size:
            check_ids(ids, tokenizer.vocab_size)
    return np.memmap(path, _dtype(tokenizer), "r")


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    import numpy as np

    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def _build(corpus: Corpus, tokenizer: Tokenizer | None, name: str, folder: Path, progress: Progress | None) -> None:
    if tokenizer is None:
        tokenizer = train_bpe(name, (piece.text for split, piece in corpus.stream() if split == "train"))
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    with ExitStack() as files:
        shards = {
            split: _Shard(files.enter_context((folder / f"{split}.bin").open("wb")), tokenizer) for split in SPLITS
        }
        done = 0
        for batch in _encoded(corpus, tokenizer):
            for split, encoded in batch:
                done += shards[split].append(encoded)
            if progress:
                progress(done)
    if not done:
        raise CoupledQKError(f"corpus {corpus.name} is empty: expected some text")
    header = {
        "corpus": corpus.name,
        "description": corpus.description,
        "splits": {split: asdict(shard.info()) for split, shard in shards.items()},
        "checksums": {
            "tokenizer.json": sha256(folder / "tokenizer.json"),
            **{f"{split}.bin": shard.checksum.hexdigest() for split, shard in shards.items()},
        },
    }
    (folder / "header.json").write_text(json.dumps({**header, "checksum": digest(header)}, indent=1))


class _Encoded(NamedTuple):
    """A stretch of a document."""

    text: bytes
    ids: bytes
    """As they are stored."""
    ends: bool
    """Whether the document ends with it."""


def _encoded(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[list[tuple[str, _Encoded]]]:
    """The corpus with its token ids, in order, in batches. Threads do the work: the tokenizers' libraries run without
    Python's lock. A few batches wait in line, so that no thread does."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    line = deque()
    with ThreadPoolExecutor(cores) as pool:
        for batch in _batches(corpus.stream()):
            line.append(pool.submit(_encode, batch, tokenizer))
            if len(line) > 2 * cores:
                yield line.popleft().result()
        for batch in line:
            yield batch.result()


def _encode(batch: list[tuple[str, Piece]], tokenizer: Tokenizer) -> list[tuple[str, _Encoded]]:
    dtype = _dtype(tokenizer)
    ids = tokenizer.encode_batch([piece.text for _, piece in batch])
    return [
        (split, _Encoded(piece.text.encode(), found.astype(dtype).tobytes(), piece.ends))
        for (split, piece), found in zip(batch, ids, strict=True)
    ]


def _batches(stream: Stream) -> Iterator[list[tuple[str, Piece]]]:
    """Short documents together, so that handing them to a thread costs little."""
    batch, size = [], 0
    for item in stream:
        batch.append(item)
        size += len(item[1].text)
        if size >= PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Shard:
    """A split while it is written."""

    def __init__(self, file: BinaryIO, tokenizer: Tokenizer) -> None:
        self.file = file
        self.width = _dtype(tokenizer).itemsize
        self.end_of_text = tokenizer.end_of_text.to_bytes(self.width, "little")
        self.content, self.checksum = hashlib.sha256(), hashlib.sha256()
        self.bytes = self.documents = self.tokens = self.document_bytes = 0

    def append(self, encoded: _Encoded) -> int:
        """Returns the number of bytes of text."""
        text, ids, ends = encoded
        self.content.update(text)
        self.document_bytes += len(text)
        self._write(ids)
        if ends:
            self._write(self.end_of_text)
            self.content.update(self.document_bytes.to_bytes(8, "little"))
            self.bytes += self.document_bytes
            self.documents += 1
            self.document_bytes = 0
        return len(text)

    def _write(self, ids: bytes) -> None:
        self.file.write(ids)
        self.checksum.update(ids)
        self.tokens += len(ids) // self.width

    def info(self) -> SplitInfo:
        return SplitInfo(self.bytes, self.documents, self.tokens, self.content.hexdigest())
