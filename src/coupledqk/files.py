"""Writing that survives a crash, and checksums. Torch-free."""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import CoupledQKError


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Writes a whole file: after a crash at any instant it holds the old content or the new one, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary sibling of `path` to write a file or a folder at; a clean exit brings it to disk under `path`.

    A file replaces the one that is there. A folder does not: if `path` is a folder already, FileExistsError is raised.
    After an error `path` is as it was and the temporary is gone.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for written in [*temporary.rglob("*"), temporary]:
            _flush(written)
        if temporary.is_dir() and path.exists():
            raise FileExistsError(errno.EEXIST, "the folder exists already", str(path))
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:  # another process made the folder after we looked
            raise FileExistsError(errno.EEXIST, "the folder exists already", str(path)) from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def sha256(path: str | os.PathLike[str]) -> str:
    """The checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*values: object) -> str:
    """A checksum of plain values: numbers, strings, lists and dictionaries of them."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot flush a folder
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _full(path: Path) -> CoupledQKError:
    free = shutil.disk_usage(path.parent).free / 1e6
    return CoupledQKError(
        f"no space left to write {path} ({free:.1f} MB free there): make room and start again; nothing saved before was harmed"
    )
