"""Plugins: a user's file that registers dynamics, scorings and variants (docs/plugins.md). Torch-free.

A plugin is code, so it is executed only if the user names its file, by `load_plugin` or `--plugin FILE.py`. A configuration
that uses a plugin contains the file's SHA-256 and can be constructed only in a process that has loaded exactly this file.
"""

import hashlib
import stat
import sys
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import CoupledQKError

_paths: dict[str, str] = {}  # paths of the loaded files by SHA-256
_loading: list["Plugin"] = []
_added: list[tuple[MutableMapping[str, Any], str]] = []  # entries registered by the plugin that is being loaded


class MissingPluginError(CoupledQKError):
    """A configuration needs a plugin that this process has not loaded, or that has changed since the run began."""


@dataclass(frozen=True)
class Plugin:
    """A plugin file that this process has loaded."""

    path: str
    """Location of the file. It is not part of a run's identity."""
    sha256: str
    """Hash of the file's content."""

    def __post_init__(self) -> None:
        if self.sha256 in _paths:
            return
        same_name = [sha256 for sha256, path in _paths.items() if Path(path).name == Path(self.path).name]
        if same_name:
            raise MissingPluginError(
                f"plugin {self.path} has changed: this run began with SHA-256 {self.sha256}, and the file given has "
                f"{same_name[0]}; restore the file, or start a new run"
            )
        raise MissingPluginError(
            f"this run needs plugin {self.path} with SHA-256 {self.sha256}: pass --plugin {self.path}"
        )


def load_plugin(path: str | Path) -> Plugin:
    """Executes a plugin file, once per process. Dynamics, scorings and variants it registers can then be used by name."""
    try:
        file = Path(path).resolve()
        if not stat.S_ISREG(file.stat().st_mode):
            raise CoupledQKError(f"plugin {path} cannot be read (not a regular file): name a Python file")
        source = file.read_bytes()
    except OSError as error:
        raise CoupledQKError(f"plugin {path} cannot be read ({error.strerror}): name a Python file") from None
    except RuntimeError:  # raised by `Path.resolve`
        raise CoupledQKError(
            f"plugin {path} cannot be read (its symbolic links form a loop): name a Python file"
        ) from None
    sha256 = hashlib.sha256(source).hexdigest()
    if sha256 in _paths:
        return Plugin(_paths[sha256], sha256)
    if str(file) in _paths.values():
        raise CoupledQKError(f"plugin {path} has changed since this process loaded it: start a new process")
    _paths[sha256] = str(file)
    plugin = Plugin(str(file), sha256)
    try:
        _execute(source, plugin)
    except BaseException:
        del _paths[sha256]
        for table, name in _added:
            table.pop(name, None)
        raise
    finally:
        _added.clear()
    return plugin


def _execute(source: bytes, plugin: Plugin) -> None:
    module = ModuleType(f"coupledqk_plugin_{Path(plugin.path).stem}")
    module.__file__ = plugin.path
    sys.modules[module.__name__] = module
    _loading.append(plugin)
    try:
        exec(compile(source, plugin.path, "exec"), module.__dict__)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == plugin.path]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        reason = str(error) if isinstance(error, CoupledQKError) else f"{type(error).__name__}: {error}"
        raise CoupledQKError(f"plugin {plugin.path}, line {line}: {reason.splitlines()[0]}") from None
    finally:
        _loading.pop()
    if not _added:
        raise CoupledQKError(
            f"plugin {plugin.path} registers nothing: call register_dynamics, register_scoring or register_variant in it"
        )


def loading() -> Plugin | None:
    """The plugin that is being executed; None if there is none."""
    return _loading[-1] if _loading else None


def add(table: MutableMapping[str, Any], name: object, value: Any, kind: str) -> None:
    """Adds a new name to a registry."""
    if not isinstance(name, str) or not name.isidentifier():
        raise CoupledQKError(f"{kind} {name!r}: expected a name of letters, digits and underscores")
    if name in table:
        raise CoupledQKError(f"the name {name!r} is taken by another {kind}: choose another name")
    table[name] = value
    if _loading:
        _added.append((table, name))


def remove(name: str, *tables: MutableMapping[str, Any]) -> None:
    for table in tables:
        table.pop(name, None)
