"""Experiments are data: they expand into runs and contain the paper's numbers and the claims that follow from them."""

import math
import re
import string

import pytest

from coupledqk.cli import COMMANDS, main
from coupledqk.config import GLUEConfig, identity
from coupledqk.errors import CoupledQKError
from coupledqk.lab import speed
from coupledqk.lab.cells import base_config, make_plan, with_needed
from coupledqk.lab.estimates import Speeds, work
from coupledqk.lab.experiment import load, names, parse
from coupledqk.lab.measuring import measurements
from coupledqk.lab.summary import cost_summary
from coupledqk.run_folder import variant_name
from coupledqk.schema import change

TRAINING = [name for name in names() if load(name).scales]
MEASURING = [name for name in names() if load(name).commands]
IN_SCALES = [(name, scale) for name in TRAINING for scale in load(name).scales]

# From the tables of the paper, row by row: mean, ± standard deviation.
TABLES = {
    "ablation": "24.22 ± 0.12  24.66 ± 0.07  23.92 ± 0.12  23.81 ± 0.31  22.55 ± 0.04  22.62 ± 0.04",
    "step-count": "24.22 ± 0.12  22.58 ± 0.05  22.62 ± 0.04  22.56 ± 0.03  22.61 ± 0.04",
    "mlp-capacity": "23.81 ± 0.31  22.62 ± 0.04",
    "convergence-60m": "24.22 ± 0.12  24.66 ± 0.07  23.92 ± 0.12  22.62 ± 0.04",
    "medium": "21.57 ± 0.02  21.87 ± 0.04  21.11 ± 0.07  20.12 ± 0.08",
    "convergence-150m": "21.57 ± 0.02  21.87 ± 0.04  21.11 ± 0.07  20.12 ± 0.08",
    "large": "19.55 ± 0.06  19.35 ± 0.07  18.93 ± 0.02",
    "corpus": "24.22 ± 0.12  16.84 ± 0.09  40.64 ± 0.23  23.92 ± 0.12  16.68 ± 0.11  40.19 ± 0.13  "
    "22.62 ± 0.04  16.08 ± 0.06  44.85 ± 0.14",
    "mqar": "0.667  0.930  0.173  1.000  1.000  0.142",
    "glue": "87.1 ± 0.3  72.9 ± 0.4  81.8 ± 0.4  87.5 ± 0.5  72.9 ± 0.4  81.2 ± 0.8  "
    "86.4 ± 0.3  73.7 ± 0.2  82.2 ± 0.2  86.8 ± 0.5  73.1 ± 0.7  81.7 ± 0.1",
    "compute-matched": "24.22 ± 0.12  22.62 ± 0.04  22.58",
    "rope": "24.22 ± 0.12  25.84 ± 0.07  22.62 ± 0.04  24.00 ± 0.03",
    "rank": "28.6 179.5 200.0 176.8 104.1 100.1 80.1 40.4 113.7 32.8 185.0 178.0 175.9 109.5 111.1 87.3 49.8 116.2",
    "entropy": "1.65  1.95  2.5",
}

SMALL = """
title = "t"
source = "beyond the paper"
caption = "c"
metric = "perplexity"
[mini]
recipe = "mini"
seeds = [0, 1]
[[grid]]
variant = ["standard", "euler"]
"""
CLAIM = """
[[claims]]
text = "lower"
kind = "lower"
variant = "euler"
baseline = "standard"
primary = true
"""
SHIFTS = """
[shifts]
variant = "euler"
baseline = "standard"
null = "standard"
properties = [{}]
"""
LADDER = """
[[ladders]]
variant = "euler"
baseline = "standard"
sizes = ["S"]
"""
COMMAND = """
title = "t"
source = "beyond the paper"
caption = "c"
[mini]
command = "analyze {standard} --out {out}"
"""


