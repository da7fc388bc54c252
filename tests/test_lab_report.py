"""Reports show the numbers of outcome files, in HTML, Markdown and LaTeX, and escape all text."""

import dataclasses
import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from coupledqk.cli import main
from coupledqk.errors import CoupledQKError
from coupledqk.lab.outcomes import with_changes
from coupledqk.lab.verdicts import judge_all
from coupledqk.measure import ACCURACY, PERPLEXITY
from coupledqk.outcome import CellRecord, Claim, Origin, Outcome, Published, Row
from coupledqk.outcome_file import outcomes_at, read, read_all, to_json, write
from coupledqk.recipes import recipe
from coupledqk.report.curves import panels
from coupledqk.report.figures import write_figures
from coupledqk.report.lab_page import html_report, latex_report, markdown_report, write_report
from coupledqk.report.tables import Table, costs_table, latex, markdown, results_table
from coupledqk.schema import to_dict
from test_report import HOSTILE, elements, make_run, text_of

MEANS = {"standard": 40.0, "euler": 39.0, "diff": 39.9}
PAPER = {"standard": Published(24.22, 0.12, 3), "euler": Published(22.55, 0.04, 3)}
STEPS = range(100, 1001, 100)
RESULTS = Path(__file__).parents[1] / "results" / "lab"
FORMAT_1 = sorted(path for path in RESULTS.rglob("*.json") if json.loads(path.read_text("utf-8"))["format"] == 1)
CLAIMS = (
    Claim("euler is better than standard", "lower", "euler", "standard", paper_effect=-0.069, primary=True),
    Claim("diff is better than standard", "lower", "diff", "standard", paper_effect=-0.012),
)


def make_outcome(
    means: dict[str, float] = MEANS,
    seeds: Sequence[int] = range(5),
    claims: Sequence[Claim] = CLAIMS,
    noise: float = 0.2,
    **changed: Any,
) -> Outcome:
    """Synthetic runs: each seed shifts all rows alike by about 1%, and each run has its own `noise`."""
    draw = random.Random(0)
    shared = {seed: draw.gauss(0, 0.4) for seed in seeds}
    values = {
        label: {seed: mean + shared[seed] + draw.gauss(0, noise) for seed in seeds} for label, mean in means.items()
    }
    outcome = Outcome(
        experiment="ablation",
        title="Structural ablation",
        source="Table 1 of the paper",
        caption="Attentions that differ in whether queries and keys move together before scoring.",
        scale="mini",
        date="2026-11-15",
        command="coupledqk reproduce ablation --scale mini",
        metric=dataclasses.replace(PERPLEXITY, definition="exp of the mean loss per bpe:1024 token"),
        task_measure=PERPLEXITY,
        rows=tuple(make_row(label, found) for label, found in values.items()),
        verdicts=tuple(judge_all(claims, values)),
        cells=tuple(make_cell(label, seed, found[seed]) for label, found in values.items() for seed in found),
        config=to_dict(recipe("mini")),
        origin=Origin("5b1a333", "2 cores", {"torch": "2.13.0"}, {"python-stdlib": "c0ffee" * 8}),
    )
    return with_changes(dataclasses.replace(outcome, **changed))


def make_row(label: str, values: dict[int, float]) -> Row:
    found = list(values.values())
    return Row(
        label=label,
        seeds=values,
        mean=fmean(found) if found else None,
        std=stdev(found) if len(found) > 1 else None,
        n=len(found),
        final={seed: value + 0.1 for seed, value in values.items()},
        companions={"bits_per_byte": 2.0123} if found else {},
        paper=PAPER.get(label),
        parameters=237_568 if found else None,
        tokens_per_second=24_000.0 if found else None,
        seconds=84.0 if found else None,
    )


def make_cell(label: str, seed: int, final: float) -> CellRecord:
    valid = tuple(
        (float(step), 2048.0 * step, math.log(value), value) for step in STEPS for value in [final + 3e4 / step]
    )
    method = {} if label == "standard" else {"model.attention.dynamics.method": label}
    return CellRecord(
        label=label,
        seed=seed,
        identity=f"{seed:012x}",
        name=f"{label}-s{seed}",
        status="finished",
        error=None,
        settings={"seed": seed, **method} if seed else method,
        train=tuple((step - 50.5, 2048.0 * step, loss + 0.05) for step, _, loss, _ in valid),
        valid=valid,
    )


