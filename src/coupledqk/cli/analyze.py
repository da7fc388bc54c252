"""coupledqk analyze"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ..analysis.drawing import Drawing
from ..analysis.runs import Analysis
from ..analysis.tables import tables
from ..files import write_atomic
from ..terminal import status, tracked
from .plugin import WithPlugin
from .sample import WithSample


@dataclass(frozen=True)
class Analyze(WithSample, WithPlugin, Drawing, Analysis):
    """Measure the attention of trained runs: entropy, rank, sinks and distances, and how far q and k move.

    Prints the paper's rank table and entropy profile, and compares every run with the first, sequence by sequence on the same
    text. docs/analysis.md defines each measure.

    Try it:

        coupledqk analyze --sample                                # two trained models that come with the package
        coupledqk analyze runs/NAME runs/OTHER --figures
        coupledqk analyze runs/NAME --length 64 128 256 512       # at several context lengths
        coupledqk analyze runs/NAME --checkpoint all              # over the checkpoints that were kept
    """

    out: Path = Path("analysis")
    """Folder for analysis.json and the figures."""
    figures: bool = False
    """Also draw figures, as SVG, PDF and PNG."""
    json: bool = False
    """Print JSON instead of tables."""

    def run(self) -> None:
        with status("loading the models …"):
            analysis = replace(self, run_folders=self.folders(self.run_folders), sample=False)
            runs = analysis.open_runs()
        if self.figures:
            self.check_drawable(runs.values())
        analyzed = analysis.measure(tracked)
        found = analyzed.findings()
        written = json.dumps(found, indent=1, ensure_ascii=False)
        write_atomic(self.out / "analysis.json", written + "\n")
        print(written if self.json else f"{tables(found)}\n\n{self.out / 'analysis.json'}")
        if self.figures:
            drawn = ", ".join(self.save_figures(analyzed, self.out))
            print(f"{self.out}: {drawn}, each as .svg, .pdf and .png", file=sys.stderr if self.json else sys.stdout)
