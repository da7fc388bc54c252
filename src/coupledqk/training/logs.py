"""Event consumers that log: the run folder's logs, TensorBoard, and Weights & Biases."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from ..errors import CoupledQKError
from ..run_folder import RunFolder
from ..sealed import LogWriter
from .events import Evaluation, Event, Listener, Saving, Started, Step
from .memory import PeakMemory


class RunLog:
    """A consumer that writes metrics.jsonl (values that a repeated run reproduces) and timing.jsonl (values that vary)."""

    def __init__(self, run: RunFolder, log_every: int) -> None:
        self.run, self.log_every = run, log_every
        self.files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.files.close()

    def __call__(self, event: Event) -> None:
        match event:
            case Started(step, device):
                self.run.cut_logs(step)
                self.metrics, self.timing = (self._open(f"{name}.jsonl") for name in ("metrics", "timing"))
                self.validated = max((record["step"] for record in self.run.metrics("valid")), default=0)
                self.clock, self.memory = Clock(self.run.timings()), PeakMemory(device)
            case Step(step) if step % self.log_every == 0:
                self.metrics.write({"kind": "train", **train_record(event)})
                timing = {"step": step, **self.clock.read(event.tokens), "peak_memory_mb": self.memory.mb()}
                self.timing.write(timing)
            case Evaluation(step, tokens, metrics):
                if step > self.validated:  # a validation repeated after resuming is already logged
                    self.metrics.write({"kind": "valid", "step": step, "tokens": tokens, **metrics})
                self.clock.pause(tokens)
            case Saving():
                self.metrics.sync()
                self.timing.sync()

    def _open(self, name: str) -> LogWriter:
        log = LogWriter(self.run.path / name)
        self.files.callback(log.close)
        return log


def train_record(event: Step) -> dict[str, Any]:
    record = {"step": event.step, "tokens": event.tokens, "loss": event.loss, "lr": event.lr}
    # JSON cannot represent an infinite or NaN norm.
    return {**record, "skipped": True} if event.skipped else {**record, "grad_norm": event.grad_norm}


class Clock:
    """Seconds since the start of a run, summed over resumes, and tokens per second of training without evaluation."""

    def __init__(self, earlier: list[dict[str, Any]]) -> None:
        self.origin = time.perf_counter() - (earlier[-1].get("seconds") or 0.0 if earlier else 0.0)
        self.mark: tuple[float, int] | None = None

    def read(self, tokens: int) -> dict[str, Any]:
        now = time.perf_counter()
        speed = None
        if self.mark is not None and now > self.mark[0]:
            speed = round((tokens - self.mark[1]) / (now - self.mark[0]), 1)
        self.mark = (now, tokens)
        return {"seconds": round(now - self.origin, 3), "tokens_per_second": speed}

    def pause(self, tokens: int) -> None:
        """Excludes the time since the last event from the training time."""
        self.mark = (time.perf_counter(), tokens)


@contextmanager
def tensorboard(folder: Path) -> Iterator[Listener]:
    """A consumer that logs scalars to TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise CoupledQKError("TensorBoard is not installed: pip install 'coupledqk[tensorboard]'") from None
    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def listen(event: Event) -> None:
            for name, value in scalars(event).items():
                writer.add_scalar(name, value, event.step)
            if isinstance(event, Saving):
                writer.flush()

        yield listen


@contextmanager
def wandb(run: RunFolder) -> Iterator[Listener]:
    """A consumer that logs scalars to Weights & Biases. WANDB_MODE=offline needs no account."""
    try:
        import wandb as library  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CoupledQKError("Weights & Biases is not installed: pip install 'coupledqk[wandb]'") from None
    from ..schema import to_dict

    settings = to_dict(run.config)
    with library.init(project="coupledqk", name=run.path.name, dir=str(run.path), config=settings) as session:

        def listen(event: Event) -> None:
            if values := scalars(event):
                session.log(values, step=event.step)

        yield listen


def scalars(event: Event) -> dict[str, float]:
    """The scalars of an event."""
    if isinstance(event, Step):
        return {f"train/{k}": v for k, v in train_record(event).items() if k in ("loss", "lr", "grad_norm")}
    if isinstance(event, Evaluation):
        return {f"valid/{k}": v for k, v in event.metrics.items() if isinstance(v, float)}
    return {}
