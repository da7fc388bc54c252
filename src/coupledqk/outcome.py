"""The outcome of an experiment: its rows, claims, verdicts and runs, and all that a report needs without the run folders."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from .baselines import Baseline, PositionLoss, objection
from .measure import BITS_PER_BYTE, Measure
from .schema import check_fields, require

FORMAT = 2
Status = Literal["finished", "failed", "interrupted", "running", "waiting"]
ClaimKind = Literal["lower", "higher", "equal", "less_variable", "interaction"]
Finding = Literal["supported", "contradicted", "equivalent", "inconclusive"]


@dataclass(frozen=True)
class Published:
    """The value that the paper reports for a row."""

    mean: float
    std: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Change:
    """Relative difference between a row and its baseline, paired by seed, with a 95% interval."""

    baseline: str
    effect: float
    interval: tuple[float, float]
    n: int
    """Number of seeds that both rows have."""


@dataclass(frozen=True)
class Row:
    """A row of the table: the finished cells with one label. If there are none, numbers are None and `n` is 0."""

    label: str
    seeds: dict[int, float]
    """The metric of each finished cell, by seed; not finite for a run that diverged or did not reach the metric's target."""
    mean: float | None
    std: float | None
    """Sample standard deviation over seeds (ddof 1)."""
    n: int
    final: dict[int, float]
    """The metric of each finished cell at the last step, by seed."""
    companions: dict[str, float]
    """Mean values of the measures shown beside the metric, by key."""
    paper: Published | None
    parameters: int | None
    tokens_per_second: float | None
    seconds: float | None
    change: Change | None = None
    """Relative difference from the row's baseline."""
    baselines: tuple[Baseline, ...] = ()
    """n-gram models of the text that the language model was trained on."""
    position_losses: tuple[PositionLoss, ...] = ()
    """The loss of a language model by length of context, averaged over seeds."""

    @property
    def final_mean(self) -> float | None:
        """Mean of the metric at the last step, over the runs that did not diverge."""
        values = [value for value in self.final.values() if math.isfinite(value)]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Claim:
    """A claim about the contrast between two cells of an experiment.

    Effects are relative: −0.066 means that the variant's mean is 6.6% below the baseline's.
    """

    text: str
    """The claim in words."""
    kind: ClaimKind
    variant: str
    """Label of the cell that is compared with the cell labelled `baseline`."""
    baseline: str
    elsewhere: tuple[str, str] | None = None
    """For an interaction, the variant and the baseline on the other corpus; the effect is the difference of the two effects."""
    paper_effect: float | None = None
    """The published effect, if there is one. For less_variable it is the ratio of standard deviations minus 1. An interaction
    is claimed to have the sign of the published effect, or to be negative if there is none."""
    margin: float = 0.01
    """Equivalence margin: effects within ±margin count as no effect."""
    paired: bool = True
    """Whether the comparison is paired by seed. If not, all seeds of each cell are used; an interaction remains paired within
    each corpus."""
    primary: bool = False
    """Whether this is the experiment's primary claim, which is chosen before running and not corrected for multiplicity."""
    source: str = ""
    """The paper's table that makes the claim."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.variant != self.baseline, "variant", self.variant, "a cell other than the baseline")
        needed = 2 if self.kind == "interaction" else 0
        require(len(self.elsewhere or ()) == needed, "elsewhere", self.elsewhere, f"{needed} labels for {self.kind}")
        require(self.margin > 0, "margin", self.margin, "a share of the baseline's mean above 0, such as 0.01")
        sign = math.copysign(1, self.paper_effect) if self.paper_effect else None
        if self.kind not in ("equal", "interaction"):
            expected = "a positive number" if self.side > 0 else "a negative number"
            require(sign in (None, self.side), "paper_effect", self.paper_effect, f"{expected} for {self.kind!r}")

    @property
    def side(self) -> int:
        """The sign of the claimed effect; 0 for equality."""
        if self.kind == "interaction":
            return 1 if (self.paper_effect or 0) > 0 else -1
        return {"lower": -1, "less_variable": -1, "higher": 1, "equal": 0}[self.kind]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Groups of labels of cells that are paired by seed with one another."""
        here = (self.variant, self.baseline)
        if self.kind == "less_variable" or not (self.paired or self.elsewhere):
            return [(self.variant,), (self.baseline,)]
        if self.elsewhere is None:
            return [here]
        return [here + self.elsewhere] if self.paired else [here, self.elsewhere]


