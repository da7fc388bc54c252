"""Reports show n-gram models next to language models, and mark models that are not better than a bigram model."""

from dataclasses import asdict, replace

import pytest

from coupledqk.baselines import Baseline, PositionLoss
from coupledqk.lab.summary import outcome_summary
from coupledqk.outcome import Outcome
from coupledqk.outcome_file import read, write
from coupledqk.recipes import recipe
from coupledqk.report.baselines import baselines_table, models_of_rows
from coupledqk.report.claims_chart import claims_chart
from coupledqk.report.curves import panels
from coupledqk.report.lab_page import html_report, markdown_report, problems
from coupledqk.report.listing import results_table
from coupledqk.run_folder import RunFolder, variant_name
from test_lab_report import make_outcome
from test_report import make_run

BASELINES = (Baseline(2, 50.0, 2.0, 1_000), Baseline(5, 20.0, 1.5, 1_000))
LOSSES = (PositionLoss(1, 1, 10, 4.0), PositionLoss(2, 8, 70, 3.5), PositionLoss(9, 16, 80, 3.2))


def with_baselines(bits: float) -> Outcome:
    outcome = make_outcome()
    rows = (
        replace(row, companions={"bits_per_byte": bits}, baselines=BASELINES, position_losses=LOSSES)
        for row in outcome.rows
    )
    return replace(outcome, rows=tuple(rows))


@pytest.mark.parametrize(("bits", "marked"), [(1.9, False), (2.0, True), (2.4, True)])
def test_a_model_that_is_not_better_than_the_bigram_model_is_marked(bits, marked):
    outcome = with_baselines(bits)
    found = [line for line in problems(outcome) if "no conclusion about attention" in line]
    assert len(found) == marked, "one note for all rows of one text"
    assert all(f"{row.label}; " in found[0] or f"; {row.label}:" in found[0] for row in outcome.rows if marked)


@pytest.mark.parametrize("write", [html_report, markdown_report, claims_chart])
def test_every_verdict_on_models_that_are_not_better_than_the_bigram_model_is_marked(write):
    assert "above bigram" not in write([with_baselines(1.9)])
    page = write([with_baselines(2.4)])
    assert page.count("above bigram") >= len(with_baselines(2.4).verdicts)


@pytest.mark.parametrize("write_page", [html_report, markdown_report])
def test_reports_show_the_baselines_and_the_ratio_of_each_model_to_the_bigram_model(write_page):
    page = write_page([with_baselines(1.8)])
    for text in ("bigram model", "5-gram model", "0.900", "−0.300"):
        assert text in page


@pytest.mark.parametrize(("bits", "marked"), [(1.8, False), (2.4, True)])
def test_the_terminal_shows_the_baselines(bits, marked):
    outcome = with_baselines(bits)
    text = outcome_summary(outcome)
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["bigram model"][2:5] == ["50.00", "2.0000", "1.000"]
    assert rows["5-gram model"][2:5] == ["20.00", "1.5000", "0.750"]
    mean = outcome.rows[1].mean
    assert f"{mean:.2f} {bits:.4f} {bits / 2:.3f} −0.300" in " ".join(text.split())
    assert ("(ABOVE BIGRAM). " in text) == marked
    assert ("standard; euler; diff: at best 2.400 bits per byte is not below the 2.000 of a bigram" in text) == marked


def test_learning_curves_show_the_baselines_and_the_loss_against_context():
    drawn = {panel.name: panel for panel in panels(with_baselines(1.8))}
    validation = {series.name: series.points for series in drawn["validation"].series}
    assert {y for _, y in validation["bigram model"]} == {50.0}
    assert [series.points for series in drawn["context"].series] == 3 * [[(1.0, 4.0), (5.0, 3.5), (12.5, 3.2)]]


def test_an_outcome_file_keeps_the_baselines(tmp_path):
    outcome = with_baselines(1.8)
    write(outcome, tmp_path / "outcome.json")
    assert read(tmp_path / "outcome.json").rows == outcome.rows


def test_qk_norm_does_not_change_the_name_of_a_variant():
    assert variant_name(recipe("mini-modern", "hamiltonian")) == "hamiltonian"


@pytest.mark.parametrize(("bigram", "marked"), [(9.0, False), (0.1, True)])
def test_the_table_of_a_finished_run_names_the_baselines(tmp_path, bigram, marked):
    run = RunFolder(make_run(tmp_path / "run"))
    run.write_json("result.json", {**run.result, "baselines": [asdict(replace(BASELINES[0], bits_per_byte=bigram))]})
    text = results_table([run])
    assert f"bigram {bigram:.4f}" in text
    assert ("no conclusion about attention" in " ".join(text.split())) == marked


def test_a_text_that_a_bigram_model_predicts_without_error_has_no_ratio_to_it():
    perfect = replace(BASELINES[0], perplexity=1.0, bits_per_byte=0.0)
    outcome = with_baselines(0.5)
    outcome = replace(outcome, rows=tuple(replace(row, baselines=(perfect,)) for row in outcome.rows))
    table = baselines_table(models_of_rows(outcome))
    assert table is not None
    assert "relative to bigram model" not in table.head
    assert "no conclusion about attention" in " ".join(problems(outcome))
