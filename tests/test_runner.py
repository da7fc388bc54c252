"""Grids of runs: training, failures, resuming and reporting."""

import json
import os
import signal
from pathlib import Path

import pytest

from coupledqk.cli import main
from coupledqk.lab import laboratory, memory, runner
from coupledqk.lab.cells import Plan, failure, make_plan, status
from coupledqk.lab.engine import LocalPool, Message
from coupledqk.lab.experiment import load, parse
from coupledqk.lab.laboratory import notes, run_plans
from coupledqk.lab.outcomes import outcome, thinned
from coupledqk.lab.runner import Queue, run_queue, stale
from coupledqk.lab.summary import failure_summary
from coupledqk.outcome_file import read
from coupledqk.runs.training import train_run

EXPERIMENT = """
title = "A small grid"
source = "beyond the paper"
metric = "perplexity"
caption = "Nothing about attention."
[mini]
recipe = "mini"
seeds = [0, 1, 2]
seeds_of."standard, lr 1e+20" = [0]
[mini.settings]
corpus = "CORPUS"
d_model = 16
n_heads = 2
n_layers = 1
d_ff = 16
vocab_size = 257
n_positions = 16
tokenizer = "bytes"
max_tokens = 4_000
max_valid_tokens = 400
seq_len = 16
batch_size = 4
steps = 100
warmup = 5
eval_every = 50
log_every = 5
"runtime.save_every" = 10
"runtime.device" = "cpu"
[[grid]]
variant = ["standard", "hamiltonian"]
[[grid]]
label = "{variant}, lr {lr}"
variant = ["standard"]
axes.lr = [1e20]
[[claims]]
text = "Coupling lowers perplexity"
kind = "lower"
variant = "hamiltonian"
baseline = "standard"
primary = true
"""


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    text = "".join(f"{i} times {j} is {i * j}.\n" for i in range(40) for j in range(20))
    path = tmp_path / "products.txt"
    path.write_text(text)
    return path


def plan_of(corpus: Path, text: str = EXPERIMENT, seeds: tuple[int, ...] = ()) -> Plan:
    return make_plan(parse("small", text.replace("CORPUS", str(corpus))), "mini", corpus.parent / "lab", seeds)


class Watch:
    """An overview that records how cells end and calls `on_step` when a cell takes a step."""

    def __init__(self, on_step=lambda cell: None) -> None:
        self.on_step, self.endings, self.doings = on_step, {}, []

    def note(self, text): ...

    def begin(self, cells, finished, total):
        self.to_do, self.finished = len(cells), finished

    def started(self, cell): ...

    def step(self, cell, step):
        self.on_step(cell)

    def busy(self, cell, doing):
        self.doings.append(doing)

    def ended(self, cell, run, how, error):
        self.endings[cell.label, cell.seed] = how

    def __enter__(self):
        return self

    def __exit__(self, *error): ...


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The modification time and content of every file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_grid_with_a_failing_cell_is_killed_and_resumes(corpus):
    """Smoke test: 2 variants × 3 seeds run, are killed, resume and report."""
    plan, engine = plan_of(corpus), LocalPool(1)
    victim = ("hamiltonian", 1)

    def kill(cell):
        if (cell.label, cell.seed) == victim:
            os.kill(engine.workers[0].process.pid, signal.SIGKILL)

    first = Watch(kill)
    run_queue(queue := Queue.of([plan]), engine, first)
    assert first.endings.pop(victim) == "interrupted"
    assert first.endings.pop(("standard, lr 1e+20", 0)) == "failed"
    assert set(first.endings.values()) == {"finished"}
    assert len(first.endings) == 5
    assert {"preparing the text", "validating", "computing the final measures"} <= set(first.doings)
    assert "SIGKILL" in next(why for name, why in queue.troubles.items() if "hamiltonian" in name)

    found = read(plan.outcome)
    assert sorted(cell.status for cell in found.cells) == ["failed", *["finished"] * 5, "interrupted"]
    assert [(row.label, row.n) for row in found.rows] == [
        ("standard", 3),
        ("hamiltonian", 2),
        ("standard, lr 1e+20", 0),
    ]
    assert "diverge" not in found.verdicts[0].sentence
    assert "hamiltonian has no run with seed 1" in found.verdicts[0].sentence
    error = next(cell.error for cell in found.cells if cell.status == "failed")
    assert error is not None
    assert "lower lr" in error

    finished = [plan.run(cell).path for cell in plan.cells if plan.run(cell).result]
    before = {path: contents(path) for path in finished}
    run_queue(Queue.of([plan]), LocalPool(1), second := Watch())
    assert second.finished == 5
    assert second.endings == {victim: "finished"}
    assert {path: contents(path) for path in finished} == before
    whole = read(plan.outcome)
    assert [row.n for row in whole.rows] == [3, 3, 0]
    assert whole.verdicts[0].evidence is not None
    assert str(corpus.parent) not in plan.outcome.read_text()

    cell = next(cell for cell in plan.cells if (cell.label, cell.seed) == victim)
    straight = train_run(cell.config, corpus.parent / "straight")
    assert straight.metrics("valid") == plan.run(cell).metrics("valid")