def with_status(outcome: Outcome, label: str, seed: int, status: Any, error: str | None = None) -> Outcome:
    """The outcome with a cell that did not finish and is therefore not in its row."""
    cells = [
        dataclasses.replace(c, status=status, error=error, train=c.train[:3], valid=c.valid[:3])
        if (c.label, c.seed) == (label, seed)
        else c
        for c in outcome.cells
    ]
    rows = [
        make_row(label, {s: value for s, value in row.seeds.items() if s != seed}) if row.label == label else row
        for row in outcome.rows
    ]
    return with_changes(dataclasses.replace(outcome, cells=tuple(cells), rows=tuple(rows)))


# --- the outcome file -------------------------------------------------------------------------------------------------------


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = make_outcome()
    write(outcome, tmp_path / "ablation-mini.json")
    assert read(tmp_path / "ablation-mini.json") == outcome
    assert to_json(read(tmp_path / "ablation-mini.json")) == (tmp_path / "ablation-mini.json").read_text()


def test_a_diverged_run_is_null_in_the_file_and_nan_when_read(tmp_path: Path) -> None:
    row = dataclasses.replace(make_row("euler", {0: 3.0}), seeds={0: math.nan, 1: 3.0}, std=math.nan)
    write(make_outcome(rows=(row,)), tmp_path / "o.json")
    plain = json.loads((tmp_path / "o.json").read_text(), parse_constant=pytest.fail)
    assert plain["rows"][0]["seeds"] == {"0": None, "1": 3.0}
    assert plain["rows"][0]["std"] is None
    again = read(tmp_path / "o.json").rows[0].seeds
    assert math.isnan(again[0])
    assert again[1] == 3


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data.pop("metric"), "is damaged: metric is missing"),
        (lambda data: data.update(metrics=1), "is damaged: unknown key 'metrics': did you mean 'metric'"),
        (lambda data: data["rows"][0].update(mean="high"), r"is damaged: rows\[0\].mean='high': expected float"),
        (lambda data: data["cells"][3].update(status="dead"), r"is damaged: unknown cells\[3\].status 'dead'"),
        (lambda data: data["rows"][0].update(seeds={"a": 1.0}), "expected keys of type int"),
        (lambda data: data.update(rows={}), "is damaged: rows={}: expected a list"),
        (
            lambda data: data["cells"][2]["train"].append([1.0]),
            r"train curve of standard, seed 2=\[\(1.0,\)\]: expected points",
        ),
        (lambda data: data.update(format=3), "has format 3, this version reads 1 to 2"),
        (lambda data: data.pop("experiment"), "is not the outcome of an experiment"),
    ],
)
def test_the_error_for_a_damaged_file_says_where_it_is_damaged(damage: Any, says: str, tmp_path: Path) -> None:
    data = json.loads(to_json(make_outcome()))
    damage(data)
    (tmp_path / "o.json").write_text(json.dumps(data))
    with pytest.raises(CoupledQKError, match=f"{re.escape(str(tmp_path / 'o.json'))} .*{says}"):
        read(tmp_path / "o.json")


WORDS = {
    "holds here": "supported",
    "does not hold here": "contradicted",
    "cannot tell with this many seeds": "inconclusive",
}


@pytest.mark.parametrize("path", FORMAT_1, ids=lambda path: path.stem)
def test_an_outcome_of_format_1_is_converted_to_format_2(path: Path, tmp_path: Path) -> None:
    before, outcome = json.loads(path.read_text("utf-8")), read(path)
    assert [verdict.finding for verdict in outcome.verdicts] == [WORDS[v["outcome"]] for v in before["verdicts"]]
    for verdict, old in zip(outcome.verdicts, before["verdicts"], strict=True):
        if old["evidence"]:
            assert verdict.evidence is not None
            assert verdict.evidence.detectable == old["evidence"]["smallest"]
    assert outcome.metric.name == before["metric"]["name"]
    assert outcome.metric.definition == before["metric"]["definition"]
    assert outcome.task_measure == (ACCURACY if before["experiment"] in ("mqar", "glue") else PERPLEXITY)
    for row, old in zip(outcome.rows, before["rows"], strict=True):
        assert row.companions.get("bits_per_byte") == old["bits_per_byte"]
    write(outcome, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text("utf-8"))["format"] == 2
    assert to_json(read(tmp_path / "again.json")) == to_json(outcome)
    assert outcome.title in text_of(html_report([outcome]))


