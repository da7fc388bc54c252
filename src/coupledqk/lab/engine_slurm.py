"""Trains runs as Slurm jobs with submitit. Requires `pip install 'coupledqk[slurm]'`. Torch-free in the scheduling process."""

import contextlib
import io
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CoupledQKError
from .engine import Message
from .engine_cluster import ClusterEngine, last_message

JOBS = 16
"""Default maximum number of jobs in Slurm's queue at a time."""
SIGNAL_SECONDS = 90
"""Time before its time limit at which a job receives the signal to save."""
REQUEUES = 100
"""Maximum number of times that a run may reach the time limit of its job; it resumes each time."""
SQUEUE_SECONDS = 5.0
"""Interval between queries of Slurm's queue."""
ANSWER_SECONDS = 60.0
"""Time limit of a Slurm command."""
SILENCE_SECONDS = 1800.0
"""Time without a response from Slurm after which an error is raised."""


class SlurmEngine(ClusterEngine):
    """Trains each run as a Slurm job. A job that is preempted or reaches its time limit saves, is requeued, and resumes."""

    def __init__(self, executor: Any, jobs: int | None, cpus: int, gpus: int) -> None:
        super().__init__(cpus, gpus)
        self.executor, self.jobs = executor, JOBS if jobs is None else jobs
        self.next_look, self.queued = 0.0, set[str]()
        self.last_answer = time.monotonic()

    @classmethod
    def open(
        cls, folder: Path, jobs: int | None, cpus: int, gpus: int, partition: str | None, minutes: int
    ) -> "SlurmEngine":
        """Creates the engine. `folder` is for scripts and logs of the jobs and must be on a disk that all nodes share."""
        submitit = import_submitit()
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise CoupledQKError(
                "Slurm is not installed on this machine (there is no sbatch): start the command on a login node of the "
                "cluster, or choose --engine local or ray"
            )
        answered, said = ask("sinfo", "--noheader")
        if not answered:
            raise CoupledQKError(
                f"Slurm does not answer on this machine ({said}): start the command on a login node of the cluster, or "
                "choose --engine local or ray"
            )
        executor = submitit.SlurmExecutor(folder.absolute() / "%j", max_num_timeout=REQUEUES)
        executor.update_parameters(**job_parameters(cpus, gpus, partition, minutes))
        return cls(executor, jobs, cpus, gpus)

    def capacity(self) -> int:
        return self.jobs

    def submit(self, job: dict[str, Any], name: str) -> Any:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints what it raises
                return self.executor.submit(Training(job))
        except Exception as error:  # submitit raises its own FailedJobError with the output of sbatch
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CoupledQKError(f"Slurm refused the job of {name}: {reason}") from None

    def ended(self) -> Iterator[Message]:
        if not self.running or not self.look():
            return
        for folder, job in self.running.items():
            if not self.is_queued(job):
                yield last_message(folder, None if self.stopping else last_line(job.paths.stderr))

    def look(self) -> bool:
        """Queries Slurm's queue, at most once every `SQUEUE_SECONDS`. Returns whether `queued` was updated."""
        if time.monotonic() < self.next_look:
            return False
        answered, said = ask("squeue", "--me", "--noheader", "--format=%i")
        now = time.monotonic()
        self.next_look = now + SQUEUE_SECONDS
        if answered:
            self.queued, self.last_answer = set(said.split()), now
        elif now - self.last_answer > SILENCE_SECONDS:
            raise CoupledQKError(
                f"Slurm has not answered for {SILENCE_SECONDS / 60:.0f} minutes ({said}): run the same command again "
                "when it does; runs resume from their last checkpoints"
            )
        return answered

    def is_queued(self, job: Any) -> bool:
        """Whether a job, possibly after a requeue, is pending or running."""
        return job.job_id in self.queued

    def stop(self) -> None:
        self.stopping = True
        for job in self.running.values():
            self.ask_to_save(job)

    def ask_to_save(self, job: Any) -> None:
        """Cancels a pending job, or sends SIGTERM to a running one, which then saves and ends."""
        scancel("--state=PENDING", job.job_id)
        scancel("--signal=TERM", job.job_id)

    def kill(self, job: Any) -> None:
        scancel(job.job_id)

    def close(self) -> None:
        for job in self.running.values():
            self.kill(job)
        self.running.clear()


class Training:
    """The callable of a job. On the signal before preemption or the time limit, it saves, and submitit requeues the job."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job

    def __call__(self) -> dict[str, Any]:
        from submitit import JobEnvironment

        from .elsewhere import Unheard, train_elsewhere

        heard, number = Unheard(), JobEnvironment._usr_sig()
        requeue, preempted = signal.getsignal(number), False

        def on_preemption(number: int, frame: object) -> None:
            nonlocal preempted
            preempted = heard.closed = True

        def on_stop(number: int, frame: object) -> None:
            heard.closed = True

        signal.signal(number, on_preemption)
        signal.signal(signal.SIGTERM, on_stop)
        # the parent process may have blocked these signals
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number, signal.SIGTERM})
        message = train_elsewhere(self.job, heard)
        if preempted and message["kind"] == "interrupted":
            signal.signal(number, requeue)
            signal.raise_signal(number)
        print(message.get("error") or message["kind"], file=sys.stderr, flush=True)
        return message

    def checkpoint(self) -> Any:
        """The submission with which submitit requeues the job: the same callable, since the run resumes from its folder."""
        return import_submitit().helpers.DelayedSubmission(self)


def job_parameters(cpus: int, gpus: int, partition: str | None, minutes: int) -> dict[str, Any]:
    """The parameters of submitit's executor for Slurm."""
    parameters: dict[str, Any] = {
        "job_name": "coupledqk",
        "time": minutes,
        "cpus_per_task": cpus,
        "ntasks_per_node": 1,
        "signal_delay_s": SIGNAL_SECONDS,
    }
    if gpus:
        parameters["gpus_per_node"] = gpus
    if partition:
        parameters["partition"] = partition
    return parameters


def import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise CoupledQKError("submitit is not installed: pip install 'coupledqk[slurm]'") from None
    return submitit


def scancel(*arguments: str) -> None:
    ask("scancel", *arguments)


def ask(*command: str) -> tuple[bool, str]:
    """Runs a Slurm command. Returns whether it succeeded, and its output or, if it failed, the last line of standard error."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"{command[0]}: no answer within {ANSWER_SECONDS:.0f} s"
    if answer.returncode == 0:
        return True, answer.stdout
    return False, (answer.stderr.strip().splitlines() or [f"{command[0]}: exit code {answer.returncode}"])[-1]


def last_line(path: Path) -> str | None:
    """The last line of a job's standard error, as an exit reason."""
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
        return f"its job ended; {lines[-1]}" if lines else "its job ended"
    return "its job ended"
