"""The demonstration: trains a standard and a coupled model on Python source code."""

from dataclasses import dataclass
from pathlib import Path

from ..explore.bundle import make_bundle, make_effects, open_readers
from ..explore.page import render
from ..files import in_shell, write_atomic
from ..measure import PERPLEXITY
from ..recipes import recipe
from ..report.runs_page import Sample, write_page
from ..runs import Run
from .experiment import Cell, Experiment, ListedScale

VARIANTS = ("standard", "hamiltonian")
PROMPT = "def read_lines(path):\n"
TEXT = "def first(values):\n    return values[0]\n\ndef last(values):\n    return values[-1]\n"
SAMPLING = {"max_tokens": 120, "temperature": 0.7, "top_p": 0.9, "seed": 0, "device": "cpu"}
ABOUT = (
    "Two small transformers that differ only in their attention, trained on the sources of Python's standard library with the "
    "same seed, the same initial weights and the same order of data. In hamiltonian, queries and keys move each other before "
    "they are scored; explore.html, beside this page, shows how."
)

_NEXT_STEPS = """What to try next:

    # attention of both models, on texts that you type
    {command} explore {standard} {coupled} --serve
    # entropy, rank, sinks, and how queries and keys move
    {command} analyze {standard} {coupled}
    # more text
    {command} generate {coupled} --prompt "import "
    # a larger pair of models that comes with the package
    {command} explore --sample
    # does coupling help? --corpus takes a file or a folder of your own texts, too
    {command} compare --corpus python-stdlib --minutes 30"""


def demo_experiment(steps: int) -> Experiment:
    """An experiment that trains both models with the recipe mini-modern on Python's standard library."""
    settings = {"steps": steps, "eval_every": max(1, steps // 4), "save_every": max(1, steps // 4)}
    cells = tuple(Cell(name, 0, recipe("mini-modern", name, **settings)) for name in VARIANTS)
    return Experiment(
        "demo", "Two models learn Python", "demonstration", ABOUT, {"demo": ListedScale(PERPLEXITY, cells)}
    )


def next_steps(command: str, standard: Path, coupled: Path) -> str:
    """Commands to try on the two runs, ready to paste. `command` is the command line that calls coupledqk."""
    return _NEXT_STEPS.format(command=command, standard=in_shell(standard), coupled=in_shell(coupled))


@dataclass(frozen=True)
class Pages:
    """Paths of the pages that the demonstration writes."""

    samples: tuple[Sample, ...]
    report: Path
    explorer: Path


def write_pages(runs: list[Run], out: Path) -> Pages:
    """Writes continuations of a prompt by each model, a report on both runs, and the explorer of both models."""
    samples = tuple(
        Sample(name, PROMPT, "".join(run.generate(PROMPT, **SAMPLING)))
        for name, run in zip(VARIANTS, runs, strict=True)
    )
    pages = Pages(samples, out / "report.html", out / "explore.html")
    write_page([run.path for run in runs], pages.report, "Two models learn Python", [ABOUT], samples)
    readers = open_readers([run.path for run in runs], device="cpu")
    write_atomic(pages.explorer, render(make_bundle(readers, TEXT), make_effects(readers, TEXT)))
    return pages
