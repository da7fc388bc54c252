"""Runs on clusters: a Ray cluster of two nodes, and Slurm jobs that submitit runs on this machine."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coupledqk.cli import main
from coupledqk.config import RunConfig
from coupledqk.errors import CoupledQKError
from coupledqk.lab import engine_ray, engine_slurm
from coupledqk.lab.cells import failure
from coupledqk.lab.elsewhere import Unheard, torchrun_command, train_elsewhere
from coupledqk.lab.engine import Message
from coupledqk.lab.engine_cluster import ClusterEngine, last_message, last_step
from coupledqk.lab.engine_ray import RayEngine
from coupledqk.lab.engine_slurm import SlurmEngine, job_parameters
from coupledqk.lab.machines import Machines, minutes_of
from coupledqk.run_folder import RunFolder, find_runs
from coupledqk.schema import to_toml
from small_runs import TINY, run_to, tiny, trained_bits

SECONDS = 600
"""Timeout, longer than any operation here takes on the slowest machine."""


def endless(text: Path) -> RunConfig:
    """A run that is not finished before it is stopped, however fast the machine is."""
    return tiny(text, steps=1_000_000, eval_every=50, save_every=5, threads=1)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


def holder(run: RunFolder) -> int:
    """The number of the process that is training a run."""
    return json.loads(max((run.path / "lock").iterdir()).read_bytes())["pid"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def messages_of(engine: ClusterEngine, enough: Callable[[Message], bool]) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS
    while not (found and enough(found[-1])):
        assert time.monotonic() < deadline, found[-3:]
        found += engine.wait(1.0)
    return found


def check_loss(engine: ClusterEngine, config: RunConfig, folder: Path, lose: Callable[[int], None]) -> None:
    """A run whose process is removed by `lose` resumes elsewhere and gives the same result as an undisturbed run."""
    run = RunFolder(folder)
    engine.start(config, folder)
    messages_of(engine, lambda message: message.step >= 10)
    first = holder(run)
    lose(first)
    until(lambda: len(run.info["starts"]) == 2, "the second start")
    resumed_at = last_step(folder)
    messages = messages_of(engine, lambda message: message.step >= resumed_at + 10)
    assert {message.kind for message in messages} == {"step"}, "the scheduler sees one run that goes on"
    assert holder(run) != first
    engine.stop()
    assert messages_of(engine, lambda message: message.kind != "step")[-1] == Message(folder, "interrupted")
    assert engine.running == {}
    assert run.status == "interrupted"
    step = last_step(folder)
    assert (folder / f"checkpoints/step-{step:07d}").is_dir(), "it was saved when it was asked to stop"
    straight = run_to(config, folder.parent / "straight", stop_at=step)
    assert run.metrics("train") == straight.metrics("train")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head node, which trains nothing, and two nodes with one core each."""
    from ray.cluster_utils import Cluster

    os.environ.update(engine_ray.SETTINGS, RAY_memory_monitor_refresh_ms="0")  # other tests may fill the memory
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1, wait=False)
    nodes.wait_for_nodes(SECONDS)
    yield nodes
    nodes.shutdown()


def test_a_grid_on_a_ray_cluster_gives_the_same_results_as_on_this_machine(
    cluster: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--{name}={value}" for name, value in {**TINY, "corpus": text, "threads": 1}.items() if name != "lr"]
    sweep = ["sweep", "--variant=hamiltonian", "--lrs", "1e-2", "2e-2", *flags]
    main([*sweep, "--out", str(tmp_path / "ray"), "--engine=ray", f"--address={cluster.address}"])
    assert "best learning rate" in capsys.readouterr().out
    runs = find_runs(tmp_path / "ray")
    assert len(runs) == 2
    for run in runs:
        assert trained_bits(run) == trained_bits(run_to(run.config, tmp_path / f"here/{run.path.name}"))


def test_after_ctrl_c_every_run_is_saved_and_no_process_is_left(cluster: Any, text: Path, tmp_path: Path) -> None:
    settings = {**TINY, "corpus": text, "threads": 1, "steps": 1_000_000, "eval_every": 50}
    flags = [f"--{name}={value}" for name, value in settings.items() if name != "lr"]
    options = ["--lrs", "1e-2", "2e-2", "--out", str(tmp_path / "out"), "--engine=ray", f"--address={cluster.address}"]
    command = subprocess.Popen(
        [sys.executable, "-m", "coupledqk", "sweep", *options, *flags], stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: sum(last_step(run.path) > 0 for run in find_runs(tmp_path / "out")) == 2, "both runs")
        runs = find_runs(tmp_path / "out")
        holders = [holder(run) for run in runs]
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=SECONDS)
    finally:
        command.kill()
    assert command.returncode == 130, said
    assert "2 of 2 runs are not finished" in said
    for run in runs:
        assert run.status == "interrupted"
        assert (run.path / f"checkpoints/step-{last_step(run.path):07d}").is_dir()
    until(lambda: not any(map(is_alive, holders)), "the end of the workers")


