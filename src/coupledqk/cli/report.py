"""coupledqk report"""

from dataclasses import dataclass
from pathlib import Path

from ..report.documents import write_document
from .plugin import WithPlugin


@dataclass(frozen=True)
class Report(WithPlugin):
    """Report on experiments or runs: one HTML page that needs no network, Markdown, or LaTeX tables.

    Try it:

        coupledqk report lab                              all experiments in a laboratory folder
        coupledqk report lab/ablation-mini.json -o ablation.md --figures figures
        coupledqk report results/lab -o tables.tex
        coupledqk report runs/NAME runs/OTHER             run folders side by side
        coupledqk report here/qk-norm-mini.json there/qk-norm-mini.json --merge qk-norm-mini.json
    """

    paths: tuple[Path, ...]
    """Outcome files, folders of outcome files, or run folders."""
    out: Path = Path("report.html")
    """File to write, -o for short: its name ends in .html, .md or .tex."""
    figures: Path | None = None
    """Also write the curves to this folder, as SVG and PDF."""
    merge: Path | None = None
    """Merge outcome files of one experiment, trained with different seeds, into this file, and report on it."""

    def run(self) -> None:
        paths = self.paths
        if self.merge is not None:
            from ..lab.merge import merge_files

            merge_files(paths, self.merge)
            paths = (self.merge,)
        print("\n".join(write_document(paths, self.out, self.figures)))
