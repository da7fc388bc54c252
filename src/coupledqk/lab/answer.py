"""The answer to "does coupling help on this text?", in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..outcome import EvidenceRecord, Outcome, Row, VerdictRecord
from ..report.tables import percent


def answer(
    outcome: Outcome, text: str, coherence: Mapping[str, Mapping[str, Any]], why_not: str = ""
) -> tuple[str, ...]:
    """One paragraph on what coupling does and costs, and one on how coherent the text is."""
    primary = next(verdict for verdict in outcome.verdicts if verdict.claim.primary)
    rows = {row.label: row for row in outcome.rows}
    standard, coupled = rows[primary.claim.baseline], rows[primary.claim.variant]
    sentences = [*_finding(primary, text), *_costs(standard, coupled), *_others(outcome)]
    return " ".join(sentences), _coherence(text, coherence.get(text), why_not)


def _finding(verdict: VerdictRecord, text: str) -> Iterator[str]:
    """Whether, how much, how sure; and what could have been seen."""
    ours, theirs, evidence = verdict.claim.variant, verdict.claim.baseline, verdict.evidence
    if evidence is None:
        yield f"Whether coupling helps on {text} cannot be told: {verdict.sentence}"
        return
    outcomes = {"holds here": ("helps", "lower"), "does not hold here": ("does harm", "higher")}
    if verdict.outcome in outcomes:
        does, side = outcomes[verdict.outcome]
        size = f"{abs(evidence.effect):.2%} {side} than that of {theirs} {_sure(evidence)}"
        yield f"Coupling {does} on {text}: the perplexity of {ours} is {size}."
    else:
        yield (
            f"Whether coupling helps on {text} cannot be told with {evidence.n[0]} seeds: the perplexity of {ours} is "
            f"{percent(evidence.effect)} against that of {theirs} {_sure(evidence)}, and the interval includes no effect."
        )
    yield f"An effect of {evidence.smallest:.2%} or more would have been found at least four times in five."


def _sure(evidence: EvidenceRecord) -> str:
    low, high = map(percent, evidence.interval)
    p = "p < 0.001" if evidence.p < 0.001 else f"p = {evidence.p:.3f}"
    return f"({100 * evidence.confidence:.3g}% interval {low} to {high}, {evidence.n[0]} paired seeds, {p})"


def _costs(standard: Row, coupled: Row) -> Iterator[str]:
    parts = []
    if standard.parameters and coupled.parameters:
        more = coupled.parameters - standard.parameters
        parts.append(f"{more:,} parameters more ({percent(more / standard.parameters)})")
    if standard.tokens_per_second and coupled.tokens_per_second:
        longer = standard.tokens_per_second / coupled.tokens_per_second
        speeds = f"{coupled.tokens_per_second:,.0f} against {standard.tokens_per_second:,.0f} tokens a second"
        parts.append(f"{longer:.2f}× the time for the same tokens ({speeds})")
    if parts:
        yield f"It costs {' and '.join(parts)}."


def _others(outcome: Outcome) -> Iterator[str]:
    """With what else was asked, corrected for its number."""
    named: dict[str, list[str]] = {}
    for verdict in outcome.verdicts:
        if not verdict.claim.primary:
            named.setdefault(verdict.outcome, []).append(verdict.claim.variant)
    lists = [
        f"{', '.join(named[kind])} {words}"
        for kind, words in (
            ("holds here", "came out better than standard"),
            ("does not hold here", "came out worse"),
            ("cannot tell with this many seeds", "cannot be told from standard"),
        )
        if kind in named
    ]
    if lists:
        yield f"Of the others, corrected for their number: {'; '.join(lists)}."


def _coherence(text: str, measured: Mapping[str, Any] | None, why_not: str) -> str:
    if measured is None:
        return f"The coherence of {text} was not measured: {why_not}."
    low, high = measured["interval"]
    return (
        f"Coherence of {text}: {measured['gain']:.3f} bits per byte (95% interval {low:.3f} to {high:.3f}, over "
        f"{measured['n_documents']} documents), which is what an excerpt gains from {measured['context_bytes'] / 1e6:g} MB of "
        "the other documents. Text of one kind has more of it than text of many kinds; it is meant for comparing corpora."
    )
