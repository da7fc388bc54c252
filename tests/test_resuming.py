"""A run that is killed at any time resumes bit-identically."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
import torch

from coupledqk import lease
from coupledqk.config import identity
from coupledqk.errors import CoupledQKError
from coupledqk.files import temporary_name
from coupledqk.run_folder import RunFolder
from coupledqk.schema import change
from coupledqk.training.checkpoints import Checkpoints, damage
from coupledqk.training.events import Event, Saving
from small_runs import TINY, run_to, tiny, trained_bits


@pytest.mark.parametrize(
    ("variant", "precision", "stop_at"),
    [("hamiltonian", "fp32", 7), ("diff", "fp16", 8), ("standard", "bf16", 1), ("affine", "fp32", 19)],
)
def test_a_stopped_run_resumes_bit_identically(text: Path, tmp_path: Path, variant, precision, stop_at) -> None:
    config = tiny(text, variant, precision=precision)
    whole = run_to(config, tmp_path / "whole")
    parts = run_to(config, tmp_path / "parts", stop_at=stop_at)
    assert not parts.result
    assert parts.status == "interrupted"
    parts = run_to(config, tmp_path / "parts")
    assert trained_bits(parts) == trained_bits(whole)


def test_a_run_killed_at_random_times_resumes_bit_identically(text: Path, tmp_path: Path) -> None:
    settings = {"steps": 40, "save_every": 3, "threads": 1}
    whole = run_to(tiny(text, **settings), tmp_path / "whole")
    flags = [f"--{name}={value}" for name, value in {**TINY, **settings, "corpus": text}.items()]
    command = [
        sys.executable,
        "-m",
        "coupledqk",
        "train",
        "--variant",
        "hamiltonian",
        "--out",
        str(tmp_path / "killed"),
        *flags,
    ]
    draw = random.Random(0)
    for attempt in count(1):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        if attempt <= 3:
            process.stderr.readline()  # the first output: training has begun
            time.sleep(draw.uniform(0, 0.25))
            process.send_signal(signal.SIGKILL)
        errors = process.communicate()[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
    assert attempt > 1
    assert trained_bits(RunFolder(tmp_path / "killed")) == trained_bits(whole)


def test_on_sigterm_the_run_finishes_its_step_saves_and_says_how_to_resume(text: Path, tmp_path: Path) -> None:
    flags = [
        f"--{name}={value}" for name, value in {**TINY, "corpus": text, "steps": 100_000, "eval_every": 1000}.items()
    ]
    command = [sys.executable, "-m", "coupledqk", "train", "--out", str(tmp_path / "run"), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "loss" not in process.stderr.readline():  # the text is being tokenized
        pass
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"coupledqk train --resume {tmp_path / 'run'}" in errors
    run = RunFolder(tmp_path / "run")
    newest = Checkpoints(run.path / "checkpoints", keep=2).newest()
    assert newest is not None
    assert damage(newest) is None
    assert int(newest.name.removeprefix("step-")) == run.metrics("train")[-1]["step"]


def test_damaged_checkpoints_are_skipped_and_reported(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    whole = run_to(config, tmp_path / "whole")
    run_to(config, tmp_path / "run", stop_at=9)
    newest = Checkpoints(tmp_path / "run/checkpoints", keep=2).newest()
    assert newest is not None
    with (newest / "model.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x7f")
    events: list[Event] = []
    resumed = run_to(config, tmp_path / "run", on_event=events.append)
    assert events[0].step == 8
    assert "damaged" in events[0].notes[0]  # pyright: ignore
    assert trained_bits(resumed) == trained_bits(whole)


def test_a_damaged_checkpoint_does_not_count_among_those_to_keep(tmp_path: Path) -> None:
    model, checkpoints = torch.nn.Linear(2, 2), Checkpoints(tmp_path, keep=1)
    checkpoints.save(500, model, {})
    shutil.copytree(tmp_path / "step-0000500", tmp_path / "step-0001000")
    (tmp_path / "step-0001000" / "state.pt").write_bytes(b"")
    assert checkpoints.load_newest(model)[0] == 500
    checkpoints.save(600, model, {})
    assert checkpoints.steps() == [600]
    assert checkpoints.load_newest(model)[0] == 600


def test_when_no_good_checkpoint_is_left_nothing_is_overwritten(text: Path, tmp_path: Path) -> None:
    run_to(tiny(text), tmp_path / "run", stop_at=6)
    for checkpoint in (tmp_path / "run/checkpoints").glob("step-*"):
        (checkpoint / "state.pt").write_bytes(b"")
    with pytest.raises(CoupledQKError, match="no usable checkpoint is left"):
        run_to(tiny(text), tmp_path / "run")
    assert RunFolder(tmp_path / "run").metrics("train")


def test_only_runtime_settings_may_change_on_resume(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    run_to(config, tmp_path / "run", stop_at=5)
    with pytest.raises(CoupledQKError, match=r"train\.lr \(0\.01 there, 0\.02 now\)"):
        run_to(change(config, {"lr": 0.02}), tmp_path / "run")
    other_runtime = change(config, {"keep": 1, "gradient_checkpointing": True})
    assert identity(other_runtime) == identity(config)
    assert run_to(other_runtime, tmp_path / "run").result
    assert RunFolder(tmp_path / "run").config == other_runtime


def test_a_run_is_not_resumed_on_text_that_has_changed(text: Path, tmp_path: Path) -> None:
    run_to(tiny(text), tmp_path / "run", stop_at=5)
    text.write_text(text.read_text() + "One more line.\n")
    with pytest.raises(CoupledQKError, match="has changed since"):
        run_to(tiny(text), tmp_path / "run")


def test_a_run_is_not_resumed_with_a_tokenizer_that_has_changed(text: Path, tmp_path: Path) -> None:
    """The tokenizer is trained on another corpus, so the text of the run remains the same."""
    other = tmp_path / "other.txt"
    other.write_text("squared is squared\n" * 300)
    config = change(tiny(text), {"tokenizer": f"bpe:260@{other}", "vocab_size": 260})
    run_to(config, tmp_path / "run", stop_at=5)
    before = (tmp_path / "run/tokenizer.json").read_bytes()
    other.write_text("the cat and the dog\n" * 300)
    with pytest.raises(CoupledQKError, match="gives other tokens than when"):
        run_to(config, tmp_path / "run")
    assert (tmp_path / "run/tokenizer.json").read_bytes() == before


def test_a_second_process_for_the_same_run_is_refused(text: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.lock(), pytest.raises(CoupledQKError, match="another process"):
        run_to(tiny(text), tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_folder_that_is_not_a_run_is_left_unchanged(text: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("mine")
    with pytest.raises(CoupledQKError, match="is not a run folder"):
        run_to(tiny(text), tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_a_full_disk_does_not_damage_saved_files(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_to(tiny(text), tmp_path / "whole")
    with monkeypatch.context() as patch:
        calls = count(1)
        save = torch.save

        def full(state, path) -> None:
            if next(calls) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(state, path)

        patch.setattr(torch, "save", full)
        with pytest.raises(CoupledQKError, match="no space left"):
            run_to(tiny(text), tmp_path / "run")
    assert Checkpoints(tmp_path / "run/checkpoints", keep=2).steps() == [4, 8]
    assert trained_bits(run_to(tiny(text), tmp_path / "run")) == trained_bits(whole)


def test_a_process_that_lost_its_run_writes_nothing_more_and_the_new_owner_ends_bit_identically(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is suspended before it saves step 8; meanwhile another machine takes over and finishes the run."""
    monkeypatch.setattr(lease, "EXPIRY_SECONDS", 0.3)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 3600.0)
    config, path = tiny(text), tmp_path / "run"
    whole = run_to(config, tmp_path / "whole")
    bits: list[dict[str, bytes | str]] = []

    def suspend(event: Event) -> None:
        if isinstance(event, Saving) and event.step == 8:
            (found,) = (path / "lock").iterdir()
            content = json.loads(found.read_bytes())
            found.write_bytes(json.dumps({**content, "machine": "another"}).encode())
            bits.append(trained_bits(run_to(config, path)))

    with pytest.raises(CoupledQKError, match="another process has taken over"):
        run_to(config, path, on_event=suspend)
    assert bits == [trained_bits(whole)]
    assert trained_bits(RunFolder(path)) == bits[0]