def test_a_truncated_or_missing_file_is_reported_and_unrelated_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[1, 2]")
    write(make_outcome(), tmp_path / "b.json")
    write(make_outcome(experiment="controls"), tmp_path / "a.json")
    assert [outcome.experiment for outcome in read_all(tmp_path)] == ["controls", "ablation"]
    (tmp_path / "torn.json").write_text(to_json(make_outcome())[:500])
    with pytest.raises(CoupledQKError, match=r"torn.json is damaged"):
        read_all(tmp_path)
    with pytest.raises(CoupledQKError, match=r"nowhere.json: no such file"):
        read(tmp_path / "nowhere.json")


def test_a_file_that_is_no_outcome_is_not_called_damaged(tmp_path: Path):
    (tmp_path / "README.md").write_text("# A text\n")
    with pytest.raises(CoupledQKError, match=r"README\.md: expected an outcome file, which ends in \.json"):
        outcomes_at(tmp_path / "README.md")


def test_a_row_is_compared_with_the_primary_claims_baseline_on_its_own_task() -> None:
    labels = ["standard on a", "euler on a", "diff on a", "standard on b", "euler on b", "diff on b"]
    claim = Claim(
        "gains more on a than on b",
        "interaction",
        "euler on a",
        "standard on a",
        elsewhere=("euler on b", "standard on b"),
        paper_effect=-0.1,
        primary=True,
    )
    outcome = make_outcome(dict.fromkeys(labels, 40.0), claims=[claim])
    cells = [dataclasses.replace(c, settings={"task.corpus": c.label[-1]}) for c in outcome.cells]
    assert dataclasses.replace(outcome, cells=tuple(cells)).baselines == {
        label: f"standard on {label[-1]}" for label in labels if not label.startswith("standard")
    }


def test_a_row_is_compared_with_the_baseline_of_its_own_claim() -> None:
    means = {"standard": 40.0, "hamiltonian": 39.0, "gqa": 42.0, "hamiltonian_gqa": 41.0, "euler": 40.0}
    claims = [
        Claim("helps with gqa", "lower", "hamiltonian_gqa", "gqa", primary=True),
        Claim("helps", "lower", "hamiltonian", "standard"),
        Claim("euler helps", "lower", "euler", "standard"),
        Claim("hamiltonian is better than euler", "lower", "hamiltonian", "euler"),
    ]
    outcome = make_outcome(means, claims=claims)
    assert outcome.baselines == {
        "hamiltonian": "standard",
        "gqa": "standard",  # has no claim, and standard is the most frequent baseline
        "hamiltonian_gqa": "gqa",
        "euler": "standard",
    }
    table = results_table(outcome)
    column = table.head.index("baseline")
    assert [row[column] for row in table.rows] == ["–", "standard", "standard", "gqa", "standard"]
    assert "baseline" not in results_table(make_outcome()).head, "one baseline is named in the heading"


def test_a_row_without_a_claim_is_compared_with_the_most_similar_baseline() -> None:
    settings: dict[str, dict[str, Any]] = {
        "standard": {},
        "coupled": {},
        "standard, long": {"train.seq_len": 64, "train.batch_size": 8},
        "coupled, long": {"train.seq_len": 64, "train.batch_size": 8},
        "standard, long, lr 1": {"train.seq_len": 64, "train.batch_size": 8, "train.lr": 1.0},
    }
    claims = [
        Claim("helps", "lower", "coupled", "standard", primary=True),
        Claim("helps with long windows", "lower", "coupled, long", "standard, long"),
    ]
    outcome = make_outcome(dict.fromkeys(settings, 40.0), claims=claims)
    cells = tuple(dataclasses.replace(cell, settings=settings[cell.label]) for cell in outcome.cells)
    found = dataclasses.replace(outcome, cells=cells).baselines
    assert found["standard, long, lr 1"] == "standard, long"


