"""coupledqk compare"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CoupledQKError
from ..provenance import available_cores
from ..statistics import scipy_special
from ..terminal import table
from .output import train_plans
from .plugin import WithPlugin

if TYPE_CHECKING:
    from ..lab.compare import Choice, Text
    from ..outcome import Outcome


@dataclass(frozen=True)
class Compare(WithPlugin):
    """Ask whether coupling helps on your own text: an answer with its uncertainty and its cost, within a time budget.

    Trains small models with standard and with coupled (euler) attention, 5 paired seeds each, and measures how coherent the
    text is. Interrupted, it goes on where it was.

    Try it:

        coupledqk compare --corpus my-texts/
        coupledqk compare --corpus novel.txt --minutes 60 --all
    """

    corpus: str = ""
    """The text: a file, a folder, or a corpus known by name."""
    minutes: float = 30
    """How long it may take; how long the models train is chosen accordingly, and said."""
    all: bool = False
    """Also hamiltonian, differential attention, and controls that add the same parameters without coupling."""
    variants: tuple[str, ...] = ()
    """Also these variants, such as those of your plugin."""
    jobs: int | None = None
    """Runs at a time; as many as there are cores unless given."""
    out: Path = Path("compare")
    """Where the runs, the outcome and compare.html go."""

    def run(self) -> None:
        from ..lab import compare
        from ..lab.cells import make_plan
        from ..lab.laboratory import check_jobs
        from ..lab.summary import failure_summary
        from ..terminal import tokenizing

        if not self.corpus:
            raise CoupledQKError("which text? Name a file, a folder or a corpus: coupledqk compare --corpus PATH")
        scipy_special()  # before anything is measured
        jobs = self.jobs if self.jobs is not None else available_cores()
        check_jobs(jobs)
        with tokenizing() as progress:
            text = compare.open_text(self.corpus, progress)
        variants = tuple(dict.fromkeys((*compare.COUPLED, *self.variants, *(compare.OTHERS if self.all else ()))))
        choice = compare.choose(text, variants, self.minutes, jobs, self.out)
        print(chosen(text, choice, len(variants) * len(compare.SEEDS)), file=sys.stderr)
        plan = make_plan(compare.comparison(text, choice, variants), compare.SCALE, self.out)
        queue = train_plans([plan], jobs)
        if queue.troubles:
            print(failure_summary(queue), file=sys.stderr)
        if queue.stopped:
            sys.exit(130)
        self.tell(compare.conclude(plan, text, f"coupledqk compare --minutes {self.minutes:g}{' --all' * self.all}"))

    def tell(self, outcome: "Outcome") -> None:
        from ..report.lab_page import write_report
        from ..report.tables import results_table

        page, results = self.out / "compare.html", results_table(outcome)
        write_report([outcome], page)
        print("\n\n".join([*outcome.answer, table(results.head, results.rows), str(page)]))


def chosen(text: "Text", choice: "Choice", n_runs: int) -> str:
    return (
        f"{n_runs} runs of {choice.steps:,} steps: 4 passes over the first {choice.tokens:,} of {text.train_tokens:,} training "
        f"tokens of {text.name}; about {choice.minutes:.0f} minutes in all"
    )
