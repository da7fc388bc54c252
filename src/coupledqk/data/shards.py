"""Tokenized corpora: one memory-mapped array of token ids per split, cached under a name derived from their content.

A cached corpus is a folder: train.bin, valid.bin and test.bin (little-endian unsigned integers of 2 bytes, or 4 if the
vocabulary needs them; each document followed by end-of-text), tokenizer.json, header.json. A sample of a split is a folder
below it: tokens.bin, header.json.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import DataConfig
from ..errors import CoupledQKError
from ..files import digest, sha256
from ..terminal import tokenizing
from .building import Progress, build, token_dtype
from .cache import ALWAYS_HASHED, DamagedError, cache_folder, cached, read_header, write_header
from .corpora import Corpus, data_dir_of, open_corpus
from .parts import Parts
from .splits import SPLITS
from .text import PIECE
from .tokenizers import Tokenizer, check_ids, from_json, from_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 2
"""Version number, part of every cached name. It is increased when the same corpus and tokenizer would give different ids."""


@dataclass(frozen=True)
class SplitInfo:
    bytes: int
    """Size of the text in bytes, in UTF-8."""
    documents: int
    """Number of documents; for a shuffled sample, the number of units it contains (see `samples.py`)."""
    tokens: int
    """Number of tokens, including one end-of-text after each document."""
    sha256: str
    """Hash of the text of the whole split: every document's bytes followed by their number, in order."""
    sample_sha256: str
    """Hash of the token ids that are used, in the stored format."""


@dataclass(frozen=True)
class CorpusInfo:
    corpus: str
    description: str
    tokenizer: str
    splits: dict[str, SplitInfo]

    @property
    def hash(self) -> str:
        """Hash of the text of all splits, which does not depend on the tokenizer."""
        return digest([self.splits[split].sha256 for split in SPLITS])

    @property
    def sample_hash(self) -> str:
        """Hash of the tokens that are used for training and validation."""
        return digest([self.splits[split].sample_sha256 for split in ("train", "valid")])


@dataclass(frozen=True)
class TokenizedCorpus:
    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]
    tokenizer: Tokenizer
    info: CorpusInfo
    """Information about the splits. If only a part of a split is used, the counts and `sample_sha256` are those of the
    part, and `sha256` is that of the whole split."""


def open_text(
    data: DataConfig, tokenizer: Tokenizer | None = None, progress: bool = True, jobs: int | None = None
) -> TokenizedCorpus:
    """Like `prepare`, with a progress bar while the corpus is tokenized."""
    with tokenizing() if progress else nullcontext() as on_bytes:
        return prepare(data, on_bytes, tokenizer, jobs)


def prepare(
    config: DataConfig, progress: Progress | None = None, tokenizer: Tokenizer | None = None, jobs: int | None = None
) -> TokenizedCorpus:
    """The tokenized corpus, from the cache or created now. `progress` is called with the bytes of text processed so far.

    A given tokenizer, such as that of a trained run, replaces the one in the settings. `jobs` is the number of tokenizing
    processes, by default the number of cores; the result does not depend on it. Tokenizing resumes after an interruption.
    """
    corpus = open_corpus(config)
    tokenizer = tokenizer or _tokenizer(config, jobs)
    folder = _folder(corpus, tokenizer, config)
    parts = Parts(folder.with_name(f"{folder.name}.parts"))
    found = cached(
        folder,
        lambda: _open(folder, corpus),
        lambda temporary: build(corpus, tokenizer or config.tokenizer, temporary, parts, progress, jobs),
    )
    shutil.rmtree(parts.folder, ignore_errors=True)
    for split, n in (("train", config.max_tokens), ("valid", config.max_valid_tokens)):
        if n is not None and n < found.info.splits[split].tokens:
            found = _first_part(found, split, n) if config.sampling == "first" else _sample(found, split, n, folder)
    return found


def verify(config: DataConfig) -> int:
    """Hashes all cached tokens of a corpus and its samples, including large files. Returns the number of bytes.

    Damaged tokens raise a DamagedError and are created again the next time they are needed.
    """
    corpus = open_corpus(config)
    folder = _folder(corpus, _tokenizer(config), config)
    if not folder.exists():
        raise CoupledQKError(
            f"corpus {corpus.name} is not tokenized with {config.tokenizer} yet: run `coupledqk data prepare` first"
        )
    size = 0
    try:
        for place in (folder, *sorted(folder.glob("samples/*"))):
            names = read_header(place, again=True)["checksums"]
            size += sum((place / name).stat().st_size for name in names)
        tokenizer = _read_tokenizer(folder)
        for file in folder.rglob("*.bin"):
            _check_file(file, tokenizer)
    except CoupledQKError as damage:
        raise DamagedError(
            f"the cached tokens in {folder} are damaged ({damage}): `coupledqk data prepare` creates them again"
        ) from None
    return size