def test_an_effect_that_cannot_be_tested_is_computed_from_the_seeds_in_common() -> None:
    outcome = make_outcome()
    rows = [make_row(r.label, {2: r.seeds[2]} if r.label == "euler" else r.seeds) for r in outcome.rows]
    table = results_table(dataclasses.replace(outcome, rows=tuple(rows)))
    effect = outcome.rows[1].seeds[2] / outcome.rows[0].seeds[2] - 1
    assert table.rows[1][table.head.index("against standard")] == f"{100 * effect:+.2f}%".replace("-", "−")


# --- tables -----------------------------------------------------------------------------------------------------------------


def test_the_table_shows_our_numbers_the_papers_numbers_and_the_verdict() -> None:
    outcome = make_outcome()
    table = results_table(outcome)
    euler = dict(zip(table.head, table.rows[1], strict=True))
    row = outcome.rows[1]
    assert row.mean is not None
    assert row.change is not None
    assert euler["perplexity here"] == f"{row.mean:.2f} ± {row.std:.2f}"
    assert euler["perplexity in the paper"] == "22.55 ± 0.04 (3)"
    assert euler["change there"] == "−6.90%"
    differences = [row.seeds[seed] - outcome.rows[0].seeds[seed] for seed in row.seeds]
    assert euler["against standard"] == f"{100 * fmean(differences) / outcome.rows[0].mean:+.2f}%".replace("-", "−")
    assert row.change.interval[0] < row.change.effect < row.change.interval[1] < 0
    assert euler["verdict"] == "1: supported"
    assert dict(zip(table.head, table.rows[0], strict=True))["verdict"] == ""


def numbers(text: str) -> list[str]:
    return re.findall(r"[+-]?\d[\d,.]*", text.replace("−", "-").replace("$-$", "-"))


def test_markdown_latex_and_html_show_the_same_numbers() -> None:
    outcome = make_outcome()
    page = html_report([outcome])
    for table in (results_table(outcome), costs_table(outcome)):
        cells = [cell for row in (table.head, *table.rows) for cell in row]
        in_markdown = [line for line in markdown(table).splitlines() if not line.startswith("| ---")]
        in_latex = latex(table).partition(r"\toprule")[2]
        assert numbers(" ".join(in_markdown)) == numbers(in_latex) == numbers(" ".join(cells)) != []
        assert all(cell in text_of(page) for cell in cells)


def test_text_is_escaped_in_each_format() -> None:
    table = Table("50% & more", ("a_b", "c|d"), (("x*y<b>", r"{\cmd}$1 ±−×"),), "lr")
    assert markdown(table).splitlines()[0] == r"| a_b | c\|d |"
    assert markdown(table).splitlines()[2] == r"| x\*y&lt;b> | {\\cmd}$1 ±−× |"
    assert r"\caption{50\% \& more}" in latex(table)
    assert r"x*y<b> & \{\textbackslash{}cmd\}\$1 $\pm$$-$$\times$ \\" in latex(table)


def test_empty_columns_are_omitted() -> None:
    outcome = make_outcome({"kick": 40.0, "drift": 40.0}, claims=[])
    assert results_table(outcome).head == ("", "perplexity here", "seeds")


# --- curves -----------------------------------------------------------------------------------------------------------------


def test_curves_are_means_over_seeds_with_a_band_that_contains_every_seed() -> None:
    outcome = make_outcome()
    validation, change, training = panels(outcome)
    assert [series.name for series in validation.series] == ["standard", "euler", "diff"]
    last = [cell.valid[-1][3] for cell in outcome.cells if cell.label == "euler"]
    assert validation.series[1].points[-1] == (1000, pytest.approx(fmean(last)))
    assert validation.series[1].band[-1] == (min(last), max(last))
    assert training.series[0].points[0][0] == 49.5
    assert [series.name for series in change.series] == ["euler", "diff"]
    theirs = [cell.valid[-1][3] for cell in outcome.cells if cell.label == "standard"]
    changes = [100 * (a / b - 1) for a, b in zip(last, theirs, strict=True)]
    assert change.series[0].points[-1][1] == pytest.approx(fmean(changes)), "seed by seed"


