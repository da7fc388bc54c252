"""Benchmark results as typed records, and reading them from JSON files. Torch-free."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args, get_type_hints

from ..errors import CoupledQKError, unknown
from ..files import read_json
from ..schema import from_dict


@dataclass(frozen=True)
class Quartiles:
    """A median with its lower and upper quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


CONFIDENCE = 0.9
"""Smallest confidence of an interval over five launches or more."""


@dataclass(frozen=True)
class Interval:
    """A median over independent launches with a distribution-free confidence interval based on order statistics."""

    median: float
    low: float
    high: float
    confidence: float
    """Probability that such an interval contains the population median."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The narrowest interval with a confidence of at least 90%. With fewer than five values it is their range."""
        ordered, n = sorted(values), len(values)
        outside = [2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in range((n + 1) // 2)]
        k = max((k for k, p in enumerate(outside) if 1 - p >= CONFIDENCE), default=0)
        return cls(statistics.median(ordered), ordered[k], ordered[n - 1 - k], max(0.0, 1 - outside[k]))

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    """Median over the rounds."""
    relative: Quartiles
    """Ratio of speeds to the baseline, computed within each round."""
    seconds: tuple[float, ...]
    """Duration of every round, in the order of the launches."""
    by_launch: tuple[float, ...] = ()
    """The median ratio of each process launch; empty if all rounds were timed in the calling process."""
    over_launches: Interval | None = None
    """Median and confidence interval of `by_launch`."""


@dataclass(frozen=True)
class Conditions:
    """Load from other processes during one launch, on the cores available to the benchmark."""

    load: float
    """One-minute load average before the launch, including the benchmark itself."""
    other_cores: float
    """Mean number of cores used by other processes."""
    steal: float
    """Share of the cores' time that the hypervisor gave to other virtual machines."""
    cores: int
    threads: int
    """Number of threads used by the benchmark."""


@dataclass(frozen=True)
class Memory:
    peak_mb: float
    """Peak memory in excess of `before_mb`."""
    before_mb: float
    """Memory of the interpreter and its libraries; 0 on CUDA."""
    batch: int
    """Number of sequences in the pass."""


@dataclass(frozen=True)
class MatmulBound:
    """Matrix-product FLOPs of the baseline divided by those of a contender: the relative speed if nothing else took time."""

    forward: float
    training: float
    recomputing: float
    """Like `training`, including the products that the fused dynamics recompute in the backward pass."""


@dataclass(frozen=True)
class PaperRatios:
    """The paper's figures for a variant, relative to its standard attention."""

    forward: float
    training: float
    peak_mb: float


@dataclass(frozen=True)
class ThroughputRow:
    """Speed and memory of one contender at one batch size and sequence length."""

    name: str
    peer: bool
    """Whether the model comes from another library."""
    n_steps: int | None
    """Number of integration steps, for dynamics that have steps."""
    batch: int
    seq_len: int
    parameters: int
    forward: Speed | None
    """Forward pass without gradients; None if it was not timed."""
    training: Speed
    """Forward and backward pass."""
    arithmetic: MatmulBound
    memory: Memory | None
    """Peak memory; None if it was not measured."""
    relative_memory: float | None
    """Peak memory divided by that of the baseline."""
    paper: PaperRatios | None = None
    d_model: int | None = None
    """Width of the model; None in files of format 1."""
    n_layers: int | None = None
    """Number of layers; None in files of format 1."""
    compile_seconds: float | None = None
    """Duration of the first pass of the compiled model, including compilation with empty caches."""


@dataclass(frozen=True)
class DecodeRow:
    """Decoding speed of one contender."""

    name: str
    peer: bool
    """Whether the model comes from another library."""
    prompt: int
    """Number of tokens in the prompt."""
    new_tokens: int
    parameters: int
    decode: Speed
    """Decoding speed in new tokens."""
    cache_bytes: int | None
    """Size of the KV cache per token over all layers; unknown for peers."""


@dataclass(frozen=True)
class About:
    """Machine, date, versions and settings of a benchmark."""

    preset: str
    date: str
    commit: str | None
    versions: dict[str, str]
    machine: str
    device: str
    threads: int
    precision: str
    rounds: int
    model: dict[str, int]
    """Shape of all contenders, or of the first point of a sweep over shapes."""
    launches: int = 1
    """Number of process launches, each with `rounds` rounds."""
    pinned: bool = False
    """Whether each thread was bound to a core."""
    compiled: bool = False
    """Whether the contenders were compiled by torch.compile."""
    until: float | None = None
    """Requested width of the widest interval, from `--until`."""
    conditions: tuple[Conditions, ...] = ()
    """The conditions during each launch; empty if the operating system does not report them."""
    notes: tuple[str, ...] = ()
    """Contenders that were left out and limits that were not reached, one sentence each."""


@dataclass(frozen=True)
class ThroughputResult:
    what: Literal["throughput", "lengths", "n-steps", "widths", "depths"]
    about: About
    baseline: str
    rows: tuple[ThroughputRow, ...]
    format: int = 1


@dataclass(frozen=True)
class DecodeResult:
    what: Literal["decode"]
    about: About
    baseline: str
    rows: tuple[DecodeRow, ...]
    format: int = 1


Result = ThroughputResult | DecodeResult

FORMAT = 2
"""Current format of result files. Files of format 1 have no key `format` and can still be read."""


def read_result(path: str | Path) -> Result:
    """Reads a result file written by `coupledqk bench --save`."""
    if not Path(path).exists():
        raise CoupledQKError(f"{path}: no such file; `coupledqk bench --save FOLDER` writes results")
    data = read_json(path, "expected a file written by `coupledqk bench --save`")
    kinds = {
        **dict.fromkeys(get_args(get_type_hints(ThroughputResult)["what"]), ThroughputResult),
        "decode": DecodeResult,
    }
    what = data.get("what") if isinstance(data, dict) else None
    if not isinstance(what, str) or what not in kinds:
        raise CoupledQKError(f"{path}: {unknown('what', what, kinds)}")
    number = data.get("format", 1)
    if number not in range(1, FORMAT + 1):
        raise CoupledQKError(
            f"{path} has format {number!r}: this version of coupledqk reads formats 1 to {FORMAT}; use the version "
            "that wrote it"
        )
    try:
        return from_dict(kinds[what], data)
    except CoupledQKError as error:
        raise CoupledQKError(f"{path} is damaged: {error}") from None
