"""Representative samples of a split: its documents in an order shuffled by a hash, up to a number of tokens.

The unit of sampling is a document. WikiText, whose splits are one document each, is cut at the headings of its articles. A
document or article of more than 16 KB is cut at line ends into units of about that size, so that no single long file makes up
most of the sample. The order depends on the text alone, not on the tokenizer or the size of the sample, so a smaller sample is
the beginning of a larger one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .text import PIECE
from .tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRETCH = 1 << 14
"""Number of bytes of text after which a document is cut at the next line end."""

_HEADING = re.compile(rb" = [^=\n]+ = \n \n")
_HEADING_TOKENS = 256
"""Upper limit of the number of tokens in a heading, even with the bytes tokenizer."""

_SPACE, _NEWLINE, _EQUALS = b" \n="


def write_sample(path: Path, tokens: NDArray[Any], tokenizer: Tokenizer, split_hash: str, n: int) -> int:
    """Writes a sample of n tokens of a split whose text has the hash `split_hash`. Returns the number of units it contains."""
    starts = unit_starts(tokens, tokenizer)
    stops = np.append(starts[1:], len(tokens))
    written = 0
    with path.open("wb") as file:
        for number, unit in enumerate(shuffled_order(len(starts), split_hash)):
            if written == n:
                return number
            part = tokens[starts[unit] : stops[unit]][: n - written]
            file.write(part.tobytes())
            written += len(part)
    return len(starts)


def shuffled_order(n_units: int, split_hash: str) -> NDArray[np.int64]:
    """The indices of a split's units, sorted by a hash of the split's text and the index."""
    hashes = (hashlib.blake2b(f"{split_hash}:{unit}".encode(), digest_size=8).digest() for unit in range(n_units))
    keys = np.fromiter((int.from_bytes(key, "little") for key in hashes), np.uint64, n_units)
    return np.argsort(keys, kind="stable")


def unit_starts(tokens: NDArray[Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Start positions of the units of a split. The tokens are read in chunks."""
    texts = [*tokenizer.tokens[:-1], b"\n"]  # a line begins after end-of-text, as after a newline
    edges = np.array([(text[0], text[1] if len(text) > 1 else 0, text[-1]) for text in texts], np.uint8).T
    starts = []
    n_bytes = origin = stretch = 0  # bytes read so far; bytes before the document; index of its stretch
    for first in range(0, len(tokens), PIECE):
        part = np.asarray(tokens[first : first + PIECE])
        before = np.append(tokens[first - 1] if first else tokenizer.end_of_text, part[:-1])
        after = np.append(part[1:], tokens[first + PIECE] if first + PIECE < len(tokens) else tokenizer.end_of_text)
        begins_line, may_be_heading = _lines(edges, before, part, after)
        begins_document = before == tokenizer.end_of_text
        for i in np.flatnonzero(may_be_heading):
            text = b"".join(texts[token] for token in tokens[first + i : first + i + _HEADING_TOKENS])
            begins_document[i] |= _HEADING.match(text) is not None
        lengths = tokenizer.byte_lengths[part]
        places = n_bytes + np.cumsum(lengths) - lengths
        origins = np.maximum.accumulate(np.where(begins_document, places, origin))
        possible = np.flatnonzero(begins_document | begins_line)
        stretches = (places - origins)[possible] // STRETCH
        begins = begins_document[possible] | (stretches > np.append(stretch, stretches[:-1]))
        starts.append(first + possible[begins])
        n_bytes, origin = places[-1] + lengths[-1], origins[-1]
        stretch = stretches[-1] if len(stretches) else stretch
    return np.concatenate(starts)


def _lines(
    edges: NDArray[np.uint8], before: NDArray[Any], here: NDArray[Any], after: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the tokens that begin a line, and of those that begin a line that may be a heading. `edges` contains the first,
    second and last byte of each token.

    Only lines that begin with text, after at most one space, are considered: in all tokenizers a token boundary precedes them,
    so that units do not depend on the tokenizer.
    """
    first, second, last = edges
    byte = first[here]
    next_byte = np.where(second[here] > 0, second[here], first[after])
    is_text = np.array([not bytes([byte]).isspace() for byte in range(256)])
    new_line = last[before] == _NEWLINE
    spaced = new_line & (byte == _SPACE)
    return new_line & is_text[byte] | spaced & is_text[next_byte], spaced & (next_byte == _EQUALS)
