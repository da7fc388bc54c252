"""Compares models with n-gram models of the same text, and shows their loss by length of context."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..baselines import Baseline, PositionLoss, context_gain, objection
from ..formats import NOTHING
from ..measure import BITS_PER_BYTE, PERPLEXITY, Measure
from ..outcome import Outcome
from .chart import Series
from .snapshot import Snapshot
from .tables import Table

NOTE = (
    "The n-gram models use interpolated Kneser-Ney smoothing and are estimated from the same training tokens. A model that is "
    "not below the bigram model has learned nothing that needs attention. The gain from context is the loss late in the window "
    "minus the loss early in it: the more negative it is, the more the model uses its context."
)
DRAWN_ORDERS = (2, 5)
"""Orders of the n-gram models that learning curves include as a horizontal line."""


@dataclass(frozen=True)
class LanguageModel:
    """A trained model, or the mean of several that differ in their seed."""

    name: str
    bits_per_byte: float
    perplexity: float | None
    baselines: tuple[Baseline, ...]
    position_losses: tuple[PositionLoss, ...]
    look: int


def models_of_rows(outcome: Outcome) -> list[LanguageModel]:
    """The rows of an outcome that have baselines."""
    models = []
    for look, row in enumerate(outcome.rows):
        bits = outcome.bits_per_byte(row)
        if bits is not None and row.baselines:
            perplexity = row.mean if outcome.metric.key == PERPLEXITY.key else row.companions.get(PERPLEXITY.key)
            models.append(LanguageModel(row.label, bits, perplexity, row.baselines, row.position_losses, look))
    return models


def models_of_runs(names: Sequence[str], snapshots: Sequence[Snapshot]) -> list[LanguageModel]:
    """The finished runs that have baselines."""
    models = []
    for look, (name, snapshot) in enumerate(zip(names, snapshots, strict=True)):
        if snapshot.result and snapshot.baselines:
            best, losses = snapshot.result["best"], snapshot.position_losses
            model = LanguageModel(name, best["bits_per_byte"], best.get("perplexity"), snapshot.baselines, losses, look)
            models.append(model)
    return models


def baselines_table(models: Sequence[LanguageModel]) -> Table | None:
    """A table of the n-gram models of each text and the models trained on it; None if there are no baselines."""
    rows: list[tuple[str, ...]] = []
    for baselines in dict.fromkeys(model.baselines for model in models):
        bigram = next((baseline.bits_per_byte for baseline in baselines if baseline.order == 2), None)
        for baseline in baselines:
            perplexity = PERPLEXITY.show(baseline.perplexity)
            rows.append((f"{baseline.name} model", perplexity, *_bits(baseline.bits_per_byte, bigram), NOTHING))
        for model in models:
            if model.baselines == baselines:
                gain = _gain(context_gain(model.position_losses))
                rows.append((model.name, PERPLEXITY.show(model.perplexity), *_bits(model.bits_per_byte, bigram), gain))
    head = ("", PERPLEXITY.name, BITS_PER_BYTE.name, "relative to bigram model", "gain from context, nats")
    return (
        Table("Comparison with n-gram models of the same text", head, tuple(rows), "lrrrr").without_empty()
        if rows
        else None
    )


def _gain(nats: float | None) -> str:
    return NOTHING if nats is None else f"{nats:+.3f}".replace("-", "−")


def _bits(bits: float, bigram: float | None) -> tuple[str, str]:
    return BITS_PER_BYTE.show(bits), f"{bits / bigram:.3f}" if bigram else NOTHING


def objections(models: Iterable[LanguageModel]) -> list[str]:
    """Notes on models that allow no conclusion about attention, because they are not better than a bigram model: one for each
    text."""
    found: dict[tuple[Baseline, ...], list[LanguageModel]] = {}
    for model in models:
        if objection(model.bits_per_byte, model.baselines):
            found.setdefault(model.baselines, []).append(model)
    lines = []
    for baselines, same_text in found.items():
        why = objection(min(model.bits_per_byte for model in same_text), baselines)
        names = "; ".join(model.name for model in same_text)
        lines.append(f"{names}: {'at best ' * (len(same_text) > 1)}{why}.")
    return lines


def context_series(models: Iterable[LanguageModel]) -> list[Series]:
    """The loss against the mean number of tokens of context."""
    return [
        Series(
            model.name,
            [((part.first + part.last) / 2, part.loss) for part in model.position_losses if part.last > 0],
            look=model.look,
        )
        for model in models
        if any(part.last > 0 for part in model.position_losses)
    ]


def baseline_series(models: Sequence[LanguageModel], measure: Measure, series: Sequence[Series]) -> list[Series]:
    """A horizontal line for each of a few n-gram models, as long as the curves; none if the models use different texts."""
    shared = {model.baselines for model in models}
    if measure not in (PERPLEXITY, BITS_PER_BYTE) or len(shared) != 1 or not series:
        return []
    steps = [x for curve in series for x, _ in curve.points]
    first_look = 1 + max(curve.look or 0 for curve in series)
    drawn = [baseline for baseline in shared.pop() if baseline.order in DRAWN_ORDERS]
    return [
        Series(f"{b.name} model", [(x, getattr(b, measure.key)) for x in (min(steps), max(steps))], look=first_look + i)
        for i, b in enumerate(drawn)
    ]
