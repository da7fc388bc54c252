"""Progress of a queue: a bar for every running cell on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from ..run_folder import RunFolder
from .cells import Cell
from .estimates import work

SECONDS_BETWEEN_LINES = 30.0


class GridProgress:
    """An `Overview`. The remaining time is estimated from the FLOPs done and those that remain."""

    def __init__(self) -> None:
        self.bars: Any = _bars() if sys.stderr.isatty() else None
        self.next_line = 0.0

    def begin(self, cells: Sequence[Cell], finished: int) -> None:
        self.work = {cell.name: work(cell.config) for cell in cells}
        self.done: dict[str, float] = {}
        self.skipped: dict[str, float] = {}
        """By cell, the share that was done before this queue was started."""
        self.dropped = 0.0
        """FLOPs spent on cells that did not finish."""
        self.finished, self.total = finished, finished + len(cells)
        self.began = time.monotonic()
        self.tasks: dict[str, Any] = {}
        if self.bars is not None:
            self.bars.start()
            self.whole = self.bars.add_task("all", total=self.total, completed=finished, text="")
        if finished:
            self._say(f"{finished} of {self.total} runs were finished before")

    def started(self, cell: Cell) -> None:
        if self.bars is not None:
            self.tasks[cell.name] = self.bars.add_task(
                f"{cell.label} seed {cell.seed}", total=cell.config.train.steps, text=""
            )

    def step(self, cell: Cell, step: int) -> None:
        share = step / cell.config.train.steps
        self.skipped.setdefault(cell.name, share)
        self.done[cell.name] = share
        if self.bars is not None:
            self.bars.update(self.tasks[cell.name], completed=step)
            self.bars.update(self.whole, text=self._left())
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            self._say(
                f"{self._count()}  {cell.label} seed {cell.seed}: step {step}/{cell.config.train.steps}  {self._left()}"
            )

    def ended(self, cell: Cell, run: RunFolder, how: str, error: str | None) -> None:
        if how == "finished":
            self.finished += 1
            self.done[cell.name] = 1.0
        else:
            self.dropped += self.work.pop(cell.name) * (
                self.done.pop(cell.name, 0.0) - self.skipped.get(cell.name, 0.0)
            )
        if self.bars is not None:
            self.bars.remove_task(self.tasks.pop(cell.name))
            self.bars.update(self.whole, completed=self.finished, text=self._left())
        self._say(
            f"{self._count()}  {cell.label} seed {cell.seed}: {_ending(run, how, error)}  {self._left()}".rstrip()
        )

    def end(self) -> None:
        if self.bars is not None:
            self.bars.stop()

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

    def _say(self, line: str) -> None:
        if self.bars is not None:
            self.bars.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)


class Silent:
    """An `Overview` that shows nothing."""

    def begin(self, cells: Sequence[Cell], finished: int) -> None: ...

    def started(self, cell: Cell) -> None: ...

    def step(self, cell: Cell, step: int) -> None: ...

    def ended(self, cell: Cell, run: RunFolder, how: str, error: str | None) -> None: ...

    def end(self) -> None: ...


def _ending(run: RunFolder, how: str, error: str | None) -> str:
    if how != "finished":
        return f"{how}: {error}" if error else how
    best = run.result["best"]
    name = "perplexity" if "perplexity" in best else "accuracy"
    return f"{name} {best[name]:.4g} in {duration(run.result['seconds'] or 0)}"


def duration(seconds: float) -> str:
    """For example 45 s, 12 min, 3.5 h or 6.2 days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True))