def test_a_chart_of_changes_shows_only_changes_from_the_baseline_in_its_title() -> None:
    claims = [Claim("a", "lower", "euler", "standard", primary=True), Claim("b", "lower", "diff", "euler")]
    changes = [panel for panel in panels(make_outcome(claims=claims)) if panel.name.startswith("change")]
    assert [(panel.title.rpartition(" ")[2], [series.name for series in panel.series]) for panel in changes] == [
        ("standard", ["euler"]), ("euler", ["diff"])
    ]  # fmt: skip


def test_many_rows_are_split_into_charts_that_all_show_the_baseline_and_each_row_keeps_its_style() -> None:
    outcome = make_outcome({"standard": 40.0} | {f"control {i}": 39.0 for i in range(8)})
    validation = [panel for panel in panels(outcome) if panel.name.startswith("validation")]
    assert [len(panel.series) for panel in validation] == [6, 4]
    assert [panel.series[0].name for panel in validation] == ["standard", "standard"]
    assert [series.look for panel in validation for series in panel.series] == [0, 1, 2, 3, 4, 5, 0, 6, 7, 8]


def test_an_unfinished_seed_is_not_averaged_with_finished_ones() -> None:
    outcome = with_status(make_outcome(), "euler", 1, "interrupted")
    assert panels(outcome)[0].series[1].points[-1][0] == 1000
    alone = with_status(make_outcome(seeds=[1]), "euler", 1, "interrupted")
    assert panels(alone)[0].series[1].points[-1][0] == 300, "better than nothing"


# --- reports ----------------------------------------------------------------------------------------------------------------


def test_the_page_counts_the_findings_and_shows_reasons_and_origin() -> None:
    outcome = make_outcome()
    text = text_of(html_report([outcome, make_outcome(experiment="controls", title="Controls")]))
    assert [verdict.finding for verdict in outcome.verdicts] == ["supported", "inconclusive"]
    assert "4 claims: 2 supported, 2 inconclusive." in text
    assert text.count(outcome.verdicts[0].sentence) == 2
    for known in ("5b1a333", "2 cores", "c0ffee" * 8, "2.13.0", "coupledqk reproduce ablation --scale mini"):
        assert known in text
    assert "exp of the mean loss per bpe:1024 token" in text
    assert "different settings standard euler diff" in text


def test_claims_with_too_few_runs_are_reported_as_not_tested() -> None:
    page = markdown_report([make_outcome(), make_outcome(experiment="controls", seeds=[0])])
    assert "4 claims: 1 supported, 1 inconclusive, 2 not tested." in page
    assert page.count("| not tested |") >= 2


def test_failed_and_missing_runs_are_reported() -> None:
    outcome = with_status(make_outcome(), "euler", 2, "failed", "the loss is not finite at step 30")
    outcome = with_status(outcome, "diff", 4, "waiting")
    for report in (text_of(html_report([outcome])), markdown_report([outcome])):
        assert "euler, seed 2, failed: the loss is not finite at step 30" in report
        assert "Not finished: diff, seed 4 (waiting)." in report
        assert "4 of 5" in report


def test_a_row_without_runs_is_shown_with_dashes() -> None:
    outcome = make_outcome(seeds=[0])
    outcome = with_status(outcome, "euler", 0, "waiting")
    outcome = dataclasses.replace(
        outcome,
        cells=tuple(dataclasses.replace(c, train=(), valid=()) if c.label == "euler" else c for c in outcome.cells),
    )
    assert results_table(outcome).rows[1][1:4] == ("–", "0 of 1", "–")
    page = html_report([outcome])
    assert "One seed does not support a claim" in text_of(page)
    charts = re.findall("<svg.*?</svg>", page, re.DOTALL)
    assert [curve.get("data-name") for curve in elements(charts[0], "g", "series")] == ["standard", "diff"]
    markdown_report([outcome])
    latex_report([outcome])


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    hostile = dataclasses.replace(make_outcome(), title=HOSTILE, caption=HOSTILE, command=HOSTILE, answer=(HOSTILE,))
    rows = tuple(dataclasses.replace(row, label=f"{HOSTILE}{i}") for i, row in enumerate(hostile.rows))
    page = html_report([dataclasses.replace(hostile, rows=rows, config={HOSTILE: HOSTILE}), hostile])
    assert len(re.findall("<script", page)) == 1, "the page's own"
    assert "<img" not in page
    assert "\x00" not in page


