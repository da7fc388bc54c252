"""Checkpoints: written whole or not at all, checked by checksum, the newest few kept.

checkpoints/step-0001000/    model.safetensors, state.pt (optimiser, loss scaler, counters), checksums.json
checkpoints/best-0001000/    model.safetensors, best.json (the validation), checksums.json
"""

import json
import pickle
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CoupledQKError
from ..files import FileError, atomic_path, read_json, remove_folder, sha256
from ..run_folder import Whole

UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError,
    AssertionError, OverflowError, MemoryError, struct.error,
)  # fmt: skip
"""What torch.load raises for files that it did not write: it runs their operations as far as it gets."""


class Checkpoints:
    """The checkpoints of one run. `before_writing` may raise, if the run is another process' now. Those of steps up to which
    the logs are not `whole` cannot be resumed from."""

    def __init__(
        self, folder: Path, keep: int, before_writing: Callable[[], None] = lambda: None, logs: Whole | None = None
    ) -> None:
        self.folder, self.keep, self.before_writing = folder, keep, before_writing
        self.logs = logs or Whole(float("inf"))

    def save(self, step: int, model: nn.Module, state: dict[str, Any]) -> None:
        self.before_writing()
        with _writing(self._at(step)) as folder:
            _save_weights(model, folder)
            _save_state(state, folder / "state.pt")
        # one of a later step was passed over by `load_newest` when this training began
        kept = [there for there in self.steps() if there <= step][-self.keep :]
        for other in set(self.steps()) - set(kept):
            remove_folder(self._at(other))

    def save_best(self, step: int, model: nn.Module, metrics: dict[str, Any]) -> None:
        self.before_writing()
        with _writing(self.folder / f"best-{step:07d}") as folder:
            _save_weights(model, folder)
            (folder / "best.json").write_text(json.dumps({"step": step, **metrics}))
        for old in self._bests():
            if old != self.folder / f"best-{step:07d}":
                remove_folder(old)

    def steps(self) -> list[int]:
        """Of the checkpoints there are, oldest first."""
        named = (path for path in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
        return sorted(map(checkpoint_step, named))

    def newest(self, before: int | None = None) -> Path | None:
        """The newest one, or the newest of fewer than `before` updates."""
        steps = [step for step in self.steps() if before is None or step < before]
        return self._at(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """The best weights. While they are replaced, the old ones have a name that ends with ~."""
        return max(self._bests(), key=lambda path: (path.name.rstrip("~"), path.name.count("~") == 0), default=None)

    def load_newest(self, model: nn.Module) -> tuple[int, dict[str, Any], list[str]]:
        """Loads the newest good checkpoint: its step, its state, and a line about each one passed over: it is damaged, or the
        logs are not whole up to its step, so that they have to be computed again from an earlier one.

        Without any checkpoint the step is 0 and the state empty. If all are passed over that is an error: training silently
        from the beginning would overwrite the evidence.
        """
        notes = []
        for step in reversed(self.steps()):
            if step > self.logs.until:
                notes.append(f"checkpoint {self._at(step)} was passed over: {self.logs.fault}")
                continue
            fault = damage(self._at(step))
            if fault is None:
                _load(model, self._at(step))
                return step, load_state(self._at(step) / "state.pt"), notes
            notes.append(f"checkpoint {self._at(step)} is damaged ({fault}) and was passed over")
        if notes:
            raise CoupledQKError(f"{'; '.join(notes)}; no good one is left: move {self.folder} away to start again")
        return 0, {}, []

    def _at(self, step: int) -> Path:
        return self.folder / f"step-{step:07d}"

    def _bests(self) -> list[Path]:
        return [path for path in self.folder.glob("best-*") if re.fullmatch(r"best-\d+~?", path.name)]


def checkpoint_step(folder: Path) -> int:
    """The number of updates of a checkpoint, from the name of its folder."""
    return int(folder.name.rstrip("~").rpartition("-")[2])


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint folder, checked."""
    fault = damage(folder)
    if fault is not None:
        raise CoupledQKError(f"checkpoint {folder} is damaged ({fault}): use another one, or train again")
    return load_weights(folder)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, if anything is."""
    try:
        checksums = read_json(folder / "checksums.json", "use another checkpoint")
        names = {file.name for file in folder.iterdir()} - {"checksums.json"}
    except (CoupledQKError, OSError):
        return "no readable checksums.json"
    if not isinstance(checksums, dict) or "model.safetensors" not in checksums:
        return "checksums.json does not name model.safetensors"
    for name, expected in checksums.items():
        if name not in names:
            return f"{name!r} is missing"
        if sha256(folder / name) != expected:
            return f"the checksum of {name} differs"
    unknown = min(names - checksums.keys(), default=None)
    return None if unknown is None else f"{unknown} has no checksum"


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A new folder, sealed with checksums; one of that name is from before a resume and is replaced."""
    with atomic_path(path, replace=True) as folder:
        folder.mkdir()
        yield folder
        checksums = {file.name: sha256(file) for file in sorted(folder.iterdir())}
        (folder / "checksums.json").write_text(json.dumps(checksums, indent=2))


def _save_weights(model: nn.Module, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(tensors, folder / "model.safetensors")
    except SafetensorError as error:
        raise _os_error(error) from error


def _save_state(state: dict[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # the writer in C++ says that something failed; what failed, in Python, is the context
        raise error.__context__ if isinstance(error.__context__, OSError) else _os_error(error) from error


def _os_error(error: Exception) -> OSError:
    """What a library that writes by itself says about the operating system: `atomic_path` tells the user what to do."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    code = re.search(r"os error (\d+)", text)
    return OSError(int(code[1]), text) if code else OSError(text)


def _load(model: nn.Module, folder: Path) -> None:
    try:
        model.load_state_dict(load_weights(folder))
    except RuntimeError as error:
        raise CoupledQKError(
            f"checkpoint {folder} does not fit the run's configuration ({' '.join(str(error).split())[:200]}): restore "
            "config.toml, or move the checkpoint away"
        ) from None


def load_state(path: Path) -> dict[str, Any]:
    """All of a checkpoint but the weights."""
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except UNPICKLING_ERRORS as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(
            f"cannot read {path} ({why}): it is damaged, or was written by another version of torch; move {path.parent} away "
            "to resume from an earlier checkpoint"
        ) from None
    if not isinstance(state, dict):
        raise FileError(f"cannot read {path} (not the state of a training): move {path.parent} away")
    return state


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"cannot read {folder / 'model.safetensors'} ({error}): use another checkpoint, or train again"
        ) from None
