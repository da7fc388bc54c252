"""Effects of coupling on properties other than the loss: paired differences, compared with the noise of null pairs."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from coupledqk.errors import CoupledQKError
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import load, names, parse
from coupledqk.lab.laboratory import run_experiment
from coupledqk.lab.profiles import FILE
from coupledqk.lab.shifts import _first_step, _shift
from coupledqk.lab.summary import outcome_summary
from coupledqk.outcome_file import read
from coupledqk.report.lab_page import html_report, latex_report, markdown_report
from coupledqk.report.shifts import shifts_table
from coupledqk.run_folder import RunFolder
from test_lab_report import make_outcome
from test_laboratory import SMALL, mine  # noqa: F401 (a fixture)

SHIFTS = (
    SMALL
    + """
[[grid]]
label = "{variant}, lr {rate}"
variant = ["standard", "hamiltonian"]
axes.rate.halved = { lr = 3e-3 }
axes.rate.doubled = { lr = 1.2e-2 }
[[grid]]
label = "null"
variant = ["standard"]
settings = { adam_eps = 2e-8 }
[[grid]]
label = "null, lr {rate}"
variant = ["standard"]
settings = { adam_eps = 2e-8 }
axes.rate.halved = { lr = 3e-3 }
axes.rate.doubled = { lr = 1.2e-2 }
[shifts]
variant = "hamiltonian"
baseline = "standard"
null = "null"
properties = ["loss", "context_gain", "lr_sensitivity", "entropy", "effective_rank"]
"""
)


def test_a_shift_is_the_mean_difference_over_the_seeds_in_common():
    shift = _shift("rank", "", {0: 2.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 2.0, 3: 7.0}, {0: 1.5, 1: 1.5})
    assert shift is not None
    assert (shift.baseline, shift.variant, shift.effect, shift.n) == (1.5, 3.0, 1.5, 2)
    assert shift.null_effect == 0
    assert shift.interval is not None
    assert sum(shift.interval) / 2 == pytest.approx(1.5)
    assert _shift("rank", "", {0: 1.0}, {1: 1.0}, {}) is None


@pytest.mark.parametrize(
    ("coupled", "null", "beyond"),
    [
        ([5.0, 5.1, 4.9], [0.1, -0.1, 0.0], True),
        ([5.0, 5.1, 4.9], [9.0, -9.0, 0.0], False),
        ([9, -9, 0], [0.1, -0.1, 0], False),
    ],
    ids=["clear", "within the noise of null pairs", "uncertain itself"],
)
def test_a_change_is_marked_only_beyond_the_noise_of_null_pairs(coupled, null, beyond):
    zero = dict.fromkeys(range(3), 0.0)
    shift = _shift("x", "", dict(enumerate(coupled)), zero, dict(enumerate(null)))
    assert shift is not None
    assert shift.beyond_noise is beyond


@pytest.mark.parametrize(
    ("accuracies", "step"),
    [([0.5, 0.7, 1.0], 100 * (2 + 0.2 / 0.3)), ([0.95], 100 * 0.9 / 0.95), ([0.2, 0.8], math.inf)],
)
def test_the_step_at_which_recall_is_reached_is_interpolated(accuracies, step, tmp_path, monkeypatch):
    records = [{"step": 100 * i, "accuracy": value} for i, value in enumerate(accuracies, 1)]
    monkeypatch.setattr(RunFolder, "metrics", lambda self, kind: records)
    assert _first_step(RunFolder(tmp_path)) == pytest.approx(step)


def test_runs_that_did_not_reach_the_target_are_counted_and_in_no_mean():
    variant, baseline = {0: 9.0, 1: math.inf, 2: 8.0}, {0: 5.0, 1: 4.0, 2: math.inf}
    shift = _shift("steps to 90% recall", "", variant, baseline, {})
    assert shift is not None
    assert (shift.variant, shift.baseline, shift.n, shift.unreached) == (9.0, 5.0, 1, (1, 1))
    (row,) = shifts_table([replace(make_outcome(), shifts=(shift,))]).rows
    assert row[-1] == "1 (1 variant, 1 baseline did not reach it)"


def test_the_rows_of_several_experiments_name_their_experiment():
    shift = _shift("rank", "", {0: 2.0, 1: 4.0}, {0: 1.0, 1: 2.0}, {0: 1.5, 1: 1.5})
    assert shift is not None
    one = replace(make_outcome(), shifts=(shift,))
    table = shifts_table([one, make_outcome(), replace(one, experiment="mine")])
    assert [row[-1] for row in table.rows] == ["ablation-mini", "mine-mini"]
    assert "experiment" not in shifts_table([one, make_outcome()]).head


def test_an_experiment_measures_its_shifts_once_and_every_report_shows_them(mine: Path, tmp_path: Path):  # noqa: F811
    mine.write_text(SHIFTS.replace("CORPUS", str(tmp_path / "products.txt")))
    outcome = run_experiment(mine, out=tmp_path / "lab", progress=False)
    found = {shift.name: shift for shift in outcome.shifts}
    assert list(found) == [
        "validation loss",
        "gain from context",
        "rise of the loss at half and double the learning rate",
        "entropy of the attention, layer 0",
        "effective rank of the attention, layer 0",
    ]
    rows = {row.label: row for row in outcome.rows}
    assert found["validation loss"].n == 2
    assert rows["null"].n == 2
    plan = make_plan(load(str(mine)), "mini", tmp_path / "lab")
    runs = {cell.label: plan.run(cell) for cell in plan.cells if cell.seed == 0}
    profile = json.loads((runs["standard"].path / FILE).read_text())
    assert 0 < profile["entropy"][0] < 3
    for text in (outcome_summary(outcome), html_report([outcome]), markdown_report([outcome]), latex_report([outcome])):
        assert "entropy of the attention, layer 0" in text
    assert read(plan.outcome) == outcome

    (runs["null"].path / FILE).write_text("{damaged")
    (runs["standard"].path / FILE).write_text(json.dumps({**profile, "entropy": [3.5]}))
    again = run_experiment(mine, out=tmp_path / "lab", progress=False)
    entropies = {shift.name: shift for shift in again.shifts}["entropy of the attention, layer 0"]
    assert entropies.null_interval is not None  # measured again
    assert entropies.baseline != found["entropy of the attention, layer 0"].baseline  # read, not measured again


def test_without_shifts_there_is_no_table():
    assert not shifts_table([]).rows


def test_an_unknown_property_and_a_missing_row_are_reported(tmp_path: Path):
    with pytest.raises(CoupledQKError, match="no row 'nil'"):
        make_plan(parse("mine", SHIFTS.replace('null = "null"', 'null = "nil"')), "mini", tmp_path)
    with pytest.raises(CoupledQKError, match="'entropi': did you mean 'entropy'"):
        parse("mine", SHIFTS.replace('"entropy"', '"entropi"'))


def test_packaged_experiments_request_only_existing_rows_and_properties():
    asking = [name for name in names() if any(getattr(scale, "shifts", None) for scale in load(name).scales.values())]
    assert asking == ["changes", "mqar"]
    for name in asking:
        for scale in load(name).scales:
            make_plan(load(name), scale)
