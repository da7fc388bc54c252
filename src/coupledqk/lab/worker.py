"""A process that trains cells: `python -m coupledqk.lab.worker SLOT`; workers share the GPUs by their slots.

A line on standard input is a cell: its configuration and its folder. Lines on standard output tell how it goes. One process
trains many cells, so that loading torch is paid for once.
"""

import contextlib
import fcntl
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..config import DataConfig, RunConfig
from ..errors import CoupledQKError, DivergedError
from ..files import write_atomic
from ..run_folder import RunFolder
from ..runs.training import train_run
from ..schema import from_toml
from ..training.events import Event, Started, Step
from ..training.logs import Consumer, RunLog
from ..training.progress import stop_on_signals
from .cells import ERROR_FILE

SECONDS_BETWEEN_MESSAGES = 0.5


def main() -> None:
    line = Line(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what libraries print is no message
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(int(sys.argv[1]) % torch.cuda.device_count())
    for text in iter(sys.stdin.readline, ""):
        job = json.loads(text)
        line.tell(**train_cell(from_toml(RunConfig, job["config"]), Path(job["folder"]), line))
        if line.cut:
            return


class Line:
    """To the process that schedules. If it is gone, the line is cut, and that is a reason to stop."""

    def __init__(self, file: Any) -> None:
        self.file, self.cut, self.next_message = file, False, 0.0

    def tell(self, **message: Any) -> None:
        try:
            self.file.write(json.dumps(message) + "\n")
            self.file.flush()
        except BrokenPipeError:
            self.cut = True

    def __call__(self, event: Event) -> None:
        """A consumer of events."""
        now = time.monotonic()
        if isinstance(event, Started) or (isinstance(event, Step) and now >= self.next_message):
            self.next_message = now + SECONDS_BETWEEN_MESSAGES
            self.tell(kind="step", step=event.step)


def train_cell(config: RunConfig, folder: Path, line: Line) -> dict[str, Any]:
    """Trains a cell from wherever it was left, and says how it ended."""

    def consumers(run: RunFolder) -> list[Consumer]:
        check_text(run)
        (folder / ERROR_FILE).unlink(missing_ok=True)
        return [RunLog(run, config.train.log_every), line]

    try:
        with stop_on_signals() as asked:
            run = train_run(
                config, folder, consumers, lambda: asked() or line.cut, lambda: one_at_a_time(folder.parent)
            )
        return {"kind": "finished" if run.result else "interrupted"}
    except Exception as error:
        if isinstance(error, CoupledQKError) and RunFolder(folder).status == "running":
            return {"kind": "busy", "error": str(error)}
        return _failed(error, folder)


def _failed(error: Exception, folder: Path) -> dict[str, Any]:
    expected = isinstance(error, CoupledQKError)
    text = str(error) if expected else f"{type(error).__name__}: {error}"
    record: dict[str, Any] = {"error": text, "diverged": isinstance(error, DivergedError)}
    if not expected:
        record["traceback"] = traceback.format_exc()
    if (folder / "config.toml").is_file():
        write_atomic(folder / ERROR_FILE, json.dumps(record, indent=2) + "\n")
    return {"kind": "failed", "error": text}


def check_text(run: RunFolder) -> None:
    """How much text is seen is part of an experiment: a shorter corpus would make another one."""
    task = run.config.task
    if isinstance(task, DataConfig) and task.max_tokens is not None:
        there = run.info["corpus"]["splits"]["train"]["tokens"]
        if there < task.max_tokens:
            raise CoupledQKError(
                f"corpus {task.corpus} is too small for this experiment: it has {there:,} training tokens ({task.tokenizer}), "
                f"expected {task.max_tokens:,}"
            )


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[Callable[[int], None] | None]:
    """So that workers do not all tokenize the same corpus: the first does, the others find it done."""
    with (folder / ".preparing").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield None


if __name__ == "__main__":
    main()
