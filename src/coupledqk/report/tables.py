"""Tables of an outcome, which are written as Markdown, as LaTeX, or as HTML by a page's template."""

import math
import re
from dataclasses import dataclass
from statistics import fmean

from ..formats import NOTHING, detectable, effect, interval, mean_and_std, number, percent
from ..outcome import Outcome, Row, Verdict


@dataclass(frozen=True)
class Table:
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    """Alignment of the columns, one letter each: l(eft), r(ight), p(aragraph)."""

    def without_empty(self) -> "Table":
        """The table without empty columns."""
        kept = [i for i in range(len(self.head)) if any(row[i] not in ("", NOTHING) for row in self.rows)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return Table(self.caption, tuple(self.head[i] for i in kept), rows, "".join(self.align[i] for i in kept))


def markdown(table: Table) -> str:
    rules = ["--:" if letter == "r" else "---" for letter in table.align]
    lines = [[markdown_text(cell) for cell in cells] for cells in (table.head, *table.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rules, *lines[1:])) + "\n"


def markdown_text(text: str) -> str:
    text = " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())
    return re.sub(r"([\\`*\[|])", r"\\\1", text)


def latex(table: Table) -> str:
    """The table in LaTeX, which requires the package booktabs."""
    columns = table.align.replace("p", r"p{0.4\linewidth}")
    head, *rows = (" & ".join(map(latex_text, cells)) + r" \\" for cells in (table.head, *table.rows))
    lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{latex_text(table.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}", ""])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--"}
_LATEX |= {letter: f"\\{letter}" for letter in "{}$&#_%"} | {"±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$"}
_LATEX |= {"τ": r"$\tau$", "λ": r"$\lambda$", "·": r"$\cdot$", "₀": r"$_0$"}


def latex_text(text: str) -> str:
    return text.translate(str.maketrans(_LATEX))


def results_table(outcome: Outcome) -> Table:
    """The results, those of the paper, and the verdicts on the claims about each row."""
    metric = outcome.metric
    baselines = {row.label: baseline.label for row in outcome.rows if (baseline := _baseline(outcome, row))}
    differ = len(set(baselines.values())) > 1
    against = "against its baseline" if differ else f"against {next(iter(baselines.values()), '')}"
    here, there = f"{metric.name} here", f"{metric.name} in the paper"
    head = ("", here, "seeds", "baseline", against, "95% interval", there, "change there", "verdict")
    rows = tuple(
        (
            row.label,
            mean_and_std(metric, row.mean, row.std),
            _seeds(outcome, row),
            baselines.get(row.label, NOTHING) if differ else NOTHING,
            percent(_effect(outcome, row)),
            interval(row.change.interval) if row.change else NOTHING,
            mean_and_std(metric, row.paper.mean, row.paper.std, row.paper.n) if row.paper else NOTHING,
            percent(_published_effect(outcome, row)),
            _verdicts(outcome, row),
        )
        for row in outcome.rows
    )
    return Table(f"{outcome.title}, {outcome.scale} scale", head, rows, "lrrlrrrrl").without_empty()


def costs_table(outcome: Outcome) -> Table:
    """Final values, companion measures and costs of each row."""
    metric, companions = outcome.metric, outcome.task_measure.companions
    names = (measure.name for measure in companions)
    head = ("", f"final {metric.name}", *names, "parameters", "tokens/s", "minutes per run")
    rows = tuple(
        (
            row.label,
            metric.show(row.final_mean),
            *(measure.show(row.companions.get(measure.key)) for measure in companions),
            number(row.parameters),
            number(row.tokens_per_second),
            number(None if row.seconds is None else row.seconds / 60, 1),
        )
        for row in outcome.rows
    )
    return Table(f"{outcome.title}: final step and costs", head, rows, "l" + "r" * (len(head) - 1)).without_empty()


def seeds_table(outcome: Outcome) -> Table:
    """The metric of each seed of each row."""
    seeds = sorted({seed for row in outcome.rows for seed in row.seeds})
    rows = tuple((row.label, *(outcome.metric.show(row.seeds.get(seed)) for seed in seeds)) for row in outcome.rows)
    head = ("", *(f"seed {seed}" for seed in seeds))
    return Table(f"{outcome.title}: {outcome.metric.name} of each seed", head, rows, "l" + "r" * len(seeds))


def claims_table(outcome: Outcome) -> Table:
    """The claims of an experiment with their verdicts, and the effects in the runs and in the paper."""
    head = ("claim", "verdict", "here", "interval", "80% power for", "in the paper")
    rows = tuple((each.claim.text, finding(outcome, each), *_contrast(each)) for each in outcome.verdicts)
    return Table(f"{outcome.title}, {outcome.scale} scale: claims", head, rows, "plrrrr")


UNTESTED = "not tested"


def is_tested(verdict: Verdict) -> bool:
    return verdict.evidence is not None or verdict.finding != "inconclusive"


def finding(outcome: Outcome, verdict: Verdict) -> str:
    """The finding in words, with its limitations in parentheses.

    An inconclusive claim for which there are too few runs is reported as not tested, and a contradicted claim with an effect
    within the margin also as equivalent. Failed runs are counted, since the interval is that of the runs that finished. Models
    above the bigram model allow no conclusion about attention.
    """
    claim, evidence, notes = verdict.claim, verdict.evidence, []
    if not is_tested(verdict):
        return UNTESTED
    if evidence is not None and any(evidence.failed):
        notes.append(f"{sum(evidence.failed)} failed")
    elif verdict.finding == "contradicted" and evidence is not None and evidence.equivalent:
        notes.append("equivalent")
    if outcome.above_bigram & {claim.variant, claim.baseline, *(claim.elsewhere or ())}:
        notes.append("above bigram")
    return f"{verdict.finding} ({', '.join(notes)})" if notes else verdict.finding


def _contrast(verdict: Verdict) -> tuple[str, str, str, str]:
    """The measured effect, its interval, the effect that the test has 80% power to detect, and the published effect."""
    claim, evidence = verdict.claim, verdict.evidence
    paper = NOTHING if claim.paper_effect is None else effect(claim, claim.paper_effect)
    if evidence is None:
        return NOTHING, NOTHING, NOTHING, paper
    ends = interval(evidence.interval, lambda end: effect(claim, end))
    return effect(claim, evidence.effect), ends, detectable(claim, evidence), paper


def _seeds(outcome: Outcome, row: Row) -> str:
    planned = sum(cell.label == row.label for cell in outcome.cells)
    return str(row.n) if row.n >= planned else f"{row.n} of {planned}"


def _effect(outcome: Outcome, row: Row) -> float | None:
    """The relative effect: paired by seed if it could be tested, otherwise of the means over the seeds that both rows have."""
    if row.change:
        return row.change.effect
    baseline = _baseline(outcome, row)
    shared = [s for s in row.seeds if baseline and math.isfinite(row.seeds[s] + baseline.seeds.get(s, math.nan))]
    if baseline is None or not shared:
        return None
    ours, theirs = (fmean(each.seeds[seed] for seed in shared) for each in (row, baseline))
    return ours / theirs - 1 if theirs else None


def _published_effect(outcome: Outcome, row: Row) -> float | None:
    baseline = _baseline(outcome, row)
    if baseline is None or baseline.paper is None or row.paper is None:
        return None
    return row.paper.mean / baseline.paper.mean - 1 if baseline.paper.mean else None


def _baseline(outcome: Outcome, row: Row) -> Row | None:
    """The row that a row is compared with. An outcome written by an earlier version may contain another baseline."""
    label = row.change.baseline if row.change else outcome.baselines.get(row.label)
    return next((other for other in outcome.rows if other.label == label), None)


def _verdicts(outcome: Outcome, row: Row) -> str:
    """The findings on the claims about a row, with the numbers of the claims if there are several."""
    found = [(i, finding(outcome, v)) for i, v in enumerate(outcome.verdicts, 1) if v.claim.variant == row.label]
    return "; ".join(f"{i}: {word}" if len(outcome.verdicts) > 1 else word for i, word in found)
