"""What the documentation shows works as pasted."""

import re
from pathlib import Path

import pytest

from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


EXPERIMENTS = [text for page in PAGES for text in blocks(page, "toml") if "[[grid]]" in text]


@pytest.mark.parametrize("text", EXPERIMENTS)
def test_experiment_files_can_be_planned(text: str) -> None:
    experiment = parse("my-experiment", text)
    for scale in experiment.scales:
        labels = make_plan(experiment, scale).labels
        assert len(labels) > 1


def test_there_is_an_experiment_to_copy() -> None:
    assert EXPERIMENTS
