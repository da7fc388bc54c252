"""What an experiment found, in one JSON file: all that a report needs, without the run folders.

The laboratory writes it after every cell, `results/lab` keeps it, the report reads it. JSON has no NaN: null stands where a
number is not finite (a run that diverged, the deviation of a single seed).
"""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from .baselines import Baseline, PositionLoss
from .errors import CoupledQKError
from .files import read_json, write_atomic
from .measure import ACCURACY, MEASURES, PERPLEXITY, Measure
from .schema import check_fields, from_dict, require

FORMAT = 2
Status = Literal["finished", "failed", "interrupted", "running", "waiting"]
ClaimKind = Literal["lower", "higher", "equal", "less_variable", "interaction"]
Finding = Literal["supported", "contradicted", "equivalent", "inconclusive"]


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
    interval: tuple[float, float]
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
    companions: dict[str, float]
    """Mean values of what is shown beside the metric, by key."""
    paper: Published | None
    parameters: int | None
    tokens_per_second: float | None
    seconds: float | None
    change: Change | None = None
    """Against the row's baseline."""
    baselines: tuple[Baseline, ...] = ()
    """n-gram models of the text that a language model was trained on."""
    position_losses: tuple[PositionLoss, ...] = ()
    """The loss of a language model against the context it sees, the mean over seeds."""

    @property
    def final_mean(self) -> float | None:
        """Of the runs that did not diverge."""
        values = [value for value in self.final.values() if math.isfinite(value)]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Claim:
    """One contrast between cells of an experiment. Effects are relative: −0.066 is 6.6% of the baseline's mean below it."""

    text: str
    """The claim in words."""
    kind: ClaimKind
    variant: str
    """A cell's label, as is `baseline`."""
    baseline: str
    elsewhere: tuple[str, str] | None = None
    """Of an interaction: the variant and the baseline on the other corpus. Its effect is the difference of the two effects."""
    paper_effect: float | None = None
    """The published effect, if there is one. Of less_variable: the ratio of standard deviations, less 1."""
    margin: float = 0.01
    """Effects within ±margin count as equivalent to none."""
    paired: bool = True
    """Seed by seed. If not, each cell counts all its seeds; an interaction stays paired within each corpus."""
    primary: bool = False
    """The one claim of its experiment that was chosen before running, and that is not corrected for the others."""
    source: str = ""
    """The paper's table."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.variant != self.baseline, "variant", self.variant, "another cell than the baseline")
        needed = 2 if self.kind == "interaction" else 0
        require(len(self.elsewhere or ()) == needed, "elsewhere", self.elsewhere, f"{needed} labels for {self.kind}")
        require(self.margin > 0, "margin", self.margin, "a share of the baseline's mean above 0, such as 0.01")
        sign = math.copysign(1, self.paper_effect) if self.paper_effect else None
        if self.kind == "interaction":
            require(sign is not None, "paper_effect", self.paper_effect, "the effect whose sign is claimed")
        elif self.kind != "equal":
            require(sign in (None, self.side), "paper_effect", self.paper_effect, f"an effect that is {self.kind}")

    @property
    def side(self) -> int:
        """The sign of the claimed effect; 0 for equality."""
        if self.kind == "interaction":
            return 1 if (self.paper_effect or 0) > 0 else -1
        return {"lower": -1, "less_variable": -1, "higher": 1, "equal": 0}[self.kind]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Labels of cells that are taken seed by seed with one another."""
        here = (self.variant, self.baseline)
        if self.kind == "less_variable" or not (self.paired or self.elsewhere):
            return [(self.variant,), (self.baseline,)]
        if self.elsewhere is None:
            return [here]
        return [here + self.elsewhere] if self.paired else [here, self.elsewhere]


