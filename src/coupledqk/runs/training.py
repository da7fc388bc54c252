"""Trains a run in its folder, resuming from the last checkpoint if there is one."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..config import RunConfig, identity
from ..costs import flops
from ..errors import CoupledQKError
from ..provenance import origin
from ..run_folder import RunFolder, Whole, default_name, variant_name
from ..schema import change, flat
from ..signals import nothing_to_save, stop_on_signals
from ..tasks.adapt import Adapting
from ..tasks.glue import SentenceClassification
from ..tasks.lm import LanguageModelling
from ..tasks.models import pick_device
from ..tasks.mqar import AssociativeRecall
from ..tasks.pretrained import PretrainedClassification
from ..terminal import announced, tokenizing
from ..training import logs, loop
from ..training.allocator import keep_freed_memory
from ..training.checkpoints import Checkpoints
from ..training.compilation import can_compile
from ..training.events import Consumer, Event, Finished
from ..training.job import open_mesh, process_device
from ..training.loop import Task, autocast
from ..training.mesh import Mesh
from .progress import training_progress
from .run import Run


class RunTask(Task, Protocol):
    """A Task with the information that is stored in the run folder."""

    about: dict[str, Any]
    """Information about the data: its name as "corpus", its "hash", and further details."""
    files: dict[str, str]
    """JSON documents that are stored in the run folder, by file name."""
    definition: str
    """The definition of the measure in one sentence."""

    def build_model(self) -> nn.Module: ...

    def final_measures(self, model: nn.Module) -> dict[str, Any]:
        """Measures that are computed once, when the run is finished, and stored in result.json."""
        ...


OnBytes = Callable[[int], None] | None

TASKS: dict[str, Callable[[RunConfig, OnBytes], RunTask]] = {
    "lm": LanguageModelling.open,
    "adapt": Adapting.open,
    "mqar": AssociativeRecall.open,
    "glue": SentenceClassification.open,
    "pretrained": PretrainedClassification.open,
}
"""Classes of tasks by the `kind` of the task's configuration."""


