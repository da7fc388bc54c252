"""coupledqk demo"""

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path

from ..config import text_of
from ..report.listing import results_table
from ..terminal import duration, status
from .output import command_line, exit_unless_finished, train_plans


@dataclass(frozen=True)
class Demo:
    """Train a standard and a coupled model on Python code side by side, offline, in under five minutes on two cores.

    Trains both on the source code of Python's standard library, with the same seed and the same data, and compares them with
    n-gram models of the same text. If interrupted, the same command resumes from the last checkpoints.

    Try it:

        coupledqk demo
        coupledqk demo --steps 500
    """

    out: Path = Path("demo")
    """Folder for the runs, the report and the explorer's page."""
    steps: int = 4_000
    """Number of training steps of each model."""

    def run(self) -> None:
        with status("loading …"):
            from ..data.shards import open_text
            from ..lab.cells import make_plan
            from ..lab.demo import PROMPT, demo_experiment, next_steps, write_pages
            from ..runs import Run

        began = time.monotonic()
        plan = make_plan(demo_experiment(self.steps), "demo", self.out)
        open_text(text_of(plan.cells[0].config))
        prepared = time.monotonic()
        exit_unless_finished(train_plans([plan], jobs=None))
        trained = time.monotonic()
        runs = [Run.open(plan.run(cell).path) for cell in plan.cells]
        with status("writing the pages …"):
            pages = write_pages(runs, self.out)
        print(f"\n{results_table(runs)}\n")
        print(f"Tokenizing the text took {duration(prepared - began)}, training {duration(trained - prepared)}.")
        for sample in pages.samples:
            print(f"\n── {sample.run} continues {PROMPT.strip()!r} ──\n{sample.prompt}{sample.text}")
        print("\nOne seed is an illustration, not evidence: differences like these may be noise.")
        print(
            f"Curves, baselines and step sizes: {pages.report}\nAttention before and after coupling: {pages.explorer}\n"
        )
        print(next_steps(command_line(), *(run.path for run in runs)))
        if importlib.util.find_spec("scipy") is None:
            print("\n    compare, and analyze with two runs, need SciPy: pip install 'coupledqk[lab]'")