@dataclass(frozen=True)
class Evidence:
    """The measured effect and its uncertainty, in the units of `Claim.paper_effect`."""

    effect: float
    interval: tuple[float, float]
    confidence: float
    """Confidence level of the interval. It is above 95% if several claims share one error rate."""
    p: float
    """p-value of the null hypothesis of no effect, or, for claims of equality, of an effect beyond the margin. It is adjusted
    by Holm's method if several claims share one error rate."""
    n: tuple[int, int]
    """Number of seeds of the variant and of the baseline."""
    paired: bool
    detectable: float
    """The absolute effect, or the margin for claims of equality, that a test with these seeds detects with 80% power."""
    equivalent: bool = False
    """Whether the effect lies within ±margin by two one-sided tests at the claim's level (a 90% interval at 5%)."""
    failed: tuple[int, int] = (0, 0)
    """Number of runs of the variant and of the baseline that diverged or did not reach the measure's target."""
    df: float | None = None
    """Degrees of freedom of the interval, including those that moderated variances add. None for a ratio."""


@dataclass(frozen=True)
class Verdict:
    """The finding about a claim, with its evidence.

    Contradicted: the interval lies on the other side, or contains zero and excludes the published effect. Equivalent: the 90%
    interval lies within ±margin. Supported: the interval lies on the claimed side; for a claim of equality, within ±margin.
    Inconclusive: none of these. `evidence.equivalent` also records equivalence if the finding is "contradicted".
    """

    claim: Claim
    finding: Finding
    sentence: str
    """The measured effect and the reason for the finding, in words."""
    evidence: Evidence | None
    """None if no test was possible; `sentence` then contains the reason."""


@dataclass(frozen=True)
class CellRecord:
    """One training run of the experiment, finished or not."""

    label: str
    seed: int
    identity: str
    name: str
    """Name of the run folder."""
    status: Status
    error: str | None
    settings: dict[str, Any]
    """Settings that differ from the experiment's base configuration, by dotted path."""
    train: tuple[tuple[float, ...], ...]
    """Training curve: (step, tokens, loss), averaged to a limited number of points."""
    valid: tuple[tuple[float, ...], ...]
    """Validation curve: (step, tokens, loss, the task's measure)."""

    def __post_init__(self) -> None:
        for name, points, size in (("train", self.train, 3), ("valid", self.valid, 4)):
            wrong = [point for point in points if len(point) != size]
            require(
                not wrong, f"{name} curve of {self.label}, seed {self.seed}", wrong[:1], f"points of {size} numbers"
            )


@dataclass(frozen=True)
class Origin:
    """Provenance of the numbers: commit, versions, machines and corpora."""

    commit: str | None
    machine: str
    versions: dict[str, str]
    corpora: dict[str, str]
    """Hash of each corpus, by name."""


@dataclass(frozen=True)
class LadderSpec:
    """Rows that differ in model size. The outcome contains the effect as a function of size."""

    variant: str
    """Label of the variant's rows, containing {size}."""
    baseline: str
    """Label of the baseline's rows, containing {size}."""
    sizes: tuple[str, ...]
    name: str = "here"
    """Name of the ladder in tables and charts, where the paper's ladder is shown too."""


@dataclass(frozen=True)
class Rung:
    """The effect at one model size."""

    size: str
    """The model size as text, such as 1.5M."""
    parameters: int
    """Number of parameters of the baseline."""
    effect: float
    """Effect relative to the baseline's mean."""
    interval: tuple[float, float] | None
    """95% interval of the effect; None for a single pair, or for pairs that do not vary."""
    n: int
    """Number of pairs of runs."""


@dataclass(frozen=True)
class Ladder:
    """The effect as a function of model size."""

    name: str
    rungs: tuple[Rung, ...]
    slope: float | None = None
    """Change of the effect per tenfold increase in size."""
    slope_interval: tuple[float, float] | None = None
    """95% interval of the slope."""
    spec: LadderSpec | None = None
    """The rows that were compared; None for published effects."""