WITHOUT_PACKAGE = """
import sys

class Missing:
    def find_spec(name, path=None, target=None):
        if name == "coupledqk":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
"""
WITHOUT_WORKERS = """
import sys

if any("default_worker" in argument for argument in sys.orig_argv):
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("at_start", "seconds", "says"),
    [
        (
            WITHOUT_PACKAGE,
            SECONDS,
            r"Ray node .* cannot import coupledqk \(.*No module named 'coupledqk'\): run `pip install",
        ),
        (WITHOUT_WORKERS, 1, "Ray node .* has not started a Python process for 1 s"),
    ],
    ids=["without the package", "without workers"],
)
def test_a_ray_node_that_cannot_train_is_named_before_a_run_is_submitted(
    cluster: Any, at_start: str, seconds: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(at_start)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        node = cluster.add_node(num_cpus=2, wait=False)
    monkeypatch.setattr(engine_ray, "CHECK_SECONDS", seconds)
    try:
        cluster.wait_for_nodes(SECONDS)
        with pytest.raises(CoupledQKError, match=says):
            RayEngine(cluster.address, None, cpus=2)
    finally:
        cluster.remove_node(node)
        cluster.wait_for_nodes(SECONDS)


def test_a_run_on_a_lost_ray_node_resumes_on_another(
    cluster: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = RayEngine(cluster.address, None, cpus=1)
    try:
        assert engine.free() == 2
        engine.cpus = 2
        assert engine.capacity() == 0, "the two cores are on two nodes"
        engine.cpus = 1

        def remove_node(pid: int) -> None:
            (node,) = (node for node in cluster.worker_nodes if raylet(node) == parent(pid))
            cluster.remove_node(node, allow_graceful=False)

        check_loss(engine, endless(text), tmp_path / "runs/lost", remove_node)
        until(lambda: engine.free() == 1, "the end of the node")
    finally:
        engine.close()
    assert capsys.readouterr().out == ""
    with pytest.raises(
        CoupledQKError, match="a run needs 2 CPUs and 0 GPUs on one node, and the Ray cluster has 1 and 0"
    ):
        RayEngine(cluster.address, None, cpus=2)


@pytest.mark.parametrize("gpus", [0, 1])
def test_successive_runs_share_a_process_unless_they_use_gpus(
    cluster: Any, gpus: int, text: Path, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, num_gpus=1) if gpus else None  # Ray does not check that this GPU exists
    engine = RayEngine(cluster.address, None, cpus=1, gpus=gpus)
    try:
        first, second = (processes_of_runs(engine, text, tmp_path / name) for name in ("first", "second"))
    finally:
        engine.close()
        if node is not None:
            cluster.remove_node(node)
            cluster.wait_for_nodes(SECONDS)
    assert first.isdisjoint(second) if gpus else first == second


def processes_of_runs(engine: RayEngine, text: Path, folder: Path) -> set[int]:
    """The processes that train as many runs as the cluster trains at a time. The runs are stopped."""
    runs = [RunFolder(folder / str(number)) for number in range(engine.free())]
    for run in runs:
        engine.start(endless(text), run.path)
    until(lambda: all(last_step(run.path) > 0 for run in runs), "all runs")
    found = {holder(run) for run in runs}
    engine.stop()

    def have_ended() -> bool:
        return all(message.kind in ("step", "interrupted") for message in engine.wait(1.0)) and not engine.running

    until(have_ended, "the end of all runs")
    return found


def raylet(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


class Jobs(SlurmEngine):
    """Jobs started by submitit's local executor. Their state is read from their processes instead of from Slurm."""

    def look(self) -> bool:
        return True

    def is_queued(self, job: Any) -> bool:
        return job._process.poll() is None

    def ask_to_save(self, job: Any) -> None:
        job._process.terminate()

    def kill(self, job: Any) -> None:
        job._process.kill()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    from submitit import LocalExecutor

    executor = LocalExecutor(tmp_path / "jobs/%j")
    executor.update_parameters(timeout_min=600)
    engine = Jobs(executor, None, 1, 0)
    yield engine
    left = [holder(RunFolder(folder)) for folder in engine.running if RunFolder(folder).status == "running"]
    engine.close()
    for pid in left:  # left by a failed test
        os.kill(pid, signal.SIGKILL)


