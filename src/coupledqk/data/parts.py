"""What is tokenized while a large corpus is not finished, so that nothing is tokenized again after a kill.

The stream of a corpus comes in batches of texts. The ids of every PART batches are a file, which names their texts by hashes: a
file that is damaged or belongs to other texts is not used. The text itself is read again.
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
"""Batches in a file: 16 to 33 MB of text. A smaller corpus leaves no files."""


class EncodedBatch(NamedTuple):
    key: bytes
    """Of its texts."""
    ids: list[NDArray[Any]]
    """Of each text."""


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
        """The batch of that number, if it is there and its texts are those of the key. Threads may call it at once."""
        part = self._load(number // PART)
        batch = part[number % PART] if part else None
        return batch if batch and batch.key == key else None

    def add(self, number: int, batch: EncodedBatch) -> None:
        """Batches come in order. A file is written as soon as all of its batches are there."""
        self._batches.append(batch)
        if number % PART == PART - 1:
            path = self._path(number // PART)
            if not path.exists() or self._load(number // PART) is None:
                write_atomic(path, _packed(self._batches))
            self._batches = []

    def tokenizer(self) -> Tokenizer | None:
        """The one that was trained for this corpus."""
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
    """A zip file of arrays, which holds checksums of them."""
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
