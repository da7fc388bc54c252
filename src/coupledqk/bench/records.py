"""What a benchmark measured, as typed records, and the JSON file they are kept in. Torch-free."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from ..errors import CoupledQKError, unknown
from ..schema import from_dict


@dataclass(frozen=True)
class Quartiles:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    """Median over the rounds."""
    relative: Quartiles
    """Ratios to the baseline's speed within the same round."""
    seconds: tuple[float, ...]
    """Duration of every round."""


@dataclass(frozen=True)
class Memory:
    peak_mb: float
    """Peak memory above `before_mb`."""
    before_mb: float
    """Memory of the interpreter and its libraries; 0 on CUDA."""
    batch: int
    """Number of sequences in the pass."""


@dataclass(frozen=True)
class MatmulBound:
    """The baseline's matrix products over a contender's: the relative speed of a model that does nothing else."""

    forward: float
    training: float
    recomputing: float
    """Training, including the products that the fused dynamics recompute in the backward pass."""


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
    forward: Speed
    training: Speed
    """Forward and backward pass."""
    arithmetic: MatmulBound
    memory: Memory
    relative_memory: float
    """Peak memory over the baseline's."""
    paper: PaperRatios | None = None


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
    """Speed in new tokens."""
    cache_bytes: int | None
    """Size of the KV cache per token over all layers; unknown for peers."""


@dataclass(frozen=True)
class About:
    """Where, when and with which settings a benchmark was run."""

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
    """The shape that all contenders share."""


@dataclass(frozen=True)
class ThroughputResult:
    what: Literal["throughput", "lengths", "n-steps"]
    about: About
    baseline: str
    rows: tuple[ThroughputRow, ...]


@dataclass(frozen=True)
class DecodeResult:
    what: Literal["decode"]
    about: About
    baseline: str
    rows: tuple[DecodeRow, ...]


Result = ThroughputResult | DecodeResult


def read_result(path: str | Path) -> Result:
    """A result that `coupledqk bench --save` has written."""
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise CoupledQKError(f"{path}: no such file; `coupledqk bench --save FOLDER` writes results") from None
    except ValueError as error:
        raise CoupledQKError(
            f"{path} is not a JSON file ({error}): expected a file of `coupledqk bench --save`"
        ) from None
    kinds = {
        "throughput": ThroughputResult,
        "lengths": ThroughputResult,
        "n-steps": ThroughputResult,
        "decode": DecodeResult,
    }
    what = data.get("what") if isinstance(data, dict) else None
    if what not in kinds:
        raise CoupledQKError(f"{path}: {unknown('what', what, kinds)}")
    try:
        return from_dict(kinds[what], data)
    except CoupledQKError as error:
        raise CoupledQKError(f"{path} is damaged: {error}") from None
