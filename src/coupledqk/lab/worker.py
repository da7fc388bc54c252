"""A process that trains cells: `python -m coupledqk.lab.worker SLOT`. The slot selects one of several GPUs.

Each line on standard input is a cell: its plugin, its configuration and its folder. Each line on standard output is a
message about its progress. One process trains many cells, so that torch is loaded once.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import lease
from ..config import DataConfig, RunConfig
from ..errors import CoupledQKError, DivergedError
from ..plugins import load_plugin
from ..run_folder import RunFolder
from ..runs.training import train_run
from ..schema import from_toml
from ..signals import stop_on_signals
from ..training.events import Consumer, Evaluating, Event, Finished, Started, Step
from .cells import ERROR_FILE

SECONDS_BETWEEN_MESSAGES = 0.5


def main() -> None:
    messages = Messages(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # output of libraries goes to standard error
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(int(sys.argv[1]) % torch.cuda.device_count())
    for text in iter(sys.stdin.readline, ""):
        messages.send(**train_job(json.loads(text), messages))
        if messages.closed:
            return


class Messages:
    """An event consumer that sends messages to the scheduling process. `closed` becomes true if that process has ended."""

    def __init__(self, file: Any) -> None:
        self.file, self.closed, self.next_message = file, False, 0.0

    def send(self, **message: Any) -> None:
        try:
            self.file.write(json.dumps(message) + "\n")
            self.file.flush()
        except BrokenPipeError:
            self.closed = True

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Evaluating | Finished):
            doing = "validating" if isinstance(event, Evaluating) else "computing the final measures"
            self.send(kind="step", step=event.step, doing=doing)
        elif isinstance(event, Started) or (isinstance(event, Step) and now >= self.next_message):
            self.next_message = now + SECONDS_BETWEEN_MESSAGES
            self.send(kind="step", step=event.step)


def train_job(job: dict[str, Any], messages: Messages) -> dict[str, Any]:
    """Trains the cell described by an input line. Its plugin is trusted, since the user passed it to the scheduling process."""
    folder = Path(job["folder"])
    try:
        if job["plugin"] is not None:
            load_plugin(job["plugin"])
        config = from_toml(RunConfig, job["config"])
    except CoupledQKError as error:
        return _failed(error, folder)
    return train_cell(config, folder, messages)


def train_cell(config: RunConfig, folder: Path, messages: Messages) -> dict[str, Any]:
    """Trains a cell, resuming from its last checkpoint if there is one, and returns its last message."""

    def consumers(run: RunFolder) -> list[Consumer]:
        check_text(run)
        (folder / ERROR_FILE).unlink(missing_ok=True)
        return [contextlib.nullcontext(messages)]

    messages.send(kind="step", doing="preparing the text")
    try:
        with stop_on_signals() as asked:
            run = train_run(
                config, folder, consumers, lambda: asked() or messages.closed, lambda: one_at_a_time(folder.parent)
            )
        return {"kind": "finished" if run.result else "interrupted"}
    except lease.HeldLeaseError as error:
        return {"kind": "busy", "error": str(error)}
    except KeyboardInterrupt:
        return {"kind": "interrupted"}
    except Exception as error:
        return _failed(error, folder)


def _failed(error: Exception, folder: Path) -> dict[str, Any]:
    expected = isinstance(error, CoupledQKError)
    text = str(error) if expected else f"{type(error).__name__}: {error}"
    record: dict[str, Any] = {"error": text, "diverged": isinstance(error, DivergedError)}
    if not expected:
        record["traceback"] = traceback.format_exc()
    if (folder / "config.toml").is_file():
        RunFolder(folder).write_json(ERROR_FILE, record)
    return {"kind": "failed", "error": text}


def check_text(run: RunFolder) -> None:
    """Raises if the corpus is shorter than `max_tokens`, since the amount of text is part of an experiment."""
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
    """Lets one worker tokenize a corpus while the others wait for its shards."""
    with lease.wait_for(folder / ".preparing"):
        yield None


if __name__ == "__main__":
    main()
