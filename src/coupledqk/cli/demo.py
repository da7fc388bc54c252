"""coupledqk demo"""

from dataclasses import dataclass
from pathlib import Path

from ..report.listing import results_table
from .train import train_or_exit

NEXT = """
What to try next:
    coupledqk train --variant hamiltonian --seed 1     another variant, another seed
    coupledqk train --corpus my-texts/                  your own text
    coupledqk generate {run} --prompt "import "
    coupledqk params                                    what each variant costs
    coupledqk sweep --variant euler                     a better learning rate"""


@dataclass(frozen=True)
class Demo:
    """Watch three attention variants learn Python, on this machine, in about four minutes and without a network.

    Trains standard, euler (coupled) and diff at nano size on the sources of Python's standard library, with the same seed
    and the same data, then compares them in a table and in demo/report.html.
    """

    out: Path = Path("demo")
    """Where the runs and the report go."""
    steps: int = 220
    """Training steps of each variant."""

    def run(self) -> None:
        from ..lab.demo import demo_report, train_demo

        page = self.out / "report.html"
        runs = train_demo(self.out, self.steps, train_or_exit)
        print(f"\n{results_table(runs)}")
        for sample in demo_report(runs, page):
            print(f"\n── {sample.run} continues {sample.prompt.strip()!r} ──\n{sample.prompt}{sample.text}")
        print(f"\nOne seed is an illustration, not evidence: differences like these may be noise.\nCurves: {page}")
        print(NEXT.format(run=runs[1].path))