def test_a_stopped_grid_saves_every_cell_and_resumes_later(corpus):
    plan = plan_of(corpus, EXPERIMENT.replace("steps = 100", "steps = 40_000"), seeds=(0,))
    asked, watch = [], Watch()
    watch.step = lambda cell, step: asked.append(cell) if step else None
    run_queue(Queue.of([plan]), LocalPool(1), watch, stop=lambda: bool(asked))
    assert watch.endings == {("standard", 0): "interrupted"}
    run = plan.run(plan.cells[0])
    assert status(run) == "interrupted"
    assert list((run.path / "checkpoints").iterdir())
    assert [status(plan.run(cell)) for cell in plan.cells[1:]] == ["waiting", "waiting"]


def test_a_corpus_too_small_for_the_grid_fails_its_cells_with_one_error(corpus):
    plan = plan_of(corpus, EXPERIMENT.replace("4_000", "4_000_000"), seeds=(0,))
    run_queue(Queue.of([plan]), LocalPool(1), Watch())
    errors = {failure(plan.run(cell))["error"] for cell in plan.cells}
    assert len(errors) == 1
    assert "too small for this experiment" in errors.pop()


class Pretend:
    """An engine that trains nothing and writes a result for every run that does not fail."""

    def __init__(self, failing: str = "", jobs: int = 1) -> None:
        self.failing, self.jobs, self.started, self.messages = failing, jobs, [], []

    def free(self):
        return self.jobs - len(self.messages)

    def start(self, config, folder):
        folder.mkdir(parents=True)
        (folder / "config.toml").touch()
        self.started.append(folder.name)
        fails = self.failing and self.failing in folder.name
        if not fails:
            record = {"loss": 1.0, "perplexity": 2.7, "accuracy": 0.5}
            result = {"best": record, "final": record, "seconds": 1.0, "tokens_per_second": 9.0, "definition": "d"}
            (folder / "result.json").write_text(json.dumps(result))
            about = {"corpus": "c", "hash": "h"}
            info = {"parameters": 1, "corpus": about, "commit": None, "machine": "m", "versions": {}, "started": "s"}
            (folder / "info.json").write_text(json.dumps(info))
        self.messages.append(Message(folder, "failed" if fails else "finished", error="no luck" if fails else None))

    def wait(self, seconds):
        yield self.messages.pop(0)

    def stop(self): ...

    def close(self): ...


@pytest.mark.parametrize(("n_fitting", "most"), [(1, 1), (2, 2), (9, 3)])
def test_as_many_runs_are_trained_at_a_time_as_fit_into_memory(corpus, monkeypatch, n_fitting, most):
    plan, engine, running = plan_of(corpus), Pretend(jobs=3), []
    config = plan.cells[0].config
    needed = max(memory.least_memory(cell.config) for cell in plan.cells)
    monkeypatch.setattr(memory, "memory_here", lambda config: n_fitting * needed)
    monkeypatch.setattr(laboratory, "open_engine", lambda *given: engine)
    watch = Watch()
    watch.started = lambda cell: running.append(len(engine.messages))
    run_plans([plan], overview=watch)
    assert len(engine.started) == len(plan.cells)
    assert max(running) == most
    assert memory.fit_together([config] * n_fitting)
    assert not memory.fit_together([config] * (2 * n_fitting))


def test_the_run_that_a_cell_starts_from_is_trained_first(tmp_path):
    plan = make_plan(load("glue"), "mini", tmp_path)
    run_queue(Queue.of([plan]), engine := Pretend(jobs=2), Watch())
    assert len(engine.started) == 24
    for cell in plan.cells:
        assert cell.needs is not None
        assert engine.started.index(cell.needs.name) < engine.started.index(cell.name)
    run_queue(Queue.of([plan]), again := Pretend(), Watch())
    assert again.started == []


