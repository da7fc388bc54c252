"""Base class of the engines for clusters, whose machines share a disk. Torch-free."""

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..run_folder import RunFolder
from ..schema import to_toml
from .cells import failure, status
from .engine import Message

TAIL_BYTES = 2**16


class ClusterEngine(ABC):
    """An `Engine` whose runs are trained on other machines. Their progress is read from their folders."""

    def __init__(self, cpus: int, gpus: int) -> None:
        self.cpus, self.gpus = cpus, gpus
        self.running: dict[Path, Any] = {}
        """Return values of `submit`, by run folder."""
        self.shown: dict[Path, tuple[int, str]] = {}
        self.stopping = False

    @abstractmethod
    def capacity(self) -> int:
        """Maximum number of runs submitted at a time."""

    @abstractmethod
    def submit(self, job: dict[str, Any], name: str) -> Any:
        """Submits a job, which a machine of the cluster trains with `train_elsewhere`."""

    @abstractmethod
    def ended(self) -> Iterator[Message]:
        """The last message of each run that has ended. The run's folder is still in `running`."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def free(self) -> int:
        return max(0, max(1, self.capacity()) - len(self.running))  # a cluster may shrink

    def start(self, config: RunConfig, folder: Path) -> None:
        plugin = config.plugin.path if config.plugin else None
        job = {
            "plugin": plugin,
            "config": to_toml(config),
            "folder": str(folder.absolute()),
            "cwd": os.getcwd(),
            "environment": {name: value for name, value in os.environ.items() if name.startswith("COUPLEDQK_")},
            "threads": config.runtime.threads or self.cpus,
            "processes": max(1, self.gpus),
        }
        self.running[folder] = self.submit(job, folder.name)

    def wait(self, seconds: float) -> Iterator[Message]:
        self.pause(seconds)
        for message in [*self._progress(), *self.ended()]:
            if message.kind != "step":
                del self.running[message.folder]
                self.shown.pop(message.folder, None)
            yield message

    def pause(self, seconds: float) -> None:
        """Waits for `seconds`, or less if the engine detects that a run has ended."""
        time.sleep(seconds)

    def _progress(self) -> Iterator[Message]:
        for folder in self.running:
            step = last_step(folder)
            doing = "" if step else _before_training(folder)
            if self.shown.get(folder) != (step, doing):
                self.shown[folder] = step, doing
                yield Message(folder, "step", step, doing)


def last_message(folder: Path, error: str | None) -> Message:
    """The last message of a run that is no longer trained, from its folder. `error` is the reason if it was interrupted."""
    run = RunFolder(folder)
    found = status(run)
    if found == "finished":
        return Message(folder, "finished")
    if found == "failed":
        return Message(folder, "failed", error=failure(run)["error"])
    if found == "running":
        return Message(folder, "busy", error=f"another process is training into {folder}")
    return Message(folder, "interrupted", error=error)


def last_step(folder: Path) -> int:
    """The last step that a run has logged; 0 if none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except (ValueError, TypeError, KeyError):
            continue  # an incomplete line
    return 0


def _before_training(folder: Path) -> str:
    return "preparing the text" if RunFolder(folder).status == "running" else "waiting for a machine"
