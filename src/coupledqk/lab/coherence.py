"""The coherence of a corpus: how much its other documents help to compress a document.

The measure is a gain in bits per byte: the compressed size of an excerpt alone, minus its compressed size after 1 MB of other
documents of the corpus. It is near 0 for noise and increases with the words, phrases and layout that documents share. It
depends on the compressor. Most of the gain is common to all texts of one language, so compare corpora with one another rather
than with 0, and together with `alone`: repetitive text, such as code, compresses well alone and has less to gain.

    coherence(piece.text for _, piece in open_corpus(config).stream())

- **The compressor** is LZMA in its slowest mode, the only one in the standard library with a window of more than a megabyte
  (zlib has 32 KB, bz2 900 KB). The size of an excerpt after a context is the size of both together minus that of the context.
- **Excerpts have equal length.** A short text compresses badly alone, so a corpus of short documents would seem coherent. An
  excerpt starts at a random position, since documents often start with boilerplate. Shorter documents are used as context only.
- **Long documents** are split into parts of 64 KiB, which count as documents; this also applies to a corpus that is a single
  document. Adjacent parts may belong to one chapter, but most of a context comes from elsewhere.
- **A context** is shared by a few excerpts, because compressing it dominates the cost. It contains none of their documents.
"""

from __future__ import annotations

import heapq
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CoupledQKError
from ..schema import require
from ..statistics import bootstrap_interval

if TYPE_CHECKING:
    import numpy as np

EXCERPT = 1024
PART = 1 << 16
POOL = 1 << 24
"""Maximum number of bytes drawn from a corpus, enough for several different contexts."""
CONTEXTS = 5
FEWEST = 10
"""Minimum number of documents for an interval over documents."""

# Text has no alignment (pb = 0), and the next character depends on the whole previous one (lc = 4).
_SETTINGS = {"dict_size": 1 << 21, "lc": 4, "lp": 0, "pb": 0, "nice_len": 64}
_FILTER = {"id": lzma.FILTER_LZMA1, "mode": lzma.MODE_NORMAL, "mf": lzma.MF_BT4, **_SETTINGS}
COMPRESSOR = "LZMA1 mode=normal mf=bt4 " + " ".join(f"{name}={value}" for name, value in _SETTINGS.items())


@dataclass(frozen=True)
class Coherence:
    """The coherence of a corpus in bits per byte, averaged over documents."""

    gain: float
    """The difference alone − given."""
    interval: tuple[float, float]
    """95% interval of the gain, by bootstrap over documents."""
    alone: float
    given: float
    n_documents: int
    context_bytes: int
    excerpt_bytes: int = EXCERPT
    compressor: str = COMPRESSOR


def coherence(
    documents: Iterable[str], n_documents: int = 40, context_bytes: int = 1_000_000, seed: int = 0
) -> Coherence:
    """Measures the coherence of a corpus of any size, which is read once. 40 documents take about half a minute."""
    import numpy as np

    largest = _SETTINGS["dict_size"] - EXCERPT
    require(not isinstance(documents, str), "documents", "one text", "several: put it into a list")
    require(n_documents >= FEWEST, "n_documents", n_documents, f"at least {FEWEST}")
    require(0 < context_bytes <= largest, "context_bytes", context_bytes, f"1 up to {largest}, the compressor's memory")
    require(0 <= seed < 2**32, "seed", seed, "0 up to 2³² − 1")
    random = np.random.RandomState(seed)
    parts = _draw(documents, random)
    long_enough = [number for number, part in enumerate(parts) if len(part) >= EXCERPT][:n_documents]
    if len(long_enough) < FEWEST:
        raise CoupledQKError(
            f"the corpus has {len(long_enough)} documents of {EXCERPT} bytes or more: coherence needs {FEWEST}; use more text"
        )
    costs = np.array(list(_costs(parts, long_enough, context_bytes, random)))
    gains = costs[:, 0] - costs[:, 1]
    alone, given = map(float, costs.mean(axis=0))
    return Coherence(
        float(gains.mean()), bootstrap_interval(gains.tolist(), seed=seed), alone, given, len(gains), context_bytes
    )


def _draw(documents: Iterable[str], random: np.random.RandomState) -> list[bytes]:
    """A random sample of about POOL bytes of the corpus, or all of it, as parts in random order. The sample is all that is held
    in memory.

    Each part draws a random number, and the parts with the smallest numbers are kept.
    """
    drawn: list[tuple[float, bytes]] = []
    size = 0
    for document in documents:
        data = document.encode("utf-8", "surrogatepass")
        for start in range(0, len(data), PART):
            part = data[start : start + PART]
            heapq.heappush(drawn, (-random.random_sample(), part))
            size += len(part)
            while size - len(drawn[0][1]) >= POOL:
                size -= len(heapq.heappop(drawn)[1])
    return [part for _, part in sorted(drawn, reverse=True)]


def _costs(
    parts: Sequence[bytes], held_out: Sequence[int], context_bytes: int, random: np.random.RandomState
) -> Iterator[tuple[float, float]]:
    """The compressed size of an excerpt of each held-out part, alone and given a context."""
    nothing = _compressed(b"")
    for turn in range(CONTEXTS):
        now = held_out[turn::CONTEXTS]
        context = _context(parts, set(now), turn * len(parts) // CONTEXTS, context_bytes)
        before = _compressed(context)
        for number in now:
            start = random.randint(len(parts[number]) - EXCERPT + 1)
            excerpt = parts[number][start : start + EXCERPT]
            alone, after = _compressed(excerpt) - nothing, _compressed(context + excerpt) - before
            yield 8 * alone / EXCERPT, 8 * after / EXCERPT


def _context(parts: Sequence[bytes], left_out: set[int], first: int, size: int) -> bytes:
    order = [*range(first, len(parts)), *range(first)]
    others = b"\n".join(parts[number] for number in order if number not in left_out)
    if len(others) < size:
        raise CoupledQKError(
            f"the corpus has {len(others):,} bytes beside the documents held out: coherence needs {size:,}; use more text"
        )
    return others[:size]


def _compressed(data: bytes) -> int:
    return len(lzma.compress(data, lzma.FORMAT_RAW, filters=[_FILTER]))
