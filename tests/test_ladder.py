"""The effect as a function of model size: fitting, drawing, and rejection of unsuitable data."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from coupledqk.cli import main
from coupledqk.costs import count_parameters
from coupledqk.lab import ladder
from coupledqk.lab.cells import make_plan
from coupledqk.lab.estimates import tokens
from coupledqk.lab.experiment import load, parse
from coupledqk.lab.laboratory import run_experiment
from coupledqk.lab.ladder import paper_ladder, too_large
from coupledqk.lab.memory import least_memory
from coupledqk.lab.merge import merge
from coupledqk.lab.outcomes import outcome
from coupledqk.lab.rungs import fit_ladder, slope_of
from coupledqk.lab.runner import Queue, run_queue
from coupledqk.lab.summary import cost_summary
from coupledqk.outcome import Ladder, LadderSpec, Rung
from coupledqk.outcome_file import read
from coupledqk.report.ladder import ladder_panel, ladder_table
from coupledqk.statistics import welch
from test_lab_report import make_outcome
from test_laboratory import SMALL, mine  # noqa: F401 (a fixture)
from test_runner import Pretend, Watch

SPEC = LadderSpec("coupled, {size}", "standard, {size}", ("S", "M", "L"))

LADDER = (
    SMALL.partition("[[grid]]")[0].replace("d_model = 16\n", "")
    + """
