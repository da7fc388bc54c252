"""Intermediate results of tokenizing a large corpus, so that an interrupted process does not have to tokenize again.

A corpus is tokenized in batches of texts. The ids of every PART batches are written to a file with hashes of their texts;
a file that is damaged or belongs to other texts is ignored. The text itself is read again.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..files import write_atomic
from .cache import DamagedError, checked_json, read_checked_json
from .tokenizers import Tokenizer, from_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

PART = 64
"""Number of batches in a file, which is 16 to 33 MB of text. A smaller corpus writes no files."""


class EncodedBatch(NamedTuple):
    key: bytes
    """Hash of the texts."""
    ids: list[NDArray[Any]]
    """Token ids of each text."""


def key_of(texts: Sequence[bytes]) -> bytes:
    content = hashlib.blake2b(digest_size=16)
    for text in texts:
        content.update(len(text).to_bytes(8, "little") + text)
    return content.digest()


class Parts:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._batches: list[EncodedBatch] = []
        self._load = lru_cache(maxsize=2)(self._read)

    def find(self, number: int, key: bytes) -> EncodedBatch | None:
        """The batch with this number, if it is stored and its texts match the key. It is thread-safe."""
        part = self._load(number // PART)
        batch = part[number % PART] if part else None
        return batch if batch and batch.key == key else None

    def add(self, number: int, batch: EncodedBatch) -> None:
        """Adds a batch. Batches must be added in order, and a file is written as soon as it is complete."""
        self._batches.append(batch)
        if number % PART == PART - 1:
            path = self._path(number // PART)
            if not path.exists() or self._load(number // PART) is None:
                write_atomic(path, _packed(self._batches))
            self._batches = []

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that was trained for this corpus; None if it is not stored."""
        try:
            return from_json(json.dumps(read_checked_json(self.folder / "tokenizer.json")))
        except DamagedError:
            return None

    def keep_tokenizer(self, tokenizer: Tokenizer) -> None:
        write_atomic(self.folder / "tokenizer.json", checked_json(json.loads(tokenizer.to_json())))

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:06d}.npz"

    def _read(self, part: int) -> list[EncodedBatch] | None:
        if not self._path(part).exists():
            return None
        try:
            return _unpacked(self._path(part))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def _packed(batches: list[EncodedBatch]) -> bytes:
    """The batches as a zip file of arrays, which includes checksums."""
    import numpy as np

    ids = [found for batch in batches for found in batch.ids]
    file = io.BytesIO()
    np.savez(
        file,
        keys=np.frombuffer(b"".join(batch.key for batch in batches), np.uint8),
        texts=np.array([len(batch.ids) for batch in batches]),
        lengths=np.array([len(found) for found in ids]),
        ids=np.concatenate(ids),
    )
    return file.getvalue()


def _unpacked(path: Path) -> list[EncodedBatch]:
    import numpy as np

    with np.load(path) as arrays:
        keys, texts, lengths, ids = (arrays[name] for name in ("keys", "texts", "lengths", "ids"))
    ids = iter(np.split(ids, np.cumsum(lengths)[:-1]))
    return [
        EncodedBatch(key.tobytes(), [next(ids) for _ in range(n)])
        for key, n in zip(keys.reshape(PART, 16), texts, strict=True)
    ]
