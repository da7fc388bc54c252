"""A chart of all tested claims: the measured effect with its interval, beside the published effect."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from ..outcome import Claim, Evidence, Finding, Outcome, Verdict
from .axis import Axis
from .chart import MARGIN, STYLE, printable
from .tables import finding

WIDTH, ROW, BELOW, LEGEND = 720, 46, 40, 30
# Text widths assume the larger font used on phones.
LONGEST_TEXT = 58
WIDEST = 1.5
"""Intervals are cut off where they extend beyond the largest effect plus this multiple of the median width."""

CIRCLE = "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z"
LOOKS: dict[Finding, tuple[int, str]] = {
    "supported": (2, CIRCLE),
    "contradicted": (1, "m-4-4h8v8h-8z"),
    "equivalent": (0, "m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z"),
    "inconclusive": (7, CIRCLE),
}
"""Index of the colour, and the marker, of each finding."""
PUBLISHED = "m-5-5l10 10m0-10l-10 10"
OWN_STYLE = """
.chart .above{paint-order:stroke;stroke:var(--paper);stroke-width:5px}
.chart .hollow{fill:var(--paper);stroke:var(--colour);stroke-width:1.8}
"""


@dataclass(frozen=True)
class _Tested:
    text: str
    verdict: Verdict
    evidence: Evidence
    finding: str

    @property
    def ends(self) -> tuple[float, float]:
        return 100 * self.evidence.interval[0], 100 * self.evidence.interval[1]

    @property
    def published(self) -> float | None:
        effect = self.verdict.claim.paper_effect
        return None if effect is None else 100 * effect


def claims_chart(outcomes: Sequence[Outcome]) -> str | None:
    """Draws every claim about an effect that was tested, in the order of the table of claims; None if there is none.

    Claims about the spread over seeds are left out: ratios of standard deviations would need an axis of their own.
    """
    scales = {outcome.scale for outcome in outcomes}
    names = [outcome.name if len(scales) > 1 else outcome.experiment for outcome in outcomes]
    rows = [
        _Tested(
            f"{name}: {_contrast(verdict.claim)}" if len(outcomes) > 1 else _short(verdict.claim),
            verdict,
            found,
            finding(outcome, verdict),
        )
        for name, outcome in zip(names, outcomes, strict=True)
        for verdict in outcome.verdicts
        if (found := verdict.evidence) is not None
        and verdict.claim.kind != "less_variable"
        and all(map(math.isfinite, (found.effect, *found.interval)))
    ]
    if not rows:
        return None
    x = _axis(rows)
    bottom = LEGEND + ROW * len(rows) + MARGIN
    described = "; ".join(f"{row.text}: {row.finding}, {100 * row.evidence.effect:+.2f}%" for row in rows)
    return printable(
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {WIDTH} {bottom + BELOW}"'
                f' width="{WIDTH}" height="{bottom + BELOW}">',
                f"<title>Effects of all tested claims</title><desc>{html.escape(described)}</desc>",
                f'<style>{STYLE}{OWN_STYLE}</style><rect class="paper" width="{WIDTH}" height="{bottom + BELOW}"/>',
                _frame(x, bottom),
                *(_row(row, x, LEGEND + ROW * place) for place, row in enumerate(rows)),
                "</svg>",
            ]
        )
    )


def _axis(rows: Sequence[_Tested]) -> Axis:
    """An axis with zero, all effects and all published effects. Intervals much wider than most end in an arrow."""
    effects = [100 * row.evidence.effect for row in rows]
    effects += [row.published for row in rows if row.published is not None]
    ends = [end for row in rows for end in row.ends]
    limit = max(map(abs, effects)) + WIDEST * median_low(high - low for low, high in (row.ends for row in rows))
    return Axis.over([0.0, *effects, *(min(max(end, -limit), limit) for end in ends)], MARGIN, WIDTH - MARGIN)


def _short(claim: Claim) -> str:
    """The claim in words, or its contrast if the words would be cut off: claims of one experiment often differ at their end."""
    return claim.text if len(claim.text) <= LONGEST_TEXT else _contrast(claim)


def _contrast(claim: Claim) -> str:
    """The contrast of a claim in a few words."""
    here = _pair(claim.variant, claim.baseline)
    return f"{here}, minus {_pair(*claim.elsewhere)}" if claim.elsewhere is not None else here


def _pair(variant: str, baseline: str) -> str:
    """Two labels, with the ending that they share stated once: "lora + coupling against lora, on QNLI"."""
    ours, theirs, common = variant.split(), baseline.split(), []
    while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
        common.insert(0, ours.pop())
        theirs.pop()
    if not common:
        return f"{variant} against {baseline}"
    return f"{' '.join(ours).rstrip(',')} against {' '.join(theirs).rstrip(',')}, {' '.join(common)}"


def _frame(x: Axis, bottom: float) -> str:
    ticks = [(x.at(value), label) for value, label in x.ticks()]
    rules = "".join(f"M{at:.1f} {LEGEND}V{bottom}" for at, _ in ticks)
    texts = [f'<text class="soft middle" x="{at:.1f}" y="{bottom + 18}">{label}</text>' for at, label in ticks]
    about = "effect relative to the baseline, %, with its interval; × is the published effect"
    return "\n".join(
        [
            f'<path class="rules" d="{rules}"/><path class="axis" d="M{x.at(0):.1f} {LEGEND}V{bottom}"/>',
            *texts,
            f'<text class="soft" x="{MARGIN}" y="18">{about}</text>',
        ]
    )


def _row(row: _Tested, x: Axis, top: float) -> str:
    """The text of a claim with its finding, and below it the interval."""
    colour, marker = LOOKS[row.verdict.finding]
    y = top + 34
    low, high = (min(max(x.at(end), x.start), x.end) for end in row.ends)
    caps = "".join(f"M{end:.1f} {y - 4}v8" for end in (low, high) if x.start < end < x.end)
    caps += f"M{low + 7:.1f} {y - 4}l-7 4l7 4" * (low == x.start) + f"M{high - 7:.1f} {y - 4}l7 4l-7 4" * (
        high == x.end
    )
    text = row.text if len(row.text) <= LONGEST_TEXT else row.text[: LONGEST_TEXT - 1] + "…"
    parts = [
        f'<text class="above" x="{MARGIN}" y="{top + 18}"><title>{html.escape(row.text)}</title>{html.escape(text)}</text>',
        f'<text class="soft end" x="{WIDTH - MARGIN}" y="{top + 18}">{row.finding}</text>',
        f'<g style="--colour:var(--colour-{colour})">',
        f'<path class="line" d="M{low:.1f} {y}H{high:.1f}{caps}"/>',
        f'<path class="{"hollow" if row.verdict.finding == "inconclusive" else "marks"}" '
        f'd="M{x.at(100 * row.evidence.effect):.1f} {y}{marker}"/></g>',
    ]
    if row.published is not None:
        parts.append(f'<path class="axis" fill="none" d="M{x.at(row.published):.1f} {y}{PUBLISHED}"/>')
    return "".join(parts)
