"""The findings of an analysis as text. Torch-free."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..terminal import table

PROFILES = {
    "effective_rank": ("Effective rank (Σσ)²/Σσ² of the attention maps", ".1f"),
    "entropy": ("Attention entropy in nats", ".3f"),
}
AGAINST_LENGTH = {**PROFILES, "spectral_ratio": ("σ₂/σ₁ of the attention maps", ".3f")}
MAP_COLUMNS = {
    "entropy": "entropy",
    "effective_rank": "rank",
    "top1_ratio": "σ₁/Σσ",
    "spectral_gap": "σ₁−σ₂",
    "spectral_ratio": "σ₂/σ₁",
    "sink_mass": "sink",
    "distance": "distance",
    "redundancy": "redundancy",
}
MOTION_COLUMNS = {
    "dt": "dt",
    "q_moved": "q moved",
    "k_moved": "k moved",
    "q_turned": "q turned",
    "k_turned": "k turned",
    "attention_moved": "attention moved",
    "volume_change": "|det J|−1",
    "energy": "energy",
    "energy_drift": "its drift",
    "energy_error": "its error",
}
CAUTION = """\
Differences from {against}, paired over the sequences, ± the 95% margin; * where zero lies outside the interval.
They hold for these trained models on such text: other seeds may differ by more."""


def tables(found: dict[str, Any]) -> str:
    text = found["text"]
    parts = [
        f"{text['corpus']}, {text['split']} split: {text['sequences']} sequences of {text['length']} tokens "
        f"({text['tokenizer']})"
    ]
    parts += [f"{title}, by layer\n\n{by_layer(found, name, form)}" for name, (title, form) in PROFILES.items()]
    if found["differences"]:
        parts.append(CAUTION.format(against=found["differences"][0]["against"]))
    parts.append(f"Means over layers, heads and sequences\n\n{means(found, MAP_COLUMNS)}")
    if any("q_moved" in measures for _, measures in labelled(found)):
        parts.append(f"How q and k move before scoring, turns in degrees\n\n{means(found, MOTION_COLUMNS)}")
    if len(found["runs"][0]["lengths"]) > 1:
        parts += [
            f"{title}, by context length\n\n{by_length(found, name, form)}"
            for name, (title, form) in AGAINST_LENGTH.items()
        ]
    return "\n\n".join(parts)


def labels(checkpoints: Sequence[tuple[str, int]]) -> list[str]:
    """The names of runs, with the step for runs that have several checkpoints."""
    names = [name for name, _ in checkpoints]
    return [f"{name} @ {step}" if names.count(name) > 1 else name for name, step in checkpoints]


def labelled(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The label of each checkpoint and its measures at the full context length."""
    names = labels([(run["name"], run["step"]) for run in found["runs"]])
    for name, run in zip(names, found["runs"], strict=True):
        yield name, run["lengths"][max(run["lengths"], key=int)]


def by_layer(found: dict[str, Any], measure: str, form: str) -> str:
    """A table with one column per layer and the mean; below the runs, their differences from the first."""
    rows = []
    for label, measures in labelled(found):
        values = [*measures[measure]["layers"], measures[measure]["mean"]]
        rows.append([label, *(f"{cell(value, form)} " for value in values)])
    for one in found["differences"]:
        layers, mean = one["measures"][measure]["layers"], one["measures"][measure]["mean"]
        differences, margins = ([*layers[key], mean[key]] for key in ("difference", "margin"))
        rows.append([f"{one['run']} − {one['against']}", *map(starred, differences, margins)])
        rows.append(["  ±", *(f"{cell(margin, '.2g')} " for margin in margins)])
    return table(["run", *(f"L{layer} " for layer in range(len(rows[0]) - 2)), "mean "], rows)


def means(found: dict[str, Any], columns: dict[str, str]) -> str:
    """A table with one row per run, without the columns that no run has."""
    runs = list(labelled(found))
    shown = {measure: head for measure, head in columns.items() if any(measure in measures for _, measures in runs)}
    rows = [
        [label, *(cell(measures.get(measure, {}).get("mean"), ".4g") for measure in shown)] for label, measures in runs
    ]
    return table(["run", *shown.values()], rows)


def by_length(found: dict[str, Any], measure: str, form: str) -> str:
    """A table with one column per context length."""
    rows = [
        [label, *(cell(measures[measure]["mean"], form) for measures in run["lengths"].values())]
        for (label, _), run in zip(labelled(found), found["runs"], strict=True)
    ]
    return table(["run", *found["runs"][0]["lengths"]], rows)


def cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def starred(difference: float, margin: float | None) -> str:
    return f"{difference:+.2g}{'*' if margin is not None and abs(difference) > margin else ' '}"