@dataclass(frozen=True)
class Shift:
    """The effect of a variant on a property of trained models, compared with that of an immaterial change to the baseline."""

    name: str
    """Name of the property, such as "gain from context"."""
    unit: str
    """Unit of the property; empty if it has none."""
    baseline: float
    """Mean of the baseline over seeds."""
    variant: float
    effect: float
    """Mean difference between variant and baseline, paired by seed, in `unit`."""
    interval: tuple[float, float] | None
    """95% interval of the effect; None for a single pair, or for pairs that do not vary."""
    n: int
    """Number of pairs of runs."""
    null_effect: float | None = None
    """Mean difference of null pairs: the baseline with an immaterial change against the baseline."""
    null_interval: tuple[float, float] | None = None
    unreached: tuple[int, int] = (0, 0)
    """Number of runs of the variant and of the baseline that did not reach the property's target. They are in no mean, so the
    effect understates the difference if the variant has more of them."""

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval excludes zero and does not overlap the interval of the null pairs."""
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
    """The measure that is compared."""
    task_measure: Measure
    """The measure in the validation curves. It differs from the metric if the metric is derived from the curves."""
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    cells: tuple[CellRecord, ...]
    config: dict[str, Any]
    """The base configuration, without the local paths of the machine."""
    origin: Origin
    answer: tuple[str, ...] = ()
    """Introductory paragraphs in plain text, for experiments that answer a question in words."""
    coherence: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Coherence of the corpora (fields of `lab.coherence.Coherence`) by name, if it was measured."""
    ladders: tuple[Ladder, ...] = ()
    """The effect as a function of model size, if the experiment has several sizes. The paper's ladder is the last one."""
    shifts: tuple[Shift, ...] = ()
    """Changes of properties other than the metric, if the experiment lists any."""
    format: int = FORMAT

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.scale}"

    def bits_per_byte(self, row: Row) -> float | None:
        return row.mean if self.metric.key == BITS_PER_BYTE.key else row.companions.get(BITS_PER_BYTE.key)

    @property
    def above_bigram(self) -> set[str]:
        """Labels of rows whose models are not better than a bigram model of the same text, so that claims about them allow no
        conclusion about attention."""
        bits = ((row, self.bits_per_byte(row)) for row in self.rows)
        return {row.label for row, found in bits if found is not None and objection(found, row.baselines)}

    @property
    def baselines(self) -> dict[str, str]:
        """The label of the row that each row is compared with, by the label of the row.

        It is the baseline of the first claim about the row, starting with the primary claim. A row without a claim is compared
        with a baseline of other claims with the same task: the one that differs in the fewest settings other than those of the
        attention, and among these the one with the most claims.
        """
        claims = sorted((verdict.claim for verdict in self.verdicts), key=lambda claim: not claim.primary)
        pairs = [pair for claim in claims for pair in ((claim.variant, claim.baseline), claim.elsewhere) if pair]
        uses = Counter(baseline for _, baseline in pairs)
        found: dict[str, str] = {}
        for label, baseline in pairs:
            if found.get(baseline) != label:
                found.setdefault(label, baseline)
        for label in (row.label for row in self.rows if row.label not in found):
            candidates = [baseline for baseline, n in uses.most_common() if n > uses[label]]
            if matches := [each for each in candidates if not self._differences(label, each, _is_task)]:
                found[label] = min(matches, key=lambda each: len(self._differences(label, each, _is_not_attention)))
        return {row.label: found[row.label] for row in self.rows if row.label in found}

    def differ_in_attention(self, one: str, other: str) -> bool:
        """Whether the settings of two rows differ in nothing but the attention."""
        return not self._differences(one, other, _is_not_attention)

    def _differences(self, one: str, other: str, counts: Callable[[str], bool]) -> set[str]:
        """The settings in which two rows differ and for which `counts` is true."""
        settings = {cell.label: cell.settings for cell in self.cells}
        ours, theirs = settings.get(one, {}), settings.get(other, {})
        return {key for key in ours.keys() | theirs.keys() if counts(key) and ours.get(key) != theirs.get(key)}


def _is_not_attention(setting: str) -> bool:
    return setting != "seed" and not setting.startswith("model.attention.")


def _is_task(setting: str) -> bool:
    return setting.startswith("task.")
