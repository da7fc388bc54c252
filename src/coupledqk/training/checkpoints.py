"""Checkpoints: written whole or not at all, checked by checksum, the newest few kept.

checkpoints/step-0001000/    model.safetensors, state.pt (optimiser, loss scaler, counters), checksums.json
checkpoints/best-0001000/    model.safetensors, best.json (the validation), checksums.json
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CoupledQKError
from ..files import atomic_path, sha256


class Checkpoints:
    """The checkpoints of one run. `before_writing` may raise, if the run is another process' now."""

    def __init__(self, folder: Path, keep: int, before_writing: Callable[[], None] = lambda: None) -> None:
        self.folder, self.keep, self.before_writing = folder, keep, before_writing

    def save(self, step: int, model: nn.Module, state: dict[str, Any]) -> None:
        self.before_writing()
        with _writing(self._at(step)) as folder:
            _save_weights(model, folder)
            torch.save(state, folder / "state.pt")
        # one of a later step is damaged: `load_newest` passed it over when this training began
        kept = [there for there in self.steps() if there <= step][-self.keep :]
        for other in set(self.steps()) - set(kept):
            shutil.rmtree(self._at(other))

    def save_best(self, step: int, model: nn.Module, metrics: dict[str, Any]) -> None:
        self.before_writing()
        with _writing(self.folder / f"best-{step:07d}") as folder:
            _save_weights(model, folder)
            (folder / "best.json").write_text(json.dumps({"step": step, **metrics}))
        for old in self.folder.glob("best-*"):
            if old != self.folder / f"best-{step:07d}":
                shutil.rmtree(old)

    def steps(self) -> list[int]:
        """Of the checkpoints there are, oldest first."""
        return sorted(map(checkpoint_step, self.folder.glob("step-*")))

    def newest(self, before: int | None = None) -> Path | None:
        """The newest one, or the newest of fewer than `before` updates."""
        steps = [step for step in self.steps() if before is None or step < before]
        return self._at(steps[-1]) if steps else None

    def best(self) -> Path | None:
        return max(self.folder.glob("best-*"), default=None)

    def load_newest(self, model: nn.Module) -> tuple[int, dict[str, Any], list[str]]:
        """Loads the newest good checkpoint: its step, its state, and a line about each damaged one passed over.

        Without any checkpoint the step is 0 and the state empty. If all are damaged that is an error: training silently
        from the beginning would overwrite the evidence.
        """
        notes = []
        for step in reversed(self.steps()):
            fault = damage(self._at(step))
            if fault is None:
                model.load_state_dict(_read(self._at(step)))
                state = torch.load(self._at(step) / "state.pt", weights_only=True, map_location="cpu")
                return step, state, notes
            notes.append(f"checkpoint {self._at(step)} is damaged ({fault}) and was passed over")
        if notes:
            raise CoupledQKError(f"{'; '.join(notes)}; no good one is left: move {self.folder} away to start again")
        return 0, {}, []

    def _at(self, step: int) -> Path:
        return self.folder / f"step-{step:07d}"


def checkpoint_step(folder: Path) -> int:
    """The number of updates of a checkpoint, from the name of its folder."""
    return int(folder.name.rpartition("-")[2])


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint folder, checked."""
    fault = damage(folder)
    if fault is not None:
        raise CoupledQKError(f"checkpoint {folder} is damaged ({fault}): use another one, or train again")
    return _read(folder)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, if anything is."""
    try:
        checksums = json.loads((folder / "checksums.json").read_text())
    except (OSError, json.JSONDecodeError):
        return "no readable checksums.json"
    for name, expected in checksums.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if sha256(folder / name) != expected:
            return f"the checksum of {name} differs"
    return None


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A new folder, sealed with checksums; one of that name is from before a resume and makes way."""
    if path.exists():
        shutil.rmtree(path)
    with atomic_path(path) as folder:
        folder.mkdir()
        yield folder
        checksums = {file.name: sha256(file) for file in sorted(folder.iterdir())}
        (folder / "checksums.json").write_text(json.dumps(checksums, indent=2))


def _save_weights(model: nn.Module, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")
