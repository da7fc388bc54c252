"""One mutational fuzzer for all readers: a valid file is spoiled and read, again and again, in one process."""

import random
import time
import warnings

from mutations import mutate
from readers import READERS, Reader
from samples import Samples
from trials import Tally

SLOW_SECONDS = 10.0
"""Reading one of the small files may not take longer, however it is spoiled; the harness may share its machine."""


def fuzz(name: str, samples: Samples, inputs: int, seed: int = 0) -> Tally:
    """Lets a reader read `inputs` spoiled files. The same seed gives the same files."""
    reader, tally = READERS[name](samples), Tally()
    valid = reader.file.read_bytes()
    reader.read()  # what is valid is read
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
