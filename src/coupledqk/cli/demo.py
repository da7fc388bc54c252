"""coupledqk demo"""

from dataclasses import dataclass
from pathlib import Path

from ..recipes import recipe
from ..report.listing import results_table
from ..report.runs_page import Sample, write_page
from .train import train_or_exit

VARIANTS = ("standard", "euler", "diff")
PROMPT = "def read_lines(path):\n"
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
        runs = []
        for name in VARIANTS:
            config = recipe(
                "nano",
                name,
                steps=self.steps,
                warmup=self.steps // 10,
                batch_size=8,
                lr=1e-3,  # half of the recipe's, for half of its batch: at the full rate a variant may diverge
                eval_every=max(1, self.steps // 5),
            )
            runs.append(train_or_exit(config, self.out / name))
        print(f"\n{results_table(runs)}")
        sampling = {"max_tokens": 80, "temperature": 0.7, "top_p": 0.9, "seed": 0, "device": "cpu"}
        samples = [Sample(run.path.name, PROMPT, "".join(run.generate(PROMPT, **sampling))) for run in runs]
        for sample in samples:
            print(f"\n── {sample.run} continues {PROMPT.strip()!r} ──\n{sample.prompt}{sample.text}")
        page = self.out / "report.html"
        write_page([run.path for run in runs], page, "Three attention variants learn Python", [ABOUT], samples)
        print(f"\nOne seed is an illustration, not evidence: differences like these may be noise.\nCurves: {page}")
        print(NEXT.format(run=runs[1].path))


ABOUT = (
    "Three small transformers that differ only in their attention, trained on the sources of Python's standard library with "
    "the same seed, the same initial weights and the same order of data."
)