@dataclass(frozen=True)
class Evidence:
    """What was measured, in the units of `Claim.paper_effect`."""

    effect: float
    interval: tuple[float, float]
    confidence: float
    """Of the interval. It is higher where several claims share one error rate."""
    p: float
    """Of the hypothesis of no effect; of equal, that it is beyond the margin. Adjusted by Holm's method where claims share."""
    n: tuple[int, int]
    """Seeds on either side of the contrast."""
    paired: bool
    detectable: float
    """The effect, as a magnitude, or the margin of equal, that a test with these seeds detects with 80% power."""
    equivalent: bool = False
    """Whether the effect lies within ±margin: two one-sided tests at the claim's level (a 90% interval at 5%)."""
    failed: tuple[int, int] = (0, 0)
    """Seeds of the variant and of the baseline that diverged or never reached what the measure asks for."""
    df: float | None = None
    """Degrees of freedom of the interval: more than the seeds give where variances are moderated. None for a ratio."""


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    Contradicted: the interval lies on the other side, or contains zero and excludes the published effect. Equivalent: the 90%
    interval lies within ±margin. Supported: the interval lies on the claimed side; for a claim of equality, within ±margin.
    Inconclusive: none of these. Equivalence beside a contradiction is in `evidence.equivalent`.
    """

    claim: Claim
    finding: Finding
    sentence: str
    """What was found and why it leads to this finding."""
    evidence: Evidence | None
    """None where no test could be made; the sentence says why."""


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
    """(step, tokens, loss, the task's measure)."""


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from."""

    commit: str | None
    machine: str
    versions: dict[str, str]
    corpora: dict[str, str]
    """The hash of each corpus, by name."""


@dataclass(frozen=True)
class Rung:
    """The effect at one model size."""

    size: str
    """In words, such as 1.5M."""
    parameters: int
    """Of the baseline."""
    effect: float
    """Relative to the baseline's mean."""
    interval: tuple[float, float] | None
    """95%; None for a single pair."""
    n: int
    """Pairs of seeds."""


@dataclass(frozen=True)
class Ladder:
    """The effect against the model size."""

    name: str
    rungs: tuple[Rung, ...]
    slope: float | None = None
    """Change of the effect per tenfold size."""
    slope_interval: tuple[float, float] | None = None
    """95%."""


@dataclass(frozen=True)
class Shift:
    """How a variant changes one property of a trained model, beside what an immaterial change does to the baseline."""

    name: str
    """The property in words, such as "gain from context"."""
    unit: str
    """Empty for a number without one."""
    baseline: float
    """Mean over seeds, as is `variant`."""
    variant: float
    effect: float
    """Mean difference of variant and baseline, seed by seed, in the unit."""
    interval: tuple[float, float] | None
    """95%; None for a single pair."""
    n: int
    """Pairs of seeds."""
    null_effect: float | None = None
    """The same of null pairs: the baseline with an immaterial change, against the baseline."""
    null_interval: tuple[float, float] | None = None

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval excludes zero and does not overlap with that of the null pairs."""
        if self.interval is None or self.null_interval is None:
            return False
        (low, high), (null_low, null_high) = self.interval, self.null_interval
        return not low <= 0 <= high and (high < null_low or null_high < low)


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
    metric: Measure
    """What is compared."""
    task_measure: Measure
    """What the curves show. It differs from the metric where something is derived from the curves."""
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    cells: tuple[CellRecord, ...]
    config: dict[str, Any]
    """The base configuration, without the places of this machine."""
    origin: Origin
    answer: tuple[str, ...] = ()
    """Paragraphs of plain text that stand first, where the experiment answers a question in words."""
    coherence: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the corpora by name, where it was measured: a `lab.coherence.Coherence`."""
    ladders: tuple[Ladder, ...] = ()
    """The effect against model size, where the experiment has several; the paper's sizes are the last."""
    shifts: tuple[Shift, ...] = ()
    """What the variant changes beside the metric, where the experiment asks for it."""
    format: int = FORMAT

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.scale}"

    @property
    def baselines(self) -> dict[str, str]:
        """By label of a row, the row it is compared with.

        That is the baseline of a claim, the primary one first, whose settings differ in the attention only; or else the first
        with the same task.
        """
        claims = sorted((verdict.claim for verdict in self.verdicts), key=lambda claim: not claim.primary)
        candidates = [label for claim in claims for label in (claim.baseline, *(claim.elsewhere or ())[1:])]
        settings = {cell.label: cell.settings for cell in self.cells}

        def alike(one: str, other: str, counts: Callable[[str], bool]) -> bool:
            ours, theirs = ({k: v for k, v in settings.get(label, {}).items() if counts(k)} for label in (one, other))
            return ours == theirs

        found = {}
        for label in (row.label for row in self.rows):
            for counts in (_is_not_attention, _is_task):
                if matches := [candidate for candidate in candidates if alike(label, candidate, counts)]:
                    found[label] = matches[0]
                    break
        return {label: baseline for label, baseline in found.items() if baseline != label}


def _is_not_attention(setting: str) -> bool:
    return setting != "seed" and not setting.startswith("model.attention.")


def _is_task(setting: str) -> bool:
    return setting.startswith("task.")


def read(path: str | Path) -> Outcome:
    """An outcome file."""
    data = _load(Path(path))
    if not _is_outcome(data):
        raise CoupledQKError(f"{path} is not the outcome of an experiment: expected a file of `coupledqk reproduce`")
    if data["format"] not in (1, FORMAT):
        raise CoupledQKError(
            f"{path} has format {data['format']!r}, this version reads 1 to {FORMAT}: update coupledqk, or write it again with "
            "`coupledqk reproduce`"
        )
    try:
        if data["format"] == 1:
            data = _from_format_1(data)
        return from_dict(Outcome, data, null_is_nan=True)
    except CoupledQKError as error:
        raise CoupledQKError(f"{path} is damaged: {error}") from None


_FINDINGS_1: dict[str, Finding] = {
    "holds here": "supported",
    "does not hold here": "contradicted",
    "cannot tell with this many seeds": "inconclusive",
}


def _from_format_1(data: dict[str, Any]) -> dict[str, Any]:
    """Rewrites an outcome of format 1 in terms of format 2. What cannot be mapped is left for the decoder to name."""
    data["format"] = FORMAT
    if isinstance(metric := data.get("metric"), dict):
        key = str(metric.get("key")).removeprefix("best.").partition(".")[0]
        data["metric"] = replace(MEASURES.get(key, PERPLEXITY), definition=str(metric.get("definition")))
        data["task_measure"] = ACCURACY if metric.get("better") == "higher" else PERPLEXITY
    for row in _tables(data, "rows"):
        bits = row.pop("bits_per_byte", None)
        row["companions"] = {} if bits is None else {"bits_per_byte": bits}
    for verdict in _tables(data, "verdicts"):
        found = verdict.pop("outcome", None)
        verdict["finding"] = _FINDINGS_1.get(found, found) if isinstance(found, str) else found
        if isinstance(evidence := verdict.get("evidence"), dict):
            evidence["detectable"] = evidence.pop("smallest", None)
    return data


def _tables(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    listed = data.get(key)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


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
    if not path.exists():
        raise CoupledQKError(f"{path}: no such file; `coupledqk reproduce` writes outcome files")
    return read_json(path, "restore it, or run its experiment again")


def _is_outcome(data: Any) -> bool:
    return isinstance(data, dict) and {"format", "experiment", "rows"} <= data.keys()
