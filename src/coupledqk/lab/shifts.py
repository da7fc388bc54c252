"""Measures how a variant changes properties of a trained model other than the metric of its experiment. Torch-free."""

import math
from collections.abc import Callable
from statistics import fmean

from ..outcome import Shift
from ..run_folder import RunFolder
from ..statistics import interval_of_mean
from .cells import Plan
from .experiment import RATES, Property, Scale
from .profiles import attention_profile

Found = dict[tuple[str, str], dict[int, float]]
"""Values of properties for each seed of a row, by name and unit of the property."""
RECALLED = 0.9
"""The accuracy from which the task counts as solved."""


def find_shifts(plan: Plan) -> tuple[Shift, ...]:
    """The changes of the properties that an experiment lists, from the finished runs of its plan."""
    spec = plan.scale.shifts if isinstance(plan.scale, Scale) else None
    if spec is None:
        return ()
    found = []
    for name in spec.properties:
        variant, baseline, null = (PROPERTIES[name](plan, label) for label in spec.labels)
        for (words, unit), values in baseline.items():
            shift = _shift(words, unit, variant.get((words, unit), {}), values, null.get((words, unit), {}))
            found += [shift] if shift else []
    return tuple(found)


def _shift(
    name: str, unit: str, variant: dict[int, float], baseline: dict[int, float], null: dict[int, float]
) -> Shift | None:
    """The change of one property; None if no seed has finite values of both the variant and the baseline."""
    differences, null_differences = (
        [row[seed] - baseline[seed] for seed in row if math.isfinite(row[seed] - baseline.get(seed, math.nan))]
        for row in (variant, null)
    )
    if not differences:
        return None
    shared = [seed for seed in variant if math.isfinite(variant[seed] - baseline.get(seed, math.nan))]
    return Shift(
        name,
        unit,
        baseline=fmean(baseline[seed] for seed in shared),
        variant=fmean(variant[seed] for seed in shared),
        effect=fmean(differences),
        interval=interval_of_mean(differences),
        n=len(differences),
        null_effect=fmean(null_differences) if null_differences else None,
        null_interval=interval_of_mean(null_differences),
        unreached=(sum(map(math.isinf, variant.values())), sum(map(math.isinf, baseline.values()))),
    )


def _finished(plan: Plan, label: str) -> dict[int, RunFolder]:
    runs = {cell.seed: plan.run(cell) for cell in plan.cells if cell.label == label}
    return {seed: run for seed, run in runs.items() if run.result}


def _losses(plan: Plan, label: str) -> dict[int, float]:
    return {seed: run.result["best"]["loss"] for seed, run in _finished(plan, label).items()}


def loss(plan: Plan, label: str) -> Found:
    """The lowest validation loss."""
    return {("validation loss", "nats"): _losses(plan, label)}


def context_gain(plan: Plan, label: str) -> Found:
    """The loss late in the window minus the loss early in it."""
    gains = {seed: run.result.get("context_gain") for seed, run in _finished(plan, label).items()}
    return {("gain from context", "nats"): {seed: gain for seed, gain in gains.items() if gain is not None}}


def lr_sensitivity(plan: Plan, label: str) -> Found:
    """The mean increase of the loss when the learning rate is halved and when it is doubled."""
    at_rate, others = _losses(plan, label), [_losses(plan, f"{label}, {rate}") for rate in RATES]
    complete = [seed for seed in at_rate if all(seed in losses for losses in others)]
    rises = {seed: fmean(losses[seed] for losses in others) - at_rate[seed] for seed in complete}
    return {("rise of the loss at half and double the learning rate", "nats"): rises}


def steps_to_recall(plan: Plan, label: str) -> Found:
    """The step at which recall first reaches 90%, interpolated between evaluations; infinite if it never does."""
    return {("steps to 90% recall", ""): {seed: _first_step(run) for seed, run in _finished(plan, label).items()}}


def _first_step(run: RunFolder) -> float:
    before = (0.0, 0.0)
    for record in run.metrics("valid"):
        here = (record["step"], record["accuracy"])
        if here[1] >= RECALLED:
            share = (RECALLED - before[1]) / (here[1] - before[1])
            return before[0] + share * (here[0] - before[0])
        before = here
    return math.inf


def _by_layer(measure: str, words: str, unit: str) -> Callable[[Plan, str], Found]:
    def found(plan: Plan, label: str) -> Found:
        values: Found = {}
        for seed, run in _finished(plan, label).items():
            for layer, value in enumerate(attention_profile(run).get(measure, ())):
                values.setdefault((f"{words}, layer {layer}", unit), {})[seed] = value
        return values

    return found


PROPERTIES: dict[Property, Callable[[Plan, str], Found]] = {
    "loss": loss,
    "context_gain": context_gain,
    "lr_sensitivity": lr_sensitivity,
    "steps_to_recall": steps_to_recall,
    "entropy": _by_layer("entropy", "entropy of the attention", "nats"),
    "effective_rank": _by_layer("effective_rank", "effective rank of the attention", ""),
}
"""Functions that compute a property from the runs of a row, by the name of the property."""
