"""Folders of the cache. Each appears whole or not at all; a header holds the checksums of its files, and a damaged folder is
made again.

A folder is verified right after it is written and whenever it is opened. Verifying means hashing all of it, except where its
files are large (ALWAYS_HASHED) and neither their sizes, their times nor their inodes have changed since they were last hashed.
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
"""Bytes up to which files are hashed whenever they are used."""

Content = TypeVar("Content")


class DamagedError(CoupledQKError):
    """A cached file or folder is not what was written."""


def cache_folder() -> Path:
    """Where tokenised corpora are kept: $COUPLEDQK_CACHE, or `coupledqk` in the user's cache folder."""
    if own := os.environ.get("COUPLEDQK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "coupledqk")


def cached(folder: Path, read: Callable[[], Content], build: Callable[[Path], None]) -> Content:
    """What `read` finds in a folder, which is built unless it is there and whole. What was built is read back."""
    if folder.exists():
        try:
            return read()
        except DamagedError as damage:
            warnings.warn(f"the cached tokens in {folder} are damaged ({damage}): making them again", stacklevel=3)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            build(temporary)
    except FileExistsError:
        pass  # another process was first, with the same content
    except FileError as error:
        raise FileError(f"{error}; COUPLEDQK_CACHE names the folder of the cache") from error
    try:
        return read()
    except DamagedError as damage:
        raise CoupledQKError(
            f"what was written to {folder} reads back differently ({damage}): check the disk, or set COUPLEDQK_CACHE to "
            "a folder on another one"
        ) from None


def write_header(folder: Path, checksums: Mapping[str, str], **content: Any) -> None:
    """`checksums` are the SHA-256 of the folder's files by name."""
    (folder / "header.json").write_text(checked_json({**content, "checksums": checksums}))


def read_header(folder: Path, again: bool = False) -> dict[str, Any]:
    """The header, if the folder is what was written. With `again` large files are hashed whether or not they have changed."""
    header = read_checked_json(folder / "header.json")
    try:
        checksums = dict(header["checksums"])
        found = remembered_sha256([folder / name for name in checksums], again)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(str(error)) from error
    for (name, checksum), now in zip(checksums.items(), found, strict=True):
        if now != checksum:
            raise DamagedError(f"{name} has another checksum than when it was written")
    return header


def checked_json(content: dict[str, Any]) -> str:
    """JSON with a checksum of its own."""
    return json.dumps({**content, "checksum": digest(content)}, indent=1)


def read_checked_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if content.pop("checksum") == digest(content):
            return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(str(error)) from error
    raise DamagedError(f"{path.name} has another checksum than when it was written")


def remembered_sha256(files: Sequence[Path], again: bool = False) -> list[str]:
    """The SHA-256 of each file. If they are large, those that were taken last are remembered until a file changes."""
    stamps = [(str(file.absolute()), *stamp(file)) for file in files]
    large = sum(size for _, size, *_ in stamps) > ALWAYS_HASHED
    memory = cache_folder() / "checksums" / f"{digest(stamps)[:32]}.json"
    if large and not again:
        with suppress(DamagedError, KeyError):  # not hashed yet, or not remembered well
            return list(read_checked_json(memory)["sha256"])
    found = [sha256(file) for file in files]
    if large:
        with suppress(FileError):  # a cache that cannot be written to can be used
            write_atomic(memory, checked_json({"sha256": found}))
    return found


def stamp(file: Path) -> tuple[int, int, int, int]:
    """Size, times and inode: whatever writes to a file or replaces it changes them."""
    try:
        status = file.stat()
    except OSError as error:
        raise CoupledQKError(f"cannot read {file}: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
