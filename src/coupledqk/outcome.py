"""What an experiment found, in one JSON file: all that a report needs, without the run folders.

The laboratory writes it after every cell, `results/lab` keeps it, the report reads it. JSON has no NaN: null stands where a
number is not finite (a run that diverged, the deviation of a single seed).
"""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from .errors import CoupledQKError
from .files import write_atomic
from .schema import from_dict

FORMAT = 1
Status = Literal["finished", "failed", "interrupted", "running", "waiting"]
VerdictOutcome = Literal["holds here", "does not hold here", "cannot tell with this many seeds"]


@dataclass(frozen=True)
class Metric:
    """What is compared."""

    name: str
    """perplexity, accuracy ..."""
    key: str
    """Where a run's result.json has it, such as best.perplexity."""
    better: Literal["lower", "higher"]
    definition: str
    """In a sentence, without a full stop."""


@dataclass(frozen=True)
class Published:
    """The paper's number for a row."""

    mean: float
    std: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Change:
    """How far a row's mean lies from its baseline's, as a share of the baseline's; seed by seed, with a 95% interval."""

    baseline: str
    effect: float
    interval: tuple[float, ...]
    n: int
    """Seeds that both rows have."""


@dataclass(frozen=True)
class Row:
    """A row of the table: the finished cells of one label. Without any, numbers are None and `n` is 0."""

    label: str
    seeds: dict[int, float]
    """The metric of every finished cell."""
    mean: float | None
    std: float | None
    """With ddof 1."""
    n: int
    final: dict[int, float]
    """The same metric at the last step."""
    bits_per_byte: float | None
    paper: Published | None
    parameters: int | None
    tokens_per_second: float | None
    seconds: float | None
    change: Change | None = None
    """Against the row's baseline; `lab.changes.with_changes` computes it."""

    @property
    def final_mean(self) -> float | None:
        """Of the runs that did not diverge."""
        values = [value for value in self.final.values() if math.isfinite(value)]
        return fmean(values) if values else None


@dataclass(frozen=True)
class ClaimRecord:
    """A `lab.verdicts.Claim`."""

    text: str
    kind: Literal["lower", "higher", "equal", "less_variable", "interaction"]
    variant: str
    baseline: str
    elsewhere: tuple[str, ...] | None
    paper_effect: float | None
    margin: float
    paired: bool
    primary: bool
    source: str


@dataclass(frozen=True)
class EvidenceRecord:
    """A `lab.verdicts.Evidence`."""

    effect: float
    interval: tuple[float, ...]
    confidence: float
    p: float
    n: tuple[int, ...]
    paired: bool
    smallest: float


@dataclass(frozen=True)
class VerdictRecord:
    """A `lab.verdicts.Verdict`: `from_dict(VerdictRecord, asdict(verdict))`."""

    claim: ClaimRecord
    outcome: VerdictOutcome
    sentence: str
    evidence: EvidenceRecord | None


@dataclass(frozen=True)
class CellRecord:
    """One training run of the experiment, however far it came."""

    label: str
    seed: int
    identity: str
    name: str
    """Of its run folder."""
    status: Status
    error: str | None
    settings: dict[str, Any]
    """Where it differs from the experiment's base, by dotted path."""
    train: tuple[tuple[float, ...], ...]
    """(step, tokens, loss), averaged to a few points."""
    valid: tuple[tuple[float, ...], ...]
    """(step, tokens, loss, perplexity or accuracy)."""


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from."""

    commit: str | None
    machine: str
    versions: dict[str, str]
    corpora: dict[str, str]
    """The hash of each corpus, by name."""


@dataclass(frozen=True)
class Outcome:
    experiment: str
    title: str
    source: str
    """"Table 2 of the paper", or "beyond the paper"."""
    caption: str
    scale: str
    date: str
    command: str
    metric: Metric
    rows: tuple[Row, ...]
    verdicts: tuple[VerdictRecord, ...]
    cells: tuple[CellRecord, ...]
    config: dict[str, Any]
    """The base configuration, without the places of this machine."""
    origin: Origin
    answer: tuple[str, ...] = ()
    """Paragraphs of plain text that stand first, where the experiment answers a question in words."""
    coherence: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the corpora by name, where it was measured: a `lab.coherence.Coherence`."""
    format: int = FORMAT

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.scale}"

    @property
    def baselines(self) -> dict[str, str]:
        """By label of a row, the row it is held against: the primary claim's baseline, or another claim's with its task."""
        claims = sorted((verdict.claim for verdict in self.verdicts), key=lambda claim: not claim.primary)
        candidates = [label for claim in claims for label in (claim.baseline, *(claim.elsewhere or ())[1:])]
        tasks = {
            cell.label: {key: value for key, value in cell.settings.items() if key.startswith("task.")}
            for cell in self.cells
        }
        found = {
            row.label: next((c for c in candidates if tasks.get(c) == tasks.get(row.label)), None) for row in self.rows
        }
        return {label: baseline for label, baseline in found.items() if baseline and baseline != label}


def read(path: str | Path) -> Outcome:
    """An outcome file."""
    data = _load(Path(path))
    if not _is_outcome(data):
        raise CoupledQKError(f"{path} is not the outcome of an experiment: expected a file of `coupledqk reproduce`")
    if data["format"] != FORMAT:
        raise CoupledQKError(
            f"{path} has format {data['format']!r}, this version reads {FORMAT}: write it again with `coupledqk reproduce`"
        )
    try:
        return from_dict(Outcome, data, null_is_nan=True)
    except CoupledQKError as error:
        raise CoupledQKError(f"{path} is damaged: {error}") from None


def read_all(folder: str | Path) -> list[Outcome]:
    """The outcome files of a folder, by name; other JSON files are passed over."""
    return [read(path) for path in sorted(Path(folder).glob("*.json")) if _is_outcome(_load(path))]


def write(outcome: Outcome, path: str | Path) -> None:
    write_atomic(path, to_json(outcome))


def to_json(outcome: Outcome) -> str:
    """The same outcome gives the same bytes. A curve is one line of the file."""
    data = _plain(dataclasses.asdict(outcome))
    cells = ",\n".join(f"  {json.dumps(cell, ensure_ascii=False)}" for cell in data.pop("cells"))
    text = json.dumps({**data, "cells": []}, indent=1, ensure_ascii=False, allow_nan=False)
    return text.removesuffix("[]\n}") + f"[\n{cells}\n ]\n}}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CoupledQKError(f"{path}: no such file; `coupledqk reproduce` writes outcome files") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CoupledQKError(f"{path} is damaged ({error}): restore it, or run its experiment again") from None


def _is_outcome(data: Any) -> bool:
    return isinstance(data, dict) and {"format", "experiment", "rows"} <= data.keys()
