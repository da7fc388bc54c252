"""The demonstration: three attention variants learn Python's standard library, with the same seed and the same data."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import RunConfig
from ..recipes import recipe
from ..report.runs_page import Sample, write_page

if TYPE_CHECKING:
    from ..runs import Run

VARIANTS = ("standard", "euler", "diff")
PROMPT = "def read_lines(path):\n"
ABOUT = (
    "Three small transformers that differ only in their attention, trained on the sources of Python's standard library with "
    "the same seed, the same initial weights and the same order of data."
)


def train_demo(out: Path, steps: int, train: "Callable[[RunConfig, Path], Run]") -> "list[Run]":
    """Trains each variant into a folder of its own. Finished runs are not trained again."""
    every = max(1, steps // 5)
    # half of the recipe's learning rate, for half of its batch: at the full rate a variant may diverge
    settings = {"steps": steps, "warmup": steps // 10, "batch_size": 8, "lr": 1e-3, "eval_every": every}
    return [train(recipe("nano", name, **settings), out / name) for name in VARIANTS]


def demo_report(runs: "list[Run]", page: Path) -> list[Sample]:
    """Writes the page of the runs, with a sample of what each has learned to write; and returns the samples."""
    sampling = {"max_tokens": 80, "temperature": 0.7, "top_p": 0.9, "seed": 0, "device": "cpu"}
    samples = [Sample(run.path.name, PROMPT, "".join(run.generate(PROMPT, **sampling))) for run in runs]
    write_page([run.path for run in runs], page, "Three attention variants learn Python", [ABOUT], samples)
    return samples