def test_a_cell_is_skipped_if_the_run_it_starts_from_failed(tmp_path):
    plan = make_plan(load("glue"), "mini", tmp_path)
    run_queue(queue := Queue.of([plan]), engine := Pretend(failing="wikitext-2-gqa"), Watch())
    assert not any(name.startswith("sst2-gqa") for name in engine.started)
    assert sum("starts from wikitext-2-gqa" in why for why in queue.troubles.values()) == 3
    assert sum(name.startswith("sst2-") for name in engine.started) == 9


def test_a_cell_that_another_process_finishes_is_not_reported_as_unfinished(tmp_path, monkeypatch):
    plan = make_plan(load("ablation"), "mini", tmp_path, seeds=[0])
    queue, other = Queue.of([plan]), Pretend()
    theirs, still_theirs = plan.cells[:2]
    monkeypatch.setattr(
        runner, "status", lambda run: "running" if run.path.name in taken else status(run)
    )  # as their leases would report
    taken = {theirs.name, still_theirs.name}

    def finish_theirs(cell) -> None:
        if theirs.name in taken:
            other.start(theirs.config, plan.run(theirs).path)
            taken.remove(theirs.name)

    watch = Watch()
    monkeypatch.setattr(watch, "started", finish_theirs)
    run_queue(queue, Pretend(), watch)
    assert queue.troubles == {still_theirs.name: "another process is training it"}


def test_cells_that_experiments_share_are_trained_once(tmp_path):
    plans = [make_plan(load(name), "mini", tmp_path) for name in ("ablation", "convergence-60m", "mlp-capacity")]
    run_queue(Queue.of(plans), engine := Pretend(), Watch())
    cells = [cell.name for plan in plans for cell in plan.cells]
    assert sorted(engine.started) == sorted(set(cells))
    assert len(set(cells)) < len(cells)
    assert all(cell.status == "finished" for plan in plans for cell in read(plan.outcome).cells)


def test_runs_left_over_from_an_edited_grid_are_listed_and_kept(corpus, capsys):
    plan = plan_of(corpus)
    run_queue(Queue.of([plan]), Pretend(), Watch())
    assert stale(plan) == []
    assert stale(plan_of(corpus, seeds=(0,))) == []
    edited = plan_of(corpus, EXPERIMENT.replace("axes.lr = [1e20]", "axes.lr = [1e19]").replace("+20", "+19"))
    left_over = [cell.name for cell in plan.cells if cell.label.startswith("standard, lr")]
    assert stale(edited) == left_over
    run_queue(Queue.of([edited]), engine := Pretend(), Watch())
    assert len(engine.started) == 1
    assert (plan.out / "runs" / left_over[0]).is_dir()


def test_a_note_lists_added_seeds_that_are_left_out(corpus):
    experiment = parse("small", EXPERIMENT.replace("CORPUS", str(corpus)))
    plain = make_plan(experiment, "mini", corpus.parent / "lab")
    more = make_plan(experiment, "mini", corpus.parent / "lab", seeds=(7, 8), rows=("standard",))
    run_queue(Queue.of([more]), Pretend(), Watch())
    assert notes(more) == [note for note in notes(plain) if "one seed" in note]
    (note,) = set(notes(plain)) - set(notes(more))
    assert "left out now (standard: 7-8); --seeds with --rows adds them" in note


def test_optional_rows_that_are_left_out_later_are_not_reported_as_removed_from_the_grid(corpus):
    text = EXPERIMENT.replace("axes.lr", "optional = true\naxes.lr").replace("CORPUS", str(corpus))
    experiment, lab = parse("small", text), corpus.parent / "lab"
    more = make_plan(experiment, "mini", lab, seeds=(7, 8), rows=("standard, lr 1e+20",))
    run_queue(Queue.of([more]), Pretend(), Watch())
    (note,) = notes(make_plan(experiment, "mini", lab))
    assert "left out now (standard, lr 1e+20: 7-8); --seeds with --rows adds them" in note


def test_one_seed_is_reported_as_too_few(corpus):
    two = EXPERIMENT.replace('seeds_of."standard, lr 1e+20" = [0]', "")
    assert notes(plan_of(corpus, two, seeds=(0, 1))) == []
    (note,) = notes(plan_of(corpus, two, seeds=(0,)))
    assert "a test requires at least two" in note


