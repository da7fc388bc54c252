"""What coupling changes beside the loss, as one table for all experiments that measured it."""

from collections.abc import Sequence

from ..formats import NOTHING, interval
from ..outcome import Outcome, Shift
from .tables import Table

NOTE = (
    "Differences are taken seed by seed, with plain 95% intervals. Null pairs are two models with standard attention that "
    "differ in an immaterial setting only (Adam's ε): what they differ by is noise. A change is marked * if its interval "
    "excludes zero and does not overlap with that of the null pairs. The rows are not corrected for their number."
)


def shifts_table(outcomes: Sequence[Outcome]) -> Table:
    """A row for every property; without rows if no outcome has any."""
    head = ("", "standard", "coupled", "change", "95% interval", "null pairs", "pairs of seeds")
    rows = tuple(_row(shift) for outcome in outcomes for shift in outcome.shifts)
    return Table("What coupling changes", head, rows, "lrrrrrr")


def _row(shift: Shift) -> tuple[str, ...]:
    name = f"{shift.name}, {shift.unit}" if shift.unit else shift.name
    ends = interval(shift.interval, signed) if shift.interval else NOTHING
    null = interval(shift.null_interval, signed) if shift.null_interval else NOTHING
    change = signed(shift.effect) + ("*" if shift.beyond_noise else "")
    return name, _plain(shift.baseline), _plain(shift.variant), change, ends, null, str(shift.n)


def signed(value: float) -> str:
    """Three significant digits with a sign."""
    return f"{value:+.3g}".replace("-", "−")


def _plain(value: float) -> str:
    return f"{value:,.4g}".replace("-", "−")
