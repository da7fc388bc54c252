"""Engines, which train the cells of an experiment: the protocol, and worker processes on this machine. Torch-free."""

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
from ..provenance import available_cores
from ..schema import to_toml


@dataclass(frozen=True)
class Message:
    """A message about the progress of one run. Every kind but "step" is the last message of its run."""

    folder: Path
    kind: Literal["step", "finished", "interrupted", "failed", "busy"]
    """The kind of message. "busy" means that another process is training in the same folder."""
    step: int = 0
    doing: str = ""
    """For "step", the current activity if it is not training, such as validating."""
    error: str | None = None


class Engine(Protocol):
    def free(self) -> int:
        """Number of runs that can be started now."""
        ...

    def start(self, config: RunConfig, folder: Path) -> None: ...

    def wait(self, seconds: float) -> Iterator[Message]:
        """Waits up to `seconds` for the next message and yields the messages that have arrived."""
        ...

    def stop(self) -> None:
        """Signals every run to save and stop. Each run still sends its last message."""
        ...

    def close(self) -> None:
        """Kills the processes that are left. Saved checkpoints are not affected."""
        ...


class LocalPool:
    """Worker processes on this machine. Each trains one cell after another.

    A worker that dies is replaced, and its cell resumes from the last checkpoint when it is run again.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.workers: list[_Worker] = []
        self.inbox: queue.Queue[tuple[_Worker, Any]] = queue.Queue()

    def free(self) -> int:
        return self.jobs - sum(worker.folder is not None for worker in self.workers)

    def start(self, config: RunConfig, folder: Path) -> None:
        idle = next((worker for worker in self.workers if worker.folder is None), None)
        if idle is None:
            threads = config.runtime.threads or max(1, available_cores() // self.jobs)
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
        message = (
            Message(folder, "interrupted", error=worker.exit_reason()) if data is None else Message(folder, **data)
        )
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
    """A process of `lab/worker.py`, and the folder of the run it is training."""

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
            start_new_session=True,  # Ctrl-C reaches the scheduler only, which stops its workers
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
            plugin = config.plugin.path if config.plugin else None
            job = {"plugin": plugin, "config": to_toml(config), "folder": str(folder)}
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended since its last message; `_listen` reports it

    def exit_reason(self) -> str:
        """The signal or exit code that ended the process, and the last line it wrote to standard error."""
        code = self.process.wait()
        self.errors.seek(0)
        last_line = self.errors.read().strip().splitlines()[-1:]
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return "; ".join([f"its process ended {how}", *last_line])