def test_a_diverged_run_has_no_value_and_is_reported_as_diverged(corpus):
    plan = plan_of(corpus, EXPERIMENT.replace('variant = "hamiltonian"', 'variant = "standard, lr 1e+20"'))
    run_queue(Queue.of([plan]), Pretend(), Watch())
    cell = plan.cells[-1]
    (plan.run(cell).path / "result.json").unlink()
    (plan.run(cell).path / "error.json").write_text(json.dumps({"error": "the loss became nan", "diverged": True}))
    found = outcome(plan)
    assert found.rows[-1].mean is None
    assert "diverged with seed 0" in found.verdicts[0].sentence


def test_a_diverged_run_counts_as_a_result_and_is_not_trained_again(corpus):
    plan = plan_of(corpus)
    run_queue(Queue.of([plan]), Pretend(failing=plan.cells[-1].name), Watch())
    (plan.run(plan.cells[-1]).path / "error.json").write_text(json.dumps({"error": "loss nan", "diverged": True}))
    run_queue(queue := Queue.of([plan]), engine := Pretend(), Watch())
    assert engine.started == []
    assert not queue.failed
    summary = failure_summary(queue)
    assert "standard, lr 1e+20 seed 0: loss nan" in summary
    assert "to do so, delete their folders" in summary
    assert "again to resume" not in summary


def test_after_a_failure_the_summary_asks_for_its_cause_to_be_removed_and_after_a_stop_it_says_how_to_resume(corpus):
    plan = plan_of(corpus)
    run_queue(queue := Queue.of([plan]), Pretend(failing=plan.cells[-1].name), Watch())
    assert failure_summary(queue).splitlines()[-1] == "Once the cause is gone, run the same command again."
    queue.stopped = True
    assert failure_summary(queue).splitlines()[-1] == "Run the same command again to resume."


def test_all_commits_and_machines_of_the_runs_are_recorded(corpus):
    plan = plan_of(corpus)
    run_queue(Queue.of([plan]), Pretend(), Watch())
    for number, cell in enumerate(plan.cells):
        start = {"commit": f"c{number % 2}", "machine": f"node {number % 3}", "versions": {}, "started": str(number)}
        info = {"parameters": 1, "corpus": {"corpus": "c", "hash": "h"}, "starts": [start]}
        (plan.run(cell).path / "info.json").write_text(json.dumps(info))
    origin = outcome(plan).origin
    assert (origin.commit, origin.machine) == ("c0 and c1", "node 0 and node 1 and node 2")


def test_tokens_to_reach_are_interpolated_between_evaluations(tmp_path):
    plan = make_plan(load("tokens-to-reach"), "mini", tmp_path, seeds=(0,))
    run_queue(Queue.of([plan]), Pretend(), Watch())
    losses = {
        "standard": [4.0, 3.0, 2.0],
        "hamiltonian": [3.0, 1.0, 0.5],
        "euler": [4.0, 3.0, 2.5],
        "diff": [2.0, 1, 1],
    }
    for cell in plan.cells:
        path = plan.run(cell).path
        records = [
            {"kind": "valid", "step": n, "tokens": 100 * n, "loss": loss, "perplexity": 1.0}
            for n, loss in enumerate(losses[cell.label], start=1)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        result = plan.run(cell).result
        result["final"]["loss"] = losses[cell.label][-1]
        (path / "result.json").write_text(json.dumps(result))
    found = {row.label: row.mean for row in outcome(plan).rows}
    assert found == {"standard": 300, "diff": 100, "euler": None, "hamiltonian": 150}


def test_thinning_a_curve_averages_its_points_and_keeps_the_mean():
    curve = [(float(n), float(n * n)) for n in range(600)]
    thin = thinned(curve)
    assert len(thin) == 60
    assert sum(y for _, y in thin) / 60 == pytest.approx(sum(y for _, y in curve) / 600)
    assert thinned(curve[:7]) == tuple(curve[:7])
    assert thinned([]) == ()


def test_status_and_measurements_work_before_anything_is_trained(tmp_path, capsys):
    main(["reproduce", "ablation", "--status", "--out", str(tmp_path)])
    assert "waiting" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["reproduce", "rank", "--out", str(tmp_path)])
    assert "coupledqk reproduce ablation --scale mini" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "smoke", "--jobs", "0", "--out", str(tmp_path)])
    assert "--jobs 0: expected 1 to 10,000" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
