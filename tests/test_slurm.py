"""Jobs on a real Slurm cluster of one node, which `make test-slurm` starts."""

import os
import subprocess
from pathlib import Path

import pytest

from coupledqk.cli import main
from coupledqk.errors import CoupledQKError
from coupledqk.lab.engine_slurm import SlurmEngine
from coupledqk.run_folder import find_runs
from small_runs import TINY, run_to, tiny, trained_bits
from test_engines import check_loss, endless

pytestmark = pytest.mark.skipif("COUPLEDQK_TEST_SLURM" not in os.environ, reason="run by `make test-slurm`")


def test_a_preempted_job_saves_is_requeued_and_resumes(text: Path, tmp_path: Path) -> None:
    engine = SlurmEngine.open(tmp_path / "jobs", None, 1, 0, "main", 60)

    def preempt(pid: int) -> None:
        (job,) = engine.running.values()
        subprocess.run(["scancel", "--signal=USR2", job.job_id], check=True)

    try:
        check_loss(engine, endless(text), tmp_path / "runs/preempted", preempt)
    finally:
        engine.close()


def test_a_grid_on_slurm_is_bit_identical_to_local_training(text: Path, tmp_path: Path) -> None:
    flags = [f"--{name}={value}" for name, value in {**TINY, "corpus": text, "threads": 1}.items() if name != "lr"]
    options = ["--engine=slurm", "--partition=main", "--time=30", "--out", str(tmp_path / "slurm")]
    main(["sweep", "--variant=hamiltonian", "--lrs", "1e-2", "2e-2", *flags, *options])
    runs = find_runs(tmp_path / "slurm")
    assert len(runs) == 2
    for run in runs:
        assert trained_bits(run) == trained_bits(run_to(run.config, tmp_path / f"here/{run.path.name}"))


def test_a_job_that_slurm_refuses_is_reported_in_one_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = SlurmEngine.open(tmp_path / "jobs", None, 1, 0, "nowhere", 60)
    with pytest.raises(CoupledQKError, match=r"Slurm refused the job of run: .*invalid partition"):
        engine.start(tiny(text), tmp_path / "run")
    assert capsys.readouterr().err == ""