def test_the_page_needs_no_external_resources() -> None:
    page = html_report([make_outcome(), make_outcome()])
    assert set(re.findall(r"""[a-z]+:?//[^\s"'<]+""", page)) <= {"http://www.w3.org/2000/svg"}
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', page))
    assert not re.search(r"""\b(src|url|@import)\s*[=(]""", page)


def test_the_same_outcomes_give_a_byte_identical_page() -> None:
    assert html_report([make_outcome()]) == html_report([make_outcome()])


def test_figures_are_written_as_svg_and_pdf_and_shown_in_markdown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = make_outcome()
    written = write_figures([outcome], tmp_path / "figures")
    kinds = ("validation", "change", "training")
    curves = [f"ablation-mini-{kind}.{end}" for kind in kinds for end in ("svg", "pdf")]
    assert [p.name for p in written] == ["claims.svg", *curves]
    assert all(path.read_bytes().startswith(b"<svg" if path.suffix == ".svg" else b"%PDF") for path in written)
    write_report([outcome], tmp_path / "docs" / "results.md", tmp_path / "figures")
    shown = re.findall(r"!\[.*\]\((.*)\)", (tmp_path / "docs" / "results.md").read_text())
    assert [(tmp_path / "docs" / path).resolve() for path in shown] == [p for p in written if p.suffix == ".svg"]


def test_charts_of_two_outcomes_with_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CoupledQKError, match=r"two outcomes are named ablation-mini.*--merge"):
        write_figures([make_outcome(), make_outcome()], tmp_path)
    assert not list(tmp_path.iterdir())


def test_charts_of_an_outcome_whose_name_contains_a_path_stay_in_the_folder(tmp_path: Path) -> None:
    written = write_figures([dataclasses.replace(make_outcome(), experiment="../../other")], tmp_path / "a" / "b")
    assert {path.resolve().parent for path in written} == {tmp_path / "a" / "b"}


# --- the command ------------------------------------------------------------------------------------------------------------


def test_the_report_command_takes_files_and_folders_and_the_extension_sets_the_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(make_outcome(), tmp_path / "lab" / "ablation-mini.json")
    write(make_outcome(experiment="controls"), tmp_path / "lab" / "controls-mini.json")
    main(["report", str(tmp_path / "lab"), "-o", str(tmp_path / "r.html")])
    assert "4 claims" in capsys.readouterr().out
    write(make_outcome(claims=()), tmp_path / "lab" / "without" / "sweep-lr.json")
    main(["report", str(tmp_path / "lab" / "without"), "-o", str(tmp_path / "w.html")])
    assert capsys.readouterr().out.startswith("No claims.")
    assert "2 experiments" in (tmp_path / "r.html").read_text()
    main(["report", str(tmp_path / "lab" / "ablation-mini.json"), "--out", str(tmp_path / "r.tex")])
    assert (tmp_path / "r.tex").read_text().count(r"\begin{tabular}") == 3


def test_the_report_command_takes_run_folders(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "runs" / name, name) for name in ("euler", "standard")]
    main(["report", *map(str, runs), "-o", str(tmp_path / "a.html")])
    main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "b.html")])
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to report on"),
        (["nowhere"], "nowhere: no such file or folder"),
        (["empty"], "found neither an outcome of an experiment nor a run"),
        (["lab", "run"], "run contains no outcome, but other paths do"),
        (["lab", "-o", "report.pdf"], "expected a file name that ends in .html, .md, .tex"),
        (["run", "-o", "run.md"], "run folders are reported as HTML"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(make_outcome(), tmp_path / "lab" / "ablation-mini.json")
    make_run(tmp_path / "run")
    with pytest.raises(SystemExit):
        main(["report", *arguments])
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
