"""The training loop. It is independent of models and data, which a Task provides, and reports its progress as events.

It can be killed at any time and resumed bit-identically (with the same threads, torch and kind of device): each batch is a
function of (seed, step), so the state consists of the weights, the optimizer, the loss scaler and two counters.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..config import RunConfig
from ..errors import DivergedError
from ..loss import IGNORED
from .checkpoints import Checkpoints
from .compilation import compiler_errors
from .events import Evaluating, Evaluation, Event, Finished, Saving, Started, Step, Stopped
from .mesh import SINGLE, Batch, Mesh
from .optimizer import build_optimizer, lr_at
from .sharded import whole
from .state_files import restore

AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

ALL = slice(None)


class Task(Protocol):
    """The interface of tasks: the model and data of a training run."""

    chance_loss: float
    """Loss of a uniform prediction. A run whose loss stays more than 1 above it counts as diverged."""

    def batch(self, step: int, rows: slice = ALL) -> Batch:
        """Some rows of the global batch of a step. It is a pure function, so there is no loader state to save."""
        ...

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        """The loss summed over targets; the loop divides it by the number of targets in the global batch."""
        ...

    def evaluate(self, model: nn.Module, mesh: Mesh = SINGLE) -> dict[str, Any]:
        """Metrics on held-out data, including "loss", for which lower is better.

        Batches are distributed over processes with `mesh.deal`, and sums over batches are added with `mesh.totals`.
        """
        ...


def train(
    model: nn.Module,
    task: Task,
    config: RunConfig,
    checkpoints: Checkpoints,
    stop: Callable[[], bool] = lambda: False,
    mesh: Mesh = SINGLE,
) -> Iterator[Event]:
    """Trains from the newest checkpoint, or from the given weights, to the last step or until any process' `stop()` is true."""
    device = next(model.parameters()).device
    start, state, notes = checkpoints.load_newest(model)
    fast_model = mesh.wrap(model, bool(config.runtime.compile))
    if config.runtime.compile:
        notes = [*notes, "the model is compiled in the first step, which takes half a minute or more"]
    optimizer = build_optimizer(model, config.train)
    scaler = torch.amp.GradScaler(device.type, enabled=config.train.precision == "fp16")
    best = math.inf
    if state:
        restore(optimizer, state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        best = state["best"]
    yield Started(start, device, tuple(notes))

    watch = DivergenceWatch(task.chance_loss, checkpoints)
    done, unvalidated = start, state.get("unvalidated_tokens")  # set if the run was stopped during a validation
    try:
        with compiler_errors(), stoppable(fast_model, stop, mesh):
            for done in range(start + (unvalidated is None), config.train.steps + 1):
                last = done == config.train.steps
                if unvalidated is None:
                    update = take_step(fast_model, task, optimizer, scaler, config, done - 1, watch, mesh)
                    yield update
                    unvalidated = update.tokens
                if last or done % config.train.eval_every == 0:
                    yield Evaluating(done)
                    metrics = evaluate(fast_model, task, config, device, mesh)
                    watch.validation(done, metrics["loss"])
                    if metrics["loss"] < best:
                        best = metrics["loss"]
                        checkpoints.save_best(done, model, metrics)
                    yield Evaluation(done, unvalidated, metrics)
                unvalidated = None
                if not last and mesh.any(stop()):
                    done += 1  # the handler subtracts the step that has not begun
                    raise StopRequestedError
                if last or done % config.runtime.save_every == 0:
                    yield Saving(done)
                    checkpoints.save(done, model, training_state(optimizer, scaler, best))
    except StopRequestedError:
        done -= unvalidated is None
        if done > start:
            yield Saving(done)
            checkpoints.save(done, model, training_state(optimizer, scaler, best, unvalidated))
        yield Stopped(done)
        return
    yield Finished(config.train.steps)


class StopRequestedError(Exception):
    """The user asked to stop during a step or an evaluation."""


@contextmanager
def stoppable(model: nn.Module, stop: Callable[[], bool], mesh: Mesh) -> Iterator[None]:
    """Checks `stop()` before each forward pass, so that a long step or evaluation can be interrupted.

    With several processes this does nothing, since all of them must stop at the same step; the loop checks after each step.
    """

    def ask(*arguments: object) -> None:
        if stop():
            raise StopRequestedError

    hook = model.register_forward_pre_hook(ask) if mesh.world == 1 else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def training_state(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, best: float, unvalidated: int | None = None
) -> dict[str, Any]:
    """The state in a checkpoint except for the weights. `unvalidated` is the number of tokens seen so far if the validation
    after the last step is still pending."""
    state = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "best": best}
    return state if unvalidated is None else {**state, "unvalidated_tokens": unvalidated}