def test_a_preempted_job_saves_is_requeued_and_resumes(jobs: Jobs, text: Path, tmp_path: Path) -> None:
    preempted = []

    def preempt(pid: int) -> None:
        os.kill(pid, signal.SIGUSR2)
        preempted.append(pid)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        check_loss(jobs, endless(text), tmp_path / "runs/preempted", preempt)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    until(lambda: not is_alive(preempted[0]), "the end of the preempted process")


def test_the_folder_of_a_run_determines_the_state_of_its_job(jobs: Jobs, text: Path, tmp_path: Path) -> None:
    config = tiny(text, lr=1e20)
    jobs.start(config, tmp_path / "runs/diverged")
    message = messages_of(jobs, lambda message: message.kind != "step")[-1]
    assert message.kind == "failed"
    assert message.error is not None
    assert "lower lr" in message.error
    run_to(tiny(text, steps=3), tmp_path / "runs/finished")
    assert last_message(tmp_path / "runs/finished", "why").kind == "finished"
    assert last_message(tmp_path / "runs/none", "why") == Message(tmp_path / "runs/none", "interrupted", error="why")
    run = run_to(tiny(text), tmp_path / "runs/busy", stop_at=3)
    with run.lock():
        assert last_message(run.path, "why").kind == "busy"


def test_nothing_is_started_on_a_cluster_that_has_shrunk() -> None:
    engine = Jobs(None, 3, 1, 0)
    assert engine.free() == 3
    engine.running = {Path("one"): None, Path("two"): None}
    assert engine.free() == 1
    engine.jobs = 1
    assert engine.free() == 0


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    assert last_step(tmp_path) == 0
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": n, "loss": 1.0, "dt": [0.1] * 50}) + "\n" for n in range(3000)))
    assert last_step(tmp_path) == 2999
    with log.open("a") as file:
        file.write('{"step": 3')
    assert last_step(tmp_path) == 2999, "a line that is being written does not count"


@pytest.mark.parametrize(("lr", "kind"), [(1e-2, "finished"), (1e20, "failed")])
def test_a_run_with_several_gpus_is_trained_by_torchrun(text: Path, tmp_path: Path, lr: float, kind: str) -> None:
    """Here the processes share the CPU, since there is no GPU."""
    assert torchrun_command(4, Path("job.json")) == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
        "-m", "coupledqk.lab.elsewhere", "job.json",
    ]  # fmt: skip
    config = tiny(text, threads=1, lr=lr)
    job = {"plugin": None, "config": to_toml(config), "folder": str(tmp_path / "run"), "cwd": os.getcwd()}
    message = train_elsewhere(job | {"environment": {}, "threads": 2, "processes": 2}, Unheard())
    assert message["kind"] == kind, message
    run = RunFolder(tmp_path / "run")
    if kind == "failed":
        assert failure(run)["diverged"]
        assert "lower lr" in message["error"]
        return
    alone = run_to(config, tmp_path / "alone").metrics("valid")
    assert [record["loss"] for record in run.metrics("valid")] == pytest.approx([record["loss"] for record in alone])


def test_a_machine_without_the_shared_disk_is_reported(tmp_path: Path) -> None:
    job = {"folder": str(tmp_path / "run"), "cwd": str(tmp_path / "elsewhere"), "environment": {}, "processes": 1}
    message = train_elsewhere(job, Unheard())
    assert message["kind"] == "failed"
    assert "all machines need the same disk" in message["error"]


def test_job_parameters_for_slurm_follow_the_options() -> None:
    asked = job_parameters(cpus=8, gpus=2, partition="gpu", minutes=120)
    assert asked == {
        "job_name": "coupledqk",
        "time": 120,
        "cpus_per_task": 8,
        "ntasks_per_node": 1,
        "signal_delay_s": 90,
        "gpus_per_node": 2,
        "partition": "gpu",
    }
    assert "gpus_per_node" not in job_parameters(1, 0, None, 60)


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ("90", 90),
        ("30:00", 30),
        ("1:30", 2),
        ("4:00:00", 240),
        ("0:00:30", 1),
        ("1-6", 1800),
        ("2-12:30", 3630),
        ("2-12:30:00", 3630),
    ],
)
def test_time_limits_mean_what_they_mean_to_sbatch(time: str, minutes: int) -> None:
    assert minutes_of(time) == minutes


