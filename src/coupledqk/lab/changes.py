"""How far each row of an experiment's table lies from its baseline, and how sure that is."""

import math
from dataclasses import replace

from ..outcome import Change, Outcome, Row
from ..statistics import UntestableError, paired, relative_differences


def with_changes(outcome: Outcome) -> Outcome:
    """The outcome with `Row.change` filled in, where a row and its baseline share two seeds or more."""
    rows = {row.label: row for row in outcome.rows}
    changes = {
        label: change(rows[label], rows[baseline])
        for label, baseline in outcome.baselines.items()
        if label in rows and baseline in rows
    }
    return replace(outcome, rows=tuple(replace(row, change=changes.get(row.label)) for row in outcome.rows))


def change(row: Row, baseline: Row) -> Change | None:
    """A plain 95% interval: a table's rows are not corrected for their number, its claims are."""
    shared = [seed for seed in row.seeds if math.isfinite(row.seeds[seed] - baseline.seeds.get(seed, math.nan))]
    ours, theirs = ([of.seeds[seed] for seed in shared] for of in (row, baseline))
    try:
        differences = relative_differences(ours, theirs)
        estimate = paired(differences, [0.0] * len(differences))
    except UntestableError:
        return None
    return Change(baseline.label, estimate.value, estimate.interval(), len(shared))
