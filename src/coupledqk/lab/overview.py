"""Shows the progress of a queue: a progress bar for every running cell on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Self

from ..run_folder import RunFolder
from ..terminal import Bars, duration
from .cells import Cell
from .estimates import work

SECONDS_BETWEEN_LINES = 30.0


class GridProgress:
    """An `Overview`. The remaining time is estimated from the FLOPs done and those that remain."""

    def __init__(self) -> None:
        self.bars = Bars(SECONDS_BETWEEN_LINES)

    def __enter__(self) -> Self:
        self.bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.__exit__(None, None, None)

    def note(self, text: str) -> None:
        self.bars.say(text)

    def begin(self, cells: Sequence[Cell], finished: int, total: int) -> None:
        self.work = {cell.name: work(cell.config) for cell in cells}
        self.done: dict[str, float] = {}
        self.skipped: dict[str, float] = {}
        """The share of each cell that was done before this queue was started."""
        self.dropped = 0.0
        """FLOPs spent on cells that did not finish."""
        self.finished, self.total = finished, total
        self.began = time.monotonic()
        self.tasks: dict[str, int] = {}
        self.whole = self.bars.add("all", self.total, finished)
        if finished:
            self.bars.say(f"{finished} of {self.total} runs are already finished")

    def started(self, cell: Cell) -> None:
        self.tasks[cell.name] = self.bars.add(f"{cell.label} seed {cell.seed}", cell.config.train.steps)

    def step(self, cell: Cell, step: int) -> None:
        share = step / cell.config.train.steps
        self.skipped.setdefault(cell.name, share)
        self.done[cell.name] = share
        if self.bars.drawn:
            self.bars.update(self.tasks[cell.name], step)
            self.bars.update(self.whole, self.finished, self._left())
        else:
            self.bars.update(self.tasks[cell.name], step, f"{self._count()} runs finished", self._left())

    def busy(self, cell: Cell, doing: str) -> None:
        steps = round(self.done.get(cell.name, 0.0) * cell.config.train.steps)
        self.bars.update(self.tasks[cell.name], steps, doing)

    def ended(self, cell: Cell, run: RunFolder, how: str, error: str | None) -> None:
        if how == "finished":
            self.finished += 1
            self.done[cell.name] = 1.0
        else:
            self.dropped += self.work.pop(cell.name) * (
                self.done.pop(cell.name, 0.0) - self.skipped.get(cell.name, 0.0)
            )
        self.bars.remove(self.tasks.pop(cell.name))
        if self.bars.drawn:
            self.bars.update(self.whole, self.finished, self._left())
        self.bars.say(
            f"{self._count()}  {cell.label} seed {cell.seed}: {_ending(run, how, error)}  {self._left()}".rstrip()
        )

    def _count(self) -> str:
        return f"{self.finished}/{self.total}"

    def _left(self) -> str:
        worked = self.dropped + sum(
            self.work[name] * (share - self.skipped.get(name, 0.0)) for name, share in self.done.items()
        )
        left = sum(amount * (1 - self.done.get(name, 0.0)) for name, amount in self.work.items())
        if worked <= 0 or not left:
            return ""
        return f"about {duration((time.monotonic() - self.began) * left / worked)} left"


class Silent(nullcontext[None]):
    """An `Overview` that shows nothing."""

    def note(self, text: str) -> None: ...

    def begin(self, cells: Sequence[Cell], finished: int, total: int) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def step(self, cell: Cell, step: int) -> None: ...

    def busy(self, cell: Cell, doing: str) -> None: ...

    def ended(self, cell: Cell, run: RunFolder, how: str, error: str | None) -> None: ...


def _ending(run: RunFolder, how: str, error: str | None) -> str:
    if how != "finished":
        return f"{how}: {error}" if error else how
    best = run.result["best"]
    measure = run.config.task.measure
    return f"{measure.name} {measure.show(best[measure.key])} in {duration(run.result['seconds'] or 0)}"