def train(
    config: RunConfig,
    path: str | Path | None = None,
    *,
    progress: bool = True,
    tensorboard: bool = False,
    wandb: bool = False,
) -> Run:
    """Trains a run and returns it: `train(recipe("nano", "euler", steps=200), "runs/mine").result["best"]`.

    The default folder is runs/NAME. An interrupted run resumes from its newest checkpoint; a finished run is returned without
    training. Ctrl-C saves a checkpoint after the current micro-batch and raises KeyboardInterrupt; the same call resumes it.
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
    """Trains a run in a folder, from its newest checkpoint if there is one. A finished run is returned without training.

    In addition to the run's logs, which are always written, `consumers` receive the events of the training loop. The function
    that `preparing` yields is called with the number of bytes of the corpus that have been tokenized. If torchrun has started
    several processes, all of them call this function, and the first one writes files and reports progress.
    """
    run = Run(path)
    with open_mesh(config) as mesh, ExitStack() as stack:
        refuse_different_processes(mesh, config, path)
        whole = mesh.from_first(lambda: _claim(run, config, stack))
        if whole is None:
            return run
        device = pick_device(process_device(config.runtime.device))
        if config.runtime.threads is not None:
            torch.set_num_threads(config.runtime.threads)
        if device.type == "cpu":
            keep_freed_memory()
        with nothing_to_save():
            task = _open_task(run, config, mesh, preparing)
            model = task.build_model().to(device)
        mesh.from_first(lambda: _describe(run, model, task))
        checkpoints = Checkpoints(run.path / "checkpoints", config.runtime.keep, run.verify_lock, whole, mesh)
        event: Event | None = None
        with ExitStack() as following:
            entered = [logs.RunLog(run, config.train.log_every), *consumers(run)] if mesh.is_first else []
            listeners = [following.enter_context(consumer) for consumer in entered]
            for event in loop.train(model, task, _decided(config, device, mesh), checkpoints, stop, mesh):
                run.check_lock()
                for listen in listeners:
                    listen(event)
        if isinstance(event, Finished):
            alone = mesh.whole_model(model, lambda: TASKS[config.task.kind](config, None).build_model())
            with nothing_to_save():
                mesh.from_first(lambda: _finish(run, task, alone, device), patient=True)
    return run


def refuse_different_processes(mesh: Mesh, config: RunConfig, path: Path) -> None:
    """Raises on every process if the processes were started with different settings, except for the locations of data."""
    settings = {**flat(dataclasses.asdict(config)), "out": str(path)}
    settings.pop("task.data_dir", None)
    first, *others = mesh.gather(settings)
    for rank, other in enumerate(others, 1):
        changed = [
            f"{name} is {first.get(name)!r} on the first and {other.get(name)!r} on rank {rank}"
            for name in sorted(first.keys() | other.keys())
            if first.get(name) != other.get(name)
        ]
        if changed:
            raise CoupledQKError(
                f"the processes of this job have different settings: {', '.join(changed)}; start all with the same command"
            )


def _claim(run: Run, config: RunConfig, stack: ExitStack) -> Whole | None:
    """Locks the folder until `stack` is closed. Returns the state of its logs, or None if the run is finished."""
    run.refuse_other(config)
    stack.enter_context(run.lock())
    run.create(config)
    whole = run.whole()
    return None if run.result and whole.until == math.inf else whole


def _open_task(
    run: Run, config: RunConfig, mesh: Mesh, preparing: Callable[[], AbstractContextManager[OnBytes]]
) -> RunTask:
    """Opens the task. The first process prepares the data while the others wait."""
    opened: list[RunTask] = []

    def prepare() -> str:
        with preparing() as on_bytes:
            opened.append(TASKS[config.task.kind](config, on_bytes))
        _refuse_other_data(run, opened[0])
        return opened[0].about["hash"]

    with announced("waiting for the first process to prepare the data") if mesh.rank == 1 else nullcontext():
        content = mesh.from_first(prepare, patient=True)
    task = opened[0] if opened else TASKS[config.task.kind](config, None)
    if not all(mesh.gather(task.about["hash"] == content)):
        raise CoupledQKError(
            f"{task.about['corpus']} differs between the processes of this job: give all of them the same files"
        )
    return task


def _refuse_other_data(run: Run, task: RunTask) -> None:
    if run.info and run.info["corpus"]["hash"] is None:
        raise CoupledQKError(
            f"{run.path} was imported and cannot be resumed: start a new run with --init-from {run.path}"
        )
    if run.info and run.info["corpus"]["hash"] != task.about["hash"]:
        raise CoupledQKError(
            f"{task.about['corpus']} has changed since {run.path} was started: restore it, or choose another --out"
        )
    before = run.info["corpus"].get("sample_hash") if run.info else None  # old runs and other tasks have none
    if before is not None and before != task.about.get("sample_hash"):
        raise CoupledQKError(
            f"{task.about['corpus']} gives other tokens than when {run.path} was started: restore the corpus that the "
            "tokenizer was trained on and the version of the package tokenizers, or choose another --out"
        )


LONG_RUN = 2e14
"""Minimum number of floating-point operations of a run that is compiled by default: about half an hour on two cores. Compiling
a model of 60 million parameters took half a minute and was repaid after 1.2e14 operations (docs/performance.md)."""


def _decided(config: RunConfig, device: torch.device, mesh: Mesh) -> RunConfig:
    """The configuration with `compile` set to true or false. The decision depends only on the configuration and the machine, so
    that a resumed run is compiled if it was before."""
    if config.runtime.compile is not None:
        return config
    train, model = config.train, config.model
    usual = device.type == "cpu" and mesh.world == 1 and config.task.kind == "lm"
    work = train.steps * train.batch_size * train.seq_len * flops(model, train.seq_len).training if usual else 0.0
    return change(config, {"runtime.compile": work >= LONG_RUN and can_compile()})


def _describe(run: Run, model: nn.Module, task: RunTask) -> None:
    """Writes the description of the run to its folder, before it starts or resumes."""
    for name, text in task.files.items():
        run.write_json(name, json.loads(text))
    starts = [*run.info.get("starts", ()), origin()]
    run.write_json("info.json", {**run_info(run.path.name, run.config, model, task.about), "starts": starts})


def _finish(run: Run, task: RunTask, model: nn.Module, device: torch.device) -> None:
    with torch.no_grad(), autocast(device, run.config):
        measures = task.final_measures(model)
    run.verify_lock()
    run.write_json("result.json", {**summarise(run, task), **measures})


def run_info(name: str, config: RunConfig, model: nn.Module, about: dict[str, Any]) -> dict[str, Any]:
    """Information about the model and the data (`about`) of a run, for its info.json."""
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