[[grid]]
label = "{variant}, {size}"
variant = ["standard", "hamiltonian"]
[grid.axes.size]
S = { d_model = 8 }
M = { d_model = 16 }
L = { d_model = 32 }
[[ladders]]
variant = "hamiltonian, {size}"
baseline = "standard, {size}"
sizes = ["S", "M", "L"]
[[claims]]
text = "Coupling lowers perplexity at L"
kind = "lower"
variant = "hamiltonian, L"
baseline = "standard, L"
primary = true
"""
)


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_every_rung_sees_20_tokens_per_parameter_and_learning_rates_follow_one_rule(scale):
    plan = make_plan(load("ladder"), scale)
    reference, rate = {"mini": (250_000, 6e-3), "paper": (60_343_296, 6e-4)}[scale]
    counts = {}
    for cell in plan.cells:
        if not cell.label.startswith("standard"):
            continue
        count = counts[cell.label] = count_parameters(cell.config.model)
        assert tokens(cell.config) / count == pytest.approx(20, rel=0.01)
        assert cell.config.train.lr == pytest.approx(rate * (count / reference) ** -0.25, rel=0.02)
    coupled = {
        cell.label.replace("hamiltonian", "standard"): cell.config for cell in plan.cells if "hamil" in cell.label
    }
    assert all(cell.config.train == coupled[cell.label].train for cell in plan.cells if cell.label in coupled)
    widths = {cell.config.model.d_model // cell.config.model.n_heads for cell in plan.cells}
    assert len(widths) == 1
    sizes = sorted(count for label, count in counts.items() if "learned" not in label)
    assert all(2 < large / small < 4.2 for small, large in itertools.pairwise(sizes))


def test_optional_rungs_are_trained_only_if_they_are_named(tmp_path):
    plan = make_plan(load("ladder"), "mini", tmp_path)
    assert {cell.label.partition(",")[0] for cell in plan.cells} == {"standard", "hamiltonian"}
    seeds_only = make_plan(load("ladder"), "mini", tmp_path, seeds=[0])
    assert seeds_only.labels == plan.labels
    more = make_plan(load("ladder"), "mini", tmp_path, seeds=[0, 1], rows=["diff, 0.1M", "mlp_only, 0.4M"])
    added = [(cell.label, cell.seed) for cell in more.cells if cell.label not in plan.labels]
    assert added == [("mlp_only, 0.4M", 0), ("mlp_only, 0.4M", 1), ("diff, 0.1M", 0), ("diff, 0.1M", 1)]
    assert [cell.name for cell in more.cells if cell.label in plan.labels] == [cell.name for cell in plan.cells]
    for planned, expected in ((plan, []), (more, ["mlp_only", "diff"])):
        run_queue(Queue.of([planned]), Pretend(), Watch())
        found = [ladder.name for ladder in read(planned.outcome).ladders]
        assert found == ["RoPE and qk_norm", "learned positions", *expected, "the paper"]


def test_the_slope_agrees_with_least_squares():
    rungs = [(5.0, [-0.02, -0.03]), (6.0, [-0.01, 0.0, 0.01]), (7.0, [0.01, 0.03])]
    slope = slope_of(rungs)
    assert slope is not None
    xs, ys = zip(*((x, y) for x, effects in rungs for y in effects), strict=True)
    assert slope.value == pytest.approx(np.polyfit(xs, ys, 1)[0])
    assert slope_of([*rungs, (8.0, [9.0])]) == slope  # a single pair has no variance
    assert slope_of(rungs[:1]) is None


def test_the_slope_of_two_rungs_is_welchs_difference():
    small, large = [-0.02, -0.03, -0.01], [0.01, 0.04]
    slope, difference = slope_of([(5.0, small), (7.0, large)]), welch(large, small)
    assert slope is not None
    assert slope.value == pytest.approx(difference.value / 2)
    assert slope.standard_error == pytest.approx(difference.standard_error / 2)
    assert slope.df == pytest.approx(difference.df)


def test_the_interval_of_the_slope_has_its_coverage_if_the_largest_models_are_the_noisiest():
    random, trials, covered = np.random.default_rng(0), 2_000, 0
    for _ in range(trials):
        rungs = [(x, random.normal(0, sd, n).tolist()) for x, sd, n in ((5.0, 1, 8), (5.6, 1, 8), (6.2, 2, 3))]
        slope = slope_of(rungs)
        assert slope is not None
        low, high = slope.interval()
        covered += low <= 0 <= high
    assert covered / trials == pytest.approx(0.936, abs=0.015)


def test_rungs_pair_seeds_and_leave_out_diverged_runs():
    samples = {
        "standard, S": {0: 100.0, 1: 100.0},
        "coupled, S": {0: 98.0, 1: 96.0, 2: 1.0},
        "standard, M": {0: 50.0, 1: 50.0, 2: 50.0},
        "coupled, M": {0: 49.0, 1: math.nan, 2: 50.0},
        "standard, L": {0: 20.0, 1: 20.0},
        "coupled, L": {1: 20.0},
    }
    found = fit_ladder(SPEC, samples, {"standard, S": 1_000, "standard, M": 10_000, "standard, L": 100_000})
    assert [(rung.size, rung.n) for rung in found.rungs] == [("S", 2), ("M", 2), ("L", 1)]
    assert [rung.effect for rung in found.rungs] == pytest.approx([-0.03, -0.01, 0.0])
    assert [rung.interval is None for rung in found.rungs] == [False, False, True]
    assert found.slope == pytest.approx(0.02)


def test_a_rung_whose_baseline_has_zero_accuracy_has_no_relative_effect():
    samples = {"standard, S": {0: 0.0}, "coupled, S": {0: 0.1}, "standard, M": {0: 0.5}, "coupled, M": {0: 0.6}}
    found = fit_ladder(SPEC, samples, {"standard, S": 1_000, "standard, M": 10_000})
    assert [rung.size for rung in found.rungs] == ["M"]


def test_a_rung_with_one_pair_is_drawn_without_an_interval():
    rungs = (Rung("S", 1_000, -0.01, (-0.02, 0.0), 3), Rung("M", 10_000, -0.01, None, 1))
    panel = ladder_panel(make_outcome(ladders=(Ladder("here", rungs),)))
    assert panel is not None
    (bars,) = re.findall(r'<path class="bars".*? d="(.*?)"', panel.svg())
    assert bars.count("M") == 1


def test_the_slope_is_shown_with_the_number_of_pairs_that_it_is_fitted_to():
    samples = {
        f"{row}, {size}": {seed: 40.0 + 0.1 * (row == "coupled") * seed for seed in range(n)}
        for size, n in {"S": 3, "M": 2, "L": 1}.items()
        for row in ("standard", "coupled")
    }
    found = fit_ladder(SPEC, samples, {f"standard, {size}": 10**i for i, size in enumerate(SPEC.sizes, 3)})
    *rungs, slope = ladder_table(make_outcome(ladders=(found,))).rows
    assert [rung[-1] for rung in rungs] == ["3", "2", "1"]
    assert slope[-1] == "5", "a rung with a single pair is not used for the slope"


def test_the_papers_effects_on_perplexity_are_not_shown_beside_those_on_another_metric(mine):  # noqa: F811
    text = LADDER.replace("CORPUS", str(mine.parent / "products.txt")).replace('"perplexity"', '"bits_per_byte"', 1)
    plan = make_plan(parse("mine", text), "mini", mine.parent / "lab")
    assert [found.name for found in outcome(plan).ladders] == ["here"]


def test_the_papers_ladder_has_the_published_effects():
    assert {rung.size: round(rung.effect, 4) for rung in paper_ladder().rungs} == {
        "60M": -0.0661, "150M": -0.0672, "350M": -0.0102
    }  # fmt: skip


def test_a_toy_ladder_runs_end_to_end(mine, capsys):  # noqa: F811
    corpus = mine.parent / "products.txt"
    mine.write_text(LADDER.replace("CORPUS", str(corpus)))
    main(["reproduce", str(mine)])
    said = capsys.readouterr().out
    assert "slope per tenfold size" in said
    ours, paper = run_experiment(mine, progress=False).ladders
    assert [(rung.size, rung.n) for rung in ours.rungs] == [("S", 2), ("M", 2), ("L", 2)]
    assert ours.slope is not None
    assert paper.name == "the paper"
    main(["report", "lab/mine-mini.json", "-o", "mine.html", "--figures", "figures"])
    page = (mine.parent / "mine.html").read_text()
    assert "Effect against size" in page
    assert "the paper, " not in page
    chart = (mine.parent / "figures/mine-mini-ladder.svg").read_text()
    bars = re.findall(r'<path class="bars" style="--colour:var\(--colour-(\d)\)" d="(.*?)"', chart)
    assert [(colour, d.count("V")) for colour, d in bars] == [("0", 3), ("1", 3)], "an interval for each rung"
    assert "slope per tenfold size" in page
    assert re.search(r"[+−][\d.]+ to [+−][\d.]+ points", page)


def test_rungs_trained_at_different_times_are_merged_into_one_ladder(mine):  # noqa: F811
    mine.write_text(LADDER.replace("CORPUS", str(mine.parent / "products.txt")))
    every, *parts = (run_experiment(mine, seeds=seeds, progress=False) for seeds in ([0, 1, 2], [0, 1], [2]))
    assert merge(parts).ladders == every.ladders
    assert [rung.n for rung in every.ladders[0].rungs] == [3, 3, 3]
    top = {"standard, L", "hamiltonian, L"}
    lower, upper = (
        replace(
            every,
            rows=tuple(row for row in every.rows if (row.label in top) == is_top),
            cells=tuple(cell for cell in every.cells if (cell.label in top) == is_top),
        )
        for is_top in (False, True)
    )
    assert merge([lower, upper]).ladders == every.ladders
    spec = parts[1].ladders[0].spec
    assert spec is not None
    other = replace(parts[1].ladders[0], spec=replace(spec, sizes=("S",)))
    merged = merge([parts[0], replace(parts[1], experiment="another", ladders=(other,))])
    assert merged.ladders == every.ladders, "another experiment contributes runs, not its ladder"


def test_a_rung_that_does_not_fit_is_reported_and_the_rest_runs(mine, monkeypatch, capsys):  # noqa: F811
    mine.write_text(LADDER.replace("CORPUS", str(mine.parent / "products.txt")))
    large = min(
        least_memory(cell.config) for cell in make_plan(load(str(mine)), "mini").cells if cell.label.endswith("L")
    )
    monkeypatch.setattr(ladder, "memory_here", lambda config: large - 1)
    main(["reproduce", str(mine), "--dry-run"])
    assert "standard, L is skipped: a run needs at least 0.0 GiB of memory" in capsys.readouterr().out
    main(["reproduce", str(mine)])
    said = capsys.readouterr()
    assert "hamiltonian, L is skipped" in said.err
    assert [row.n for row in run_experiment(mine, progress=False).rows] == [2, 2, 0, 2, 2, 0]


def test_runs_are_left_out_unless_they_belong_to_a_row_that_is_trained(tmp_path):
    plans = [make_plan(load(name), "mini", tmp_path) for name in ("ablation-modern", "affine")]
    shared = {cell.name for cell in plans[1].cells if cell.label == "standard"}

    def left(**labels: list[str]) -> set[str]:
        queue = Queue.of(plans)
        queue.leave_out({name.replace("_", "-"): given for name, given in labels.items()})
        return {cell.name for cell in queue.waiting}

    everything = left()
    assert shared < everything
    assert left(affine=["standard"]) == left(ablation_modern=["standard"]) == everything
    assert left(affine=["standard"], ablation_modern=["standard"]) == everything - shared


def test_a_rung_of_more_than_a_day_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder.Speeds, "measure", lambda self, config: 25.0 if config.model.d_model == 160 else 1.0)
    assert set(too_large(make_plan(load("ladder"), "mini", tmp_path))) == {"standard, 1.5M", "hamiltonian, 1.5M"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, the durations are those on this machine")
def test_the_cost_on_another_machine_is_estimated_without_measuring_the_speed_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder.Speeds, "measure", lambda self, config: pytest.fail("the speed was measured"))
    assert "on one RTX 2080 Ti" in cost_summary(make_plan(load("ladder"), "paper", tmp_path))


def test_rungs_are_compared_with_standard_of_their_own_size(tmp_path):
    plan = make_plan(load("ladder"), "mini", tmp_path, seeds=[0, 1])
    run_queue(Queue.of([plan]), Pretend(), Watch())
    sizes = ("0.1M", "0.4M", "1.5M", "0.1M, learned positions", "0.4M, learned positions")
    assert read(plan.outcome).baselines == {f"hamiltonian, {size}": f"standard, {size}" for size in sizes}
