"""Training with several processes gives the same numbers as with one, resumes with any number, and fails in one line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coupledqk.cli import main
from coupledqk.config import AdaptConfig, RunConfig
from coupledqk.files import FileError
from coupledqk.recipes import glue_recipe, recipe
from coupledqk.runs import Run
from coupledqk.runs.training import TASKS
from coupledqk.schema import change, to_toml
from coupledqk.terminal import announced
from coupledqk.training.checkpoints import read_weights
from coupledqk.training.mesh import IGNORED, Mesh
from coupledqk.training.optimizer import build_optimizer
from coupledqk.training.state_files import read_state, restore, save_sharded
from small_runs import TINY_TASK, newest, run_to, tiny

TIMEOUT = 540

ONCE = {"eval_every": 10, "save_every": 20, "threads": 1}

CASES = {
    "standard": ("standard", {"batch_size": 6, "micro_batch": 2}),  # 3 rows on each of two processes: 2, then 1
    "hamiltonian": ("hamiltonian", {"batch_size": 7, "micro_batch": 3, "clip": 0.1}),  # 4 rows and 3
    "diff": ("diff", {"batch_size": 5, "micro_batch": 1, "gradient_checkpointing": True, "qk_norm": True}),
    "fp16": ("hamiltonian", {"batch_size": 6, "micro_batch": 2, "precision": "fp16"}),
}
STRATEGIES = ("ddp", "fsdp")
STAGES = ((None, 6), ("ddp", 8), ("fsdp", 11), ("fsdp", 14), ("ddp", 17), ("fsdp", 18), (None, None))
"""A run that is stopped and resumed: by which strategy (None is one process), and after which step."""


def torchrun(*arguments: str | Path, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs two processes on a free port and ends them before the test ends."""
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root / "src"), str(root / "tests")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # torchrun ends its processes
        out, err = process.communicate(timeout=60)
        pytest.fail(f"torchrun took longer than {TIMEOUT} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Finished:
    """The folder with all runs that one job of two processes has trained for these tests."""

    def __init__(self, folder: Path, configs: dict[str, RunConfig]) -> None:
        self.folder, self.configs = folder, configs

    def run(self, name: str) -> Run:
        return Run.open(self.folder / name)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("mesh")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(36)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        configs = {name: tiny(text, variant, **ONCE, **settings) for name, (variant, settings) in CASES.items()}
        configs["bf16"] = tiny(text, "diff", batch_size=6, micro_batch=2, precision="bf16", **ONCE)
        configs |= other_tasks(folder, text)
        for name, config in configs.items():
            run_to(config, folder / name)
        jobs = [
            {"config": to_toml(change(config, {"parallel": strategy})), "out": f"{name}-{strategy}", "stop_at": None}
            for name, config in configs.items()
            for strategy in STRATEGIES
        ]
        chain = tiny(text, save_every=100, threads=1)
        for strategy, stop in STAGES[1:-1]:
            jobs.append({"config": to_toml(change(chain, {"parallel": strategy})), "out": "chain", "stop_at": stop})
        (folder / "jobs.json").write_text(json.dumps(jobs))
        run_to(chain, folder / "chain", stop_at=STAGES[0][1])
        done = torchrun(Path(__file__).with_name("mesh_job.py"), "together", folder)
        assert done.returncode == 0, done.stderr
        yield Finished(folder, {**configs, "chain": chain})


def other_tasks(folder: Path, text: Path) -> dict[str, RunConfig]:
    short = {"steps": 6, "eval_every": 3, "save_every": 6, "batch_size": 5, "micro_batch": 2, "threads": 1}
    source = run_to(tiny(text, "standard", **{**ONCE, "steps": 2, "warmup": 1}), folder / "source")
    (folder / "data" / "SST-2").mkdir(parents=True)
    rows = [f"a {'very ' * (i % 5)}{('bad', 'good')[i % 2]} film\t{i % 2}" for i in range(21)]
    for part in ("train", "dev"):
        (folder / "data" / "SST-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    lora = AdaptConfig(corpus=str(text), tokenizer="bytes", method="lora_coupling")
    adapted = {"init_from": str(source.path), "dynamics.method": "leapfrog", "gate": True, **short}
    recall = {"vocab_size": 16, "n_positions": 16, "seq_len": 16, "n_pairs": 2, "n_test": 33}
    return {
        "mqar": recipe("mqar-mini", "euler", **{**TINY_TASK, **recall, **short}),
        "glue": glue_recipe(
            source.config, str(source.path), "sst2", 21, data_dir=str(folder / "data"), log_every=1, **short
        ),
        "lora": change(RunConfig(**{**vars(source.config), "task": lora, "init_from": str(source.path)}), adapted),
    }


def moments(run: Run) -> list[Tensor]:
    """AdamW's moments of the gradients. Unlike its updates, they depend on a common factor of all gradients."""
    model = TASKS[run.config.task.kind](run.config, None).build_model()
    optimizer = build_optimizer(model, run.config.train)
    restore(optimizer, read_state(newest(run))["optimizer"])
    return [value for state in optimizer.state.values() for value in (state["exp_avg"], state["exp_avg_sq"])]


def assert_same_training(one: Run, several: Run, tolerance: float) -> None:
    for kind, keys in (("train", ("step", "tokens", "lr", "loss", "grad_norm")), ("valid", ("loss", "dt", "lambda"))):
        pairs = list(zip(one.metrics(kind), several.metrics(kind), strict=True))
        for ours, theirs in pairs:
            assert ours.keys() == theirs.keys()
            for key in keys & ours.keys():
                torch.testing.assert_close(
                    torch.tensor(theirs[key]), torch.tensor(ours[key]), rtol=tolerance, atol=tolerance
                )
    weights, theirs = read_weights(newest(one)), read_weights(newest(several))
    assert list(weights) == list(theirs)
    torch.testing.assert_close(theirs, weights, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(moments(one), moments(several), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_same_training_as_one(job: Finished, case: str, strategy: str) -> None:
    one, several = job.run(case), job.run(f"{case}-{strategy}")
    assert_same_training(one, several, 1e-5 if one.config.train.precision == "fp32" else 1e-3)
    assert several.result["context_gain"] == pytest.approx(one.result["context_gain"], abs=1e-3)
    assert (newest(several) / "state.pt").is_file() == (strategy == "ddp")
    if strategy == "fsdp":  # no file format that could contain code
        files = [path for path in newest(several).rglob("*") if path.is_file()]
        assert {path.suffix for path in files} == {".safetensors", ".json"}
        assert sum(path.parent.name == "optimizer" for path in files) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_in_bf16_two_processes_have_the_losses_of_one_up_to_rounding(job: Finished, strategy: str) -> None:
    losses, theirs = (
        [step["loss"] for step in job.run(name).metrics("train")] for name in ("bf16", f"bf16-{strategy}")
    )
    assert theirs == pytest.approx(losses, rel=1e-2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("task", ["mqar", "glue", "lora"])
def test_every_task_can_be_trained_on_two_processes(job: Finished, task: str, strategy: str) -> None:
    assert_same_training(job.run(task), job.run(f"{task}-{strategy}"), 1e-5)


def test_a_run_resumes_with_another_number_of_processes_and_another_strategy(job: Finished) -> None:
    chain = run_to(job.configs["chain"], job.folder / "chain")
    assert len(chain.info["starts"]) == len(STAGES)
    assert_same_training(run_to(job.configs["chain"], job.folder / "unbroken"), chain, 1e-5)


def test_an_invalid_job_is_reported_by_one_process_only(job: Finished) -> None:
    reports = [json.loads((job.folder / f"report-{rank}.json").read_text()) for rank in range(2)]
    expected = {
        "settings": "different settings: runtime.micro_batch is 1 on the first and 2 on rank 1, train.lr is 0.1 on the first",
        "batch": "batch_size=1 is too small for 2 processes: start at most 1",
        "folder": "contains another run with different settings: seed (0 there, 5 now)",
    }
    for what, line in expected.items():
        said, silent = sorted((report[what] for report in reports), key=lambda text: text == "silent")
        assert line in said
        assert "\n" not in said
        assert silent == "silent"
    assert not (job.folder / "refused").exists()


def test_an_overflow_on_one_process_skips_the_update_on_all(job: Finished) -> None:
    overflows = [json.loads((job.folder / f"report-{rank}.json").read_text())["overflow"] for rank in range(2)]
    assert [found["infinite"] for found in overflows] == [0.0, 1.0]
    assert all(found["scale"] == 512.0 and found["changed"] == 0.0 for found in overflows)


def test_a_killed_process_ends_the_job_with_one_line_and_torchrun_resumes_it(text: Path, tmp_path: Path) -> None:
    config = tiny(text, "standard", threads=1, batch_size=4)
    (tmp_path / "config.toml").write_text(to_toml(config))
    flags = ["train", "--config", tmp_path / "config.toml", "--out", tmp_path / "run"]
    done = torchrun(Path(__file__).with_name("mesh_job.py"), "killed", *flags, options=("--max-restarts", "1"))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("coupledqk: ")]
    assert len(lines) == 1, done.stderr
    assert "lost contact with another process" in lines[0]
    assert "run the same command again to resume" in lines[0]
    assert "Traceback" not in done.stderr
    assert done.stdout.count("Perplexity: exp of the mean loss") == 1
    run = Run.open(tmp_path / "run")
    assert len(run.info["starts"]) == 2
    assert_same_training(run_to(config, tmp_path / "one"), run, 1e-5)


def test_a_mistake_in_the_command_is_reported_by_the_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    command = ["train", "--steps", "-1", "--out", str(tmp_path / "run")]
    done = torchrun("-m", "coupledqk", *command)
    lines = [line for line in done.stderr.splitlines() if line.startswith("coupledqk: ")]
    assert done.returncode != 0
    assert len(lines) == 1, done.stderr
    assert "steps=-1" in lines[0]
    monkeypatch.setenv("RANK", "1")  # as in a job whose first process has not found the mistake
    monkeypatch.setattr("coupledqk.cli.train.SECONDS_FOR_FIRST", 0.0)
    with pytest.raises(SystemExit):
        main(command)
    assert capsys.readouterr().err == f"{lines[0]}\n"


def test_sharding_without_torchrun_is_refused(text: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "config.toml").write_text(to_toml(tiny(text)))
    with pytest.raises(SystemExit) as end:
        main(["train", "--config", str(tmp_path / "config.toml"), "--parallel", "fsdp", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert "torchrun --nproc-per-node N -m coupledqk train" in said
    assert not (tmp_path / "run").exists()


def test_shards_that_cannot_be_written_are_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "optimizer").write_text("a file where the folder of the shards should be")
    state = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}}
    with pytest.raises(FileError, match=r"cannot write .*optimizer .*: free some space") as error:
        save_sharded(state, tmp_path, is_first=True, group=None)
    assert "\n" not in str(error.value)


class Member(Mesh):
    """One process of a mesh, without the other processes."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world


@given(size=st.integers(1, 12), world=st.integers(1, 4))
def test_processes_have_equally_many_rows_and_each_row_counts_once(size: int, world: int) -> None:
    if size < world:
        return  # refused when the mesh is opened
    rows = torch.arange(size)[:, None].expand(-1, 3)
    members = [Member(rank, world) for rank in range(world)]
    shares = [member.even((rows[member.rows], rows[member.rows]), size) for member in members]
    assert len({len(targets) for _, targets in shares}) == 1
    counted = torch.cat([targets[targets != IGNORED] for _, targets in shares])
    assert sorted(counted.tolist()) == sorted(rows.flatten().tolist())


@given(n_batches=st.integers(0, 9), world=st.integers(1, 4))
def test_processes_evaluate_equally_many_batches_and_each_counts_once(n_batches: int, world: int) -> None:
    batches = [(torch.full((2, 3), i), torch.full((2, 3), i)) for i in range(n_batches)]
    dealt = [list(Member(rank, world).deal(batches)) for rank in range(world)]
    assert {len(share) for share in dealt} == {-(-n_batches // world)}
    targets = [targets for share in dealt for _, targets in share]
    counted = [int(batch[0, 0]) for batch in targets if (batch != IGNORED).all()]
    assert sorted(counted) == list(range(n_batches))


def test_waiting_is_announced_only_if_it_takes_long(capsys) -> None:
    with announced("waiting for the first process", after=3600):
        pass
    said = ""
    with announced("waiting for the first process", after=0):
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            said = capsys.readouterr().err
    assert said == "waiting for the first process\n"
