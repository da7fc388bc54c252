"""Folders of the cache. Each appears whole or not at all; a header holds the checksums of its files, and a damaged folder is
made again."""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CoupledQKError
from ..files import atomic_path, digest, sha256

Content = TypeVar("Content")


class DamagedError(CoupledQKError):
    """A cached folder is not what was written."""


def cache_folder() -> Path:
    """Where tokenised corpora are kept: $COUPLEDQK_CACHE, or `coupledqk` in the user's cache folder."""
    if own := os.environ.get("COUPLEDQK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "coupledqk")


def cached(folder: Path, read: Callable[[bool], Content], build: Callable[[Path], None]) -> Content:
    """What `read` finds in a folder, which is built unless it is there and whole.

    `read` is told whether to verify checksums: there is no need to when they were taken from what was written a moment ago.
    """
    if folder.exists():
        try:
            return read(True)
        except DamagedError as damage:
            warnings.warn(f"the cached tokens in {folder} are damaged ({damage}): making them again", stacklevel=3)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            build(temporary)
    except FileExistsError:
        pass  # another process was first, with the same content
    except OSError as error:
        raise CoupledQKError(
            f"cannot write {folder}: {error.strerror}; set COUPLEDQK_CACHE to another folder"
        ) from error
    return read(False)


def write_header(folder: Path, checksums: Mapping[str, str], **content: Any) -> None:
    """`checksums` are the SHA-256 of the folder's files by name."""
    header = {**content, "checksums": checksums}
    (folder / "header.json").write_text(json.dumps({**header, "checksum": digest(header)}, indent=1))


def read_header(folder: Path, verify: bool) -> dict[str, Any]:
    """Verifying reads all files for their checksums, in a fraction of the time that training on them takes."""
    try:
        header = json.loads((folder / "header.json").read_bytes())
        if header.pop("checksum") != digest(header):
            raise DamagedError("header.json has another checksum than when it was written")
        for name, checksum in header["checksums"].items():
            if verify and sha256(folder / name) != checksum:
                raise DamagedError(f"{name} has another checksum than when it was written")
    except DamagedError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(str(error)) from error
    return header
