"""Cuts very long words: runs of letters, digits, symbols or white space that byte-pair encoding treats as one unit.

The cost of the encoding grows faster than the length of a word, so words are cut after every MAX_WORD characters from their
beginning. The tokens of all other text are unchanged.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

MAX_WORD = 1 << 12
"""Number of characters after which a word is cut."""

_BLOCK = MAX_WORD // 2
# Python treats four control characters as white space; the patterns of byte-pair encodings do not.
_NO_SYMBOL = re.compile(r"[^\W_]|[^\S\x1c-\x1f]")


def _is_symbols(text: str) -> bool:
    return bool(text) and not _NO_SYMBOL.search(text)


_KINDS: tuple[Callable[[str], bool], ...] = (str.isalpha, str.isnumeric, str.isspace, _is_symbols)


def word_parts(text: str) -> list[str]:
    """The text in parts, cut inside words that are too long. In nearly all cases there is only one part."""
    cuts = [cut for start, stop in long_words(text) for cut in range(start + MAX_WORD, stop, MAX_WORD)]
    return [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])]


def training_parts(text: str) -> list[str]:
    """The text with each word truncated to MAX_WORD characters, since the time to learn merges is proportional to the
    length of a word times the number of merges."""
    parts, done = [], 0
    for start, stop in long_words(text):
        parts.append(text[done : start + MAX_WORD])
        done = stop
    return [*parts, text[done:]]


def long_words(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each word of more than MAX_WORD characters.

    Such a word fills at least one of the adjacent blocks of half that length. Tests of other blocks end at the first character
    of another kind, so that the cost for ordinary text is negligible.
    """
    done = start = 0
    while start + _BLOCK <= len(text):
        block = text[start : start + _BLOCK]
        kind = next((kind for kind in _KINDS if kind(block)), None)
        start += _BLOCK
        if kind is None:
            continue
        first, stop = start - _BLOCK, start
        while first > done and kind(text[first - 1]):
            first -= 1
        while kind(text[stop : stop + _BLOCK]):
            stop = min(stop + _BLOCK, len(text))
        while stop < len(text) and kind(text[stop]):
            stop += 1
        if stop - first > MAX_WORD:
            yield first, stop
        done, start = stop, -(-stop // _BLOCK) * _BLOCK
