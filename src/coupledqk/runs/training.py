"""A run: a task trained into a folder, from wherever it was left."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..config import RunConfig, identity
from ..errors import CoupledQKError
from ..provenance import origin
from ..run_folder import RunFolder, default_name, variant_name
from ..tasks.adapt import Adapting
from ..tasks.glue import SentenceClassification
from ..tasks.lm import LanguageModelling
from ..tasks.models import pick_device
from ..tasks.mqar import AssociativeRecall
from ..tasks.pretrained import PretrainedClassification
from ..terminal import stop_on_signals, tokenizing
from ..training import logs, loop
from ..training.allocator import keep_freed_memory
from ..training.checkpoints import Checkpoints
from ..training.events import Consumer, Event, Finished
from ..training.loop import Task, autocast
from .progress import training_progress
from .run import Run


class RunTask(Task, Protocol):
    """A Task with all that a run folder tells of it."""

    about: dict[str, Any]
    """The data: its name as "corpus", its "hash", and what else explains the numbers."""
    files: dict[str, str]
    """JSON texts that are kept beside the weights, by file name."""
    definition: str
    """What the measure means, in a sentence."""

    def build_model(self) -> nn.Module: ...

    def final_measures(self, model: nn.Module) -> dict[str, Any]:
        """What is measured once, when the run is finished, and kept in result.json."""
        ...


OnBytes = Callable[[int], None] | None

TASKS: dict[str, Callable[[RunConfig, OnBytes], RunTask]] = {
    "lm": LanguageModelling.open,
    "adapt": Adapting.open,
    "mqar": AssociativeRecall.open,
    "glue": SentenceClassification.open,
    "pretrained": PretrainedClassification.open,
}
"""By the `kind` of a run's task."""


def train(
    config: RunConfig,
    path: str | Path | None = None,
    *,
    progress: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
) -> Run:
    """Trains a run and returns it: `train(recipe("nano", "euler", steps=200), "runs/mine").result["best"]`.

    The folder is runs/NAME unless given. An interrupted run resumes from its newest checkpoint; a finished one is returned as
    it is. Ctrl-C lets the current step end, saves the run and then raises KeyboardInterrupt; the same call resumes it.
    """
    path = Path("runs") / default_name(config) if path is None else Path(path)

    def consumers(run: Run) -> Iterator[Consumer]:
        if progress:
            yield training_progress(path.name, config)
        if tensorboard:
            yield logs.tensorboard(run.path)
        if wandb:
            yield logs.wandb(run)

    with stop_on_signals() as stop:
        run = train_run(config, path, consumers, stop, tokenizing if progress else nullcontext)
    if not run.result:
        raise KeyboardInterrupt
    return run


def train_run(
    config: RunConfig,
    path: Path,
    consumers: Callable[[Run], Iterable[Consumer]] = lambda run: (),
    stop: Callable[[], bool] = lambda: False,
    preparing: Callable[[], AbstractContextManager[OnBytes]] = nullcontext,
) -> Run:
    """Trains a run into a folder, from its newest checkpoint if there is one; a finished run is returned as it is.

    The run's own logs are always written; `consumers` follow the training too, once the folder describes the run. What
    `preparing` yields is called with the number of bytes of the corpus that have been tokenized.
    """
    run = Run(path)
    run.refuse_other(config)
    with run.lock():
        run.create(config)
        whole = run.whole()
        if run.result and whole.until == math.inf:
            return run
        device = pick_device(config.runtime.device)
        if config.runtime.threads is not None:
            torch.set_num_threads(config.runtime.threads)
        if device.type == "cpu":
            keep_freed_memory()
        with preparing() as on_bytes:
            task = TASKS[config.task.kind](config, on_bytes)
        if run.info and run.info["corpus"]["hash"] is None:
            raise CoupledQKError(f"{path} was imported and cannot be resumed: start a new run with --init-from {path}")
        if run.info and run.info["corpus"]["hash"] != task.about["hash"]:
            raise CoupledQKError(
                f"{task.about['corpus']} has changed since {path} began: bring it back, or train into another --out"
            )
        model = task.build_model().to(device)
        for name, text in task.files.items():
            run.write_json(name, json.loads(text))
        starts = [*run.info.get("starts", ()), origin()]
        run.write_json("info.json", {**run_info(path.name, run.config, model, task.about), "starts": starts})
        checkpoints = Checkpoints(run.path / "checkpoints", config.runtime.keep, run.verify_lock, whole)
        event: Event | None = None
        with ExitStack() as stack:
            entered = [logs.RunLog(run, config.train.log_every), *consumers(run)]
            listeners = [stack.enter_context(consumer) for consumer in entered]
            for event in loop.train(model, task, config, checkpoints, stop):
                run.check_lock()
                for listen in listeners:
                    listen(event)
        if isinstance(event, Finished):
            with torch.no_grad(), autocast(device, config):
                measures = task.final_measures(model)
            run.verify_lock()
            run.write_json("result.json", {**summarise(run, task), **measures})
    return run


def run_info(name: str, config: RunConfig, model: nn.Module, about: dict[str, Any]) -> dict[str, Any]:
    """What a run folder says of its model, and `about` its data. The origin of each start is kept beside it."""
    return {
        "name": name,
        "variant": variant_name(config),
        "identity": identity(config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "corpus": about,
    }


def summarise(run: RunFolder, task: RunTask) -> dict[str, Any]:
    valid, timings = run.metrics("valid"), run.timings()
    speeds = sorted(t["tokens_per_second"] for t in timings if t["tokens_per_second"])
    return {
        "best": min(valid, key=lambda record: record["loss"]),
        "final": valid[-1],
        "steps": valid[-1]["step"],
        "tokens": valid[-1]["tokens"],
        "seconds": timings[-1]["seconds"] if timings else None,
        "tokens_per_second": speeds[len(speeds) // 2] if speeds else None,
        "corpus_hash": task.about["hash"],
        "definition": task.definition,
    }