@pytest.mark.parametrize(("name", "scale"), IN_SCALES)
def test_the_cost_summary_of_every_experiment_lists_its_runs(name, scale, tmp_path, monkeypatch):
    monkeypatch.setattr(Speeds, "measure", lambda self, config: 150.0)
    plan = make_plan(load(name), scale, tmp_path)
    shown = cost_summary(plan)
    assert all(label in shown for label in plan.labels)
    assert f"{len(with_needed(plan.cells))} runs to do" in shown


def test_the_speed_of_a_run_is_taken_from_runs_with_the_same_scoring(monkeypatch):
    cells = {cell.label: cell.config for cell in make_plan(load("ablation"), "mini").cells}
    speeds = Speeds([])
    speeds.measured.append((cells["standard"], 1e10))
    assert speeds.hours(cells["hamiltonian"]) == pytest.approx(work(cells["hamiltonian"]) / 1e10 / 3600)
    assert speeds.hours(cells["diff"]) is None
    monkeypatch.setattr(speed, "training_speeds", lambda configs, *_, **__: {name: [9.0] for name in configs})
    assert speeds.measure(cells["diff"]) > 100 * speeds.measure(cells["standard"])


def test_the_vocabulary_affects_the_cost_of_language_models_only():
    for name, charged in (("ablation", True), ("pretrained", False)):
        config = make_plan(load(name), "mini").cells[0].config
        larger = change(config, {"vocab_size": 2 * config.model.vocab_size})
        assert (work(larger) > work(config)) == charged


# the standard library is too small a text for the paper's models
@pytest.mark.parametrize("name", [name for name in names() if name not in ("smoke", "recipe-search", "source-code")])
def test_every_experiment_about_attention_has_both_scales(name):
    experiment = load(name)
    assert set(experiment.scales or experiment.commands) == {"mini", "paper"}


@pytest.mark.parametrize(("name", "scale"), IN_SCALES)
def test_one_primary_claim_is_declared(name, scale):
    assert sum(claim.primary for claim in load(name).scales[scale].claims) == 1


@pytest.mark.parametrize("name", TABLES)
def test_published_numbers_equal_the_papers(name):
    experiment = load(name)
    published = experiment.published or experiment.scales["paper"].published
    unit = 100 if name == "glue" else 1
    ours = [round(value * unit, 3) for number in published.values() for value in (number.mean, number.std) if value]
    assert ours == [float(number) for number in re.findall(r"[\d.]+", TABLES[name])]


@pytest.mark.parametrize("name", TRAINING)
def test_only_experiments_of_the_paper_have_published_numbers(name):
    published = any(scale.published for scale in load(name).scales.values())
    assert published == (name in TABLES)


@pytest.mark.parametrize(("name", "scale"), IN_SCALES)
def test_claimed_effects_follow_from_the_published_numbers(name, scale):
    published = load(name).scales["paper" if name == "corpus" else scale].published
    in_bits = load(name).scales[scale].metric.name == "bits per byte"

    def effect(variant: str, baseline: str) -> float:
        ours, theirs = (published[label].mean for label in (variant, baseline))
        return math.log(ours) / math.log(theirs) - 1 if in_bits else ours / theirs - 1

    for claim in load(name).scales[scale].claims:
        if claim.paper_effect is None or not {claim.variant, claim.baseline} <= published.keys():
            continue
        expected = effect(claim.variant, claim.baseline)
        if claim.kind == "interaction":
            assert claim.elsewhere is not None
            expected -= effect(*claim.elsewhere)
        if claim.kind == "less_variable":
            expected = (published[claim.variant].std or 0) / (published[claim.baseline].std or 1) - 1
        assert claim.paper_effect == pytest.approx(expected, abs=1.1e-4), claim.text


