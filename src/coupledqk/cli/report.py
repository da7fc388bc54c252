"""coupledqk report"""

from dataclasses import dataclass
from pathlib import Path

from ..report.documents import check_out, write_document
from .plugin import WithPlugin


@dataclass(frozen=True)
class Report(WithPlugin):
    """Report on experiments or runs: one HTML page that works offline, Markdown, or LaTeX tables.

    Try it:

        coupledqk report lab                              # all experiments in a laboratory folder
        coupledqk report lab/ablation-mini.json -o ablation.md --figures figures
        coupledqk report results/lab -o tables.tex
        coupledqk report runs/NAME runs/OTHER             # run folders side by side
        coupledqk report here/qk-norm-mini.json there/qk-norm-mini.json --merge qk-norm-mini.json
    """

    paths: tuple[Path, ...]
    """Outcome files, folders of outcome files, or run folders."""
    out: Path = Path("report.html")
    """File to write (short form: -o). Its name must end in .html, .md or .tex, which selects the format."""
    figures: Path | None = None
    """Folder to which the charts are also written: all charts as SVG, and the curves as PDF as well."""
    merge: Path | None = None
    """Merge the outcome files, write the merged outcome to this file, and report on it. The files belong to one experiment with
    different seeds, or to experiments that have rows in common with the first."""

    def run(self) -> None:
        paths = self.paths
        if self.merge is not None:
            from ..lab.merge import merge_files

            check_out(self.out)
            merge_files(paths, self.merge)
            paths = (self.merge,)
        print("\n".join(write_document(paths, self.out, self.figures)))
