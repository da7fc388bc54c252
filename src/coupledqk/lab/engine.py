"""Where cells are trained. An engine is small: Ray or Slurm would be another one. Torch-free."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ..config import RunConfig
from ..schema import to_toml


@dataclass(frozen=True)
class Message:
    """How the training into a folder goes, or how it has ended: with anything but "step"."""

    folder: Path
    kind: Literal["step", "finished", "interrupted", "failed", "busy"]
    """busy: another process is training into the folder."""
    step: int = 0
    error: str | None = None


class Engine(Protocol):
    def free(self) -> int:
        """How many more runs may be started now."""
        ...

    def start(self, config: RunConfig, folder: Path) -> None: ...

    def wait(self, seconds: float) -> Iterator[Message]:
        """What has happened; waits for something at most so long."""
        ...

    def stop(self) -> None:
        """Asks every run to save and to end; each still sends its last message."""
        ...

    def close(self) -> None:
        """Ends whatever still runs. Nothing saved is harmed."""
        ...


class LocalPool:
    """Processes on this machine. Each trains cell after cell; one that dies costs its cell's last steps and is replaced."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.workers: list[_Worker] = []
        self.inbox: queue.Queue[tuple[_Worker, Any]] = queue.Queue()

    def free(self) -> int:
        return self.jobs - sum(worker.folder is not None for worker in self.workers)

    def start(self, config: RunConfig, folder: Path) -> None:
        idle = next((worker for worker in self.workers if worker.folder is None), None)
        if idle is None:
            threads = config.runtime.threads or max(1, (os.cpu_count() or 1) // self.jobs)
            slots = {worker.slot for worker in self.workers}
            idle = _Worker(self.inbox, min(set(range(self.jobs)) - slots), threads)
            self.workers.append(idle)
        idle.train(config, folder)

    def wait(self, seconds: float) -> Iterator[Message]:
        try:
            worker, data = self.inbox.get(timeout=seconds)
        except queue.Empty:
            return
        folder = worker.folder
        if data is None:
            self.workers.remove(worker)
        if folder is None:
            return
        message = Message(folder, "interrupted", error=worker.epitaph()) if data is None else Message(folder, **data)
        if message.kind != "step":
            worker.folder = None
        yield message

    def stop(self) -> None:
        for worker in self.workers:
            if worker.folder is not None and worker.process.poll() is None:
                worker.process.terminate()

    def close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        self.workers.clear()


class _Worker:
    """A process of `lab/worker.py`, and the folder it is training into."""

    def __init__(self, inbox: queue.Queue[Any], slot: int, threads: int) -> None:
        self.slot = slot
        self.folder: Path | None = None
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coupledqk.lab.worker", str(slot)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches the scheduler alone, which asks its workers once
        )
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def _listen(self, inbox: queue.Queue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, json.loads(line)))
        inbox.put((self, None))

    def train(self, config: RunConfig, folder: Path) -> None:
        assert self.process.stdin is not None
        self.folder = folder
        try:
            self.process.stdin.write(json.dumps({"config": to_toml(config), "folder": str(folder)}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died since it was last heard of; its listener tells

    def epitaph(self) -> str:
        """Why the process ended, as far as that can be known."""
        code = self.process.wait()
        self.errors.seek(0)
        last_words = self.errors.read().strip().splitlines()[-1:]
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return "; ".join([f"its process ended {how}", *last_words])
