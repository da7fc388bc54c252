"""Merging outcomes gives the same result as training all of their runs together."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from coupledqk.cli import main
from coupledqk.errors import CoupledQKError
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import load, names
from coupledqk.lab.laboratory import notes, run_experiment
from coupledqk.lab.merge import merge
from coupledqk.lab.outcomes import outcome
from coupledqk.lab.reuse import reusing, with_reused
from coupledqk.lab.summary import progress_summary
from coupledqk.measure import PERPLEXITY
from coupledqk.outcome import Outcome
from coupledqk.outcome_file import read, read_all, write
from test_laboratory import SMALL

RESULTS = Path(__file__).parent.parent / "results" / "lab"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outcome files of seeds 0 and 1, of 2, and of all three."""
    folder = tmp_path_factory.mktemp("merge")
    (folder / "products.txt").write_text("".join(f"{i} times {j} is {i * j}.\n" for i in range(20) for j in range(20)))
    experiment = folder / "mine.toml"
    experiment.write_text(SMALL.replace("CORPUS", str(folder / "products.txt")))
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        for name, seeds in {"all": [0, 1, 2], "one": [0, 1], "two": [2]}.items():
            run_experiment(experiment, out=folder / "lab", seeds=seeds, progress=False, jobs=1)
            found[name] = (folder / "lab" / "mine-mini.json").rename(folder / f"{name}.json")
    return found


def without_costs(outcome: Outcome) -> Outcome:
    """The outcome without values that depend on the speed of the machine or on the order of sums."""
    rows = tuple(
        replace(
            row,
            tokens_per_second=None,
            seconds=None,
            companions={key: round(value, 9) for key, value in row.companions.items()},
            position_losses=tuple(replace(part, loss=round(part.loss, 9)) for part in row.position_losses),
        )
        for row in outcome.rows
    )
    return replace(outcome, rows=rows)


def test_merged_seeds_give_the_same_outcome_as_seeds_trained_together(files: dict[str, Path]):
    merged = merge([read(files["one"]), read(files["two"])])
    assert without_costs(merged) == without_costs(read(files["all"]))
    assert merged.verdicts[0].evidence is not None
    assert merged.verdicts[0].evidence.n == (3, 3)


def test_runs_in_common_count_once(files: dict[str, Path]):
    one, whole = read(files["one"]), read(files["all"])
    for outcomes in ([whole, one], [one, whole], [whole, whole]):
        assert without_costs(merge(outcomes)) == without_costs(whole)


def test_different_definitions_of_the_metric_are_replaced_by_the_general_one(files: dict[str, Path]):
    one, two = read(files["one"]), read(files["two"])
    assert merge([one, two]).metric == one.metric
    assert merge([one, replace(two, metric=replace(two.metric, definition="of another text"))]).metric == PERPLEXITY


def test_another_experiment_contributes_the_rows_in_common(files: dict[str, Path]):
    one, two = read(files["one"]), read(files["two"])
    names = {"standard": "ours", "hamiltonian": "theirs"}
    other = replace(
        two,
        experiment="another",
        rows=tuple(replace(row, label=names[row.label]) for row in two.rows),
        cells=tuple(replace(cell, label=names[cell.label]) for cell in two.cells),
        verdicts=(),
    )
    assert without_costs(merge([one, other])) == without_costs(read(files["all"]))
    unrelated = tuple(replace(cell, settings={**cell.settings, "train.lr": 1.0}) for cell in other.cells)
    with pytest.raises(CoupledQKError, match="another-mini has no row in common with mine-mini"):
        merge([one, replace(other, cells=unrelated)])


@pytest.fixture(scope="module")
def reach(files: dict[str, Path]) -> dict[str, Outcome]:
    """Outcomes with tokens to reach as the metric: one with all of the runs, and one without runs."""
    folder = files["all"].parent
    experiment = folder / "reach.toml"
    experiment.write_text((folder / "mine.toml").read_text().replace('"perplexity"', '"tokens_to_reach"'))
    none = outcome(make_plan(load(str(experiment)), "mini", folder / "empty", seeds=[0, 1, 2]))
    return {"all": run_experiment(experiment, out=folder / "lab", seeds=[0, 1, 2], progress=False), "none": none}


def test_tokens_to_reach_are_found_from_the_curves_of_another_experiment(files: dict[str, Path], reach):
    untrained = replace(reach["none"], origin=replace(reach["none"].origin, commit="of no run"))
    merged = merge([untrained, read(files["one"]), read(files["two"])])
    assert merged.rows[0].n == 3
    assert without_costs(merged) == without_costs(reach["all"])


def test_seeds_can_be_added_to_tokens_to_reach_from_another_experiment(files: dict[str, Path], reach):
    some = merge([reach["none"], read(files["one"])])
    assert merge([some, read(files["all"])]).rows == merge([reach["none"], read(files["all"])]).rows


