"""Provenance of a result: commit, versions and machine. Torch-free."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from . import __version__


def commit() -> str | None:
    """The commit of the source tree, with "+changes" if files differ from it; None for an installed package."""
    here = Path(__file__).parent
    try:
        # an installed package may be in a virtual environment inside another project's repository
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        head = _git(here, "rev-parse", "HEAD")
        return head + ("+changes" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def origin() -> dict[str, Any]:
    """Date, commit, versions and machine at the start of a run."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"started": now, "commit": commit(), "versions": versions(), "machine": machine()}


def versions() -> dict[str, str]:
    return {"coupledqk": __version__, "torch": importlib.metadata.version("torch"), "python": platform.python_version()}


def machine() -> str:
    """The machine in one line: processor, cores, memory and operating system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = available_cores()
    return f"{_processor()}, {cores} core{'s' if cores > 1 else ''}, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def available_cores() -> int:
    """The number of cores available to this process, which may be smaller than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
