"""Folders of the cache. They are created atomically, a header contains the checksums of their files, and a damaged folder is
created again.

A folder is verified after it is written and whenever it is opened. All files are hashed, except large files (ALWAYS_HASHED)
whose sizes, times and inodes have not changed since they were last hashed.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CoupledQKError
from ..files import FileError, atomic_path, digest, sha256, write_atomic

ALWAYS_HASHED = 256_000_000
"""Maximum size in bytes of files that are hashed whenever they are used."""

Content = TypeVar("Content")


class DamagedError(CoupledQKError):
    """A cached file or folder differs from what was written."""


def cache_folder() -> Path:
    """The folder of tokenized corpora: $COUPLEDQK_CACHE, or `coupledqk` in the user's cache folder."""
    if own := os.environ.get("COUPLEDQK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "coupledqk")


def cached(folder: Path, read: Callable[[], Content], build: Callable[[Path], None]) -> Content:
    """The content that `read` returns for a folder, which is built first if it is missing or damaged. A new folder is read back
    to verify it."""
    if folder.exists():
        try:
            return read()
        except DamagedError as damage:
            warnings.warn(f"the cached tokens in {folder} are damaged ({damage}): creating them again", stacklevel=3)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            build(temporary)
    except FileExistsError:
        pass  # another process has created the folder with the same content
    except FileError as error:
        raise FileError(f"{error}; COUPLEDQK_CACHE sets the folder of the cache") from error
    try:
        return read()
    except DamagedError as damage:
        raise CoupledQKError(
            f"what was written to {folder} reads back differently ({damage}): check the disk, or set COUPLEDQK_CACHE to "
            "a folder on another one"
        ) from None


def write_header(folder: Path, checksums: Mapping[str, str], **content: Any) -> None:
    """Writes the header of a folder. `checksums` contains the SHA-256 of the folder's files by name."""
    (folder / "header.json").write_text(checked_json({**content, "checksums": checksums}))


def read_header(folder: Path, again: bool = False) -> dict[str, Any]:
    """Verifies a folder and returns its header. With `again`, large files are hashed even if they have not changed."""
    header = read_checked_json(folder / "header.json")
    try:
        checksums = dict(header["checksums"])
        found = remembered_sha256([folder / name for name in checksums], again)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(str(error)) from error
    for (name, checksum), now in zip(checksums.items(), found, strict=True):
        if now != checksum:
            raise DamagedError(f"{name} does not match its checksum")
    return header


def checked_json(content: dict[str, Any]) -> str:
    """JSON that includes its own checksum."""
    return json.dumps({**content, "checksum": digest(content)}, indent=1)


def read_checked_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if content.pop("checksum") == digest(content):
            return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(str(error)) from error
    raise DamagedError(f"{path.name} does not match its checksum")


def remembered_sha256(files: Sequence[Path], again: bool = False) -> list[str]:
    """The SHA-256 of each file. Hashes of large files are stored and reused until a file changes."""
    stamps = [(str(file.absolute()), *stamp(file)) for file in files]
    large = sum(size for _, size, *_ in stamps) > ALWAYS_HASHED
    memory = cache_folder() / "checksums" / f"{digest(stamps)[:32]}.json"
    if large and not again:
        with suppress(DamagedError, KeyError):  # not hashed yet, or the stored hashes are damaged
            return list(read_checked_json(memory)["sha256"])
    found = [sha256(file) for file in files]
    if large:
        with suppress(FileError):  # a read-only cache can be used
            write_atomic(memory, checked_json({"sha256": found}))
    return found


def stamp(file: Path) -> tuple[int, int, int, int]:
    """Size, times and inode of a file, which change when it is modified or replaced."""
    try:
        status = file.stat()
    except OSError as error:
        raise CoupledQKError(f"cannot read {file}: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