def test_a_run_killed_before_it_wrote_its_first_file_can_be_started(text: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    temporary_name(tmp_path / "run" / "config.toml").write_text("seed")
    assert run_to(tiny(text, steps=3, warmup=1), tmp_path / "run").result


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a child whose limits are its own")
@pytest.mark.parametrize("most", [1, 5_000, 20_000])
def test_exceeding_the_file_size_limit_is_reported_in_one_line(text: Path, tmp_path: Path, most: int) -> None:
    """The libraries that write weights and optimizer state reach the limit set by `ulimit -f`."""
    import resource

    config = tiny(text, threads=1)
    whole = run_to(config, tmp_path / "whole")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            run_to(config, tmp_path / "run")
        except CoupledQKError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = os.read(read, 10_000).decode()
    os.close(read)
    assert "larger than allowed" in said
    assert "\n" not in said
    assert trained_bits(run_to(config, tmp_path / "run")) == trained_bits(whole)


def test_a_run_stopped_in_its_first_validation_resumes_bit_identically(text: Path, tmp_path: Path) -> None:
    config = tiny(text, save_every=100)
    whole = run_to(config, tmp_path / "whole")
    stopped = run_to(config, tmp_path / "parts", stop_at=5)
    assert stopped.metrics("valid") == []
    assert trained_bits(run_to(config, tmp_path / "parts")) == trained_bits(whole)
