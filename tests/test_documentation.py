"""The examples in the documentation work as written.

The Python blocks of a page run one after the other, as a reader would paste them, in a folder that has the text `my-texts/`.
A comment above a block changes that:

    <!-- test: not run, REASON -->
    <!-- test: replace OLD with NEW -->       for example to shorten a training run

Commands are not run; only their flags are checked.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from coupledqk import CoupledQKError, cli
from coupledqk.cli.train import Train
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import parse
from small_runs import run_to, tiny

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"((?:^<!-- test: .*? -->\n)*)^```(\w+)\n(.*?)^```", re.S | re.M)


def blocks(page: Path, language: str) -> Iterator[tuple[str, str]]:
    """The comments above each fenced block of a language, and its code."""
    for comments, its_language, code in BLOCK.findall(page.read_text("utf-8")):
        if its_language == language:
            yield comments, code


def prepared(comments: str, code: str) -> str:
    """The code to run, which is empty if the block is not run."""
    if "<!-- test: not run, " in comments:
        return ""
    for old, new in re.findall(r"<!-- test: replace (.*?) with (.*?) -->", comments):
        assert old in code, f"{old!r} is not in the block"
        code = code.replace(old, new)
    return code


WITH_PYTHON = [page for page in PAGES if any(prepared(*block) for block in blocks(page, "python"))]
EXPERIMENTS = [code for page in PAGES for _, code in blocks(page, "toml") if "[[grid]]" in code]


@pytest.fixture
def reader_folder(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader, with text."""
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "my-texts"
    texts.mkdir()
    for i in range(40):
        lines = (f"The square of {n} is {n * n}.\n" for n in range(20 * i, 20 * i + 20))
        (texts / f"{i}.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.usefixtures("registries_restored")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_run_as_written(page: Path, reader_folder: Path) -> None:
    codes = [prepared(*block) for block in blocks(page, "python")]
    if any("runs/NAME" in code for code in codes):
        run_to(tiny(reader_folder / "my-texts", steps=4), reader_folder / "runs" / "NAME")
    namespace = {"__name__": "__main__"}
    for code in codes:
        exec(compile(code, str(page), "exec"), namespace)


def command_lines(page: Path) -> list[str]:
    """Commands in indented lines and in `code`, without comments."""
    found = re.findall(r"^ {4}coupledqk ([a-z].*)|`coupledqk ([a-z]+ [^`]+)`", page.read_text("utf-8"), re.M)
    return sorted({re.sub(r"\s+#.*", "", line or code) for line, code in found})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_and_flags_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self, flags: list[str] | None = None) -> None:
        if isinstance(self, Train) and not (self.plugin or self.config):
            self.run_config(flags or [])

    for command in cli.COMMANDS.values():
        monkeypatch.setattr(command, "run", check)
    monkeypatch.setattr(cli, "load_plugin", lambda path: None)
    for line in command_lines(page):
        try:
            cli.run(shlex.split(line))
        except (SystemExit, CoupledQKError) as error:
            if "--help" not in line:
                pytest.fail(f"coupledqk {line}: {error}")


@pytest.mark.parametrize("text", EXPERIMENTS)
def test_documented_experiment_files_can_be_planned(text: str) -> None:
    experiment = parse("my-experiment", text)
    for scale in experiment.scales:
        assert len(make_plan(experiment, scale).labels) > 1


def test_examples_are_found() -> None:
    assert len(WITH_PYTHON) > 3
    assert EXPERIMENTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_valid(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
    local = [target for target in targets if not target.startswith(("http:", "https:"))]
    assert not [target for target in local if not (page.parent / target).exists()]
