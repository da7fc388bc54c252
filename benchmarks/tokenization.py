"""Speed and memory of preparing a corpus, compared with tiktoken alone.

Our time is that of `prepare` with an empty cache: reading, checking and splitting the text, encoding in `--jobs` processes (by
default one per core), hashing, and writing to disk. The time of tiktoken is that of encoding the same documents from memory
with one thread per core. The two alternate; each round gives a ratio.

    python benchmarks/tokenization.py --megabytes 64
    python benchmarks/tokenization.py --megabytes 1000 --rounds 3
    python benchmarks/tokenization.py --megabytes 200 --jobs 1      # in a single process
    python benchmarks/tokenization.py --text my.txt
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import tiktoken

from coupledqk.config import DataConfig
from coupledqk.data import prepare
from coupledqk.data.corpora import open_corpus
from coupledqk.data.tokenizers import gpt2
from coupledqk.provenance import machine

SEPARATOR = "\n<|endoftext|>\n"
CORES = len(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a corpus by name or path; the default is python-stdlib")
    parser.add_argument("--megabytes", type=float, default=32, help="the corpus is repeated up to this size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=CORES, help="number of processes that tokenize")
    parser.add_argument("--measure-memory", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_memory:
        prepare(DataConfig(corpus=options.measure_memory))
        print(peak_megabytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COUPLEDQK_CACHE"] = f"{folder}/cache"
        text = Path(folder, "text.txt")
        text.write_text(SEPARATOR.join(documents(options.text or "python-stdlib", options.megabytes * 1e6)))
        report(text, options.rounds, options.jobs)


def documents(corpus: str, size: float) -> Iterator[str]:
    """The documents of the corpus, repeated until there are `size` bytes."""
    pieces = [piece for _, piece in open_corpus(DataConfig(corpus=corpus)).stream()]
    parts: list[str] = []
    for piece in chain.from_iterable(repeat(pieces)):
        parts.append(piece.text)
        size -= len(piece.text.encode())
        if piece.ends or size < 0:
            yield "".join(parts)
            parts = []
        if size < 0:
            return


def report(text: Path, rounds: int, jobs: int) -> None:
    megabytes = text.stat().st_size / 1e6
    print(machine())
    print(
        f"Python {platform.python_version()}, tiktoken {tiktoken.__version__}, {megabytes:.1f} MB of text, {jobs} jobs"
    )
    ratios = []
    for number in range(rounds):
        alone, ours = seconds_of_tiktoken(text), seconds_of_prepare(text, number, jobs)
        ratios.append(alone / ours)
        print(
            f"round {number + 1}: tiktoken {megabytes / alone:.1f} MB/s, prepare {megabytes / ours:.1f} MB/s, {ratios[-1]:.3f}"
        )
    print(f"speed relative to tiktoken: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    command = [sys.executable, __file__, "--measure-memory", str(text)]
    fresh = {**os.environ, "COUPLEDQK_CACHE": os.environ["COUPLEDQK_CACHE"] + "-memory"}
    peak = subprocess.run(command, env=fresh, check=True, capture_output=True, text=True).stdout
    print(f"peak memory of a process that prepares it: {float(peak):.0f} MB")


def seconds_of_tiktoken(text: Path) -> float:
    """Seconds of tiktoken's encoding. Documents are encoded in batches to limit the memory of the lists of ids."""
    batch, size, seconds = [], 0, 0.0
    encoding = tiktoken_gpt2()
    for document in [*text.read_text().split(SEPARATOR), None]:
        if document is not None:
            batch.append(document)
            size += len(document)
        if document is None or size > 16e6:
            start = time.perf_counter()
            encoding.encode_ordinary_batch(batch, num_threads=CORES)
            seconds += time.perf_counter() - start
            batch, size = [], 0
    return seconds


def tiktoken_gpt2() -> tiktoken.Encoding:
    """Tiktoken's GPT-2 encoding, built from our copy of the vocabulary instead of a download."""
    from tiktoken_ext.openai_public import r50k_pat_str

    ranks = {token: rank for rank, token in enumerate(gpt2().tokens[:-1])}
    return tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


def seconds_of_prepare(text: Path, number: int, jobs: int) -> float:
    cache = os.environ["COUPLEDQK_CACHE"]
    os.environ["COUPLEDQK_CACHE"] = f"{cache}-{number}"
    try:
        start = time.perf_counter()
        prepare(DataConfig(corpus=str(text)), jobs=jobs)
        return time.perf_counter() - start
    finally:
        os.environ["COUPLEDQK_CACHE"] = cache


def peak_megabytes() -> float:
    """Peak resident memory of this process. getrusage would include the memory of the parent at the start of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
