"""Power cuts: what was not synced is lost, in part or as a whole; the run resumes and ends bit-identically.

While a run is trained, its folder is recorded before each operation. After a cut, a folder may hold the names of any moment
since it was last synced, and a file the content that was last synced, or any beginning of what has been written since.
"""

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from injection import watched
from samples import Samples
from trials import Tally

from small_runs import run_to, trained_bits


def cut_everywhere(samples: Samples, cuts: int, seed: int = 0) -> Tally:
    draw, tally = random.Random(f"power {seed}"), Tally()
    whole, recorded = trained_bits(samples.finished), _record(samples)
    for number in range(cuts):
        moment = draw.randrange(1, len(recorded.moments))
        folder = samples.folder / "after the cut"
        folder.mkdir()
        recorded.restore(folder, moment, draw)
        found = [str(path.relative_to(folder)) for path in folder.rglob("*")]
        what = f"cut {number} at operation {moment} of {len(recorded.moments)}, with {found}"
        # a run that has to be restarted manually has not survived
        if tally.count(what, _resume, samples, folder, whole) == "reported":
            tally.ends["reported"] -= 1
            tally.ends["lost"] += 1
            tally.failures.append(f"{what}: the run cannot be resumed")
        shutil.rmtree(folder)
    tally.figures["operations between which the power was cut"] = len(recorded.moments)
    return tally


def _resume(samples: Samples, folder: Path, whole: dict[str, bytes | str]) -> str:
    return "repaired" if trained_bits(run_to(samples.config, folder)) == whole else "lost"


def _record(samples: Samples) -> "Recorded":
    folder = samples.folder / "power"
    folder.mkdir()
    recorded = Recorded(folder)
    with watched(folder, recorded.operation):
        run_to(samples.config, folder)
    recorded.operation("end", folder)
    recorded.close()
    shutil.rmtree(folder)
    return recorded


@dataclass
class _Moment:
    """The folder before an operation. Files and folders are identified by their inode numbers."""

    names: dict[int, dict[str, int]]
    """Entries of each folder."""
    contents: dict[int, bytes]
    """Content of each file."""
    synced: int | None
    """The file or folder that the operation syncs."""


@dataclass
class Recorded:
    folder: Path
    moments: list[_Moment] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    """Descriptors that keep the inode numbers of removed files from being reused."""

    def operation(self, kind: str, path: Path) -> None:
        names: dict[int, dict[str, int]] = {}
        contents: dict[int, bytes] = {}
        self._scan(self.folder, names, contents)
        self.moments.append(_Moment(names, contents, os.stat(path).st_ino if kind == "fsync" else None))

    def _scan(self, folder: Path, names: dict[int, dict[str, int]], contents: dict[int, bytes]) -> int:
        inode = self._hold(folder)
        names[inode] = {}
        for entry in os.scandir(folder):
            if entry.name == "lock":
                continue
            if entry.is_dir():
                names[inode][entry.name] = self._scan(Path(entry.path), names, contents)
            else:
                names[inode][entry.name] = number = self._hold(Path(entry.path))
                content, before = Path(entry.path).read_bytes(), self.moments[-1].contents if self.moments else {}
                contents[number] = before[number] if before.get(number) == content else content
        return inode

    def _hold(self, path: Path) -> int:
        number = os.stat(path).st_ino
        if number not in self.held:
            self.held[number] = os.open(path, os.O_RDONLY)
        return number

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)

    def restore(self, folder: Path, cut: int, draw: random.Random) -> None:
        """Writes what a disk may hold after a power cut before operation `cut`."""
        root = next(iter(self.moments[0].names))
        self._restore(root, folder, cut, draw)

    def _restore(self, inode: int, folder: Path, cut: int, draw: random.Random) -> None:
        listed = [i for i in range(cut + 1) if inode in self.moments[i].names]
        synced = self._last_sync(inode, cut)
        possible = [i for i in listed if synced is None or i >= synced]
        # faults are more likely at the extremes than in between
        chosen = draw.choice((possible[0], possible[-1], draw.choice(possible)))
        for name, number in self.moments[chosen].names[inode].items():
            if any(number in self.moments[i].names for i in range(cut + 1)):
                (folder / name).mkdir()
                self._restore(number, folder / name, cut, draw)
            else:
                (folder / name).write_bytes(self._content(number, cut, draw))

    def _content(self, number: int, cut: int, draw: random.Random) -> bytes:
        known = [i for i in range(cut + 1) if number in self.moments[i].contents]
        newest, synced = self.moments[known[-1]].contents[number], self._last_sync(number, cut)
        durable = self.moments[synced].contents[number] if synced is not None else b""
        if newest[: len(durable)] != durable:
            return durable
        length = draw.choice((len(durable), len(newest), draw.randint(len(durable), len(newest))))
        zeros = draw.choice((0, len(newest) - length))
        return newest[:length] + bytes(zeros)

    def _last_sync(self, number: int, cut: int) -> int | None:
        return next((i for i in reversed(range(cut)) if self.moments[i].synced == number), None)
