"""The parts of the harness, in a short form for the test suite and a long one for `make soak`: one registry.

To add a part, write a function of the samples and the options that returns a Tally, and put it into PARTS.
"""

from collections.abc import Callable
from dataclasses import dataclass

from command_lines import fuzz_command_lines
from disks import fail_everywhere
from flips import flip_everywhere
from fuzzing import fuzz
from kills import kill_chains
from power import cut_everywhere
from readers import READERS
from samples import Samples
from steps import train_long
from trials import Tally


@dataclass(frozen=True)
class Options:
    """Number of trials for each kind of fault. The defaults are those of `make soak`."""

    kills: int = 200
    flips: int = 2_000
    resumes: int = 200
    """Flips after which a stopped run is resumed; after the others, a finished run is read."""
    inputs: int = 20_000
    """Number of corrupted files for each reader."""
    disks: int = 200
    cuts: int = 200
    steps: int = 20_000
    lines: int = 50_000
    """Number of command lines."""
    seed: int = 0


SHORT = Options(kills=20, flips=400, resumes=12, inputs=150, disks=12, cuts=12, lines=400)
"""Options of the test suite, which leaves out the long training."""


@dataclass(frozen=True)
class Part:
    tried: str
    """Description in the table."""
    run: Callable[[Samples, Options], Tally]


def _fuzz_one(name: str) -> Part:
    return Part(f"spoiled files: {name}", lambda samples, options: fuzz(name, samples, options.inputs, options.seed))


PARTS: dict[str, Part] = {
    "kills": Part("SIGKILL at random instants", lambda s, o: kill_chains(s, o.kills, o.seed)),
    "flips": Part("bit flips over every file of a run", lambda s, o: flip_everywhere(s, o.flips, o.resumes, o.seed)),
    "disks": Part("full, failing and read-only disks", lambda s, o: fail_everywhere(s, o.disks, o.seed)),
    "power": Part("power cuts that lose what was not synced", lambda s, o: cut_everywhere(s, o.cuts, o.seed)),
    "lines": Part("command lines", lambda s, o: fuzz_command_lines(s, o.lines, o.seed)),
    "steps": Part("long training", lambda s, o: train_long(s, o.steps)),
    **{f"read {name}": _fuzz_one(name) for name in READERS},
}