def test_grids_expand_as_described_in_the_paper():
    ablation = make_plan(load("ablation"), "paper")
    assert ablation.labels == ["standard", "gqa", "diff", "mlp_only", "euler", "hamiltonian"]
    assert [sum(cell.label == label for cell in ablation.cells) for label in ablation.labels] == [3, 3, 3, 10, 3, 3]
    steps = make_plan(load("step-count"), "mini").cells
    times = [
        cell.config.model.attention.dynamics.n_steps * cell.config.model.attention.dynamics.step_size
        for cell in steps
        if "time 0.3" in cell.label
    ]
    assert times == pytest.approx([0.3] * 12, abs=1e-4)
    corpora = make_plan(load("corpus"), "mini").cells
    assert {cell.config.task.max_tokens for cell in corpora} == {1_690_000}  # pyright: ignore[reportAttributeAccessIssue]
    assert {cell.config.task.tokenizer for cell in corpora} == {"bpe:1024@openwebtext"}  # pyright: ignore[reportAttributeAccessIssue]


def test_compiling_does_not_change_the_names_of_runs():
    eager, compiled = (make_plan(load("adapt"), "mini", compiled=flag) for flag in (False, True))
    assert [cell.name for cell in eager.cells] == [cell.name for cell in compiled.cells]
    assert {cell.config.runtime.compile for cell in with_needed(compiled.cells)} == {True}
    assert {cell.config.runtime.compile for cell in with_needed(eager.cells)} == {
        None
    }  # each run decides by its length


@pytest.mark.parametrize("name", ["convergence-60m", "tokens-to-reach"])
def test_a_cell_shared_by_two_experiments_is_one_run(name):
    ablation = {cell.name for cell in make_plan(load("ablation"), "mini").cells}
    assert {cell.name for cell in make_plan(load(name), "mini").cells} <= ablation


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_glue_starts_from_the_pretraining_of_the_same_seed_and_variant(scale, tmp_path):
    for cell in make_plan(load("glue"), scale, tmp_path).cells:
        assert isinstance(cell.config.task, GLUEConfig)
        assert cell.needs is not None
        assert cell.needs.seed == cell.seed
        assert variant_name(cell.needs.config) == variant_name(cell.config)
        assert cell.config.init_from == str(tmp_path / "runs" / cell.needs.name)


def test_the_data_folder_is_not_part_of_the_identity_of_a_cell(tmp_path):
    (tmp_path / "glue").mkdir()
    here = make_plan(load("glue"), "mini", data_dir=tmp_path).cells
    there = make_plan(load("glue"), "mini").cells
    assert [identity(cell.config) for cell in here] == [identity(cell.config) for cell in there]
    assert here[0].config.task.data_dir == str(tmp_path / "glue")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", MEASURING)
def test_commands_of_measuring_experiments_exist_and_refer_to_trained_rows(name):
    experiment = load(name)
    for scale, command in experiment.commands.items():
        labels = make_plan(load(experiment.of), scale).labels if experiment.of else []
        fields = {field for _, field, _, _ in string.Formatter().parse(command) if field}
        assert command.split()[0] in COMMANDS
        assert fields <= {"out", *labels}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COMMAND, "mine.toml, mini: command '{standard}' contains 'standard', which is not defined: choose from {out}"),
        (
            'of = "ablation"' + COMMAND.replace("standard", "standart"),
            "'standart', which is not defined: choose from {out}",
        ),
        ('of = "ablation"' + COMMAND.replace("{standard}", "{standard"), "'{standard' is malformed"),
    ],
)
def test_an_error_in_a_command_is_reported(text, message, tmp_path):
    with pytest.raises(CoupledQKError, match=message):
        measurements(parse("mine", text, "mine.toml"), "mini", tmp_path)


