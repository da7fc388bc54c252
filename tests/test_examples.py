"""The examples run, each for a few steps, and end with finite numbers."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text("utf-8"))


@pytest.mark.usefixtures("registries_restored", "own_cache")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_example_runs(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [program.name, "--steps", "2"])
    runpy.run_path(str(program), run_name="__main__")
    lines = capsys.readouterr().out
    assert len(re.findall(r"\d\.\d+", lines)) >= 2  # one number for each attention
    assert "nan" not in lines


@pytest.mark.usefixtures("own_cache")
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text("utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "STEPS = 600" in codes[0]
    namespace: dict[str, object] = {}
    for code in [codes[0].replace("STEPS = 600", "STEPS = 1"), *codes[1:]]:
        exec(code, namespace)
    assert "bits per byte" in capsys.readouterr().out


def test_every_example_is_listed_in_the_readme() -> None:
    listed = re.findall(r"\]\((\w+\.(?:py|ipynb))\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))
