"""The answer to "does coupling help on this text?", in words."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ..formats import detectable, percent, uncertainty
from ..outcome import Outcome, Row, Verdict


def answer(
    outcome: Outcome,
    text: str,
    coherence: Mapping[str, Mapping[str, Any]],
    why_not: str = "",
    slowdowns: Sequence[float] = (),
    objection: str | None = None,
) -> tuple[str, ...]:
    """One paragraph on what coupling does and costs, and one on how coherent the text is.

    `slowdowns` are the time per token relative to the baseline, one value per interleaved round. `objection` is the reason why
    the models allow no conclusion; if given, it comes first.
    """
    primary = next(verdict for verdict in outcome.verdicts if verdict.claim.primary)
    rows = {row.label: row for row in outcome.rows}
    standard, coupled = rows[primary.claim.baseline], rows[primary.claim.variant]
    sentences = [*_finding(primary, text, objection), *_costs(standard, coupled, slowdowns), *_others(outcome)]
    return " ".join(sentences), _coherence(text, coherence.get(text), why_not)


def _finding(verdict: Verdict, text: str, objection: str | None) -> Iterator[str]:
    """The finding, the effect with its uncertainty, and the effect the comparison had the power to detect."""
    claim, evidence = verdict.claim, verdict.evidence
    yield (
        f"On {text}, {objection}. {'In these runs' if evidence else 'The claim was not tested:'}"
        if objection
        else {
            "supported": f"Coupling helps on {text}:",
            "contradicted": f"Coupling hurts on {text}:",
            "equivalent": f"Coupling makes no difference of {100 * claim.margin:.3g}% or more on {text}:",
            "inconclusive": f"The comparison on {text} is inconclusive:",
        }[verdict.finding]
    )
    if evidence is None:
        yield verdict.sentence
        return
    low, high = evidence.interval
    zero = ", and zero lies inside the interval" if low < 0 < high else ""
    yield (
        f"the perplexity of {claim.variant} is {percent(evidence.effect)} against that of {claim.baseline} "
        f"({uncertainty(claim, evidence)}){zero}."
    )
    if any(evidence.failed):
        ours, theirs = evidence.failed
        yield f"Runs that diverged count against their attention: {claim.variant} {ours}, {claim.baseline} {theirs}."
    yield f"The comparison had 80% power to detect an effect of {detectable(claim, evidence)}."


def _costs(standard: Row, coupled: Row, slowdowns: Sequence[float]) -> Iterator[str]:
    parts = []
    if standard.parameters and coupled.parameters:
        more = coupled.parameters - standard.parameters
        parts.append(f"{more:,} more parameters ({percent(more / standard.parameters)})")
    if slowdowns:
        low, high, rounds = min(slowdowns), max(slowdowns), len(slowdowns)
        spread = f"{low:.2f} to {high:.2f} in {rounds} interleaved rounds"
        parts.append(f"{median(slowdowns):.2f}× the time for the same tokens ({spread})")
    if parts:
        yield f"It costs {' and '.join(parts)}."


def _others(outcome: Outcome) -> Iterator[str]:
    """The findings on the other variants, corrected for multiple comparisons."""
    named: dict[str, list[str]] = {}
    baseline = outcome.verdicts[0].claim.baseline
    for verdict in outcome.verdicts:
        if not verdict.claim.primary:
            named.setdefault(verdict.finding, []).append(verdict.claim.variant)
    words = {
        "supported": f"better than {baseline}",
        "contradicted": f"worse than {baseline}",
        "equivalent": f"equivalent to {baseline}",
        "inconclusive": "inconclusive",
    }
    lists = [f"{', '.join(named[finding])}: {said}" for finding, said in words.items() if finding in named]
    if lists:
        yield f"The other variants, corrected for multiple comparisons: {'; '.join(lists)}."


def _coherence(text: str, measured: Mapping[str, Any] | None, why_not: str) -> str:
    if measured is None:
        return f"The coherence of {text} was not measured: {why_not}."
    low, high = measured["interval"]
    return (
        f"Coherence of {text}: {measured['gain']:.3f} bits per byte (95% interval {low:.3f} to {high:.3f}, over "
        f"{measured['n_documents']} documents), which is what an excerpt gains from {measured['context_bytes'] / 1e6:g} MB of "
        "the other documents. Text of one kind is more coherent than text of many kinds; the value serves to compare corpora."
    )
