"""Experiments from the package, from a user's file and from Python code run in the same way."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from coupledqk.cli import main
from coupledqk.errors import CoupledQKError
from coupledqk.lab.cells import make_plan
from coupledqk.lab.experiment import load, parse
from coupledqk.lab.laboratory import default_jobs, run_experiment
from coupledqk.lab.measuring import measurements
from coupledqk.lab.runner import Queue, run_queue
from coupledqk.lab.speed import training_speeds
from coupledqk.outcome_file import read
from coupledqk.provenance import available_cores
from coupledqk.recipes import recipe
from test_runner import EXPERIMENT, Pretend, Watch

SMALL = """
title = "Mine"
source = "my own"
metric = "perplexity"
caption = "Two attentions on a few products."
[mini]
recipe = "mini"
seeds = [0, 1]
[mini.settings]
corpus = "CORPUS"
d_model = 16
n_heads = 2
n_layers = 1
d_ff = 16
vocab_size = 257
n_positions = 16
tokenizer = "bytes"
max_tokens = 2_000
max_valid_tokens = 400
seq_len = 16
batch_size = 4
steps = 4
warmup = 1
eval_every = 2
"runtime.device" = "cpu"
[[grid]]
variant = ["standard", "hamiltonian"]
[[claims]]
text = "Coupling lowers perplexity"
kind = "lower"
variant = "hamiltonian"
baseline = "standard"
primary = true
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own experiment file."""
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    corpus = tmp_path / "products.txt"
    corpus.write_text("".join(f"{i} times {j} is {i * j}.\n" for i in range(20) for j in range(20)))
    file = tmp_path / "mine.toml"
    file.write_text(SMALL.replace("CORPUS", str(corpus)))
    return file


def test_a_users_file_runs_from_python_and_from_the_command_line(mine, capsys):
    outcome = run_experiment(mine, out="lab", jobs=1, progress=False)
    assert [(row.label, row.n) for row in outcome.rows] == [("standard", 2), ("hamiltonian", 2)]
    assert outcome.verdicts[0].evidence is not None
    assert capsys.readouterr() == ("", "")
    main(["reproduce", str(mine), "--out", "lab"])
    said = capsys.readouterr()
    assert "4 of 4 runs are already finished" in said.err
    assert "Coupling lowers perplexity" in said.out
    assert read("lab/mine-mini.json").rows == outcome.rows
    assert outcome.command == "coupledqk reproduce mine.toml --scale mini"


def test_folders_can_be_given_as_text_in_python(mine):
    outcome = run_experiment(mine, out="lab", jobs=1, progress=False)
    again = run_experiment(str(mine), out="other", data_dir="data", reuse=["lab"], jobs=1, progress=False)
    assert [row.seeds for row in again.rows] == [row.seeds for row in outcome.rows]
    assert not Path("other/runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds =", "seedz =", r"mine\.toml: .*seedz.*did you mean .*seeds"),
        (
            'recipe = "mini"',
            'recipe = "minni"',
            r"mine\.toml, mini, standard: unknown recipe 'minni': did you mean 'mini'",
        ),
        ('"lower"\n', '"lowest"\n', r"mine\.toml: .*'lowest'.*did you mean 'lower'"),
        ('baseline = "standard"', 'baseline = "standart"', r"mine\.toml, mini: there is no row 'standart'"),
        ("[mini]", "[mini", r"mine\.toml: "),
    ],
)
def test_a_mistake_in_a_users_file_is_reported_in_one_line_with_the_file_and_the_position(
    mine, capsys, old, new, message
):
    mine.write_text(mine.read_text().replace(old, new))
    with pytest.raises(SystemExit):
        main(["reproduce", str(mine)])
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_a_missing_file_is_reported(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "./nowhere.toml"])
    assert "cannot read nowhere.toml: there is no such file" in capsys.readouterr().err


def test_an_experiment_that_trains_nothing_is_not_run_as_a_grid():
    with pytest.raises(CoupledQKError, match="throughput trains nothing"):
        run_experiment("throughput")


def test_the_number_of_jobs_follows_the_cores_available_to_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert available_cores() == 3
    assert default_jobs([make_plan(load("smoke"), "mini")]) == 3


# --- seeds ------------------------------------------------------------------------------------------------------------------


def test_adding_seeds_to_some_rows_trains_only_the_new_runs(tmp_path):
    """Two of three rows of a finished grid get seeds 0 to 4; the third row keeps its seeds in the outcome."""
    experiment = parse("small", EXPERIMENT.replace("CORPUS", "python-stdlib"))
    run_queue(Queue.of([make_plan(experiment, "mini", tmp_path)]), first := Pretend(), Watch())
    assert len(first.started) == 7
    plan = make_plan(experiment, "mini", tmp_path, seeds=range(5), rows=["standard", "hamiltonian"])
    run_queue(Queue.of([plan]), second := Pretend(), Watch())
    assert sorted(re.findall(r"(standard|hamiltonian)-s(\d)", " ".join(second.started))) == [
        ("hamiltonian", "3"), ("hamiltonian", "4"), ("standard", "3"), ("standard", "4")
    ]  # fmt: skip
    assert [row.n for row in read(plan.outcome).rows] == [5, 5, 1]
    more = make_plan(experiment, "mini", tmp_path, seeds=[9], rows=["standard"])
    assert [cell.seed for cell in more.cells if cell.label == "standard"] == [0, 1, 2, 3, 4, 9]
    assert sum(cell.label == "hamiltonian" for cell in more.cells) == 5


def test_unknown_rows_and_rows_without_seeds_are_refused(tmp_path):
    experiment = load("ablation")
    with pytest.raises(CoupledQKError, match="there is no row 'eulr'"):
        make_plan(experiment, "mini", tmp_path, seeds=[0], rows=["eulr"])
    with pytest.raises(CoupledQKError, match="--rows euler: expected the seeds to add"):
        make_plan(experiment, "mini", tmp_path, rows=["euler"])


# --- what is printed before anything is trained -----------------------------------------------------------------------------


def test_a_dry_run_estimates_the_time_without_similar_finished_runs(mine, capsys):
    main(["reproduce", str(mine), "--dry-run"])
    said = capsys.readouterr().out
    assert re.search(
        r"4 of 4 runs to do, about \d+ s one after another on this machine, by a few training steps\.", said
    )
    main(["reproduce", "ablation", "--scale", "paper", "--dry-run"])
    assert re.search(
        r"about \d+\.\d days one after another on one RTX 2080 Ti, by the paper's throughput", capsys.readouterr().out
    )


def test_a_measurement_shows_its_command_and_the_runs_it_waits_for(tmp_path, capsys):
    for flag in ("--dry-run", "--status"):
        main(["reproduce", "rank", flag, "--out", str(tmp_path)])
        said = capsys.readouterr().out
        assert "coupledqk analyze " in said
        assert "waits for standard, hamiltonian of ablation, seed 0" in said


def test_commands_that_a_measurement_prints_can_be_pasted(tmp_path, capsys):
    out = tmp_path / "my lab"
    main(["reproduce", "rank", "--status", "--out", str(out)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("coupledqk analyze "))
    assert [word for word in shlex.split(line) if word.startswith(str(out / "runs"))]
    with pytest.raises(SystemExit):
        main(["reproduce", "rank", "--out", str(out)])
    assert f"run `coupledqk reproduce ablation --scale mini --out '{out}'` first" in capsys.readouterr().err


def test_a_measurement_uses_runs_of_one_seed_or_of_the_given_seeds(tmp_path):
    plan = make_plan(load("ablation"), "mini", tmp_path)
    run_queue(Queue.of([plan]), Pretend(failing="-standard-s0-"), Watch())
    (only,) = measurements(load("rank"), "mini", tmp_path)
    assert (only.seed, only.unfinished) == (1, ())
    assert all("-s1-" in word for word in only.words[1:3])
    chosen = measurements(load("rank"), "mini", tmp_path, seeds=[0, 2])
    assert [each.unfinished for each in chosen] == [("standard",), ()]
    assert [each.words[-1] for each in chosen] == [str(tmp_path / f"rank-mini-s{seed}") for seed in (0, 2)]


def test_training_speeds_are_measured_once_per_round():
    configs = {name: recipe("mqar-mini", name, d_model=16, n_heads=2, batch_size=2) for name in ("standard", "euler")}
    speeds = training_speeds(configs, rounds=3, steps=1)
    assert {name: len(values) for name, values in speeds.items()} == {"standard": 3, "euler": 3}
    assert all(value > 0 for values in speeds.values() for value in values)


def test_compare_reports_missing_scipy_before_measuring(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "scipy", None)
    text = tmp_path / "text.txt"
    text.write_text("once upon a time " * 9)
    with pytest.raises(SystemExit):
        main(["compare", "--corpus", str(text), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert error.endswith("need SciPy: pip install 'coupledqk[lab]'\n")
    assert error.count("\n") == 1
