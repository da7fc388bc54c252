"""Reading and writing files: atomic writes, size limits, and one-line errors. Torch-free.

Failures are reported as a `FileError` with advice: no space, no permission, a name that is too long, a file where a folder is
expected, too many open files, no memory, text that is not UTF-8, a size beyond the limit.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from .errors import CoupledQKError
from .schema import parse_json, parse_toml

LARGEST = 1 << 28
"""Default size limit in bytes for a file that is read into memory."""

PathLike = str | os.PathLike[str]


class FileError(CoupledQKError):
    """A file cannot be read or written. The message states the reason and what to do."""


def in_shell(path: PathLike) -> str:
    """A path, quoted for a shell command in a message."""
    return shlex.quote(os.fspath(path))


def read_bytes(path: PathLike, largest: int = LARGEST) -> bytes:
    """The content of a regular file of at most `largest` bytes."""
    with file_errors(path, "read"):
        if not stat.S_ISREG(os.stat(path).st_mode):
            kind = "a folder" if os.path.isdir(path) else "not a regular file"
            raise FileError(f"cannot read {path}: it is {kind}; name a file")
        with open(path, "rb") as file:
            content = file.read(largest + 1)
    if len(content) > largest:
        raise FileError(
            f"cannot read {path}: it has more than {largest:,} bytes, which is too much for a file of its kind"
        )
    return content


def read_text(path: PathLike, largest: int = LARGEST) -> str:
    """The content of a file of UTF-8 text."""
    content = read_bytes(path, largest)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileError(
            f"cannot read {path}: byte {error.start} (line {line}) is not UTF-8; restore the file, or save it as UTF-8"
        ) from None


def read_json(path: PathLike, advice: str, largest: int = LARGEST) -> Any:
    """Reads the value in a JSON file. `advice` ends the error message for a damaged file and tells the user what to do."""
    try:
        return parse_json(read_text(path, largest))
    except FileError:
        raise
    except CoupledQKError as error:
        raise FileError(f"{path} is damaged ({error}): {advice}") from None


def read_toml(path: PathLike, largest: int = LARGEST) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return parse_toml(read_text(path, largest))
    except FileError:
        raise
    except CoupledQKError as error:
        raise FileError(f"{path}: {error}") from None


def write_atomic(path: PathLike, data: bytes | str) -> None:
    """Writes a file atomically: after a crash at any time it has either the old or the new content."""
    try:
        content = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        raise FileError(f"cannot write {path}: its text is not Unicode ({error}); use other names") from None
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def atomic_path(path: PathLike, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary sibling of `path` to write a file or a folder to. On success it is flushed and renamed to `path`.

    A file replaces an existing one. If `path` is an existing folder, FileExistsError is raised, or with `replace` the folder is
    replaced: the old one is named `path`~ between the two renames. After an error, `path` is unchanged and the temporary is
    removed. Temporaries left by processes that were killed are removed as well.
    """
    path = Path(path)
    with file_errors(path, "write"):
        if not path.name:
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path.parent, f".{path.name[:_KEPT]}.")
    temporary = temporary_name(path)
    try:
        with file_errors(path, "write"):
            yield temporary
            for written in [*temporary.rglob("*"), temporary]:
                _flush(written)
            if temporary.is_dir() and path.exists():
                if not replace:
                    raise _ExistsError
                _set_aside(path)
            try:
                os.replace(temporary, path)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:  # another process created the folder after the check
                    raise _ExistsError from None
                raise
            _flush(path.parent)
        _discard(_aside(path))
    except _ExistsError:
        raise FileExistsError(errno.EEXIST, "the folder exists already", str(path)) from None
    finally:
        _discard(temporary)


class _ExistsError(Exception):
    """The folder to be written already exists."""


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name[:250]}~")


def _set_aside(path: Path) -> None:
    _discard(_aside(path))
    os.replace(path, _aside(path))