def test_runs_that_did_not_reach_their_target_keep_their_measures_and_are_not_called_diverged(
    files: dict[str, Path], reach
):
    trained = read(files["all"])
    high = tuple((step, tokens, 99.0, 99.0) for step, tokens, _, _ in trained.cells[0].valid)
    cells = tuple(replace(cell, valid=high) if cell.label == "hamiltonian" else cell for cell in trained.cells)
    merged = merge([reach["none"], replace(trained, cells=cells)])
    assert merged.rows[1].n == 0
    assert merged.rows[1].companions == trained.rows[1].companions
    assert "hamiltonian did not reach the target with seeds 0-2" in merged.verdicts[0].sentence


def test_an_invalid_report_name_leaves_no_merged_file(files: dict[str, Path], tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        main(["report", *map(str, files.values()), "--merge", str(tmp_path / "both.json"), "-o", "both.pdf"])
    assert "--out both.pdf: expected" in capsys.readouterr().err
    assert not (tmp_path / "both.json").exists()


def test_a_merged_file_must_have_a_name_that_the_report_can_read(files: dict[str, Path], tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        main(
            ["report", *map(str, files.values()), "--merge", str(tmp_path / "both"), "-o", str(tmp_path / "both.html")]
        )
    assert "both: expected a file name that ends in .json" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_writes_the_merged_file_and_reports_on_it(files: dict[str, Path], tmp_path: Path, capsys):
    parts = [str(files["one"]), str(files["two"])]
    main(["report", *parts, "--merge", str(tmp_path / "both.json"), "-o", str(tmp_path / "both.html")])
    assert [row.n for row in read(tmp_path / "both.json").rows] == [3, 3]
    assert "Coupling lowers perplexity" in (tmp_path / "both.html").read_text()
    with pytest.raises(SystemExit):
        main(["report", *parts, "--merge", str(tmp_path / "both.json")])
    assert "exists and is not one of the files to merge" in capsys.readouterr().err


def test_outcomes_that_cannot_be_compared_are_refused(files: dict[str, Path]):
    one, two = read(files["one"]), read(files["two"])
    other = tuple(replace(row, seeds={seed: value + 1 for seed, value in row.seeds.items()}) for row in one.rows)
    with pytest.raises(CoupledQKError, match="seed 0, has a result in two outcomes"):
        merge([one, replace(one, rows=other)])
    diverged = tuple(replace(row, seeds={0: math.nan, **row.seeds}) for row in two.rows)
    with pytest.raises(CoupledQKError, match="seed 0, has a result in two outcomes"):
        merge([one, replace(two, rows=diverged)])
    with pytest.raises(CoupledQKError, match="cannot be merged: they need the same scale and metric"):
        merge([one, replace(two, scale="paper")])
    with pytest.raises(CoupledQKError, match=r"differ in the base configuration \(seed\)"):
        merge([one, replace(two, config={**two.config, "seed": 99})])
    with pytest.raises(CoupledQKError, match=r"differ in the base configuration \(data_seed\)"):
        merge([one, replace(two, config={**two.config, "data_seed": 99})])
    edited = tuple(replace(cell, settings={**cell.settings, "train.lr": 1.0}) for cell in two.cells)
    with pytest.raises(CoupledQKError, match="the settings of standard differ between the outcomes of mine-mini"):
        merge([one, replace(two, cells=edited)])
    corpora = dict.fromkeys(two.origin.corpora, "0" * 64)
    with pytest.raises(CoupledQKError, match="different texts"):
        merge([one, replace(two, origin=replace(two.origin, corpora=corpora))])
    with pytest.raises(CoupledQKError, match="computed from the run folders"):
        merge([one, replace(two, answer=("Coupling helps.",))])


def trained(folder: Path) -> int:
    return len(list((folder / "runs").glob("*/result.json")))


@pytest.mark.parametrize(("reused", "n_trained"), [(["one"], 2), (["one", "two"], 0), (["all", "one"], 0)])
def test_reused_results_are_not_trained_again_and_the_outcome_is_the_same(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reused: list[str], n_trained: int
):
    monkeypatch.setenv("COUPLEDQK_CACHE", str(files["all"].parent / "cache"))
    experiment, reuse = files["all"].parent / "mine.toml", [files[name] for name in reused]
    found = run_experiment(experiment, out=tmp_path, seeds=[0, 1, 2], reuse=reuse, progress=False, jobs=1)
    assert trained(tmp_path) == n_trained
    assert without_costs(found) == without_costs(read(files["all"]))


def test_reproduce_says_which_results_are_reused_and_ignores_outcomes_of_other_experiments(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    published = tmp_path / "published"
    published.mkdir()
    one = read(files["one"])
    write(one, published / "mine-mini.json")
    write(replace(one, experiment="other", scale="paper"), published / "other-paper.json")
    experiment = str(files["all"].parent / "mine.toml")
    main(["reproduce", experiment, "--seeds", "0-2", "--reuse", str(published), "--out", str(tmp_path), "--status"])
    said = capsys.readouterr().out
    assert "mine: 4 of 6 results are taken from mine-mini\n" in said
    assert trained(tmp_path) == 0


def test_the_status_of_reused_runs_and_their_number_include_the_reused_results(files: dict[str, Path], tmp_path: Path):
    """A seed of which all results are reused has several pairs, and a run that failed here earlier is finished there."""
    plan = make_plan(load(str(files["all"].parent / "mine.toml")), "mini", tmp_path, seeds=[0])
    failed = plan.run(plan.cells[0])
    failed.create(plan.cells[0].config)
    failed.write_json("error.json", {"error": "no luck", "diverged": False})
    assert "failed: no luck" in progress_summary(plan)
    assert any("a test requires at least two" in note for note in notes(plan))
    (plan,) = with_reused([plan], [files["all"]])
    assert "no luck" not in progress_summary(plan)
    assert not any("a test requires at least two" in note for note in notes(plan))


def test_reused_results_that_differ_from_own_ones_are_an_error_before_anything_is_trained(files: dict[str, Path]):
    folder, one = files["all"].parent, read(files["one"])
    rows = tuple(replace(row, seeds={seed: value + 1 for seed, value in row.seeds.items()}) for row in one.rows)
    plan = make_plan(load(str(folder / "mine.toml")), "mini", folder / "lab", seeds=[0, 1, 2])
    write(replace(one, rows=rows), changed := folder / "changed.json")
    with pytest.raises(CoupledQKError, match="standard, seed 0, has a result in two outcomes: leave one of them out"):
        with_reused([plan], [changed])


def test_of_reused_rows_that_differ_the_one_with_more_seeds_is_used(files: dict[str, Path], tmp_path: Path):
    """The same run, compiled and uncompiled or on two machines, has results that differ by rounding."""
    every = read(files["all"])
    few = [replace(row, seeds={seed: value + 1e-6 for seed, value in [*row.seeds.items()][:1]}) for row in every.rows]
    write(replace(every, rows=tuple(few)), again := tmp_path / "again.json")
    plan = make_plan(load(str(files["all"].parent / "mine.toml")), "mini", tmp_path / "lab", seeds=[0, 1, 2])
    for paths in ([files["all"], again], [again, files["all"]]):
        (found,) = with_reused([plan], paths)
        assert not found.own_cells
        merged = merge([outcome(found), *found.reused])
        assert {row.label: row.seeds for row in merged.rows} == {row.label: row.seeds for row in every.rows}


@pytest.mark.parametrize("name", [name for name in names() if "mini" in load(name).scales])
def test_every_experiment_can_reuse_the_published_results(name: str):
    plan = make_plan(load(name), "mini", Path("nowhere"))
    found = reusing(plan, read_all(RESULTS))
    assert bool(found.reused) == (set(found.own_cells) < set(plan.cells))
    seeds = {(row.label, seed) for part in found.reused for row in part.rows for seed in row.seeds}
    assert ("standard", 100) not in seeds  # the seed with which learning rates were chosen


def test_results_on_another_text_of_the_same_name_are_refused(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COUPLEDQK_CACHE", str(files["all"].parent / "cache"))
    one = read(files["one"])
    write(replace(one, origin=replace(one.origin, corpora={"products.txt": "0"})), changed := tmp_path / "changed.json")
    with pytest.raises(CoupledQKError, match=r"were trained on different texts named products\.txt"):
        run_experiment(
            files["all"].parent / "mine.toml", out=tmp_path / "lab", seeds=[2], reuse=[changed], progress=False, jobs=1
        )


def test_an_experiment_that_compares_properties_of_trained_models_reuses_nothing():
    plans = [make_plan(load(name), "mini", Path("nowhere")) for name in ("changes", "controls")]
    changes, controls = with_reused(plans, [RESULTS])
    assert changes == plans[0]
    assert {cell.label for cell in controls.cells} - {cell.label for cell in controls.own_cells} >= {"standard"}


def test_outcomes_without_any_result_of_the_experiment_are_an_error(files: dict[str, Path], tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "controls", "--reuse", str(files["one"]), "--out", str(tmp_path), "--status"])
    assert "no results of controls at scale mini that could be reused" in capsys.readouterr().err


def test_the_published_results_can_be_reused():
    """Outcomes in results/lab have the settings of the experiments as they are now."""
    for path in sorted(RESULTS.glob("*-mini.json")):
        published = read(path)
        if published.shifts or published.answer:
            continue
        (plan,) = with_reused([make_plan(load(published.experiment), "mini", Path("nowhere"))], [path])
        have = {(row.label, seed) for row in published.rows for seed in row.seeds}
        assert {(cell.label, cell.seed) for cell in plan.own_cells}.isdisjoint(have), path.name
        assert [each.name for each in plan.reused] == [published.name]
