"""Progress on a terminal, plain lines elsewhere; and stopping in good order."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .events import Evaluation, Event, Finished, Started, Step, Stopped

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """A consumer of events: a bar with loss, perplexity or accuracy, speed and time left, or a line every few seconds."""

    def __init__(self, label: str, steps: int) -> None:
        self.label, self.steps = label, steps
        self.bar = _bar() if sys.stderr.isatty() else None
        self.valid = ""
        self.next_line = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Started(step, notes):
                self._say(*notes)
                self._start(step)
            case Step():
                self._step(event)
            case Evaluation(step, _, metrics):
                self.valid = _valid(metrics)
                if self.bar is None:
                    self._say(f"{self.label}  step {step}/{self.steps}  {self.valid}")
            case Stopped() | Finished():
                if self.bar is not None:
                    self.bar.stop()

    def _start(self, step: int) -> None:
        self.began, self.first_step = time.monotonic(), step
        if step:
            self._say(f"{self.label}: goes on from step {step}")
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=self.steps, completed=step, text="")

    def _step(self, event: Step) -> None:
        now = time.monotonic()
        steps_done = event.step - self.first_step
        seconds = max(now - self.began, 1e-9)
        text = f"loss {event.loss:.3f}  {self.valid}  {event.tokens / event.step * steps_done / seconds:,.0f} tok/s"
        if self.bar is not None:
            self.bar.update(self.task, completed=event.step, text=text)
        elif now >= self.next_line:
            self.next_line = now + SECONDS_BETWEEN_LINES
            left = seconds / steps_done * (self.steps - event.step)
            self._say(f"{self.label}  step {event.step}/{self.steps}  {text}  {left:.0f} s left")

    def _say(self, *lines: str) -> None:
        for line in lines:
            if self.bar is not None:
                self.bar.console.print(line, highlight=False, markup=False)
            else:
                print(line, file=sys.stderr, flush=True)


def _valid(metrics: dict[str, Any]) -> str:
    """The task's own measure."""
    if "accuracy" in metrics:
        return f"accuracy {metrics['accuracy']:.3f}"
    return f"valid perplexity {metrics['perplexity']:.2f}"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
    )
    return Bar(*columns, console=Console(stderr=True))


@contextlib.contextmanager
def tokenizing() -> Iterator[Callable[[int], None]]:
    """For `prepare`: hears how many bytes are done and shows it. Nothing is shown for a corpus that was ready."""
    if not sys.stderr.isatty():
        yield _tokenizing_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("tokenizing"), BarColumn(bar_width=20), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda done: bar.update(task, completed=done, visible=True)


def _tokenizing_lines() -> Callable[[int], None]:
    next_line = 0.0

    def on_bytes(done: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            print(f"tokenizing: {done / 1e6:,.1f} MB", file=sys.stderr, flush=True)

    return on_bytes


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask for a stop after the current step; a second Ctrl-C interrupts at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nstopping after this step; the run is being saved ...", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
