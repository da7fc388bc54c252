"""A figure of time and memory as functions of context, width, depth and number of devices, as one SVG file."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..config import RunConfig
from ..report.chart import Series, chart_grid, line_chart
from .estimate import Machine, training_hours
from .gpus import GIB
from .memory import Strategy, peak_memory
from .trace import Pass

FACTORS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Growth:
    """The runs that result from varying one quantity, with its values."""

    x_label: str
    points: Sequence[tuple[int, RunConfig, Machine]]


def growth_figure(config: RunConfig, machine: Machine, micro_batch: int) -> str:
    """For each varied quantity, a row of two charts: time, and memory of a device at `micro_batch`."""
    strategies: tuple[Strategy, ...] = ("single",) if machine.devices == 1 else ("ddp", "fsdp")
    charts = []
    for growth in (_context(config, machine), _width(config, machine), _depth(config, machine)):
        charts += [_time_chart(growth), _memory_chart(growth, micro_batch, strategies)]
    devices = _devices(config, machine)
    charts += [_time_chart(devices), _memory_chart(devices, micro_batch, ("ddp", "fsdp"))]
    return chart_grid(charts, columns=2)


def _time_chart(growth: Growth) -> str:
    series = [
        Series(name, [(x, training_hours(config, machine, checkpointing)) for x, config, machine in growth.points])
        for name, checkpointing in (("plain", False), ("checkpointing", True))
    ]
    return line_chart(series, growth.x_label, "hours", log_x=True, log_y=True, title="Training time")


def _memory_chart(growth: Growth, micro_batch: int, strategies: Sequence[Strategy]) -> str:
    series = []
    for strategy in strategies:
        for name, checkpointing in (("plain", False), ("checkpointing", True)):
            points = [
                (x, _gib(config, machine, micro_batch, strategy, checkpointing)) for x, config, machine in growth.points
            ]
            series.append(Series(name if strategy == "single" else f"{strategy}, {name}", points))
    title = f"Memory per GPU, micro-batch {micro_batch}"
    return line_chart(series, growth.x_label, "GiB", log_x=True, log_y=True, title=title)


def _gib(config: RunConfig, machine: Machine, micro_batch: int, strategy: Strategy, checkpointing: bool) -> float:
    share = math.ceil(config.train.batch_size / machine.devices)
    rows = min(micro_batch, share)
    how = Pass(rows, config.train.seq_len, config.train.precision, checkpointing, config.runtime.impl)
    return peak_memory(config.model, how, rows < share, strategy, machine.devices).total / GIB


def _grown(x_label: str, machine: Machine, grow: Callable[[int], tuple[int, RunConfig]]) -> Growth:
    return Growth(x_label, [(*grow(factor), machine) for factor in FACTORS])


def _context(config: RunConfig, machine: Machine) -> Growth:
    def grow(factor: int) -> tuple[int, RunConfig]:
        seq_len = factor * config.train.seq_len
        model = replace(config.model, n_positions=max(seq_len, config.model.n_positions))
        return seq_len, replace(config, model=model, train=replace(config.train, seq_len=seq_len))

    return _grown("tokens in a sequence", machine, grow)


def _width(config: RunConfig, machine: Machine) -> Growth:
    """Growth with the model width, at a fixed width of heads."""

    def grow(factor: int) -> tuple[int, RunConfig]:
        model = config.model
        sizes = {name: factor * getattr(model, name) for name in ("d_model", "n_heads", "d_ff")}
        return sizes["d_model"], replace(config, model=replace(model, **sizes))

    return _grown("d_model", machine, grow)


def _depth(config: RunConfig, machine: Machine) -> Growth:
    def grow(factor: int) -> tuple[int, RunConfig]:
        n_layers = factor * config.model.n_layers
        return n_layers, replace(config, model=replace(config.model, n_layers=n_layers))

    return _grown("layers", machine, grow)


def _devices(config: RunConfig, machine: Machine) -> Growth:
    counts = [2**i for i in range(config.train.batch_size.bit_length()) if 2**i <= config.train.batch_size]
    return Growth("GPUs", [(count, config, replace(machine, devices=count)) for count in counts])
