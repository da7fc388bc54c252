"""Trains runs as tasks of a Ray cluster. Requires `pip install 'coupledqk[ray]'`. Torch-free in the scheduling process."""

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import CoupledQKError
from .engine import Message
from .engine_cluster import ClusterEngine, last_message

CONNECT_SECONDS = 10.0
CHECK_SECONDS = 300.0
"""Time limit for a node to start a Python process, which may be slow if Python is on a network disk."""
RETRIES = 10
"""Maximum number of times that Ray restarts a run whose node or process was lost."""
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Environment variables for a local Ray instance: usage statistics are disabled, and runs have normal priority."""
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME = 4


class RayEngine(ClusterEngine):
    """Trains each run as a Ray task. If the node of a task is lost, Ray restarts it on another one, where the run resumes from
    its last checkpoint."""

    def __init__(
        self, address: str | None, jobs: int | None, cpus: int, gpus: int | None = None, wants_gpu: bool = False
    ) -> None:
        self.ray, self.jobs = connect(address), jobs
        try:
            total = self.ray.cluster_resources()
            super().__init__(cpus, int(wants_gpu and total.get("GPU", 0) >= 1) if gpus is None else gpus)
            if jobs is None and not self.capacity():
                there = f"{total.get('CPU', 0):g} and {total.get('GPU', 0):g}"
                raise CoupledQKError(
                    f"a run needs {cpus} CPUs and {self.gpus} GPUs on one node, and the Ray cluster has {there} in all: lower "
                    "--cpus-per-run or --gpus-per-run, or give --jobs if it will grow"
                )
            check_nodes(self.ray, cpus)
        except BaseException:
            self.ray.shutdown()
            raise
        # Ray reuses a worker process for the next run, so that PyTorch is imported once, except if runs use GPUs: the next run
        # may be assigned another GPU. This exception applies only if `num_gpus` is set here instead of in `options`.
        self.train = self.ray.remote(num_cpus=cpus, num_gpus=self.gpus, max_retries=RETRIES)(train_task)

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        return sum(self._fitting(node["Resources"]) for node in self.ray.nodes() if node["Alive"])

    def _fitting(self, resources: dict[str, float]) -> int:
        """Number of runs that a node can train at a time."""
        by_cpu = int(resources.get("CPU", 0)) // self.cpus
        return min(by_cpu, int(resources.get("GPU", 0)) // self.gpus) if self.gpus else by_cpu

    def submit(self, job: dict[str, Any], name: str) -> Any:
        return self.train.options(name=name).remote(job)

    def pause(self, seconds: float) -> None:
        if self.running:
            self.ray.wait(list(self.running.values()), num_returns=1, timeout=seconds)
        else:
            super().pause(seconds)

    def ended(self) -> Iterator[Message]:
        by_task = {task: folder for folder, task in self.running.items()}
        if not by_task:
            return
        done, _ = self.ray.wait(list(by_task), num_returns=len(by_task), timeout=0)
        for task in done:
            yield self._outcome(by_task[task], task)

    def _outcome(self, folder: Path, task: Any) -> Message:
        try:
            return Message(folder, **self.ray.get(task))
        except self.ray.exceptions.TaskCancelledError:
            return last_message(folder, None)
        except self.ray.exceptions.RayTaskError as error:
            return last_message(folder, f"Ray could not train it: {last_line(error)}")
        except self.ray.exceptions.RayError as error:
            reason = next(filter(None, str(error).strip().splitlines()), "")
            return last_message(folder, f"Ray could not train it ({type(error).__name__}): {reason}")

    def stop(self) -> None:
        """Cancels all tasks: Ray interrupts a running task like Ctrl-C, and drops a task that has not started."""
        for task in self.running.values():
            self.ray.cancel(task, force=False)

    def close(self) -> None:
        for task in self.running.values():
            with contextlib.suppress(self.ray.exceptions.RayError, ValueError):
                self.ray.cancel(task, force=True)
        self.running.clear()
        self.ray.shutdown()


def train_task(job: dict[str, Any]) -> dict[str, Any]:
    """The Ray task, which runs on a node of the cluster."""
    try:
        from .elsewhere import Unheard, train_elsewhere
    except ImportError as error:
        return {"kind": "failed", "error": cannot_import(socket.gethostname(), error)}
    return train_elsewhere(job, Unheard())


def check_nodes(ray: Any, cpus: int) -> None:
    """Raises unless every node with enough cores for a run starts Python processes that can import the package."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def import_package() -> None:  # nested functions are pickled by value, so it can be loaded without the package
        import coupledqk.lab.engine_ray  # noqa: F401

    on_node: dict[Any, str] = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus:
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(import_package).options(num_cpus=0, scheduling_strategy=place).remote()
            on_node[task] = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
    if not on_node:
        return
    done, pending = ray.wait(list(on_node), num_returns=len(on_node), timeout=CHECK_SECONDS)
    for task in done:
        try:
            ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise CoupledQKError(cannot_import(on_node[task], error)) from None
        except ray.exceptions.RayError:
            pass  # the node has left the cluster
    if pending:
        raise CoupledQKError(
            f"Ray node {on_node[pending[0]]} has not started a Python process for {CHECK_SECONDS:.0f} s: see Ray's logs there "
            "(/tmp/ray/session_latest/logs by default), or remove the node from the cluster"
        )


def cannot_import(node: str, error: Exception) -> str:
    reason = last_line(error)
    return (
        f"Ray node {node} cannot import coupledqk ({reason}): run `pip install 'coupledqk[ray]'` in the Python environment "
        "that Ray was started from on that node, or remove the node from the cluster"
    )


def last_line(error: Exception) -> str:
    """The last line of an exception's text. If the text is a traceback, as for errors inside a task, it is the error itself."""
    return str(error).strip().splitlines()[-1]


def connect(address: str | None) -> ModuleType:
    """The ray module, connected to a cluster or to a new Ray instance on this machine."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise CoupledQKError("Ray is not installed: pip install 'coupledqk[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS")
    if address not in (None, "auto", "local"):
        check_address(address)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with silent_libraries():
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        reason = next(filter(None, str(error).strip().splitlines()), type(error).__name__)
        advice = ": give HOST:PORT of a head node, as `ray start --head` prints it" if address else ""
        raise CoupledQKError(f"cannot use Ray at {address or 'this machine'} ({reason.rstrip('.')}){advice}") from None
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler would end the process before runs are saved
    # Ray prints long messages about lost nodes to standard output, which is reserved for results. Retries are normal.
    internals: Any = importlib.import_module("ray._private.worker")
    internals.print_to_stdstream = lambda *args, **kwargs: None
    return ray


@contextlib.contextmanager
def silent_libraries() -> Iterator[None]:
    """Discards standard error: Ray's C++ code writes a warning there every second until it gives up connecting."""
    sys.stderr.flush()
    before, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(null)


def check_address(address: str) -> None:
    """Raises if no server that could be Ray responds. Ray itself would retry for minutes and then end the process."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise CoupledQKError(f"--address {address}: expected HOST:PORT of a Ray head node, such as 10.0.0.5:6379")
    what_to_do = (
        "start Ray with `ray start --head`, check the address, or leave --address out to use this machine alone"
    )
    try:
        with socket.create_connection((host, int(port)), CONNECT_SECONDS) as connection:
            connection.settimeout(CONNECT_SECONDS)
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise CoupledQKError(f"no Ray cluster answers at {address} ({error}): {what_to_do}") from None
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise CoupledQKError(f"the server at {address} is not Ray: {what_to_do}")
