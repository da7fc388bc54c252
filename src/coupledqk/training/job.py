"""Joining the processes that torchrun has started, and reporting a failure only once.

A failure of one process ends all of them: torchrun stops the others, or their next communication fails. The first process that
detects the failure raises the error; the others exit silently.
"""

import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..config import RunConfig
from ..errors import CoupledQKError
from ..torch_internals import default_store
from .mesh import SINGLE, Mesh

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for each process."""

SECONDS_TO_REPORT = 1.0
"""Seconds that the other processes wait before they exit, so that the first one can print its error."""

_LOST = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed? ?out", re.IGNORECASE)
_numbers = itertools.count()


def process_device(name: str) -> str:
    """The device of this process. With several processes on a machine, each uses a separate GPU, or all use the CPU."""
    if not _launched() or name == "cpu":
        return name
    if name == "auto" and not torch.cuda.is_available():
        return "cpu"
    if name not in ("auto", "cuda"):
        raise CoupledQKError(
            f"device={name!r} is one device for {os.environ['WORLD_SIZE']} processes: give cuda or cpu"
        )
    return f"cuda:{os.environ['LOCAL_RANK']}"


@contextmanager
def open_mesh(config: RunConfig) -> Iterator[Mesh]:
    """Opens the mesh of this process: a mesh of a single process, or that of the job that torchrun has started.

    A process group that was initialised by the caller is used and not destroyed.
    """
    sharded = config.runtime.parallel == "fsdp"
    if sharded and not _launched():
        raise CoupledQKError(
            "parallel='fsdp' shards a model over several processes: start them with `torchrun --nproc-per-node N -m "
            "coupledqk train ...`, or give --parallel ddp to train in this process"
        )
    if not _launched() or (os.environ["WORLD_SIZE"] == "1" and not sharded):
        yield SINGLE
        return
    import torch.distributed as dist

    ours, number = not dist.is_initialized(), next(_numbers)
    try:
        mesh = _join(sharded, torch.device(process_device(config.runtime.device)))
        if (rows := config.train.batch_size) < mesh.world:
            raise CoupledQKError(f"batch_size={rows} is too small for {mesh.world} processes: start at most {rows}")
        yield mesh
    except CoupledQKError as error:
        raise _once(error, number) from None
    except RuntimeError as error:
        if not _LOST.search(str(error)):
            raise
        raise _once(_lost_contact(error), number) from error
    if ours:
        dist.destroy_process_group()


def _launched() -> bool:
    """Whether this process was started by torchrun, possibly as the only one of its job."""
    return all(name in os.environ for name in VARIABLES)


def _join(sharded: bool, device: torch.device) -> Mesh:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from .parallel import STEP_TIMEOUT, Replicated, Sharded

    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store, rank, world = next(rendezvous("env://", timeout=STEP_TIMEOUT))
        store = PrefixStore(f"coupledqk/{_attempt()}", store)
        dist.init_process_group(backend, timeout=STEP_TIMEOUT, store=store, rank=rank, world_size=world)
    return Sharded(device) if sharded else Replicated(device)


def _attempt() -> str:
    """A prefix for keys in torchrun's store. The store survives a restart and contains the addresses of the previous processes,
    so each attempt on a single machine uses a new prefix.

    With several machines the prefix is constant, because each machine counts restarts separately and the counts may differ.
    """
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if os.environ.get("GROUP_WORLD_SIZE") == "1" else "0"


def _lost_contact(error: RuntimeError) -> CoupledQKError:
    return CoupledQKError(
        f"lost contact with another process of this job ({str(error).splitlines()[0]}): run the same command again to resume "
        "from the last checkpoint; torchrun --max-restarts N does so automatically"
    )


def _once(error: CoupledQKError, number: int) -> BaseException:
    """The exception to raise: the error on the first process that reports one, and SystemExit on the others.

    The others wait, since torchrun ends all processes as soon as one has ended, possibly before the error is printed.
    """
    try:
        first = default_store().add(f"coupledqk/{number}/errors", 1) == 1
    except (RuntimeError, ValueError):  # there is no store, or the process that hosted it has exited
        first = True
    if first:
        return error
    time.sleep(SECONDS_TO_REPORT)
    return SystemExit(2)
