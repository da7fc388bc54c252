"""Validation of result files: the format, and whether the figures follow from the timings. Torch-free."""

import datetime
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from ..errors import CoupledQKError
from .conditions import verdict
from .records import About, DecodeRow, Interval, Quartiles, Result, Speed, ThroughputRow, read_result


def check_result(path: str | Path) -> Result:
    """Reads and validates a result file. The error names the file and the first problem."""
    result = read_result(path)
    for problem in problems(result):
        raise CoupledQKError(
            f"{path} is not a valid result: {problem}; submit the file as `coupledqk bench --save` wrote it"
        )
    return result


def summary(path: str | Path, result: Result) -> str:
    """Describes a valid result file in one paragraph."""
    about = result.about
    names = ", ".join(dict.fromkeys(row.name for row in result.rows))
    lines = [
        f"{path}: a valid {result.what} result of format {result.format}, {about.date}",
        f"{about.device}, {about.machine}",
        f"{about.precision}, {about.launches} launch(es) of {about.rounds} rounds: {names}",
    ]
    if about.commit is None or about.commit.endswith("+changes"):
        lines.append("the commit is unknown or has local changes: say in the pull request what was measured")
    if result.format > 1:
        lines.append(verdict(about.conditions))
    return "\n".join([*lines, *about.notes])


def problems(result: Result) -> Iterator[str]:
    try:
        datetime.datetime.fromisoformat(result.about.date)
    except ValueError:
        yield f"about.date is {result.about.date!r}, not a date"
    if not result.rows:
        yield "it has no rows"
    for row in result.rows:
        base = next(
            (other for other in result.rows if other.name == result.baseline and point(other) == point(row)), None
        )
        if base is None:
            yield f"there is no row of the baseline {result.baseline!r} to compare {row.name} with"
        elif isinstance(row, DecodeRow) and isinstance(base, DecodeRow):
            yield from speed_problems(f"decode of {row.name}", row.decode, base.decode, row.new_tokens, result.about)
        elif isinstance(row, ThroughputRow) and isinstance(base, ThroughputRow):
            yield from throughput_problems(row, base, result.about)


def point(row: ThroughputRow | DecodeRow) -> tuple[int | None, ...]:
    """The key that two rows must share to be comparable."""
    return () if isinstance(row, DecodeRow) else (row.batch, row.seq_len, row.d_model, row.n_layers)


def throughput_problems(row: ThroughputRow, base: ThroughputRow, about: About) -> Iterator[str]:
    tokens = row.batch * row.seq_len
    yield from speed_problems(f"training of {row.name}", row.training, base.training, tokens, about)
    if row.forward is not None and base.forward is not None:
        yield from speed_problems(f"forward of {row.name}", row.forward, base.forward, tokens, about)
    if row.memory is not None and base.memory is not None:
        if not (math.isfinite(row.memory.peak_mb) and min(row.memory.peak_mb, base.memory.peak_mb) > 0):
            yield f"memory of {row.name}: peak_mb is not above 0"
        elif not same([row.relative_memory], [row.memory.peak_mb / base.memory.peak_mb]):
            yield f"memory of {row.name}: relative_memory does not follow from peak_mb"


def speed_problems(name: str, speed: Speed, base: Speed, tokens: int, about: About) -> Iterator[str]:
    """Figures of a speed that do not follow from the durations of its rounds."""
    seconds, launches = speed.seconds, max(1, len(speed.by_launch))
    if len(seconds) != about.rounds * launches or len(seconds) != len(base.seconds):
        yield f"{name}: has {len(seconds)} timings, expected {launches} launch(es) of {about.rounds} rounds"
        return
    if not all(math.isfinite(value) and value > 0 for value in (*seconds, *base.seconds)):
        yield f"{name}: a duration is not above 0"
        return
    ratios = [b / own for b, own in zip(base.seconds, seconds, strict=True)]
    if not same([speed.tokens_per_second], [tokens / statistics.median(seconds)]):
        yield f"{name}: tokens_per_second does not follow from the durations"
    if not same(astuple(speed.relative), astuple(Quartiles.of(ratios))):
        yield f"{name}: the relative speed does not follow from the durations"
    if speed.by_launch:
        found = [statistics.median(ratios[i : i + about.rounds]) for i in range(0, len(ratios), about.rounds)]
        expected = astuple(Interval.of(found))
        if (
            not same(speed.by_launch, found)
            or not speed.over_launches
            or not same(astuple(speed.over_launches), expected)
        ):
            yield f"{name}: the interval over launches does not follow from the durations"


def same(given: Sequence[float | None], expected: Sequence[float]) -> bool:
    pairs = zip(given, expected, strict=True)
    return all(value is not None and math.isclose(value, wanted, rel_tol=1e-9) for value, wanted in pairs)
