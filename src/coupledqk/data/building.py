"""Writes a tokenized corpus: one file of token ids per split, and a header.

One process reads the text in order and passes it to others that encode it (`encoders`), then hashes and writes the ids. The
result therefore does not depend on the number of processes, and only a few batches of text are in memory.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..errors import CoupledQKError
from ..files import sha256
from .cache import write_header
from .corpora import Corpus
from .encoders import ENCODED_HERE, Encoders, available_cores
from .parts import EncodedBatch, Parts, key_of
from .splits import SPLITS, Stream
from .text import PIECE, Piece
from .tokenizers import Tokenizer, train_bpe

if TYPE_CHECKING:
    import numpy as np

Progress = Callable[[int], None]


def token_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    import numpy as np

    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def build(
    corpus: Corpus,
    tokenizer: Tokenizer | str,
    folder: Path,
    parts: Parts,
    progress: Progress | None = None,
    jobs: int | None = None,
) -> None:
    """Writes the files of a corpus. If the tokenizer is given as a name, bpe:N, it is trained first."""
    if isinstance(tokenizer, str):
        tokenizer = parts.tokenizer() or _trained(corpus, tokenizer, parts)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    with ExitStack() as files:
        shards = {
            split: _Shard(files.enter_context((folder / f"{split}.bin").open("wb")), tokenizer) for split in SPLITS
        }
        done = 0
        for batch in _encoded(corpus, tokenizer, parts, jobs or available_cores()):
            for split, encoded in batch:
                done += shards[split].append(encoded)
            if progress:
                progress(done)
    if not done:
        raise CoupledQKError(f"corpus {corpus.name} is empty: expected some text")
    corpus.check_unchanged()
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


def _trained(corpus: Corpus, name: str, parts: Parts) -> Tokenizer:
    size = 0

    def texts() -> Iterator[str]:
        nonlocal size
        for split, piece in corpus.stream():
            if split == "train":
                size += len(piece.text)
                yield piece.text

    tokenizer = train_bpe(name, texts())
    if size > ENCODED_HERE:
        parts.keep_tokenizer(tokenizer)
    return tokenizer


class _Encoded(NamedTuple):
    """The token ids of a piece of a document."""

    text: bytes
    ids: bytes
    """Token ids in the stored format."""
    ends: bool
    """Whether this is the last piece of its document."""


def _encoded(corpus: Corpus, tokenizer: Tokenizer, parts: Parts, jobs: int) -> Iterator[list[tuple[str, _Encoded]]]:
    """The corpus with its token ids in batches, in order. A few batches are queued, so that no process is idle."""
    dtype = token_dtype(tokenizer)
    line = deque()
    with Encoders(tokenizer, jobs) as encoders, ThreadPoolExecutor(jobs) as pool:

        def encode(number: int, texts: list[str]) -> tuple[list[bytes], EncodedBatch]:
            contents = [text.encode() for text in texts]
            key = key_of(contents)
            found = parts.find(number, key)
            return contents, found or EncodedBatch(key, [ids.astype(dtype) for ids in encoders.encode(texts)])

        def finished() -> list[tuple[str, _Encoded]]:
            number, batch, future = line.popleft()
            contents, found = future.result()
            parts.add(number, found)
            return [
                (split, _Encoded(content, ids.tobytes(), piece.ends))
                for (split, piece), content, ids in zip(batch, contents, found.ids, strict=True)
            ]

        try:
            for number, batch in enumerate(_batches(corpus.stream())):
                line.append((number, batch, pool.submit(encode, number, [piece.text for _, piece in batch])))
                if len(line) > 2 * jobs:
                    yield finished()
            while line:
                yield finished()
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(stream: Stream) -> Iterator[list[tuple[str, Piece]]]:
    """Groups short documents into batches, to reduce the overhead of passing them to threads."""
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
    """A split that is being written."""

    def __init__(self, file: BinaryIO, tokenizer: Tokenizer) -> None:
        self.file = file
        self.width = token_dtype(tokenizer).itemsize
        self.end_of_text = tokenizer.end_of_text.to_bytes(self.width, "little")
        self.content, self.checksum = hashlib.sha256(), hashlib.sha256()
        self.bytes = self.documents = self.tokens = self.document_bytes = 0

    def append(self, encoded: _Encoded) -> int:
        """Appends a piece and returns the number of bytes of its text."""
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
        """The fields of a SplitInfo for the text of the whole split."""
        return {
            "bytes": self.bytes,
            "documents": self.documents,
            "tokens": self.tokens,
            "sha256": self.content.hexdigest(),
        }
