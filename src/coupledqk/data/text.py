"""Streams the documents of files. Only a few pieces of text are in memory at a time, even for very long documents.

A file is one document, with two exceptions: in a .txt file a line containing only <|endoftext|> separates documents, and each
line of a .jsonl file is a document. Files may be gzipped.

Limits keep the memory small for any content: a document without words is cut after MAX_PIECE characters, a line of JSON has at
most MAX_LINE characters, and a gzip file that unpacks to more than MAX_RATIO times its size is refused.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from ..errors import CoupledQKError
from .words import MAX_WORD, long_words

PIECE = 1 << 18
"""Number of characters after which a document is cut at the end of a word."""

MAX_PIECE = 1 << 20
"""Number of characters after which a document is cut even if no word ends there."""

MAX_LINE = 1 << 26
"""Maximum number of characters in a line of JSON, which is parsed as a whole."""

MAX_RATIO = 200
"""Maximum ratio of the unpacked size to the size of a gzip file. It is below 20 for ordinary text."""

_UNPACKED_FREELY = 1 << 26
"""Number of unpacked bytes up to which MAX_RATIO is not checked."""

DATA = (".txt", ".jsonl", ".tokens", ".raw")
READABLE = (*DATA, ".md", ".py")

_MARKER = re.compile(r"<\|endoftext\|>\r?\n")

# The end of the last word that is followed by white space. Byte-pair encodings split text into words with the white space
# before them, so a cut here changes no token.
_LAST_WORD = re.compile(r".*\S(?=[ \n])", re.DOTALL)
# In text without white space, another position at which byte-pair encodings end a word.
_LAST_SYMBOL = re.compile(r".*(?:[^\W_](?=[^\w\s]|_)|[A-Za-z](?=[0-9]))", re.DOTALL)
_TAIL = 1 << 14
"""Number of characters at the end of a text that are searched for a position to cut."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKER_LENGTH = len("<|endoftext|>\r\n")


class Piece(NamedTuple):
    """A piece of a document."""

    text: str
    ends: bool
    """Whether this is the last piece of its document."""


def suffix(path: Path) -> str:
    """The suffix of a file in lower case, ignoring .gz."""
    return (path.with_suffix("") if _is_gzip(path) else path).suffix.lower()


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def has_bom(path: Path) -> bool:
    """Whether a file begins with a UTF-8 byte-order mark, which is not part of its text."""
    return next(_bytes(path, len(codecs.BOM_UTF8))) == codecs.BOM_UTF8


def read(path: Path, errors: str) -> Iterator[Piece]:
    """The documents of a file."""
    if suffix(path) == ".jsonl":
        for text in _json_lines(path, errors):
            yield from pieces([text])
    else:
        yield from pieces(blocks(path, errors), separated=suffix(path) == ".txt")


def pieces(texts: Iterable[str], separated: bool = False) -> Iterator[Piece]:
    """Splits a text, given in parts, into documents (if separated) and documents into pieces. Empty documents are dropped."""
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
            cut = _place_to_cut(rest)
            # without a position to cut, searching again after each part would take too long
            limit = PIECE if cut else min(2 * len(rest), MAX_PIECE)
            if cut:
                yield Piece(rest[:cut], False)
                rest, begun = rest[cut:], True
    if separated and rest.endswith("<|endoftext|>"):
        document, *after = _split(rest + "\n")
        rest = document if after else rest
    if rest or begun:
        yield Piece(rest, True)


def _place_to_cut(text: str) -> int:
    """The position at which to cut the text, if possible without changing a token; 0 if more text should be read first."""
    start = max(0, len(text) - _TAIL)
    if words := _LAST_WORD.match(text, start):
        return words.end()
    end = max(0, len(text) - _MARKER_LENGTH)  # the possible beginning of a marker is not split
    if words := _LAST_SYMBOL.match(text, start, end):
        return words.end()
    if len(text) < MAX_PIECE:
        return 0
    *_, (start, stop) = [(0, 0), *long_words(text)]
    return len(text) - (len(text) - start) % MAX_WORD if stop == len(text) else end // MAX_WORD * MAX_WORD


def _split(text: str) -> Iterator[str]:
    """Splits a text at markers. The newline before a marker belongs to it, so that "\\n<|endoftext|>\\n".join is the
    inverse."""
    start = 0
    for marker in _MARKER.finditer(text):
        if marker.start() == start or text[marker.start() - 1] == "\n":
            yield text[start : marker.start()].removesuffix("\n").removesuffix("\r")
            start = marker.end()
    yield text[start:]


def blocks(path: Path, errors: str) -> Iterator[str]:
    """The text of a file in blocks, without its byte-order mark. Binary content and invalid UTF-8 raise an error with the
    position."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    bom = "\ufeff"
    start = 0  # offset of the block in the file, in bytes
    for block in _bytes(path, PIECE):
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
            yield text.removeprefix(bom)
            bom = ""
        start += len(block)


def _bytes(path: Path, block_size: int) -> Iterator[bytes]:
    """Blocks of the unpacked file, followed by an empty block."""
    try:
        with path.open("rb") as packed:
            file = cast(BinaryIO, gzip.GzipFile(fileobj=packed)) if _is_gzip(path) else packed
            size = 0
            while block := file.read(block_size):
                size += len(block)
                if size > max(_UNPACKED_FREELY, MAX_RATIO * packed.tell()):
                    raise CoupledQKError(
                        f"{path} unpacks to more than {MAX_RATIO} times its size: if this is intended, unpack it first"
                    )
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CoupledQKError(f"{path} is not a complete gzip file ({error}): copy or pack it again") from None
    except OSError as error:
        raise CoupledQKError(f"cannot read {path}: {error.strerror or error}") from None
    yield b""


def _json_lines(path: Path, errors: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path, blocks(path, errors)), 1):
        line = line.strip()
        if not line:
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
        except RecursionError:
            raise CoupledQKError(f'{where}: nested too deeply; expected an object with a string "text"') from None
        except ValueError as error:
            raise CoupledQKError(f"{where}: not JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            shown = "".join(character if character.isprintable() else "\ufffd" for character in line[:60])
            raise CoupledQKError(f'{where}: expected an object with a string "text", got {shown}')
        yield _without_surrogates(row["text"], errors, where)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:60]!r} is repeated")
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _lines(path: Path, texts: Iterable[str]) -> Iterator[str]:
    rest: list[str] = []
    size, number = 0, 1
    for text in texts:
        first, *others = text.split("\n")
        rest.append(first)
        size += len(first)
        for other in others:
            yield "".join(rest)
            rest, size = [other], len(other)
            number += 1
        if size > MAX_LINE:
            raise CoupledQKError(
                f"{path}, line {number}: more than {MAX_LINE:,} characters; put such a document into a .txt file of its own"
            )
    yield "".join(rest)


def _without_surrogates(text: str, errors: str, where: str) -> str:
    """The text without unpaired surrogates, which JSON can contain but UTF-8 cannot encode."""
    if not _SURROGATE.search(text):
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", errors)
    except UnicodeDecodeError:
        raise CoupledQKError(f"{where}: half of a surrogate pair; set encoding_errors to 'replace'") from None
