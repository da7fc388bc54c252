"""Validation of result files, and slopes of sweeps."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from coupledqk.bench.records import (
    FORMAT,
    About,
    Interval,
    MatmulBound,
    Memory,
    ThroughputResult,
    ThroughputRow,
    read_result,
)
from coupledqk.bench.sweeps import slopes
from coupledqk.bench.timing import speeds_over_launches
from coupledqk.bench.validation import check_result
from coupledqk.cli import main
from coupledqk.errors import CoupledQKError

COMMITTED = sorted((Path(__file__).parents[1] / "results" / "bench").glob("*.json"))

ABOUT = About(
    preset="nano", date="2026-11-17T12:00:00+00:00", commit="0" * 40, versions={"torch": "2.13.0"}, machine="a machine",
    device="cuda (Some GPU)", threads=2, precision="fp16", rounds=2, model={}, launches=2,
)  # fmt: skip


def result(**about: Any) -> ThroughputResult:
    """Two launches of two rounds; euler takes 4/3 of the time."""
    times = {"standard": [3.0, 3.0], "euler": [4.0, 4.0]}
    found = speeds_over_launches([times, times], "standard", tokens=8)
    rows = [
        ThroughputRow(name, False, None, 2, 4, 10, None, speed, MatmulBound(1, 1, 1), Memory(9.0, 0.0, 2), 1.0)
        for name, speed in found.items()
    ]
    return ThroughputResult("throughput", replace(ABOUT, **about), "standard", tuple(rows), FORMAT)


def written(tmp_path: Path, data: object) -> Path:
    (tmp_path / "result.json").write_text(json.dumps(data))
    return tmp_path / "result.json"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_a_committed_result_is_valid(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--check", str(path)])
    said = capsys.readouterr().out
    assert said.startswith(f"{path}: a valid {read_result(path).what} result")


def test_a_valid_file_is_summarized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, asdict(result(notes=("llama cannot be compiled and was left out (no reason)",))))
    main(["bench", "--check", str(path)])
    said = capsys.readouterr().out
    assert f"{path}: a valid throughput result of format {FORMAT}" in said
    assert "cuda (Some GPU), a machine" in said
    assert "2 launch(es) of 2 rounds: standard, euler" in said
    assert "llama cannot be compiled" in said
    assert "local changes" not in said


def test_local_changes_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--check", str(written(tmp_path, asdict(result(commit="0" * 40 + "+changes"))))])
    assert "has local changes: say in the pull request what was measured" in capsys.readouterr().out


def test_a_file_of_another_format_gives_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {**asdict(result()), "format": FORMAT + 1})
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--check", str(path)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"coupledqk: {path} has format {FORMAT + 1}: this version of coupledqk reads formats 1 to {FORMAT}"
    )


def altered(data: dict[str, Any], place: tuple[str | int, ...], value: object) -> dict[str, Any]:
    *parents, last = place
    table: Any = data
    for parent in parents:
        table = table[parent]
    table[last] = value
    return data


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("rows", 1, "training", "relative", "median"), 0.95, "the relative speed does not follow from the durations"),
        (("rows", 1, "training", "tokens_per_second"), 99.0, "tokens_per_second does not follow"),
        (("rows", 1, "training", "by_launch"), [0.9, 0.9], "the interval over launches does not follow"),
        (("rows", 1, "training", "over_launches"), None, "the interval over launches does not follow"),
        (("rows", 1, "training", "seconds"), [4.0, 4.0, 4.0], "3 timings, expected 2 launch"),
        (("rows", 0, "training", "seconds"), [3.0, 3.0, 3.0, -3.0], "a duration is not above 0"),
        (("rows", 1, "relative_memory"), 0.5, "relative_memory does not follow from peak_mb"),
        (("rows", 1, "memory", "peak_mb"), 0.0, "peak_mb is not above 0"),
        (("rows", 1, "seq_len"), 5, "there is no row of the baseline 'standard' to compare"),
        (("rows",), [], "it has no rows"),
        (("baseline",), "llama", "there is no row of the baseline 'llama' to compare"),
        (("about", "date"), "yesterday", "about.date is 'yesterday', not a date"),
        (("about", "rounds"), "2", "is damaged: about.rounds='2': expected int"),
        (("about", "speed"), 1, "is damaged: unknown key 'about.speed'"),
        (("format",), "two", "has format 'two'"),
    ],
)
def test_inconsistent_values_are_reported_in_one_line(
    place: tuple[str | int, ...], value: object, says: str, tmp_path: Path
) -> None:
    path = written(tmp_path, altered(json.loads(json.dumps(asdict(result()))), place, value))
    with pytest.raises(CoupledQKError) as raised:
        check_result(path)
    assert says in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def sweep(what: str, seconds: dict[int, float], vary: str) -> ThroughputResult:
    rows = []
    for x, duration in seconds.items():
        found = speeds_over_launches([{"standard": [duration]}], "standard", tokens=8, in_processes=False)["standard"]
        row = replace(result().rows[0], training=found, batch=1, seq_len=8, memory=Memory(duration, 0.0, 1))
        if vary == "seq_len":
            found = replace(found, tokens_per_second=x / duration)
        rows.append(replace(row, training=found, **{vary: x}))
    return ThroughputResult(what, ABOUT, "standard", tuple(rows), FORMAT)


def test_a_power_law_has_its_exponent_as_slope() -> None:
    time, memory = slopes(sweep("lengths", {256: 0.5, 512: 2.0, 1024: 8.0, 2048: 32.0}, "seq_len"))
    assert (time.quantity, time.scale, time.points) == ("time", "log-log", 4)
    assert (time.slope, time.low, time.high) == pytest.approx((2, 2, 2))
    assert memory.quantity == "memory"
    assert memory.slope == pytest.approx(2)


def test_a_linear_slope_is_relative_to_the_smallest_point() -> None:
    for points in ({2: 4.0, 4: 6.0, 8: 10.0}, {8: 10.0, 2: 4.0, 4: 6.0}):
        time, _ = slopes(sweep("depths", points, "n_layers"))
        assert time.scale == "linear"
        assert time.slope == pytest.approx(0.25)  # one second for each layer, where two layers take four


def test_growth_that_deviates_from_a_straight_line_has_a_wide_interval() -> None:
    straight, _ = slopes(sweep("widths", {64: 1.0, 128: 2.01, 256: 4.0, 512: 8.02}, "d_model"))
    bent, _ = slopes(sweep("widths", {64: 1.0, 128: 1.2, 256: 4.0, 512: 16.0}, "d_model"))
    assert straight.high - straight.low < 0.05 < bent.high - bent.low
    assert bent.low < bent.slope < bent.high


def test_two_points_have_no_slope_and_results_without_a_sweep_are_refused() -> None:
    assert slopes(sweep("widths", {64: 1.0, 128: 2.0}, "d_model")) == []
    with pytest.raises(CoupledQKError, match="a throughput result is not a sweep"):
        slopes(result())


def test_an_interval_of_two_launches_has_50_percent_confidence() -> None:
    assert result().rows[1].training.over_launches == Interval(0.75, 0.75, 0.75, 0.5)
