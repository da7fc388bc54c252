"""How coherent a corpus is, from its text alone: what the other documents tell about a document.

The measure is a gain in bits per byte: what an excerpt costs alone, less what it costs after 1 MB of the corpus' other
documents. It is near 0 for noise, and larger the more words, phrases and layout documents share. It is relative to one
compressor. Texts of one language share most of what 1 MB can teach, so compare corpora with one another, not with 0, and read
the gain beside `alone`: text that repeats itself, such as code, is cheap alone and has less to gain.

    coherence(piece.text for _, piece in open_corpus(config).stream())

- **The compressor** is LZMA, in its dearest mode: of the standard library's it alone looks back over a whole megabyte (zlib
  sees 32 KB, bz2 forgets after 900 KB). What an excerpt costs after a context is the length of both less that of the context.
- **Excerpts are equally long** everywhere. A short text is dear alone, so a corpus of short documents would seem coherent.
  Each is taken from anywhere in its document, since openings are often formulas. Documents too short for one are context only.
- **Long documents** count as several, of 64 KiB each, and so does a corpus that is a single document: how much its parts
  tell about one another is then the measure. Parts next to each other may share a chapter; most of a context is further away.
- **A context** serves a few excerpts, because compressing it is nearly all of the cost. It holds none of their documents.
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
"""Bytes of the documents drawn from a larger corpus: enough for contexts that differ."""
CONTEXTS = 5
FEWEST = 10
"""Documents below which an interval over documents says nothing."""

# Text has no alignment (pb = 0), and its next letter depends on the whole letter before (lc = 4).
_SETTINGS = {"dict_size": 1 << 21, "lc": 4, "lp": 0, "pb": 0, "nice_len": 64}
_FILTER = {"id": lzma.FILTER_LZMA1, "mode": lzma.MODE_NORMAL, "mf": lzma.MF_BT4, **_SETTINGS}
COMPRESSOR = "LZMA1 mode=normal mf=bt4 " + " ".join(f"{name}={value}" for name, value in _SETTINGS.items())


@dataclass(frozen=True)
class Coherence:
    """In bits per byte, means over documents."""

    gain: float
    """alone − given."""
    interval: tuple[float, float]
    """95% for the gain, by bootstrap over documents."""
    alone: float
    given: float
    n_documents: int
    context_bytes: int
    excerpt_bytes: int = EXCERPT
    compressor: str = COMPRESSOR


def coherence(
    documents: Iterable[str], n_documents: int = 40, context_bytes: int = 1_000_000, seed: int = 0
) -> Coherence:
    """Of a corpus of any size, read once; about half a minute for 40 documents, or as many as there are."""
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
    """Parts of the corpus at random and in random order: all, or about POOL bytes, and never more in memory.

    Each part draws a number; the smallest numbers stay.
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
    """What an excerpt of each held-out part costs, alone and given a context."""
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
            f"the corpus has {len(others)} bytes beside the documents held out: coherence needs {size}; "
            "use more text or a smaller context_bytes"
        )
    return others[:size]


def _compressed(data: bytes) -> int:
    return len(lzma.compress(data, lzma.FORMAT_RAW, filters=[_FILTER]))
