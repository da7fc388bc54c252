"""Writes a report on outcome files, folders of outcome files, or run folders."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import CoupledQKError
from ..outcome_file import outcomes_at
from ..run_folder import find_runs
from .figures import write_figures
from .lab_page import ENDINGS, count, write_report
from .runs_page import write_page
from .snapshot import has_metrics


def write_document(paths: Sequence[Path], out: Path, figures: Path | None = None) -> list[str]:
    """Writes the report, and its charts to the folder `figures` if given. Returns messages about the files it has written."""
    if not paths:
        raise CoupledQKError(
            "nothing to report on: name outcome files, a folder such as lab or results/lab, or run folders"
        )
    check_out(out)
    found = {path: outcomes_at(path) for path in paths}
    outcomes = [outcome for there in found.values() for outcome in there]
    if not outcomes:
        return _write_runs(paths, out, figures)
    if empty := [path for path, there in found.items() if not there]:
        raise CoupledQKError(
            f"{empty[0]} contains no outcome, but other paths do: report on experiments or on runs, not on both"
        )
    written = write_figures(outcomes, figures) if figures else []
    write_report(outcomes, out, figures)
    lines = [count(outcomes), str(out)]
    if written:
        lines.append(f"{figures}: {len(written)} figures")
        if not any(path.suffix == ".pdf" for path in written):
            lines.append("no PDF figures were written; they need matplotlib: pip install 'coupledqk[plot]'")
    return lines


def check_out(out: Path) -> None:
    if out.suffix not in ENDINGS or out.is_dir():
        raise CoupledQKError(f"--out {out}: expected a file name that ends in {', '.join(ENDINGS)}")


def _write_runs(paths: Sequence[Path], out: Path, figures: Path | None) -> list[str]:
    if out.suffix != ".html" or figures:
        raise CoupledQKError(
            "run folders are reported as HTML: leave out --figures, and give a name ending in .html as --out"
        )
    found = [run for path in paths for run in find_runs(path)]
    if not found:
        raise CoupledQKError(f"{', '.join(map(str, paths))}: found neither an outcome of an experiment nor a run")
    runs = [run.path for run in found if run.path in paths or has_metrics(run)]
    if not runs:
        raise CoupledQKError(f"{', '.join(map(str, paths))}: no run has metrics yet: wait for the first log line")
    write_page(runs, out, f"{len(runs)} runs" if len(runs) > 1 else runs[0].name)
    left_out = len(found) - len(runs)
    return [
        str(out),
        *([f"left out, since they have no metrics yet: {left_out} of {len(found)} runs"] if left_out else []),
    ]
