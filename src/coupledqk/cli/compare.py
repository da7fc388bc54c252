"""coupledqk compare"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import CoupledQKError
from ..schema import parse_seeds
from ..signals import advise, stop_on_signals
from ..terminal import table, wrapped
from .output import exit_unless_finished
from .queue import WithQueue


@dataclass(frozen=True)
class Compare(WithQueue):
    """Test whether coupling helps on your own text: an answer with its uncertainty and its cost, within a time budget.

    Trains pairs of small models, one with standard and one with coupled (euler) attention, until the result is conclusive, the
    two are shown to be equivalent within ±1%, or the budget is spent. If interrupted, the same command resumes from the last
    checkpoints. If the budget was spent before all planned pairs were trained, the same command trains the remaining pairs.

    Try it:

        coupledqk compare --corpus my-texts/
        coupledqk compare --corpus novel.txt --minutes 60 --all
        coupledqk compare --corpus wikitext-2 --minutes 120 --dry-run
    """

    corpus: str = ""
    """Text to train on: a file, a folder, or the name of a corpus."""
    minutes: float = 30
    """Time budget in minutes. It determines the length of the runs and the number of pairs of seeds."""
    all: bool = False
    """Also train hamiltonian, differential attention, and controls that add the same parameters without coupling."""
    variants: tuple[str, ...] = ()
    """Further variants to train, such as those of your plugin."""
    seeds: tuple[str, ...] = ()
    """Train exactly these seeds, such as 0-7, instead of stopping at the first conclusive result."""
    out: Path = Path("compare")
    """Folder for the runs, the outcome and compare.html."""
    dry_run: bool = False
    """Print the runs that fit the budget and the effect they can detect, and exit."""

    def run(self) -> None:
        from ..lab.compare import COUPLED, OTHERS, Comparison
        from ..lab.overview import GridProgress
        from ..report.lab_page import write_report
        from ..report.tables import results_table

        if not self.corpus:
            raise CoupledQKError(
                "no text given: name a file, a folder or a corpus, as in coupledqk compare --corpus PATH"
            )
        variants = tuple(dict.fromkeys((*COUPLED, *self.variants, *(OTHERS if self.all else ()))))
        seeds, machines = parse_seeds(self.seeds), self.machines()
        comparison = Comparison.open(self.corpus, self.minutes, variants, seeds, self.jobs, self.out, machines)
        print(wrapped(comparison.describe()), file=sys.stdout if self.dry_run else sys.stderr)
        if self.dry_run:
            return
        advise("stopped; the same command resumes")
        with stop_on_signals() as stop:
            queue = comparison.run(GridProgress(), stop)
        if queue.stopped:
            exit_unless_finished(queue)
        outcome = comparison.conclude()
        page, results = self.out / "compare.html", results_table(outcome)
        write_report([outcome], page)
        print("\n\n".join([*map(wrapped, outcome.answer), table(results.head, results.rows), str(page)]))
        exit_unless_finished(queue)
