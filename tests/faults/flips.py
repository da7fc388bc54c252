"""Bit flips over every file of a run: each is reported, repaired or without effect."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samples import Samples
from trials import Tally

from coupledqk.files import sha256
from coupledqk.runs import Run
from coupledqk.schema import to_dict
from coupledqk.training.checkpoints import Checkpoints, read_weights
from coupledqk.training.state_files import load_state
from small_runs import run_to, sorted_state, trained_bits


def flip_everywhere(samples: Samples, flips: int, resumes: int, seed: int = 0) -> Tally:
    """Flips single bits of a finished run, which is then read, and of a stopped run, which is then resumed."""
    draw, tally = random.Random(f"flips {seed}"), Tally()
    expected = published(samples.finished.path)
    files = sorted(path for path in samples.finished.path.rglob("*") if path.is_file())
    for number in range(flips):
        file, bit = files[number % len(files)], draw.random()
        with flipped(file, bit):
            what = f"flip {number} in {file.relative_to(samples.finished.path)} at {bit}"
            tally.count(what, _read, samples, expected)
    whole = trained_bits(samples.finished)
    files = sorted(path.relative_to(samples.stopped.path) for path in samples.stopped.path.rglob("*") if path.is_file())
    files = [file for file in files if file.parts[0] != "lock"]  # resuming waits for an unreadable lease
    for number in range(resumes):
        copy = samples.folder / "flipped"
        shutil.copytree(samples.stopped.path, copy)
        file, bit = files[number % len(files)], draw.random()
        with flipped(copy / file, bit, restore=False):
            what = f"flip {number} in {file} at {bit} of a run that is resumed"
            tally.count(what, _resumed, samples, copy, whole)
        shutil.rmtree(copy)
    return tally


def published(path: Path) -> dict[str, Any]:
    """Everything that can be read from a run."""
    run = Run.open(path)
    checkpoints = Checkpoints(path / "checkpoints", keep=1)
    best, newest = checkpoints.best(), checkpoints.newest()
    assert best is not None
    assert newest is not None
    for folder in (best, newest):
        read_weights(folder)
    return {
        "config": to_dict(run.config),
        "info": run.info,
        "result": run.result,
        "metrics": run.metrics(),
        "timings": run.timings(),
        "status": run.status,
        "tokenizer": run.tokenizer().to_json(),
        "weights": [sha256(folder / "model.safetensors") for folder in (best, newest)],
        "state": repr(sorted_state(load_state(newest / "state.pt"))),
    }


@contextmanager
def flipped(file: Path, place: float, restore: bool = True) -> Iterator[None]:
    """Flips one bit of a file, at a relative position between 0 and 1."""
    content = file.read_bytes()
    bit = int(place * 8 * len(content))
    if content:
        file.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
    yield
    if restore:
        file.write_bytes(content)


def _read(samples: Samples, expected: Any) -> str:
    return "without effect" if _contains(published(samples.finished.path), expected) else "silent"


def _contains(found: Any, expected: Any) -> bool:
    """Whether all values are present. A flip in the name of a checksum adds a name, and changes no value."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(key in found and _contains(found[key], value) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_contains, found, expected))
    return found == expected


def _resumed(samples: Samples, folder: Path, whole: dict[str, bytes | str]) -> str:
    return "repaired" if trained_bits(run_to(samples.config, folder)) == whole else "silent"
