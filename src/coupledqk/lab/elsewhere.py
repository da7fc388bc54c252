"""Trains a cell on a machine of a cluster, in a single process or, with torchrun, in one process per GPU.

For a run with two GPUs, the machine executes

    torchrun --standalone --nproc-per-node 2 -m coupledqk.lab.elsewhere JOB.json

and the last message about the run is written to JOB.message.json.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .. import lease
from ..run_folder import RunFolder
from ..signals import stop_on_signals
from .worker import SECONDS_BETWEEN_MESSAGES, Messages, train_job


class Unheard(Messages):
    """Discards messages, since progress is read from the run folder. Setting `closed` stops the run after its current step."""

    def __init__(self) -> None:
        super().__init__(None)

    def send(self, **message: Any) -> None:
        pass


def train_elsewhere(job: dict[str, Any], messages: Messages) -> dict[str, Any]:
    """Trains a cell with the scheduling process's working directory and COUPLEDQK_* variables, and returns its last message."""
    run = RunFolder(job["folder"])
    try:
        os.chdir(job["cwd"])
        run.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = f"{error.filename} cannot be used on {socket.gethostname()} ({error.strerror})"
        return {"kind": "failed", "error": f"{where}: all machines need the same disk, under the same path"}
    os.environ.update(job["environment"])
    wait_for_predecessor(run)
    if job["processes"] > 1:
        return train_with_torchrun(job, messages)
    torch.set_num_threads(job["threads"])
    return train_job(job, messages)


def wait_for_predecessor(run: RunFolder) -> None:
    """Waits until a previous process of the run has ended, which may take a moment if its cluster has lost it."""
    deadline = time.monotonic() + lease.EXPIRY_SECONDS
    while run.status == "running" and time.monotonic() < deadline:
        time.sleep(lease.POLL_SECONDS)


def train_with_torchrun(job: dict[str, Any], messages: Messages) -> dict[str, Any]:
    """Trains a cell with several processes on this machine. On a request to stop, torchrun forwards SIGTERM to them."""
    with tempfile.TemporaryDirectory() as scratch, stop_on_signals() as asked:
        file, errors = Path(scratch, "job.json"), Path(scratch, "errors")
        file.write_text(json.dumps(job))
        threads = str(max(1, job["threads"] // job["processes"]))
        with errors.open("w") as log:
            process = subprocess.Popen(
                torchrun_command(job["processes"], file),
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": threads},
                preexec_fn=_end_with_parent,
            )
        told = False
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_BETWEEN_MESSAGES)
            if not told and (asked() or messages.closed):
                process.terminate()
                told = True
        if (answer := file.with_suffix(".message.json")).is_file():
            return json.loads(answer.read_text())
        last_line = errors.read_text(errors="replace").strip().splitlines()[-1:]
        reason = "; ".join([f"torchrun ended with code {process.returncode}", *last_line])
        return {"kind": "interrupted", "error": None if told else reason}


def torchrun_command(processes: int, job: Path) -> list[str]:
    """The command that trains the cell described by a job file with several processes on one machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*torchrun, "-m", "coupledqk.lab.elsewhere", str(job)]


def _end_with_parent() -> None:
    """Called in a new process. On Linux, the process then receives SIGTERM when its parent ends for any reason."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG


def main(file: Path) -> None:
    message = train_job(json.loads(file.read_text()), Unheard())
    if message["kind"] in ("busy", "failed") or os.environ["RANK"] == "0":  # any process reports a failure
        file.with_suffix(".message.json").write_text(json.dumps(message))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