@pytest.mark.parametrize("time", ["", "soon", "0", "0:00:00", "1:99", "-5", "1-", "1:2:3:4", "٣", "9" * 5_000])
def test_time_limits_that_sbatch_would_not_accept_are_refused(time: str) -> None:
    with pytest.raises(CoupledQKError, match="expected minutes"):
        minutes_of(time)


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **exit_codes: int) -> None:
    """Commands of a Slurm that prints two lines to standard error and nothing else."""
    for name in ("sbatch", "srun", "sinfo", "squeue", "scancel"):
        script = (
            f"#!/bin/sh\necho 'error: two lines' >&2\necho 'fatal: {name} failed' >&2\nexit {exit_codes.get(name, 0)}\n"
        )
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_slurm_that_does_not_answer_or_refuses_is_reported_in_one_line(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_slurm(tmp_path, monkeypatch, sinfo=1)
    with pytest.raises(CoupledQKError, match=r"Slurm does not answer on this machine \(fatal: sinfo failed\)"):
        SlurmEngine.open(tmp_path / "jobs", None, 1, 0, None, 60)
    fake_slurm(tmp_path, monkeypatch, sbatch=1, squeue=1)
    engine = SlurmEngine.open(tmp_path / "jobs", None, 1, 0, None, 60)
    with pytest.raises(CoupledQKError, match="Slurm refused the job of run: error: two lines fatal: sbatch failed"):
        engine.start(tiny(text), tmp_path / "run")
    assert not engine.look()
    monkeypatch.setattr(engine_slurm, "SILENCE_SECONDS", -1.0)
    engine.next_look = 0.0
    with pytest.raises(CoupledQKError, match=r"Slurm has not answered for .* \(fatal: squeue failed\)"):
        engine.look()
    assert capsys.readouterr().err == ""


def test_a_port_without_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_ray, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(CoupledQKError, match=f"no Ray cluster answers at 127.0.0.1:{port} "):
            engine_ray.check_address(f"127.0.0.1:{port}")
        server.accept()[0].close()
        monkeypatch.setattr(engine_ray, "CONNECT_SECONDS", 60)
        answering = threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        answering.start()
        with pytest.raises(CoupledQKError, match="is not Ray"):
            engine_ray.check_address(f"127.0.0.1:{port}")
        answering.join()
    with pytest.raises(CoupledQKError, match="no Ray cluster answers"):
        engine_ray.check_address(f"127.0.0.1:{port}")


def test_output_of_ray_while_connecting_is_discarded(capfd: pytest.CaptureFixture[str]) -> None:
    with engine_ray.silent_libraries():
        os.write(2, b"a warning from C++\n")
    os.write(2, b"an error\n")
    assert capfd.readouterr().err == "an error\n"


def nothing(monkeypatch: pytest.MonkeyPatch) -> None: ...


def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


def no_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)


def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize(
    ("flags", "missing", "says"),
    [
        ("--engine ray", no_ray, "pip install 'coupledqk[ray]'"),
        ("--engine slurm", no_submitit, "pip install 'coupledqk[slurm]'"),
        ("--engine slurm", no_slurm, "Slurm is not installed on this machine (there is no sbatch)"),
        ("--engine ray --address 127.0.0.1:1", nothing, "no Ray cluster answers at 127.0.0.1:1"),
        ("--engine ray --address nowhere.invalid:6379", nothing, "no Ray cluster answers at nowhere.invalid:6379"),
        ("--engine ray --address head", nothing, "--address head: expected HOST:PORT"),
        ("--engine ray --address ray://head:10001", nothing, "--address ray://head:10001: expected HOST:PORT"),
        (
            "--engine ray --partition gpu",
            nothing,
            "--partition gpu: engine 'ray' has no such option; add --engine slurm",
        ),
        ("--address head:6379", nothing, "--address head:6379: engine 'local' has no such option; add --engine ray"),
        ("--gpus-per-run 2", nothing, "engine 'local' has no such option; add --engine ray or slurm"),
        ("--engine slurm --time soon", nothing, "--time soon: expected minutes"),
        ("--engine ray --cpus-per-run 0", nothing, "--cpus-per-run 0: expected at least 1"),
        ("--engine ray --jobs 0", nothing, "--jobs 0: expected 1 to 10,000"),
    ],
)
def test_bad_arguments_give_one_line_errors(
    flags: str,
    missing: Callable[[pytest.MonkeyPatch], None],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        missing(patch)
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", "smoke", "--out", str(tmp_path / "lab"), *flags.split()])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert not list(tmp_path.glob("lab/runs/*"))


def test_compare_on_a_cluster_requires_the_number_of_simultaneous_runs(tmp_path: Path) -> None:
    from coupledqk.lab.compare import Comparison

    with pytest.raises(CoupledQKError, match="--engine ray: add --jobs"):
        Comparison.open("python-stdlib", 30, machines=Machines("ray"), out=tmp_path)
