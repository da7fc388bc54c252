"""The page that follows training: current progress, curves and step sizes of running and finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CoupledQKError
from ..measure import Measure
from ..run_folder import RunFolder, task_name
from ..terminal import duration
from .baselines import NOTE, baselines_table, models_of_runs
from .listing import runs_in
from .page import render, render_part
from .runs_page import HeadTable, head_tables, learning_curves, short_names
from .snapshot import Snapshot
from .tables import Table

MOST_CURVES = 8
"""Maximum number of curves in one chart; more would be hard to distinguish."""
RECENT = 20
"""Number of most recent timings from which the time left is estimated."""


@dataclass(frozen=True)
class Progress:
    """One row of the table of runs."""

    name: str
    status: str
    step: int
    steps: int
    value: str
    """The best validation so far."""
    loss: float | None
    """The last training loss."""
    tokens_per_second: float | None
    left: str
    """Time left, if the run is running and it can be estimated."""

    @property
    def percent(self) -> float:
        return 100 * self.step / max(self.steps, 1)


@dataclass(frozen=True)
class Group:
    """Runs of one task, which can be compared."""

    title: str
    measure: Measure
    rows: list[Progress]
    charts: list[str]
    baselines: Table | None
    head_tables: list[HeadTable]
    left_out: int
    """Number of runs that the charts leave out."""


def watch_page(paths: Sequence[Path]) -> str:
    """The whole page. Its script requests updated parts from the server."""
    scripts = ("hover.js", "watch.js")
    return render(
        "watch.html", styles=("page.css", "watch.css"), scripts=scripts, title="Training runs", part=watch_part(paths)
    )


def watch_part(paths: Sequence[Path]) -> str:
    """The part of the page that changes while runs are trained."""
    snapshots, waiting = [], []
    for run in runs_below(paths):
        try:
            snapshots.append((run, Snapshot.read(run.path)))
        except CoupledQKError as reason:  # the run has just started or is damaged; the others can still be followed
            waiting.append((run.path.name, str(reason)))
    return render_part("watch_part.html", groups=_groups(snapshots), waiting=waiting, baselines_note=NOTE)


def runs_below(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs in some folders and their subfolders. Raises if there are none."""
    if not paths:
        raise CoupledQKError("no folder given: name run folders or folders of runs, such as `coupledqk watch runs`")
    runs = runs_in(paths)
    if not runs:
        raise CoupledQKError(
            f"{', '.join(map(str, paths))}: contains no run; `coupledqk train --out FOLDER` starts one"
        )
    return runs


def fingerprint(paths: Sequence[Path]) -> list[tuple[str, ...]]:
    """A value that changes whenever the content of the page may have changed."""
    names = ("info.json", "metrics.jsonl", "timing.jsonl", "result.json")
    found = []
    for run in runs_below(paths):
        stats = [(run.path / name).stat() for name in names if (run.path / name).is_file()]
        found.append((str(run.path), _status(run), *(f"{stat.st_mtime_ns} {stat.st_size}" for stat in stats)))
    return found


def _status(run: RunFolder) -> str:
    """The status of a run, or the reason why it cannot be read: a damaged run does not hide the others."""
    try:
        return run.status
    except CoupledQKError as reason:
        return str(reason)


def _groups(snapshots: Sequence[tuple[RunFolder, Snapshot]]) -> list[Group]:
    by_task: dict[tuple[str, ...], list[tuple[RunFolder, Snapshot]]] = {}
    for run, snapshot in snapshots:
        corpus = snapshot.info.get("corpus", {})
        key = (
            task_name(snapshot.config),
            snapshot.config.task.measure.name,
            str(corpus.get("hash")),
            str(corpus.get("tokenizer")),
        )
        by_task.setdefault(key, []).append((run, snapshot))
    return [_group(members) for members in by_task.values()]


def _group(members: Sequence[tuple[RunFolder, Snapshot]]) -> Group:
    snapshots = [snapshot for _, snapshot in members]
    config, measure = snapshots[0].config, snapshots[0].config.task.measure
    names = short_names(snapshots)
    urgency = [(run.status == "running", _last_start(snapshot)) for run, snapshot in members]
    drawn = sorted(sorted(range(len(members)), key=urgency.__getitem__, reverse=True)[:MOST_CURVES])
    shown_names, shown = [names[i] for i in drawn], [snapshots[i] for i in drawn]
    models = models_of_runs(shown_names, shown)
    return Group(
        title=task_name(config),
        measure=measure,
        rows=[_progress(name, run, snapshot) for name, (run, snapshot) in zip(names, members, strict=True)],
        charts=learning_curves(shown_names, shown, measure, models),
        baselines=baselines_table(models),
        head_tables=head_tables(shown_names, shown),
        left_out=len(members) - len(drawn),
    )


def _last_start(snapshot: Snapshot) -> str:
    """The date of the last start of a run as sortable text; empty if it is not known."""
    starts = snapshot.info.get("starts") or [{}]
    return str(starts[-1].get("started", ""))


def _progress(name: str, run: RunFolder, snapshot: Snapshot) -> Progress:
    measure, steps = snapshot.config.task.measure, snapshot.config.train.steps
    last = [records[-1]["step"] for records in (snapshot.train, snapshot.valid) if records]
    step, status = max(last, default=0), run.status
    return Progress(
        name=name,
        status=status,
        step=step,
        steps=steps,
        value=measure.show(snapshot.best[measure.key] if snapshot.best else None),
        loss=snapshot.train[-1]["loss"] if snapshot.train else None,
        tokens_per_second=snapshot.tokens_per_second,
        left=_time_left(snapshot, steps) if status == "running" else "",
    )


def _time_left(snapshot: Snapshot, steps: int) -> str:
    """The time left, estimated from the wall-clock time of the last steps, including evaluation and saving."""
    recent = snapshot.timings[-RECENT:]
    if len(recent) < 2 or recent[-1]["step"] <= recent[0]["step"]:
        return ""
    per_step = (recent[-1]["seconds"] - recent[0]["seconds"]) / (recent[-1]["step"] - recent[0]["step"])
    return duration(per_step * (steps - recent[-1]["step"])) if per_step > 0 else ""
