"""Encodes text in several processes.

A worker process reads texts from its standard input and writes their token ids to its standard output. It exits at the end of
its input, so that no worker is left if this process is killed. The first few megabytes are encoded in this process, because
starting workers would take longer for a small corpus.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CoupledQKError
from .tokenizers import Tokenizer, from_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENCODED_HERE = 16_000_000
"""Number of characters after which worker processes are started."""

_COMMAND = "from coupledqk.data.encoders import serve; serve()"


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Encoders:
    """A context manager for worker processes. `encode` is called by `jobs` threads, each of which has its own process."""

    def __init__(self, tokenizer: Tokenizer, jobs: int) -> None:
        self.tokenizer, self.jobs = tokenizer, jobs
        self._encoded_here = 0
        self._own = threading.local()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Encoders:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._started:
            if error[0] is not None:
                process.kill()
            process.communicate()

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        if self.jobs == 1 or self._encoded_here < ENCODED_HERE:
            self._encoded_here += sum(map(len, texts))
            return self.tokenizer.encode_batch(texts)
        if not hasattr(self._own, "process"):
            self._own.process = self._start()
        return self._ask(self._own.process, texts)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the workers
        )
        self._started.append(process)
        _send(process.stdin, [self.tokenizer.to_json().encode()])
        return process

    def _ask(self, process: subprocess.Popen[bytes], texts: Sequence[str]) -> list[NDArray[Any]]:
        import numpy as np

        try:
            _send(process.stdin, [text.encode("utf-8", "replace") for text in texts])
            if found := _receive(process.stdout):
                return [np.frombuffer(ids, "<u4") for ids in found]
        except BrokenPipeError:
            pass
        raise CoupledQKError(
            f"a tokenizing process exited with code {process.wait()}, possibly out of memory: start again, with fewer jobs if "
            "it recurs; finished parts are kept"
        )


def serve() -> None:
    """The main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        (definition,) = _receive(requests)
        tokenizer = from_json(definition.decode())
        while texts := _receive(requests):
            ids = tokenizer.encode_batch([text.decode() for text in texts])
            _send(answers, [found.astype("<u4").tobytes() for found in ids])
    except BrokenPipeError:
        os._exit(0)  # the other side has exited; a regular exit would print an error about the broken pipe


def _send(file: Any, parts: Sequence[bytes]) -> None:
    numbers = (len(parts), *map(len, parts))
    file.write(b"".join([*(number.to_bytes(8, "little") for number in numbers), *parts]))
    file.flush()


def _receive(file: Any) -> list[bytes]:
    """The parts that were sent; empty if the other side has exited."""
    count = int.from_bytes(file.read(8), "little")
    numbers = file.read(8 * count)
    sizes = [int.from_bytes(numbers[i : i + 8], "little") for i in range(0, len(numbers), 8)]
    parts = [file.read(size) for size in sizes]
    return parts if [len(part) for part in parts] == sizes and len(sizes) == count else []
