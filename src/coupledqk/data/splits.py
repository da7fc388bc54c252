"""Assigns documents to splits.

Official splits are used if they exist: WikiText's, and those given by file names (pubmed.train.txt.gz, valid.jsonl). Otherwise
document i is in valid if i % 20 is 0, in test if it is 1, and in train in all other cases. With fewer than 20 documents, the
last tenth of the characters of each document is valid, the rest is train, and there is no test split.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import CoupledQKError
from .text import DATA, Piece, suffix

SPLITS = ("train", "valid", "test")

Stream = Iterator[tuple[str, Piece]]
"""The pieces of all documents in order, each with the name of its split."""

_FOLD = 20
_MARK = re.compile(r"(?:^|\.)(train|valid|validation|val|dev|test)(?:-[\w-]+)?\.")
# Names that are probably meant to mark a split as well: my_train.txt, my-valid.txt, train_00.txt, TRAIN.TXT.
_NEARLY = re.compile(r"(?:^|[._-])(train|valid|validation|val|dev|test)(?:[_-]?\d\w*)?\.", re.IGNORECASE)


def by_file_name(files: list[Path]) -> dict[str, list[Path]]:
    """The files of each split, if file names contain the names of splits. Other files are then ignored."""
    marked = _marked(files, _MARK)
    if marked and "valid" not in marked:
        raise CoupledQKError(
            f"{files[0].parent} has files named for {' and '.join(marked)} but none for valid: add one, or give a single file"
        )
    nearly = {} if marked else _marked(files, _NEARLY)
    if {"train", "valid"} <= nearly.keys():  # a split by document would train on validation text
        train, valid = (nearly[split][0].name for split in ("train", "valid"))
        raise CoupledQKError(
            f"{train} and {valid} are not recognised as splits: name them like train.txt or NAME.train.txt, and valid.txt or "
            "NAME.valid.txt"
        )
    return marked


def _marked(files: list[Path], mark: re.Pattern[str]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for file in files:
        if suffix(file) in DATA and (name := mark.search(file.name)):
            word = name[1].lower()
            split = word if word in ("train", "test") else "valid"
            found.setdefault(split, []).append(file)
    return found


def by_document(documents: Callable[[], Iterator[Piece]]) -> Stream:
    """Splits documents without official splits. A small corpus is read twice, to determine the lengths of its documents."""
    lengths = _lengths_if_few(documents())
    return _by_number(documents()) if lengths is None else _by_tail(documents(), lengths)


def _lengths_if_few(documents: Iterator[Piece]) -> list[int] | None:
    """The number of characters of each document; None if there are enough documents to split by their numbers."""
    lengths, length = [], 0
    for piece in documents:
        length += len(piece.text)
        if piece.ends:
            lengths.append(length)
            length = 0
            if len(lengths) == _FOLD:
                return None
    return lengths


def _by_number(documents: Iterator[Piece]) -> Stream:
    number = 0
    for piece in documents:
        yield {0: "valid", 1: "test"}.get(number % _FOLD, "train"), piece
        number += piece.ends


def _by_tail(documents: Iterator[Piece], lengths: list[int]) -> Stream:
    coming = iter(lengths)
    left = None  # characters of the document that still belong to train
    for text, ends in documents:
        if left is None:
            left = int(next(coming) * 0.9)
        if text[:left]:
            yield "train", Piece(text[:left], len(text) >= left)
        if text[left:] or ends:
            yield "valid", Piece(text[left:], ends)
        left = None if ends else max(0, left - len(text))
