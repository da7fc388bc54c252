"""Files to documents, streamed: only a few pieces of text are in memory at a time, however long a document is.

A file is one document, with two exceptions: in a .txt file a line holding only <|endoftext|> separates documents, and each
line of a .jsonl file is one. Any of them may be packed with gzip.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from ..errors import CoupledQKError

PIECE = 1 << 18
"""Characters after which a document is cut."""

DATA = (".txt", ".jsonl", ".tokens", ".raw")
READABLE = (*DATA, ".md", ".py")

_MARKER = re.compile(r"<\|endoftext\|>\r?\n")

# The end of the last word that white space follows. Words and the white space before them are what byte-pair encoding starts
# from, so a cut here changes no token.
_LAST_WORD = re.compile(r".*\S(?=[ \n])", re.DOTALL)


class Piece(NamedTuple):
    """A stretch of a document."""

    text: str
    ends: bool
    """Whether the document ends with it."""


def suffix(path: Path) -> str:
    """The format: the suffix without .gz."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def read(path: Path, errors: str) -> Iterator[Piece]:
    """The documents of a file."""
    if suffix(path) == ".jsonl":
        for text in _json_lines(path, errors):
            yield from pieces([text])
    else:
        yield from pieces(blocks(path, errors), separated=suffix(path) == ".txt")


def pieces(texts: Iterable[str], separated: bool = False) -> Iterator[Piece]:
    """Cuts a text that comes in parts into documents (if separated) and these into pieces. Empty documents are dropped."""
    rest, begun, limit = "", False, PIECE
    for text in texts:
        rest += text
        if separated:
            *ended, rest = _split(rest)
            for document in ended:
                if document or begun:
                    yield Piece(document, True)
                begun = False
        if len(rest) >= limit:
            words = _LAST_WORD.match(rest)
            # where there are no words, looking at each part again would take too long
            limit = PIECE if words else 2 * len(rest)
            if words:
                yield Piece(words[0], False)
                rest, begun = rest[words.end() :], True
    if separated and rest.endswith("<|endoftext|>"):
        document, *after = _split(rest + "\n")
        rest = document if after else rest
    if rest or begun:
        yield Piece(rest, True)


def _split(text: str) -> Iterator[str]:
    """The newline before a marker belongs to it, so that "\\n<|endoftext|>\\n".join is the inverse."""
    start = 0
    for marker in _MARKER.finditer(text):
        if marker.start() == start or text[marker.start() - 1] == "\n":
            yield text[start : marker.start()].removesuffix("\n").removesuffix("\r")
            start = marker.end()
    yield text[start:]


def blocks(path: Path, errors: str) -> Iterator[str]:
    """The text of a file, a block at a time. Binary content and invalid UTF-8 are errors that name the place."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    start = 0  # of the block in the text, in bytes
    for block in _bytes(path):
        if (nul := block.find(0)) >= 0:
            raise CoupledQKError(f"{path} is binary: byte {start + nul} is NUL; expected UTF-8 text")
        held_back = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise CoupledQKError(
                f"{path} is not valid UTF-8 at byte {start - held_back + error.start}: "
                "convert it, or set encoding_errors to 'replace'"
            ) from None
        if text:
            yield text
        start += len(block)


def _bytes(path: Path) -> Iterator[bytes]:
    """Blocks of the unpacked file, and an empty one at the end."""
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            while block := file.read(PIECE):
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CoupledQKError(f"{path} is not a whole gzip file ({error}): copy or pack it again") from None
    except OSError as error:
        raise CoupledQKError(f"cannot read {path}: {error.strerror or error}") from None
    yield b""


def _json_lines(path: Path, errors: str) -> Iterator[str]:
    for number, line in enumerate(_lines(blocks(path, errors)), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CoupledQKError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise CoupledQKError(
                f'{path}, line {number}: expected an object with a string "text", got {line.strip()[:60]}'
            )
        yield _without_surrogates(row["text"], errors, f"{path}, line {number}")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    rest: list[str] = []
    for text in texts:
        first, *others = text.split("\n")
        rest.append(first)
        for other in others:
            yield "".join(rest)
            rest = [other]
    yield "".join(rest)


def _without_surrogates(text: str, errors: str, where: str) -> str:
    """JSON can write half of a surrogate pair, which no encoding has a form for."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", errors)
    except UnicodeDecodeError:
        raise CoupledQKError(f"{where}: half of a surrogate pair; set encoding_errors to 'replace'") from None
