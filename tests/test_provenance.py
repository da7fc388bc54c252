"""The recorded origin is that of this package, not of a surrounding repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import coupledqk
from coupledqk import provenance
from coupledqk.training.memory import PeakMemory

PACKAGE = Path(coupledqk.__file__).parent


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_of(package: Path) -> str:
    code = "from coupledqk.provenance import commit; print(commit())"
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_repository_that_tracks_the_package(tmp_path: Path) -> None:
    project = tmp_path / "thesis"
    package = project / ".venv" / "coupledqk"
    package.mkdir(parents=True)
    for name in ("__init__.py", "provenance.py"):
        shutil.copy(PACKAGE / name, package / name)
    git(project, "init", "-q")
    (project / "chapter.txt").write_text("mine")
    git(project, "add", "chapter.txt")
    git(project, "commit", "-qm", "A chapter")
    assert commit_of(package) == "None"
    git(project, "add", ".venv/coupledqk")
    git(project, "commit", "-qm", "The package")
    assert commit_of(package) == git(project, "rev-parse", "HEAD")
    (package / "__init__.py").write_text("__version__ = '0'  # changed\n")
    assert commit_of(package) == git(project, "rev-parse", "HEAD") + "+changes"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot bind a process to cores")
def test_the_recorded_number_of_cores_is_that_available_to_the_process() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert ", 1 core, " in provenance.machine()
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_memory_of_a_cpu_run_is_that_of_the_process_even_if_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 0)
    assert PeakMemory(torch.device("cpu")).mb() > 0


PEAKS_OF_TWO_RUNS = """
import torch
from coupledqk.training.memory import MB, PeakMemory

first = PeakMemory(torch.device("cpu"))
before = first.mb()
large = torch.ones(300 * MB, dtype=torch.uint8)
print(first.mb() - before)
del large
print(PeakMemory(torch.device("cpu")).mb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its peak")
def test_the_memory_peak_is_reset_between_runs() -> None:
    """Runs in a separate process, since a process that has run other tests may reuse freed memory for new tensors."""
    done = subprocess.run([sys.executable, "-c", PEAKS_OF_TWO_RUNS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first >= 290
    assert second <= 50
