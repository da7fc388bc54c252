"""One mutational fuzzer for all readers: a valid file is corrupted and read repeatedly in one process."""

import random
import time
import warnings

from mutations import mutate
from readers import READERS, Reader
from samples import Samples
from trials import Tally

SLOW_SECONDS = 10.0
"""Time limit for reading one of the small corrupted files; the machine may be busy."""


def fuzz(name: str, samples: Samples, inputs: int, seed: int = 0) -> Tally:
    """Has a reader read `inputs` corrupted files. The same seed gives the same files."""
    reader, tally = READERS[name](samples), Tally()
    valid = reader.file.read_bytes()
    reader.read()  # the valid file can be read
    slowest = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(inputs):
            how, content = mutate(random.Random(f"{name} {seed} {number}"), valid)
            reader.file.write_bytes(content)
            start = time.perf_counter()
            tally.count(f"{name}, input {number} ({how})", _read, reader)
            slowest = max(slowest, time.perf_counter() - start)
    reader.file.write_bytes(valid)
    tally.figures[f"slowest input of {name}, seconds"] = round(slowest, 3)
    if slowest > SLOW_SECONDS:
        tally.failures.append(f"{name}: an input took {slowest:.1f} s")
    return tally


def _read(reader: Reader) -> str:
    reader.read()
    return "without effect"
