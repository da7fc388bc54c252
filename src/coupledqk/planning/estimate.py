"""Estimates of the micro-batch, memory, time and GPU-hours of a run or an experiment on given GPUs."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..config import RunConfig
from ..costs import Flops, count_parameters, flops
from ..errors import CoupledQKError
from ..lab.cells import Plan, with_needed
from ..lab.estimates import tokens
from ..published import THROUGHPUT
from ..recipes import RECIPES
from .gpus import GIB, GPU, GPUS
from .memory import Peak, Strategy, peak_memory
from .trace import Pass

RESERVE = 0.1
"""Fraction of a GPU's memory that is reserved for the CUDA context, buffers of libraries and fragmentation."""
MOST_DEVICES = 1024
"""Maximum number of GPUs that an error message suggests."""


@dataclass(frozen=True)
class Machine:
    """The GPUs on which one run is trained."""

    gpu: GPU
    devices: int
    utilisation: float
    """Fraction of the peak FLOP/s that matrix products reach in training."""

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise CoupledQKError(f"--gpus {self.devices}: expected at least 1")
        if not 0 < self.utilisation <= 1:
            raise CoupledQKError(f"--utilisation {self.utilisation:g}: expected greater than 0 and at most 1")

    @property
    def usable(self) -> float:
        """Usable memory of one GPU in bytes."""
        return (1 - RESERVE) * self.gpu.memory


@dataclass(frozen=True)
class Option:
    """The requirements of a run with one strategy, with or without gradient checkpointing."""

    strategy: Strategy
    checkpointing: bool
    micro_batch: int
    """The largest micro-batch that fits, in sequences per device; 1 if none fits."""
    memory: Peak
    """Memory of one device at that micro-batch."""
    fits: bool
    """Whether this memory is within the usable memory of the GPU."""
    hours: float
    """Training time of the whole run."""


@dataclass(frozen=True)
class Estimate:
    """The requirements of a run on a machine, for every option."""

    config: RunConfig
    machine: Machine
    parameters: int
    flops: Flops
    """Floating-point operations per token."""
    options: tuple[Option, ...]

    @property
    def best(self) -> Option | None:
        """The fastest option that fits, and the simplest one if several are equally fast."""
        return min((option for option in self.options if option.fits), key=lambda option: option.hours, default=None)


def paper_utilisation() -> float:
    """The utilisation that follows from the paper's throughput table, for its 60M model on one RTX 2080 Ti."""
    paper = RECIPES["wikitext-103"]
    rate = THROUGHPUT["standard"]["training"] * flops(paper.model, paper.train.seq_len).training
    return round(rate / GPUS["RTX 2080 Ti"].peak("fp16"), 2)


def estimate(config: RunConfig, machine: Machine) -> Estimate:
    """Estimates every strategy, with and without gradient checkpointing."""
    batch = config.train.batch_size
    if machine.devices > batch:
        raise CoupledQKError(
            f"{machine.devices} GPUs cannot share a batch of {batch} sequences: use at most {batch} GPUs or a larger batch_size"
        )
    strategies: tuple[Strategy, ...] = ("single",) if machine.devices == 1 else ("ddp", "fsdp")
    return Estimate(
        config,
        machine,
        count_parameters(config.model),
        flops(config.model, config.train.seq_len),
        tuple(
            option(config, machine, strategy, checkpointing)
            for checkpointing in (False, True)
            for strategy in strategies
        ),
    )


def option(config: RunConfig, machine: Machine, strategy: Strategy, checkpointing: bool) -> Option:
    """Finds the largest micro-batch that fits and estimates its memory and time."""
    share = math.ceil(config.train.batch_size / machine.devices)

    def memory(rows: int) -> Peak:
        how = Pass(rows, config.train.seq_len, config.train.precision, checkpointing, config.runtime.impl)
        return peak_memory(config.model, how, rows < share, strategy, machine.devices)

    rows = largest(lambda rows: memory(rows).total, machine.usable, share)
    at_least_one = max(rows, 1)
    hours = training_hours(config, machine, checkpointing)
    return Option(strategy, checkpointing, at_least_one, memory(at_least_one), rows > 0, hours)


def largest(memory: Callable[[int], float], limit: float, most: int) -> int:
    """The largest number of rows up to `most` whose memory is within the limit; 0 if one row does not fit.

    Memory increases with the number of rows, except that `most` rows need a single pass, which accumulates no gradients.
    """
    return most if memory(most) <= limit else bisect_right(range(1, most), limit, key=memory)


def training_hours(config: RunConfig, machine: Machine, checkpointing: bool) -> float:
    """Training time from the matrix products alone at the machine's utilisation, without communication and evaluation."""
    work = flops(config.model, config.train.seq_len)
    per_token = work.training + (work.forward - work.logits if checkpointing else 0)
    rate = machine.devices * machine.gpu.peak(config.train.precision) * machine.utilisation
    return tokens(config) * per_token / rate / 3600


def require_fit(found: Estimate, name: str) -> Option:
    """The best option. Raises an error with advice if none fits."""
    if found.best is not None:
        return found.best
    least = min(found.options, key=lambda option: option.memory.total)
    machine = found.machine
    raise CoupledQKError(
        f"{name} needs {least.memory.total / GIB:.1f} GiB on each device at micro-batch 1 with checkpointing"
        f"{' and fsdp' if least.strategy == 'fsdp' else ''}, but {machine.usable / GIB:.1f} GiB of a {machine.gpu.name} are "
        f"usable: {_advice(found.config, machine)}"
    )


def _advice(config: RunConfig, machine: Machine) -> str:
    devices = max(2, 2 * machine.devices)
    while devices <= min(MOST_DEVICES, config.train.batch_size):
        if option(config, replace(machine, devices=devices), "fsdp", checkpointing=True).fits:
            return f"use fsdp on {devices} GPUs, or a GPU with more memory"
        devices *= 2
    return "use a GPU with more memory, a shorter seq_len or a smaller model; more GPUs are not enough"


@dataclass(frozen=True)
class Row:
    """The runs of one row of an experiment, which differ only in the seed."""

    label: str
    runs: int
    estimate: Estimate


def experiment_rows(plan: Plan, machine: Machine) -> Iterator[Row]:
    """The rows of an experiment, including the runs that others start from."""
    cells = with_needed(plan.cells)
    for label in dict.fromkeys(cell.label for cell in cells):
        group = [cell for cell in cells if cell.label == label]
        yield Row(label, len(group), estimate(group[0].config, machine))
