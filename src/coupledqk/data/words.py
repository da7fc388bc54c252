"""Very long words: runs of letters, of numbers, of symbols or of white space, which byte-pair encoding takes as one.

Its cost grows faster than the length of a word, so a word is cut after every MAX_WORD characters, counted from its beginning.
No other text is changed, and no token of it.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

MAX_WORD = 1 << 12
"""Characters after which a word is cut."""

_BLOCK = MAX_WORD // 2
# Python counts four control characters as white space that the patterns of byte-pair encodings do not.
_NO_SYMBOL = re.compile(r"[^\W_]|[^\S\x1c-\x1f]")


def _is_symbols(text: str) -> bool:
    return bool(text) and not _NO_SYMBOL.search(text)


_KINDS: tuple[Callable[[str], bool], ...] = (str.isalpha, str.isnumeric, str.isspace, _is_symbols)


def word_parts(text: str) -> list[str]:
    """The text, cut where words are too long; nearly always whole."""
    cuts = [cut for start, stop in long_words(text) for cut in range(start + MAX_WORD, stop, MAX_WORD)]
    return [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])]


def training_parts(text: str) -> list[str]:
    """The text without what follows the first MAX_WORD characters of a word: learning merges takes the product of a word's
    length and the number of merges."""
    parts, done = [], 0
    for start, stop in long_words(text):
        parts.append(text[done : start + MAX_WORD])
        done = stop
    return [*parts, text[done:]]


def long_words(text: str) -> Iterator[tuple[int, int]]:
    """Where the words of more than MAX_WORD characters begin and end.

    Such a word fills one of the blocks of half its length that lie side by side. The tests of other blocks end at the first
    character of another kind, so that ordinary text costs next to nothing.
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
