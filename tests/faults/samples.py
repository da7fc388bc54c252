"""Small real files that the harness damages: a finished and a stopped run, their text, and what other commands write."""

import gzip
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from coupledqk import outcome_file
from coupledqk.config import RunConfig
from coupledqk.data.tokenizers import train_bpe
from coupledqk.runs import Run
from small_runs import run_to, tiny

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENT = """
title = "Two rows"
source = "beyond the paper"
metric = "perplexity"
caption = "For the harness."

[mini]
recipe = "mini"
seeds = [0, 1]

[[grid]]
label = "{variant} n={n_steps}"
variant = ["hamiltonian"]
axes.n_steps = [1, 3]

[published]
"hamiltonian n=1" = { mean = 22.58, std = 0.05, n = 3 }

[[claims]]
text = "one step is worse"
kind = "higher"
variant = "hamiltonian n=1"
baseline = "hamiltonian n=3"
primary = true
"""


@dataclass(frozen=True)
class Samples:
    folder: Path
    config: RunConfig
    finished: Run
    """A run of 20 steps with validations at 5, 10, 15, 20 and checkpoints at 16 and 20."""
    stopped: Run
    """The same run, stopped after 9 steps."""

    def file(self, name: str, content: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def make_samples(folder: Path) -> Samples:
    """Trains the runs. Their tokens are cached in the folder too."""
    os.environ["COUPLEDQK_CACHE"] = str(folder / "cache")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(36)))
    config = tiny(text, threads=1)
    finished = run_to(config, folder / "finished")
    return Samples(folder, config, finished, run_to(config, folder / "stopped", stop_at=9))


def without_checksums(text: str) -> str:
    """A file of a run as it was before there were checksums."""
    text = re.sub(r',\s*"(crc|checksum)": "[0-9a-f]+"', "", text).partition("# checksum")[0]
    return re.sub(r',\s*"logs": \{[^}]*\}', "", text)


def small_outcome() -> str:
    """A committed outcome with a few cells and points."""
    found = outcome_file.read(min((RESULTS / "lab").glob("*.json"), key=lambda path: path.stat().st_size))
    cells = tuple(replace(cell, train=cell.train[:3], valid=cell.valid[:3]) for cell in found.cells[:3])
    return outcome_file.to_json(replace(found, cells=cells, rows=found.rows[:3], verdicts=found.verdicts[:2]))


def bench_result() -> bytes:
    return min((RESULTS / "bench").glob("*.json"), key=lambda path: path.stat().st_size).read_bytes()


def bpe_definition() -> str:
    return train_bpe("bpe:270", ["one two three four five six seven eight nine ten " * 20]).to_json()


def json_lines() -> str:
    return "".join(json.dumps({"text": f"document {n}, with an é and a \U0001f600", "id": n}) + "\n" for n in range(8))


def packed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)
