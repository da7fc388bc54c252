"""Finds the files of a corpus. Special files such as pipes, and entries that cannot be read, are neither skipped nor opened:
they raise an error that contains their name."""

import errno
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from ..errors import CoupledQKError
from .text import suffix

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def find_files(root: Path, suffixes: Collection[str], left_out: re.Pattern[str]) -> list[Path]:
    """The files with these suffixes, sorted by path, except files and folders whose names match `left_out`.

    Links are followed. A folder that is reached twice raises an error, since it may contain itself.
    """
    found: list[Path] = []
    reached: dict[tuple[int, int], Path] = {}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        status = folder.stat()
        first = reached.setdefault((status.st_dev, status.st_ino), folder)
        if first is not folder:
            raise CoupledQKError(f"{folder} is the same folder as {first}: remove the link")
        for path in entries(folder):
            if left_out.match(path.name):
                continue
            status = status_of(path)
            if status is None:
                if suffix(path) in suffixes:
                    raise CoupledQKError(f"{path} is a link to a file that does not exist: remove it")
            elif stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            else:
                require_regular(path, status)
                found += [path] * (suffix(path) in suffixes)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def entries(folder: Path) -> list[Path]:
    """The entries of a folder, sorted by name."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise CoupledQKError(
            f"cannot read the folder {folder}: {error.strerror}; change its permissions, or move it out of the corpus"
        ) from None


def status_of(path: Path) -> os.stat_result | None:
    """The status of a file or folder from the operating system; None if it does not exist."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        circle = "; its symbolic links form a loop, remove one of them" if error.errno == errno.ELOOP else ""
        raise CoupledQKError(f"cannot read {path}: {error.strerror}{circle}") from None
    except ValueError as error:
        raise CoupledQKError(f"{str(path)!r} is not a path ({error}): give a file or a folder") from None


def require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "no file")
        raise CoupledQKError(f"{path} is {kind}: expected files of text; move it out of the corpus")


def expanded(name: str) -> Path:
    """The path given by the user, with ~ expanded. It must be valid UTF-8, since it is written to the run's settings."""
    try:
        name.encode()
        return Path(name).expanduser()
    except UnicodeEncodeError:
        raise CoupledQKError(f"the path {name!r} is not valid UTF-8: rename the file or folder") from None
    except RuntimeError:
        raise CoupledQKError(f"the path {name!r} begins with the home folder of an unknown user") from None
