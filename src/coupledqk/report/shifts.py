"""A table of the properties other than the loss that coupling changes, over all experiments that measured them."""

from collections.abc import Sequence

from ..formats import NOTHING, interval
from ..outcome import Outcome, Shift
from .tables import Table

NOTE = (
    "Differences are paired by seed, with uncorrected 95% intervals. Null pairs are the baseline and the same baseline with an "
    "immaterial change of its settings, so their differences are noise. A change is marked * if its interval excludes zero and "
    "does not overlap that of the null pairs. There is no correction for multiple comparisons. Runs that did not reach a "
    "target are counted beside the pairs and are in no mean."
)


def shifts_table(outcomes: Sequence[Outcome]) -> Table:
    """A table with a row for every property; it has no rows if no outcome measured any."""
    head = ("", "baseline", "variant", "change", "95% interval", "null pairs", "pairs of seeds", "experiment")
    several = sum(bool(outcome.shifts) for outcome in outcomes) > 1
    rows = tuple(
        (*_row(shift), outcome.name if several else NOTHING) for outcome in outcomes for shift in outcome.shifts
    )
    return Table("Other effects of coupling", head, rows, "lrrrrrrl").without_empty()


def _row(shift: Shift) -> tuple[str, ...]:
    name = f"{shift.name}, {shift.unit}" if shift.unit else shift.name
    ends = interval(shift.interval, signed) if shift.interval else NOTHING
    null = interval(shift.null_interval, signed) if shift.null_interval else NOTHING
    change = signed(shift.effect) + ("*" if shift.beyond_noise else "")
    return name, _plain(shift.baseline), _plain(shift.variant), change, ends, null, _pairs(shift)


def _pairs(shift: Shift) -> str:
    """The number of pairs, and the number of runs that have no value because they did not reach the property's target."""
    failed = [f"{n} {of}" for n, of in zip(shift.unreached, ("variant", "baseline"), strict=True) if n]
    return f"{shift.n} ({', '.join(failed)} did not reach it)" if failed else str(shift.n)


def signed(value: float) -> str:
    """A value with its sign and three significant digits."""
    return f"{value:+.3g}".replace("-", "−")


def _plain(value: float) -> str:
    return f"{value:,.4g}".replace("-", "−")
