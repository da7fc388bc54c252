"""Checkpoints are written atomically and verified by checksum, and only the newest few are kept.

checkpoints/step-0001000/    model.safetensors, state.pt (optimizer, loss scaler, counters), checksums.json; with FSDP,
                             state.json and optimizer/ instead of state.pt (`state_files.py`)
checkpoints/best-0001000/    model.safetensors, best.json (the validation), checksums.json
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CoupledQKError
from ..files import FileError, atomic_path, read_json, remove_folder, sha256
from ..run_folder import Whole
from .mesh import SINGLE, Mesh
from .state_files import os_error, read_state


class Checkpoints:
    """The checkpoints of one run. All processes of a mesh save and load together; the first one writes everything that is not
    sharded.

    `before_writing` may raise if another process has taken over the run. Training cannot resume from a checkpoint whose step is
    beyond `logs.until`, the step up to which the logs are complete.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        before_writing: Callable[[], None] = lambda: None,
        logs: Whole | None = None,
        mesh: Mesh = SINGLE,
    ) -> None:
        self.folder, self.keep, self.before_writing, self.mesh = folder, keep, before_writing, mesh
        self.logs = logs or Whole(float("inf"))

    def save(self, step: int, model: nn.Module, state: dict[str, Any]) -> None:
        with self._writing(self._at(step), model) as folder:
            self.mesh.save_state(state, folder)
        if self.mesh.is_first:
            self._clear(step)

    def _clear(self, step: int) -> None:
        # Checkpoints of later steps were skipped by `load_newest` when this training started.
        kept = [there for there in self.steps() if there <= step][-self.keep :]
        for other in set(self.steps()) - set(kept):
            remove_folder(self._at(other))

    def save_best(self, step: int, model: nn.Module, metrics: dict[str, Any]) -> None:
        path = self.folder / f"best-{step:07d}"
        with self._writing(path, model) as folder:
            if self.mesh.is_first:
                (folder / "best.json").write_text(json.dumps({"step": step, **metrics}))
        if self.mesh.is_first:
            for old in set(self._bests()) - {path}:
                remove_folder(old)

    def steps(self) -> list[int]:
        """Steps of the existing checkpoints, in increasing order."""
        named = (path for path in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
        return sorted(map(checkpoint_step, named))

    def newest(self, before: int | None = None) -> Path | None:
        """The most recent checkpoint, or the most recent one with fewer than `before` updates."""
        steps = [step for step in self.steps() if before is None or step < before]
        return self._at(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """The folder of the best weights. While it is replaced, the old folder has a name that ends with ~."""
        return max(self._bests(), key=lambda path: (path.name.rstrip("~"), path.name.count("~") == 0), default=None)

    def load_newest(self, model: nn.Module) -> tuple[int, dict[str, Any], list[str]]:
        """Loads the newest usable checkpoint. Returns its step, its state, and a note for each checkpoint that was skipped.

        A checkpoint is skipped if it is damaged or if the logs are incomplete before its step. Without any checkpoint, the step
        is 0 and the state is empty. If all checkpoints are skipped, an error is raised instead of silently training from the
        beginning, which would overwrite them.
        """
        step, notes = self.mesh.from_first(self._newest_good)
        if step == 0:
            return 0, {}, []
        _load(model, self._at(step))
        return step, read_state(self._at(step)), notes

    def _newest_good(self) -> tuple[int, list[str]]:
        notes = []
        for step in reversed(self.steps()):
            if step > self.logs.until and not self._awaits_validation(step):
                notes.append(f"checkpoint {self._at(step)} was skipped: {self.logs.fault}")
                continue
            fault = damage(self._at(step))
            if fault is None:
                return step, notes
            notes.append(f"checkpoint {self._at(step)} is damaged ({fault}) and was skipped")
        if notes:
            raise CoupledQKError(
                f"{'; '.join(notes)}; no usable checkpoint is left: move {self.folder} away to start from the beginning"
            )
        return 0, []

    def _awaits_validation(self, step: int) -> bool:
        """Whether the run was stopped during the validation after `step`, so that the logs lack only this validation."""
        folder = self._at(step)
        return step == self.logs.unvalidated and damage(folder) is None and "unvalidated_tokens" in read_state(folder)

    @contextmanager
    def _writing(self, path: Path, model: nn.Module) -> Iterator[Path]:
        """Yields a new folder that contains the weights, the same for all processes. It is renamed to `path` when all of them
        have left the context."""
        weights = self.mesh.weights(model)
        with ExitStack() as stack:
            folder = self.mesh.from_first(lambda: self._begin(path, stack))
            if self.mesh.is_first:
                _save_weights(weights, folder)
            yield folder
            self.mesh.wait()

    def _begin(self, path: Path, stack: ExitStack) -> Path:
        self.before_writing()
        return stack.enter_context(_sealed(path))

    def _at(self, step: int) -> Path:
        return self.folder / f"step-{step:07d}"

    def _bests(self) -> list[Path]:
        return [path for path in self.folder.glob("best-*") if re.fullmatch(r"best-\d+~?", path.name)]


def checkpoint_step(folder: Path) -> int:
    """The number of updates of a checkpoint, from the name of its folder."""
    return int(folder.name.rstrip("~").rpartition("-")[2])


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint folder, verified by checksum."""
    fault = damage(folder)
    if fault is not None:
        raise CoupledQKError(f"checkpoint {folder} is damaged ({fault}): use another one, or train again")
    return load_weights(folder)


def damage(folder: Path) -> str | None:
    """A description of the damage to a checkpoint; None if it is intact."""
    try:
        checksums = read_json(folder / "checksums.json", "use another checkpoint")
        names = set(_files(folder)) - {"checksums.json"}
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


def _files(folder: Path) -> list[str]:
    """Names of the files in a folder and its subfolders, relative to the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@contextmanager
def _sealed(path: Path) -> Iterator[Path]:
    """Yields a new folder, to which checksums are added at the end. It replaces an existing folder of the same name."""
    with atomic_path(path, replace=True) as folder:
        folder.mkdir()
        yield folder
        checksums = {name: sha256(folder / name) for name in _files(folder)}
        (folder / "checksums.json").write_text(json.dumps(checksums, indent=2))


def _save_weights(weights: dict[str, torch.Tensor], folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    try:
        save_file(tensors, folder / "model.safetensors")
    except SafetensorError as error:
        raise os_error(error) from error


def _load(model: nn.Module, folder: Path) -> None:
    try:
        model.load_state_dict(load_weights(folder))
    except RuntimeError as error:
        raise CoupledQKError(
            f"checkpoint {folder} does not fit the run's configuration ({' '.join(str(error).split())[:200]}): restore "
            "config.toml, or move the checkpoint away"
        ) from None


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"cannot read {folder / 'model.safetensors'} ({error}): use another checkpoint, or train again"
        ) from None
