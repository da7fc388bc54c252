"""Shows the progress of training on a terminal or in a notebook."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..config import RunConfig
from ..measure import Measure
from ..terminal import Bars, duration
from ..training.events import Evaluating, Evaluation, Event, Listener, Started, Step


@contextmanager
def training_progress(label: str, config: RunConfig) -> Iterator[Listener]:
    """An event consumer that shows a bar with loss, validation measure, time left and speed, or prints a line every few
    seconds."""
    with Bars() as bars:
        yield _Progress(bars, label, config.train.steps, config.task.measure)


class _Progress:
    def __init__(self, bars: Bars, label: str, steps: int, measure: Measure) -> None:
        self.bars, self.label, self.steps, self.measure = bars, label, steps, measure
        self.loss = self.valid = ""
        self.began: tuple[float, int] | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case Started(step, _, notes):
                self.bars.say(*notes)
                if step:
                    self.bars.say(f"{self.label}: resuming from step {step}")
                self.bar = self.bars.add(self.label, self.steps, step)
            case Step(step, tokens, loss):
                self.loss = f"loss {loss:.3f}"
                self.bars.update(self.bar, step, self.loss, self.valid, *self._speed(step, tokens))
            case Evaluating(step):
                self.bars.update(self.bar, step, self.loss, "validating", self.valid)
            case Evaluation(step, _, metrics):
                self.valid = f"valid {self.measure.name} {self.measure.show(metrics[self.measure.key])}"
                if not self.bars.drawn:
                    self.bars.say(f"{self.label}  {step}/{self.steps}  {self.valid}")

    def _speed(self, step: int, tokens: int) -> tuple[str, ...]:
        """The time left, and the tokens per second including evaluation. The first step is excluded, since it may
        include compilation."""
        now = time.monotonic()
        if self.began is None:
            self.began = now, step
            return ()
        seconds, done = max(now - self.began[0], 1e-9), step - self.began[1]
        left = seconds / done * (self.steps - step)
        return f"{duration(left)} left", f"{tokens / step * done / seconds:,.0f} tok/s"
