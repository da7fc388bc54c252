"""A disk that fills up or fails during training: the error is one line, and nothing that was saved is lost."""

import errno
import os
import random
import shutil
from pathlib import Path

from injection import watched
from samples import Samples
from trials import Tally

from small_runs import run_to, trained_bits

LASTING = {
    errno.ENOSPC: ("write", "mkdir"),
    errno.EDQUOT: ("write", "mkdir"),
    errno.EROFS: ("write", "mkdir", "replace"),
}
"""Errors that persist once they have occurred, and the operations that they affect."""
ONCE = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES)
"""Errors of a single operation, of any kind."""


def fail_everywhere(samples: Samples, trials: int, seed: int = 0) -> Tally:
    """In each trial an operation of the same training fails, the training is resumed, and the results are compared."""
    draw, tally = random.Random(f"disks {seed}"), Tally()
    whole, operations = trained_bits(samples.finished), _count(samples)
    for number in range(trials):
        code = draw.choice((*LASTING, *ONCE))
        first = draw.randrange(operations)
        folder = samples.folder / "disk"
        what = f"trial {number}: {errno.errorcode[code]} from operation {first} of {operations} on"
        end = tally.count(what, _train, samples, folder, code, first)
        if end != "traceback":
            tally.count(f"{what}, resumed", _resume, samples, folder, whole)
        shutil.rmtree(folder, ignore_errors=True)
    tally.figures["operations of the training"] = operations
    return tally


def _count(samples: Samples) -> int:
    seen = []
    with watched(samples.folder / "disk", lambda kind, path: seen.append(kind)):
        run_to(samples.config, samples.folder / "disk")
    shutil.rmtree(samples.folder / "disk")
    return len(seen)


def _train(samples: Samples, folder: Path, code: int, first: int) -> str:
    seen = 0

    def fail(kind: str, path: Path) -> None:
        nonlocal seen
        seen += 1
        fails = kind in LASTING[code] and seen > first if code in LASTING else seen == first + 1
        if fails and kind != "remove":
            raise OSError(code, os.strerror(code), str(path))

    with watched(folder, fail):
        run_to(samples.config, folder)
    return "without effect"


def _resume(samples: Samples, folder: Path, whole: dict[str, bytes | str]) -> str:
    return "repaired" if trained_bits(run_to(samples.config, folder)) == whole else "lost"