def make_folder(path: PathLike) -> None:
    """Creates a folder and its parents if they do not exist."""
    with file_errors(path, "write"):
        Path(path).mkdir(parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """Removes a folder. After a crash it is either complete, or a temporary that `remove_leftovers` removes."""
    with file_errors(path, "remove"):
        gone = temporary_name(path)
        os.replace(path, gone)
        shutil.rmtree(gone)


def sha256(path: PathLike) -> str:
    """The checksum of a file, in hexadecimal."""
    with file_errors(path, "read"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*values: object) -> str:
    """A checksum of plain values: numbers, strings, lists and dictionaries of them."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


_KEPT = 50
"""Number of leading characters of a name that are used in its temporary names, so that these do not become too long."""
_TEMPORARY = re.compile(r"\..*\.(?P<place>[0-9a-f]{8})-(?P<process>[0-9]+)-[0-9a-f]{8}\.tmp", re.DOTALL)


def temporary_name(path: Path) -> Path:
    """A unique sibling of `path`, whose name contains the machine and the process that created it."""
    return path.with_name(f".{path.name[:_KEPT]}.{_place()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary, even if its writer was killed."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Removes the temporaries in a folder whose writers ran on this machine and no longer exist."""
    if folder.is_dir():
        with file_errors(folder, "read"):
            _remove_leftovers(folder, ".")


def _remove_leftovers(folder: Path, prefix: str) -> None:
    for name in os.listdir(folder):
        made = _TEMPORARY.fullmatch(name) if name.startswith(prefix) else None
        if made and made["place"] == _place() and not _is_alive(int(made["process"])):
            _discard(folder / name)


@functools.cache
def _place() -> str:
    """Identifies the PID namespace of this process: the machine, and the container on it if any."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return hashlib.sha256(f"{socket.gethostname()}:{namespace}".encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    if os.name == "nt":
        return True  # on Windows, os.kill would terminate the process
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # it belongs to another user
    return True


def _discard(path: Path) -> None:
    """Removes a file or a folder as far as possible. The next process that writes there removes the rest."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot flush a folder
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def file_errors(path: PathLike, verb: Literal["read", "write", "remove"]) -> Iterator[None]:
    """Converts errors of the operating system into a FileError with advice."""
    if not _is_name(os.fspath(path)):
        raise FileError(f"cannot {verb} {os.fspath(path)!r}: this is not a valid file name; choose another one")
    try:
        yield
    except OSError as error:
        raise explained(error, path, verb) from error
    except MemoryError as error:
        raise FileError(f"cannot {verb} {path}: out of memory; close other programs, or use a smaller model") from error


def _is_name(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


_ADVICE = {
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOTDIR: "there is a file where a folder is expected; choose another path",
    errno.EEXIST: "there is a file where a folder is expected; choose another path",
    errno.EISDIR: "it is a folder; name a file",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`",
    errno.ENFILE: "too many files are open on this machine; close other programs",
    errno.ENOMEM: "out of memory; close other programs",
    errno.EFBIG: "the file would be larger than allowed; raise the limit with `ulimit -f`, or use another file system",
    errno.EIO: "input/output error of the device; check the disk, and back up its data",
    errno.ELOOP: "its symbolic links form a loop; remove one of them",
    errno.ENOENT: "there is no such file or folder; check the name",
}


def explained(error: OSError, path: PathLike, verb: str = "use") -> FileError:
    """An error of the operating system as a FileError with advice."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_space(path)
    if error.errno in (errno.EACCES, errno.EPERM):
        return FileError(f"no permission to {verb} {path}: change its permissions, or choose another path")
    if error.errno is None:  # raised by a library, with nothing but a message
        return FileError(f"cannot {verb} {path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    advice = _ADVICE.get(
        error.errno, f"{(error.strerror or 'unknown error').lower()}; check the path, or choose another one"
    )
    return FileError(f"cannot {verb} {path}: {advice}")


def no_space(path: PathLike) -> FileError:
    """The error for a disk that is full."""
    place = Path(path).parent
    with contextlib.suppress(OSError):
        return FileError(
            f"no space left to write {path} ({shutil.disk_usage(place).free / 1e6:.1f} MB free there): free some space and "
            "run the command again; files saved before are intact"
        )
    return FileError(
        f"no space left to write {path}: free some space and run the command again; files saved before are intact"
    )
