"""coupledqk report"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CoupledQKError
from ..outcome import Outcome, read, read_all
from ..report.figures import write_figures
from ..report.lab_page import ENDINGS, count, write_report
from ..report.runs_page import write_page
from ..run_folder import find_runs


@dataclass(frozen=True)
class Report:
    """Write what experiments or runs came to: one HTML page that needs no network, Markdown, or LaTeX tables.

    Try it:

        coupledqk report lab                              all experiments of a laboratory's folder
        coupledqk report lab/ablation-mini.json -o ablation.md --figures figures
        coupledqk report results -o tables.tex
        coupledqk report runs/NAME runs/OTHER             run folders side by side
    """

    paths: tuple[Path, ...]
    """Outcome files, folders that hold some, or run folders."""
    out: Path = Path("report.html")
    """What to write, -o for short: a name that ends in .html, .md or .tex."""
    figures: Path | None = None
    """Also write the curves into this folder, as SVG and PDF."""

    def run(self) -> None:
        if not self.paths:
            raise CoupledQKError("report on what? Name outcome files, a folder such as lab or results, or run folders")
        if self.out.suffix not in ENDINGS or self.out.is_dir():
            raise CoupledQKError(f"--out {self.out}: expected a file name that ends in {', '.join(ENDINGS)}")
        outcomes = [outcome for path in self.paths for outcome in outcomes_at(path)]
        if not outcomes:
            self._report_runs()
            return
        if runs := [str(path) for path in self.paths if not list(outcomes_at(path))]:
            raise CoupledQKError(
                f"{runs[0]} holds no outcome, others do: report on experiments or on runs, not on both"
            )
        written = write_figures(outcomes, self.figures) if self.figures else []
        write_report(outcomes, self.out, self.figures)
        print(f"{count(outcomes)}\n{self.out}")
        if written:
            print(f"{self.figures}: {len(written)} figures")
        if written and not any(path.suffix == ".pdf" for path in written):
            print("No PDF: they need matplotlib, pip install 'coupledqk[plot]'")

    def _report_runs(self) -> None:
        if self.out.suffix != ".html" or self.figures:
            raise CoupledQKError("run folders are reported as a page: leave out --figures, and let --out end in .html")
        runs = [run.path for path in self.paths for run in find_runs(path)]
        if not runs:
            raise CoupledQKError(
                f"{', '.join(map(str, self.paths))}: found no outcome of an experiment and no run there"
            )
        write_page(runs, self.out, f"{len(runs)} runs" if len(runs) > 1 else runs[0].name)
        print(self.out)


def outcomes_at(path: Path) -> Iterator[Outcome]:
    """The outcome in a file, those in a folder, or none where a folder holds runs alone."""
    if not path.exists():
        raise CoupledQKError(f"{path}: no such file or folder; `coupledqk reproduce` and `coupledqk train` make some")
    yield from read_all(path) if path.is_dir() else [read(path)]
