"""Corpora by name or path."""

import re
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..config import DataConfig
from ..errors import CoupledQKError, unknown
from ..files import digest
from .cache import remembered_sha256, stamp
from .folders import entries, expanded, find_files, require_regular, status_of
from .hub import HUB
from .splits import SPLITS, Stream, by_document, by_file_name
from .text import DATA, READABLE, Piece, blocks, has_bom, read, suffix

STDLIB = "python-stdlib"
NAMES = (STDLIB, *HUB)

PAPER_BYTES = 440_000_000
"""Number of bytes of OpenWebText and of PubMed that are used, from the beginning. The paper uses subsets of 100M tokens, and a
GPT-2 token has about 4.4 bytes in both."""

_HIDDEN = re.compile(r"\.")
# Parts of the standard library that are excluded: tests, installed packages, and build information about the machine.
_NOT_SOURCES = re.compile(r"\.|tests?$|idle_test$|(site|dist)-packages$|config-|_sysconfigdata")


@dataclass(frozen=True)
class Corpus:
    name: str
    description: str
    fingerprint: str
    """Identifier computed before the text is read, equal for equal files or for the same revision of a dataset on the hub."""
    stream: Callable[[], Stream]
    check_unchanged: Callable[[], None] = lambda: None
    """Raises if files have changed since the fingerprint was computed."""


def open_corpus(config: DataConfig) -> Corpus:
    """Opens the corpus given by the settings. At this point, local files are only hashed and their first bytes read."""
    name, errors = config.corpus, config.encoding_errors
    if name == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        about = f"the standard library of Python {sys.version.split()[0]} without its tests"
        return _from_files(name, about, root, find_files(root, [".py"], _NOT_SOURCES), errors)
    if name not in HUB:
        return _from_files(name, "local text", *_at_path(name), errors)
    if config.data_dir is None:
        return _from_hub(name)
    root, files = _local_copy(name, expanded(config.data_dir))
    if name.startswith("wikitext"):
        return _from_files(name, _wikitext_form(files, errors), root, files, errors)
    return _from_files(name, "local copy", root, files, errors, PAPER_BYTES)


def _at_path(name: str) -> tuple[Path, list[Path]]:
    """The files of a local corpus, given as a file, a folder, or a common prefix of file names."""
    path = expanded(name)
    status = status_of(path) if name else None
    if status and stat.S_ISDIR(status.st_mode):
        if files := find_files(path, READABLE, _HIDDEN):
            return path, files
        raise CoupledQKError(f"{path} contains no text: expected {', '.join(READABLE)} files, or .gz of these")
    if status:
        require_regular(path, status)
        if suffix(path) not in READABLE:
            raise CoupledQKError(f"{path} is not one of {', '.join(READABLE)} or .gz of these: convert or rename it")
        return path.parent, [path]
    beside = entries(path.parent) if name and path.parent.is_dir() else []
    if files := [file for file in beside if file.name.startswith(path.name + ".") and suffix(file) in READABLE]:
        return path.parent, files
    if path.suffix or len(path.parts) > 1:
        raise CoupledQKError(f"there is no file or folder {path}; corpora known by name: {', '.join(NAMES)}")
    raise unknown("corpus", name, [*NAMES, "or a path"])


def data_dir_of(name: str, config: DataConfig) -> str | None:
    """The folder with the local copy of the corpus `name`. It is the data_dir of the settings, or None if that folder has no
    copy under this name, in which case its files belong to the corpus of the settings."""
    if config.data_dir is None or name == config.corpus or not {name, config.corpus} <= HUB.keys():
        return config.data_dir
    return config.data_dir if _named_copy(name, expanded(config.data_dir)) else None


def _local_copy(name: str, data_dir: Path) -> tuple[Path, list[Path]]:
    """The files of a named corpus in data_dir: a copy under its name, or all files directly in data_dir."""
    if named := _named_copy(name, data_dir):
        return named
    if found := [file for file in find_files(data_dir, DATA, _HIDDEN) if file.parent == data_dir]:
        return data_dir, found
    raise CoupledQKError(f"no copy of {name} in {data_dir}: expected {data_dir / name} with {', '.join(DATA)} files")


def _named_copy(name: str, data_dir: Path) -> tuple[Path, list[Path]] | None:
    """A folder in data_dir with the name of the corpus, or files whose names begin with it."""
    status = status_of(data_dir)
    if not status or not stat.S_ISDIR(status.st_mode):
        raise CoupledQKError(f"data_dir={str(data_dir)!r}: there is no such folder")
    for folder in (data_dir / name, *sorted(data_dir.glob(f"{name}-*"))):
        if folder.is_dir() and (files := find_files(folder, DATA, _HIDDEN)):
            return folder, files
    named = [file for file in find_files(data_dir, DATA, _HIDDEN) if file.name.startswith(name)]
    return (data_dir, named) if named else None


def _from_files(name: str, about: str, root: Path, files: list[Path], errors: str, limit: int | None = None) -> Corpus:
    stamps = list(map(stamp, files))
    checksums = [
        (file.relative_to(root).as_posix(), sha256)
        for file, sha256 in zip(files, remembered_sha256(files), strict=True)
    ]
    marked = by_file_name(files) if len(files) > 1 else {}

    def documents() -> Iterator[Piece]:
        pieces = (piece for file in files for piece in read(file, errors))
        return _first_bytes(pieces, limit) if limit else pieces

    def stream() -> Stream:
        if not marked:
            return by_document(documents)
        return ((split, piece) for split in SPLITS for file in marked.get(split, ()) for piece in read(file, errors))

    def check_unchanged() -> None:
        for file, before in zip(files, stamps, strict=True):
            if stamp(file) != before:
                raise CoupledQKError(f"{file} has changed while it was read: start again when it is no longer modified")

    used = sum(map(len, marked.values())) if marked else len(files)
    about += f", {used} file{'s' * (used != 1)} split by {'file name' if marked else 'document'}"
    if limit and not marked:
        about += f", {_at_most(limit)}"
    # tokens that were cached before byte-order marks were removed contain them
    without_bom = ["without byte-order marks"] if any(map(has_bom, files)) else []
    return Corpus(name, about, digest(checksums, errors, limit, *without_bom), stream, check_unchanged)


def _from_hub(name: str) -> Corpus:
    source = HUB[name]

    def stream() -> Stream:
        if not source.splits:
            return by_document(lambda: _first_bytes(source.documents(), PAPER_BYTES))
        return ((ours, piece) for ours, theirs in source.splits for piece in source.documents(theirs))

    fingerprint = digest(source.repository, source.subset, source.revision, PAPER_BYTES)
    about = f"{source.description}, from {source.repository}" + ("" if source.splits else f", {_at_most(PAPER_BYTES)}")
    return Corpus(name, about, fingerprint, stream)


def _at_most(limit: int) -> str:
    return f"at most the first {limit / 1e6:,.0f} MB of text"


def _first_bytes(documents: Iterator[Piece], limit: int) -> Iterator[Piece]:
    """Whole documents, up to `limit` bytes of text."""
    n_bytes = 0
    for piece in documents:
        yield piece
        n_bytes += len(piece.text.encode())
        if n_bytes >= limit and piece.ends:
            return


def _wikitext_form(files: list[Path], errors: str) -> str:
    """The form of WikiText: raw, as used in the paper, or tokenized with rare words replaced.

    In both forms each split is one document rather than one per article: the headings are in the text, and published
    perplexities treat a split as one text.
    """
    if any("<unk>" in next(blocks(file, errors), "") for file in files):
        return "the tokenised form with <unk>, not comparable with the raw one"
    return "the raw form"
