"""A layer between this process and its files that is notified before every operation and may make it fail."""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
from safetensors import SafetensorError

Watcher = Callable[[str, Path], None]
"""Called with the kind of an operation (write, fsync, replace, mkdir, remove) and its path. The operation
raises its exception; a write that fails writes half of its data first."""


@contextmanager
def watched(folder: Path, watcher: Watcher) -> Iterator[None]:
    """Calls `watcher` before every operation below a folder, except on leases, which have their own thread."""

    def tell(kind: str, path: Any) -> None:
        path = Path(os.fsdecode(path))
        if folder in path.parents and "lock" not in path.parts:
            watcher(kind, path)

    calls = {name: _wrapped(getattr(os, name), kind, tell) for name, kind in _CALLS.items()}
    opening, saving = _opening(io.open, tell), _saving(safetensors.torch.save_file, tell)
    with (
        mock.patch.multiple(os, **calls),
        mock.patch.object(io, "open", opening),
        mock.patch.object(builtins, "open", opening),
        mock.patch.object(safetensors.torch, "save_file", saving),
    ):
        yield


_CALLS = {"fsync": "fsync", "replace": "replace", "mkdir": "mkdir", "unlink": "remove", "rmdir": "remove"}


def _wrapped(call: Callable[..., Any], kind: str, tell: Watcher) -> Callable[..., Any]:
    def wrapper(target: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, int):
            target_path = os.readlink(f"/proc/self/fd/{target}")
        elif kwargs.get("dir_fd") is not None:
            target_path = os.path.join(os.readlink(f"/proc/self/fd/{kwargs['dir_fd']}"), os.fsdecode(target))
        else:
            target_path = target
        tell(kind, target_path)
        return call(target, *args, **kwargs)

    return wrapper


def _opening(call: Callable[..., Any], tell: Watcher) -> Callable[..., Any]:
    def wrapper(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        opened = call(file, mode, *args, **kwargs)
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return opened
        return _Watched(opened, Path(os.fsdecode(file)), tell)

    return wrapper


class _Watched:
    """A file that is open for writing."""

    def __init__(self, file: Any, path: Path, tell: Watcher) -> None:
        self._file, self._path, self._tell = file, path, tell

    def write(self, data: Any) -> int:
        try:
            self._tell("write", self._path)
        except OSError:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise
        return self._file.write(data)

    def __enter__(self) -> "_Watched":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _saving(call: Callable[..., Any], tell: Watcher) -> Callable[..., Any]:
    def wrapper(tensors: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            tell("write", path)
        except OSError as error:
            text = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            raise SafetensorError(text) from None
        call(tensors, path, *args, **kwargs)

    return wrapper
