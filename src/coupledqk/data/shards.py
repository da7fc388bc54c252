"""Tokenised corpora: one memory-mapped array of token ids per split, cached under a name made from what is in them.

A cached corpus is a folder: train.bin, valid.bin and test.bin (little-endian unsigned integers of 2 bytes, or 4 if the
vocabulary needs them; each document followed by end-of-text), tokenizer.json, header.json. A sample of a split is a folder
below it: tokens.bin, header.json.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..config import DataConfig
from ..errors import CoupledQKError
from ..files import digest, sha256
from ..terminal import tokenizing
from .cache import cache_folder, cached, read_header, write_header
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
    """Of a shuffled sample, the units it comes from: documents, articles, stretches of long documents."""
    tokens: int
    """With one end-of-text after each document."""
    sha256: str
    """Of every document's bytes followed by their number, in order, in the whole split."""
    sample_sha256: str
    """Of the token ids that are used, as they are stored."""


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

    @property
    def sample_hash(self) -> str:
        """Names the tokens that are used for training and validation."""
        return digest([self.splits[split].sample_sha256 for split in ("train", "valid")])


@dataclass(frozen=True)
class TokenizedCorpus:
    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]
    tokenizer: Tokenizer
    info: CorpusInfo
    """Of a split of which only a part is used, the counts and `sample_sha256` are those of the part; `sha256` is that of the
    whole split."""


def open_text(data: DataConfig, tokenizer: Tokenizer | None = None, progress: bool = True) -> TokenizedCorpus:
    """As `prepare`, with a progress bar while the corpus is tokenized."""
    with tokenizing() if progress else nullcontext() as on_bytes:
        return prepare(data, on_bytes, tokenizer)


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
    found = cached(
        folder,
        lambda verify: _open(folder, corpus, verify),
        lambda temporary: _build(corpus, tokenizer, config.tokenizer, temporary, progress),
    )
    for split, n in (("train", config.max_tokens), ("valid", config.max_valid_tokens)):
        if n is not None and n < found.info.splits[split].tokens:
            found = _first_part(found, split, n) if config.sampling == "first" else _sample(found, split, n, folder)
    return found


def _first_part(corpus: TokenizedCorpus, split: str, n: int) -> TokenizedCorpus:
    """The first n tokens of a split. A tokenizer trained on the corpus has seen all of it, so that the perplexities of
    different parts of the training text can be compared."""
    tokens, end_of_text = getattr(corpus, split)[:n], corpus.tokenizer.end_of_text
    n_ended = sum(int((part == end_of_text).sum()) for part in _pieces(tokens))
    return _with_part(corpus, split, tokens, n_ended + int(tokens[-1] != end_of_text))


def _sample(corpus: TokenizedCorpus, split: str, n: int, folder: Path) -> TokenizedCorpus:
    """The first n tokens of a split's documents in shuffled order, from the cache or written to it now."""
    folder = folder / "samples" / f"{split}-{n}"

    def build(temporary: Path) -> None:
        from .samples import write_sample

        whole, file = corpus.info.splits[split].sha256, temporary / "tokens.bin"
        n_units = write_sample(file, getattr(corpus, split), corpus.tokenizer, whole, n)
        write_header(temporary, {file.name: sha256(file)}, units=n_units)

    def read(verify: bool) -> TokenizedCorpus:
        n_units = read_header(folder, verify)["units"]
        return _with_part(corpus, split, _memory_map(folder / "tokens.bin", corpus.tokenizer), n_units)

    return cached(folder, read, build)


def _with_part(corpus: TokenizedCorpus, split: str, tokens: NDArray[Any], n_documents: int) -> TokenizedCorpus:
    """The corpus with some tokens of a split in place of all."""
    n_bytes, content = 0, hashlib.sha256()
    for part in _pieces(tokens):
        n_bytes += int(corpus.tokenizer.byte_lengths[part].sum())
        content.update(part.tobytes())
    whole = corpus.info.splits[split]
    part = SplitInfo(n_bytes, n_documents, len(tokens), whole.sha256, content.hexdigest())
    info = replace(corpus.info, splits={**corpus.info.splits, split: part})
    return replace(corpus, **{split: tokens}, info=info)


def _pieces(tokens: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (tokens[start : start + PIECE] for start in range(0, len(tokens), PIECE))


def _open(folder: Path, corpus: Corpus, verify: bool = True) -> TokenizedCorpus:
    header = read_header(folder, verify)
    tokenizer = from_json((folder / "tokenizer.json").read_text())
    checksums = {split: header["checksums"][f"{split}.bin"] for split in SPLITS}
    splits = {split: SplitInfo(**header["splits"][split], sample_sha256=checksums[split]) for split in SPLITS}
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
    write_header(
        folder,
        {
            "tokenizer.json": sha256(folder / "tokenizer.json"),
            **{f"{split}.bin": shard.checksum.hexdigest() for split, shard in shards.items()},
        },
        corpus=corpus.name,
        description=corpus.description,
        splits={split: shard.info() for split, shard in shards.items()},
    )


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

    def info(self) -> dict[str, Any]:
        """What a SplitInfo says of the whole split's text."""
        return {
            "bytes": self.bytes,
            "documents": self.documents,
            "tokens": self.tokens,
            "sha256": self.content.hexdigest(),
        }