def test_the_base_configuration_is_shared_by_all_cells():
    plan = make_plan(load("corpus"), "mini")
    base = base_config(plan.scale)
    assert all(cell.config.train == base.train for cell in plan.cells)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL.replace("recipe", "recipie"), r"small.toml: \[mini\] unknown key 'recipie': did you mean 'recipe'"),
        (SMALL.replace('"perplexity"', '"perplexty"'), "did you mean 'perplexity'"),
        (SMALL.replace("[0, 1]", "[0, 0]"), r"\[mini\] seeds=\[0, 0\]: expected a list of distinct numbers"),
        (SMALL.replace('"euler"', '"eulr"'), "small.toml, mini, eulr: unknown variant 'eulr': did you mean 'euler'"),
        (SMALL + 'label = "{variant} {n}"', "label .* contains 'n', which is not defined: choose from {variant}"),
        (SMALL + 'label = "row"', "'row' is the label of two different runs of seed 0"),
        (SMALL + "settings = { seq_len = 4096 }", "small.toml, mini, standard: seq_len=4096 is longer than"),
        (SMALL + "settings = { n_steps = 5 }", "n_steps=5 has no effect with method 'none'"),
        (SMALL + CLAIM.replace('"euler"', '"eulr"'), "there is no row 'eulr': choose from euler, standard"),
        (SMALL + CLAIM.replace("true", "false"), "one primary claim"),
        (SMALL + '[published]\neuler = { mean = "low" }', "published.euler.mean='low': expected float"),
        (SMALL.replace("title", "tilte"), "small.toml: title is missing"),
        (SMALL.replace('["standard", "euler"]', "[]"), r"\[mini\] grid\[0\]: variant=\[\]: expected at least one name"),
        (SMALL + "axes = 3", r"grid\[0\].axes=3: expected a table"),
        (SMALL + "axes.lr = 3", r"grid\[0\].axes.lr=3: expected a table"),
        (SMALL.partition("[mini]")[0] + "mini = 3", "small.toml: mini=3: expected a table"),
        ("x = ", "small.toml: "),
        (SMALL + "axes.lr = []", "small.toml, mini: the grid has no row to train"),
        (
            SMALL.replace("perplexity", "accuracy"),
            "'accuracy' is not measured by this task: choose from perplexity, bits_per",
        ),
        (
            SMALL.replace("perplexity", "tokens_to_reach") + 'label = "my {variant}"',
            "metric 'tokens_to_reach' needs a row 'standard'",
        ),
        (SMALL + SHIFTS.format('"lr_sensitivity"'), "there is no row 'euler, lr doubled'"),
        (SMALL + SHIFTS.format('"steps_to_recall"'), "steps_to_recall needs a task that measures accuracy"),
        (SMALL + "settings = { seed = 3 }", r"setting seed=3: expected no seed among the settings; list it in seeds"),
        (SMALL + LADDER.replace(", {size}", ""), r"ladders=\[.*\]: expected labels that contain \{size\}"),
        (SMALL + 2 * LADDER, r"ladders.name=\['here', 'here'\]: expected a different name for each ladder"),
    ],
)
def test_an_error_in_an_experiment_is_reported_with_its_location(text, message):
    with pytest.raises(CoupledQKError, match=message):
        make_plan(parse("small", text, "small.toml"), "mini")


def test_the_correct_name_is_suggested_for_a_misspelled_experiment(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "ablatoin"])
    assert "did you mean 'ablation'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce"])
    assert "--list" in capsys.readouterr().err


def test_all_selects_experiments_with_the_scale_in_addition_to_given_files(tmp_path, capsys):
    mine = tmp_path / "mine.toml"
    mine.write_text(SMALL.replace('"t"', '"My own"'))
    main(["reproduce", "all", str(mine), "--status", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "My own, mini" in said
    assert f"{load('recipe-search').title}, mini" in said
    main(["reproduce", "all", "--scale", "paper", "--status", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert f"{load('ablation').title}, paper" in said
    assert load("recipe-search").title not in said


def test_experiments_of_the_same_name_do_not_overwrite_each_others_outcomes(tmp_path, capsys):
    for folder, text in {"a": SMALL, "b": SMALL + CLAIM}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text(text)
    files = [str(tmp_path / folder / "mine.toml") for folder in "ab"]
    main(["reproduce", files[0], files[0], "--status", "--out", str(tmp_path)])
    assert capsys.readouterr().out.count("t, mini") == 1
    with pytest.raises(SystemExit):
        main(["reproduce", *files, "--status", "--out", str(tmp_path)])
    assert "two experiments are named mine" in capsys.readouterr().err


def test_all_experiments_are_listed(capsys):
    main(["reproduce", "--list"])
    shown = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", shown, re.MULTILINE) for name in names())