def _tokenizer(config: DataConfig, jobs: int | None = None) -> Tokenizer | None:
    """The tokenizer in the settings; None for bpe:N, which is trained when the corpus is tokenized."""
    name, _, other = config.tokenizer.partition("@")
    if not other:
        return from_name(name)
    data_dir = data_dir_of(other, config)
    whole = replace(config, corpus=other, data_dir=data_dir, tokenizer=name, max_tokens=None, max_valid_tokens=None)
    return prepare(whole, jobs=jobs).tokenizer


def _folder(corpus: Corpus, tokenizer: Tokenizer | None, config: DataConfig) -> Path:
    name = digest(VERSION, corpus.fingerprint, tokenizer.to_json() if tokenizer else config.tokenizer)
    return cache_folder() / "tokens" / name[:32]


def _first_part(corpus: TokenizedCorpus, split: str, n: int) -> TokenizedCorpus:
    """The corpus with the first n tokens of a split. Its tokenizer is trained on the whole corpus, so that perplexities with
    different amounts of training text are comparable."""
    tokens, end_of_text = getattr(corpus, split)[:n], corpus.tokenizer.end_of_text
    n_ended, n_bytes, content = 0, 0, hashlib.sha256()
    for part in _pieces(tokens):
        n_ended += int((part == end_of_text).sum())
        n_bytes += int(corpus.tokenizer.byte_lengths[part].sum())
        content.update(part.tobytes())
    n_documents = n_ended + int(tokens[-1] != end_of_text)
    return _with_part(corpus, split, tokens, n_bytes, n_documents, content.hexdigest())


def _sample(corpus: TokenizedCorpus, split: str, n: int, folder: Path) -> TokenizedCorpus:
    """The corpus with the first n tokens of a split's documents in shuffled order, from the cache or created now."""
    folder = folder / "samples" / f"{split}-{n}"

    def build(temporary: Path) -> None:
        from .samples import write_sample

        whole, file = corpus.info.splits[split].sha256, temporary / "tokens.bin"
        n_units = write_sample(file, getattr(corpus, split), corpus.tokenizer, whole, n)
        tokens = _memory_map(file, corpus.tokenizer)
        n_bytes = sum(int(corpus.tokenizer.byte_lengths[part].sum()) for part in _pieces(tokens))
        write_header(temporary, {file.name: sha256(file)}, units=n_units, bytes=n_bytes)

    def read() -> TokenizedCorpus:
        header = read_header(folder)
        tokens = _memory_map(folder / "tokens.bin", corpus.tokenizer)
        return _with_part(corpus, split, tokens, header["bytes"], header["units"], header["checksums"]["tokens.bin"])

    return cached(folder, read, build)


def _with_part(
    corpus: TokenizedCorpus, split: str, tokens: NDArray[Any], n_bytes: int, n_documents: int, checksum: str
) -> TokenizedCorpus:
    """The corpus with a part of a split instead of the whole split."""
    part = SplitInfo(n_bytes, n_documents, len(tokens), corpus.info.splits[split].sha256, checksum)
    info = replace(corpus.info, splits={**corpus.info.splits, split: part})
    return replace(corpus, **{split: tokens}, info=info)


def _pieces(tokens: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (tokens[start : start + PIECE] for start in range(0, len(tokens), PIECE))


def _open(folder: Path, corpus: Corpus) -> TokenizedCorpus:
    header = read_header(folder)
    tokenizer = _read_tokenizer(folder)
    checksums = {split: header["checksums"][f"{split}.bin"] for split in SPLITS}
    splits = {split: SplitInfo(**header["splits"][split], sample_sha256=checksums[split]) for split in SPLITS}
    train, valid, test = (_memory_map(folder / f"{split}.bin", tokenizer) for split in SPLITS)
    info = CorpusInfo(corpus.name, corpus.description, tokenizer.name, splits)
    return TokenizedCorpus(train, valid, test, tokenizer, info)


def _read_tokenizer(folder: Path) -> Tokenizer:
    return from_json((folder / "tokenizer.json").read_text())


def _memory_map(path: Path, tokenizer: Tokenizer) -> NDArray[Any]:
    """The tokens of a file as a memory map. The range of ids is not checked for large files, whose checksum is verified."""
    import numpy as np

    size = path.stat().st_size
    if size == 0:
        return np.empty(0, token_dtype(tokenizer))
    if size <= ALWAYS_HASHED:
        _check_file(path, tokenizer)
    return np.memmap(path, token_dtype(tokenizer), "r")


def _check_file(path: Path, tokenizer: Tokenizer) -> None:
    import numpy as np

    with path.open("rb") as file:  # pages read through a memory map would stay in memory
        while (ids := np.fromfile(file, token_dtype(tokenizer), PIECE)).size:
            check_ids(ids, tokenizer.vocab_size)
