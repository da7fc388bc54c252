"""Reuses the results of earlier outcomes, so that their runs need not be trained again. Torch-free."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import CoupledQKError
from ..outcome import Outcome
from ..outcome_file import outcomes_at, write
from .cells import Plan
from .experiment import Scale
from .merge import as_part_of, merge
from .outcomes import outcome


def with_reused(plans: Sequence[Plan], paths: Sequence[Path]) -> list[Plan]:
    """The plans with the outcomes at `paths`, files or folders, whose results they reuse.

    Raises an error if the outcomes have no results of any plan, since everything would be trained contrary to expectation.
    """
    outcomes = [each for path in paths for each in outcomes_at(path)]
    found = [reusing(plan, outcomes) for plan in plans]
    if paths and plans and not any(plan.reused for plan in found):
        experiments = " or ".join(plan.experiment.name for plan in plans)
        raise CoupledQKError(
            f"--reuse {' '.join(map(str, paths))}: no results of {experiments} at scale {plans[0].scale_name} that could be "
            "reused: expected outcomes with the same settings (docs/laboratory.md)"
        )
    return found


def reusing(plan: Plan, outcomes: Sequence[Outcome]) -> Plan:
    """The plan with those of the outcomes that contain results of it.

    Outcomes of other scales, metrics or base configurations are ignored. A row of an outcome is reused as a whole, including
    seeds that the plan does not contain. Rows of other experiments are reused only if they have a seed of the plan. If two
    outcomes differ in a result, as those of a compiled and an uncompiled run do, the row with more seeds is used and the other
    one is ignored. Properties of trained models are computed from run folders, so an experiment that compares them reuses
    nothing.
    """
    if isinstance(plan.scale, Scale) and plan.scale.shifts:
        return plan
    own = outcome(plan)
    parts = [part for each in outcomes if (part := _usable_part(own, each))]
    used = _rows_to_use(parts, own)
    chosen = [_restricted(part, used[place]) for place, part in enumerate(parts)]
    labels = set(plan.labels)
    found = tuple(part for part in chosen if any(row.seeds for row in part.rows if row.label in labels))
    if found:
        merge([own, *found])  # results that contradict each other are an error now, not after training
    return replace(plan, reused=found)


def write_outcome(plan: Plan) -> Outcome:
    """Writes the outcome of a plan: its finished runs together with the results that it reuses."""
    own = outcome(plan)
    found = merge([own, *plan.reused]) if plan.reused else own
    write(found, plan.outcome)
    return found


def _rows_to_use(parts: Sequence[Outcome], own: Outcome) -> list[set[str]]:
    """The labels of the rows of each part that are reused."""
    planned = {(cell.label, cell.seed) for cell in own.cells}
    results: dict[tuple[str, int], float] = {}
    used: list[set[str]] = [set() for _ in parts]
    rows = [(place, row) for place, part in enumerate(parts) for row in part.rows]
    for place, row in sorted(rows, key=lambda each: -len(each[1].seeds)):
        found = {(row.label, seed): value for seed, value in row.seeds.items()}
        belongs = parts[place].name == own.name or found.keys() & planned
        if belongs and all(_equal(results.get(run, value), value) for run, value in found.items()):
            results |= found
            used[place].add(row.label)
    return used


def _restricted(part: Outcome, labels: set[str]) -> Outcome:
    return replace(
        part,
        rows=tuple(row for row in part.rows if row.label in labels),
        cells=tuple(cell for cell in part.cells if cell.label in labels),
    )


def _equal(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))  # runs that diverged


def _usable_part(own: Outcome, other: Outcome) -> Outcome | None:
    """The rows of another outcome that belong to this experiment; None if there are none."""
    try:
        return as_part_of(own, other)
    except CoupledQKError:
        return None
