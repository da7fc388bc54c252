"""Trains the cells of plans. Cells that finished or diverged are skipped, interrupted cells are resumed, and a failed cell
does not stop others."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..config import RunConfig
from ..errors import CoupledQKError
from ..outcome import CellRecord
from ..outcome_file import read
from ..run_folder import RunFolder
from .cells import Cell, Plan, failure, make_plan, status, with_needed
from .engine import Engine, Message
from .experiment import Scale
from .reuse import write_outcome

POLL_SECONDS = 0.5


class Overview(AbstractContextManager[Any], Protocol):
    """Shows the progress of a queue. It is a context manager, so that the terminal is always restored."""

    def note(self, text: str) -> None:
        """Called with notes for the user, before the queue begins and after it has ended."""
        ...

    def begin(self, cells: Sequence[Cell], finished: int, total: int) -> None:
        """Called once, with the cells to train, the number of cells that are already finished, and the number of all cells."""
        ...

    def started(self, cell: Cell) -> None: ...

    def step(self, cell: Cell, step: int) -> None: ...

    def busy(self, cell: Cell, doing: str) -> None:
        """Called when the run does something other than training, such as validating."""
        ...

    def ended(self, cell: Cell, run: RunFolder, how: str, error: str | None) -> None: ...


@dataclass
class Queue:
    """The cells of some plans, each once, and their state."""

    plans: Sequence[Plan]
    cells: dict[str, Cell]
    waiting: list[Cell]
    running: dict[Path, Cell] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    """The reason why a cell did not finish, by the name of the cell."""
    stopped: bool = False
    """Whether the user stopped the queue."""
    complete: bool = False
    """Whether no more runs are needed, even if some cells are not finished."""
    fit_together: Callable[[Sequence[RunConfig]], bool] = lambda configs: True
    """Whether several runs can be trained at the same time. A single run is always started."""

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> "Queue":
        """The queue of some plans, ordered by seed, so that all rows can be compared after the first few seeds."""
        by_seed = sorted((cell for plan in plans for cell in plan.own_cells), key=lambda cell: cell.seed)
        cells = {cell.name: cell for cell in with_needed(by_seed)}
        queue = cls(plans, cells, [])
        for cell in cells.values():
            why = failure(queue.run(cell))
            if why.get("diverged"):  # divergence is a result: training is deterministic, so it would diverge again
                queue.troubles[cell.name] = why["error"]
            elif status(queue.run(cell)) != "finished":
                queue.waiting.append(cell)
        return queue

    def run(self, cell: Cell) -> RunFolder:
        return self.plans[0].run(cell)

    @property
    def failed(self) -> bool:
        """Whether a run did not finish for a reason other than divergence."""
        return len(self.diverged) < len(self.troubles)

    @property
    def diverged(self) -> list[str]:
        """The names of the cells that diverged."""
        return [name for name in self.troubles if failure(self.run(self.cells[name])).get("diverged")]

    def leave_out(self, labels: Mapping[str, Collection[str]]) -> None:
        """Removes the runs of rows from the queue unless they also belong to another row. `labels` are those of the rows, by
        the name of the experiment."""
        kept: dict[str, bool] = {}
        for plan in self.plans:
            for cell in plan.cells:
                stays = cell.label not in labels.get(plan.experiment.name, ())
                kept[cell.name] = kept.get(cell.name, False) or stays
        self.waiting = [cell for cell in self.waiting if kept.get(cell.name, True)]

    def forget_finished(self) -> None:
        """Removes from `troubles` the cells that another process has finished in the meantime."""
        for name in list(self.troubles):
            if status(self.run(self.cells[name])) == "finished":
                del self.troubles[name]

    def next(self) -> Cell | None:
        """The next cell that can start beside the running ones. Cells whose prerequisite did not finish are skipped."""
        running = [cell.config for cell in self.running.values()]
        for cell in list(self.waiting):
            if running and not self.fit_together([*running, cell.config]):
                continue
            needed = cell.needs
            if needed is not None and status(self.run(needed)) != "finished":
                if needed.name in self.troubles:
                    self.waiting.remove(cell)
                    self.troubles[cell.name] = f"it starts from {needed.name}, which is not finished"
                continue
            self.waiting.remove(cell)
            if status(self.run(cell)) != "running":
                return cell
            self.troubles[cell.name] = "another process is training it"
        return None


def run_queue(
    queue: Queue,
    engine: Engine,
    overview: Overview,
    stop: Callable[[], bool] = lambda: False,
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Trains every cell that is not finished. A plan's outcome is written after each of its cells and at the end.

    `stop` returns whether the user has asked to stop. `done` is called before the first run and after each run, and returns
    whether no more runs are needed.
    """
    for plan in queue.plans:
        write_outcome(plan)
    try:
        with overview:
            total = len(queue.cells)
            overview.begin(queue.waiting, total - len(queue.waiting) - len(queue.troubles), total)
            _train_all(queue, engine, overview, stop, done)
    finally:
        engine.close()
        queue.forget_finished()
        for plan in queue.plans:
            write_outcome(plan)


def _train_all(
    queue: Queue, engine: Engine, overview: Overview, stop: Callable[[], bool], done: Callable[[], bool]
) -> None:
    queue.complete = done()
    while True:
        if stop() and not queue.stopped:
            queue.stopped = True
            engine.stop()
        while not (queue.stopped or queue.complete) and engine.free() and (cell := queue.next()):
            queue.running[queue.run(cell).path] = cell
            engine.start(cell.config, queue.run(cell).path)
            overview.started(cell)
        if not queue.running:
            return
        for message in engine.wait(POLL_SECONDS):
            on_message(message, queue, overview)
            if message.kind != "step" and not queue.complete and done():
                queue.complete = True
                engine.stop()


def on_message(message: Message, queue: Queue, overview: Overview) -> None:
    cell = queue.running[message.folder]
    if message.kind == "step":
        if message.doing:
            overview.busy(cell, message.doing)
        else:
            overview.step(cell, message.step)
        return
    del queue.running[message.folder]
    if message.kind != "finished" and not (queue.complete and message.kind == "interrupted"):
        queue.troubles[cell.name] = message.error or "stopped on request"
    overview.ended(cell, queue.run(cell), message.kind, message.error)
    for plan in queue.plans:
        if any(cell.name == each.name for each in plan.cells):
            write_outcome(plan)


def stale(plan: Plan) -> list[str]:
    """Names of runs in the last outcome of this experiment that are no longer in its grid. They are kept on disk."""
    earlier, names = _last_cells(plan), {cell.name for cell in plan.cells}
    if isinstance(plan.scale, Scale) and (seeds := sorted({cell.seed for cell in earlier})):
        rows = plan.known_labels
        names |= {cell.name for cell in make_plan(plan.experiment, plan.scale_name, plan.out, seeds, rows=rows).cells}
    return [cell.name for cell in earlier if cell.name not in names and (plan.out / "runs" / cell.name).is_dir()]


def left_out(plan: Plan) -> dict[str, list[int]]:
    """Seeds with a finished run in the last outcome of this experiment that the plan neither contains nor reuses, by label."""
    found: dict[str, list[int]] = {}
    kept, labels = {(cell.label, cell.seed) for cell in plan.cells} | plan.reused_results, plan.known_labels
    for cell in _last_cells(plan):
        if cell.status == "finished" and cell.label in labels and (cell.label, cell.seed) not in kept:
            found.setdefault(cell.label, []).append(cell.seed)
    return found


def _last_cells(plan: Plan) -> Sequence[CellRecord]:
    try:
        return read(plan.outcome).cells
    except CoupledQKError:
        return ()  # there is no readable outcome yet