def take_step(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    config: RunConfig,
    step: int,
    watch: "DivergenceWatch",
    mesh: Mesh = SINGLE,
) -> Step:
    """Takes one optimizer step on the global batch, accumulating gradients over micro-batches."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    device = parameters[0].device
    lr = lr_at(step, config.train)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)  # missing in old checkpoints

    batch = mesh.even(task.batch(step, mesh.rows), config.train.batch_size)
    batch = tuple(rows.to(device, non_blocking=True) for rows in batch)
    n_targets = mesh.sum((batch[-1] != IGNORED).sum())
    loss = torch.zeros((), device=device)
    micros = list(zip(*(rows.split(config.runtime.micro_batch or len(rows)) for rows in batch), strict=True))
    for i, micro in enumerate(micros, 1):
        with mesh.gradients(model, last=i == len(micros)):
            with autocast(device, config):
                micro_loss = task.loss_sum(model, micro) / n_targets
            scaler.scale(micro_loss).backward()
        loss += micro_loss.detach()
    loss = mesh.sum(loss)
    watch.loss(step + 1, float(loss))

    scaler.unscale_(optimizer)
    grad_norm = float(whole(nn.utils.clip_grad_norm_(parameters, config.train.clip)))
    watch.gradient(step + 1, grad_norm, may_overflow=scaler.is_enabled())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    tokens = (step + 1) * config.train.batch_size * batch[0][0].numel()
    return Step(step + 1, tokens, float(loss), lr, grad_norm, skipped=not math.isfinite(grad_norm))


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, config: RunConfig, device: torch.device, mesh: Mesh) -> dict[str, Any]:
    with autocast(device, config):
        return task.evaluate(model, mesh)


def autocast(device: torch.device, config: RunConfig) -> torch.autocast:
    precision = config.train.precision
    return torch.autocast(device.type, AUTOCAST[precision], enabled=precision != "fp32")


class DivergenceWatch:
    """Stops a diverged run before its weights or checkpoints are overwritten."""

    PATIENCE = 20

    def __init__(self, chance_loss: float, checkpoints: Checkpoints) -> None:
        self.limit, self.checkpoints = chance_loss + 1, checkpoints
        self.bad_losses = self.overflows = 0

    def validation(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            self._fail(step, f"the validation loss became {loss}")

    def loss(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            self._fail(step, f"the loss became {value}")
        self.bad_losses = self.bad_losses + 1 if value > self.limit else 0
        if self.bad_losses == self.PATIENCE:
            self._fail(step, f"the loss stayed above {self.limit:.2f}, worse than chance, for {self.PATIENCE} steps")

    def gradient(self, step: int, norm: float, may_overflow: bool) -> None:
        """Raises if the gradient is not finite. Scaled fp16 gradients may overflow for some steps: their updates are skipped,
        and the loss scale is reduced."""
        self.overflows = 0 if math.isfinite(norm) else self.overflows + 1
        if self.overflows and (not may_overflow or self.overflows == self.PATIENCE):
            self._fail(step, f"the gradient became {norm}")

    def _fail(self, step: int, what: str) -> None:
        # The loss at step s is computed with the weights after s - 1 updates.
        good = self.checkpoints.newest(before=step - max(1, self.bad_losses))
        kept = f"the last good checkpoint is {good}" if good else "there is no good checkpoint"
        raise DivergedError(
            f"{what} at step {step}; {kept}. Try a lower lr, a longer warmup, or precision=bf16 or fp32, in another --out"
        )
