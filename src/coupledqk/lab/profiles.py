"""Entropy and effective rank of the attention of trained runs, measured once and stored in their folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import write_atomic
from ..run_folder import RunFolder
from ..schema import decode
from .cells import Plan
from .experiment import Scale

FILE = "attention.json"
"""File in a run folder with each measure's mean over sequences and heads, for every layer."""
MEASURES = ("entropy", "effective_rank")
SEQUENCES = 25


def measure_attention(plan: Plan, note: Callable[[str], None]) -> bool:
    """Measures the attention of finished runs, if the experiment compares it. Returns whether any run was measured.

    `note` is called with a progress message before each run, which takes a few seconds.
    """
    spec = plan.scale.shifts if isinstance(plan.scale, Scale) else None
    if spec is None or not set(spec.properties) & set(MEASURES):
        return False
    runs = [plan.run(cell) for cell in plan.cells if cell.label in spec.labels]
    left = [run.path for run in runs if run.result and not attention_profile(run)]
    for place, path in enumerate(left, 1):
        note(f"measuring attention {place}/{len(left)}: {path.name}")
        write_atomic(path / FILE, json.dumps(_measured(path)))
    return bool(left)


def _measured(path: Path) -> dict[str, Any]:
    from ..analysis.runs import Analysis

    (surveyed,) = Analysis((path,), batches=SEQUENCES).measure().surveyed
    return {name: surveyed.longest.by_layer(name) for name in MEASURES}


def attention_profile(run: RunFolder) -> dict[str, tuple[float, ...]]:
    """The values that `measure_attention` has stored; empty if the run was not measured or the file is damaged."""
    try:
        return decode(dict[str, tuple[float, ...]], json.loads((run.path / FILE).read_bytes()), FILE)
    except (FileNotFoundError, ValueError):
        return {}
