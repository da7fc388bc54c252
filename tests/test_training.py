"""Training: the recipes are the paper's, a run can die at any instant, and its numbers mean what they say."""

import errno
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from coupledqk.config import RunConfig, TrainConfig, identity
from coupledqk.data.batches import valid_batches
from coupledqk.data.shards import prepare
from coupledqk.errors import CoupledQKError, DivergedError
from coupledqk.recipes import RECIPES, recipe
from coupledqk.runs import Run
from coupledqk.schema import change
from coupledqk.tasks.lm import measure
from coupledqk.tasks.models import load_model, new_model
from coupledqk.tasks.running import train_run
from coupledqk.training.checkpoints import Checkpoints, damage
from coupledqk.training.events import Evaluation, Event, Step
from coupledqk.training.logs import RunLog, tensorboard
from coupledqk.training.optimizer import build_optimizer, lr_at

TINY = {
    "tokenizer": "bytes",
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "d_ff": 32,
    "seq_len": 16,
    "batch_size": 6,
    "micro_batch": 4,
    "lr": 1e-2,
    "steps": 20,
    "warmup": 3,
    "eval_every": 5,
    "log_every": 1,
    "save_every": 4,
    "device": "cpu",
}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of 38 training windows of 16 bytes: 20 steps of 6 cross the end of the epoch three times."""
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(36)))
    return path


def tiny(text: Path, variant: str = "hamiltonian", **settings) -> RunConfig:
    return recipe("nano", variant, corpus=str(text), **{**TINY, **settings})


def run_to(config: RunConfig, path: Path, stop_at: int | None = None, hear=lambda event: None) -> Run:
    """Trains, and asks for a stop once step `stop_at` is done."""
    done = 0

    def listen(event: Event) -> None:
        nonlocal done
        done = event.step
        hear(event)

    return train_run(
        config,
        path,
        lambda run: [RunLog(run, config.train.log_every), listen],
        lambda: stop_at is not None and done >= stop_at,
    )


def trained_bits(run: Run) -> dict[str, bytes | str]:
    """All that a run computed, to the last bit: weights, optimiser, loss scaler, counters, metrics."""
    newest = Checkpoints(run.path / "checkpoints", keep=1).newest()
    assert newest is not None
    state = torch.load(newest / "state.pt", weights_only=True)
    return {
        "step": newest.name,
        "weights": (newest / "model.safetensors").read_bytes(),
        "state": repr(sorted_state(state)),
        "metrics": (run.path / "metrics.jsonl").read_text(),
        "result": json.dumps(run.result["best"]),
    }


def sorted_state(value):
    if isinstance(value, dict):
        return {key: sorted_state(value[key]) for key in sorted(value, key=str)}
    return value.double().flatten().tolist() if isinstance(value, torch.Tensor) else value


# recipes and schedule


@pytest.mark.parametrize(
    ("name", "attention", "shape", "lr", "micro_batch", "checkpointing", "corpus"),
    [
        ("wikitext-103", "standard", (512, 8, 8, 2048), 6e-4, 8, False, "wikitext-103"),
        ("wikitext-103", "hamiltonian", (512, 8, 8, 2048), 6e-4, 8, False, "wikitext-103"),
        ("wikitext-103-medium", "diff", (768, 12, 12, 3072), 3e-4, 8, True, "wikitext-103"),
        ("wikitext-103-medium", "hamiltonian", (768, 12, 12, 3072), 3e-4, 4, True, "wikitext-103"),
        ("wikitext-103-large", "standard", (1024, 16, 24, 4096), 2e-4, 4, True, "wikitext-103"),
        ("wikitext-103-large", "euler", (1024, 16, 24, 4096), 2e-4, 2, True, "wikitext-103"),
        ("openwebtext", "hamiltonian", (512, 8, 8, 2048), 6e-4, 8, False, "openwebtext"),
        ("pubmed", "hamiltonian", (512, 8, 8, 2048), 6e-4, 8, False, "pubmed"),
    ],
)
def test_recipes_are_those_of_the_papers_appendix(
    name, attention, shape, lr, micro_batch, checkpointing, corpus
) -> None:
    config = recipe(name, attention)
    model, train = config.model, config.train
    assert (model.d_model, model.n_heads, model.n_layers, model.d_ff) == shape
    assert (model.vocab_size, model.positions, config.task.corpus, config.task.tokenizer) == (
        50_257,
        "learned",
        corpus,
        "gpt2",
    )
    assert train == TrainConfig(
        steps=30_000, batch_size=32, seq_len=512, lr=lr, warmup=2_000, beta1=0.9, beta2=0.95, adam_eps=1e-8,
        weight_decay=0.1, clip=1.0, precision="fp16", eval_every=1_000, log_every=10,
    )  # fmt: skip
    assert (config.runtime.micro_batch, config.runtime.gradient_checkpointing) == (micro_batch, checkpointing)


def test_the_schedule_at_its_corner_points() -> None:
    train = RECIPES["wikitext-103"].train
    at = {step: lr_at(step, train) for step in (0, 1, 1_000, 2_000, 16_000, 30_000)}
    assert at == pytest.approx({0: 0.0, 1: 3e-7, 1_000: 3e-4, 2_000: 6e-4, 16_000: 3e-4, 30_000: 0.0}, abs=1e-12)
    assert lr_at(0, replace(train, warmup=0)) == train.lr


@pytest.mark.parametrize("variant", ["standard", "hamiltonian", "diff", "affine", "potential"])
def test_weight_decay_is_on_all_matrices_and_on_nothing_else(text: Path, variant: str) -> None:
    config = tiny(text, variant, qk_norm=True)
    model = new_model(config)
    decayed, plain = build_optimizer(model, config.train).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert "embed.weight" in {names[id(p)] for p in decayed["params"]}
    kinds = {names[id(p)].rsplit(".", 2)[-2:][0 if "norm" in names[id(p)] else 1] for p in plain["params"]}
    assert all(p.ndim < 2 for p in plain["params"])
    assert all(p.ndim == 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(names)
    assert kinds <= {"attn_norm", "ffn_norm", "norm", "q", "k", "tau", "lam", "c"}


# resuming


@pytest.mark.parametrize(
    ("variant", "precision", "stop_at"),
    [("hamiltonian", "fp32", 7), ("diff", "fp16", 8), ("standard", "bf16", 1), ("affine", "fp32", 19)],
)
def test_stopping_and_resuming_changes_no_bit(text: Path, tmp_path: Path, variant, precision, stop_at) -> None:
    config = tiny(text, variant, precision=precision)
    whole = run_to(config, tmp_path / "whole")
    parts = run_to(config, tmp_path / "parts", stop_at=stop_at)
    assert not parts.result
    assert parts.status == "interrupted"
    parts = run_to(config, tmp_path / "parts")
    assert trained_bits(parts) == trained_bits(whole)


def test_a_run_killed_at_random_instants_ends_with_the_same_bits(text: Path, tmp_path: Path) -> None:
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
            process.stderr.readline()  # the first sign of life: training has begun
            time.sleep(draw.uniform(0, 0.25))
            process.send_signal(signal.SIGKILL)
        errors = process.communicate()[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
    assert attempt > 1
    assert trained_bits(Run(tmp_path / "killed")) == trained_bits(whole)


def test_sigterm_finishes_the_step_saves_and_says_how_to_go_on(text: Path, tmp_path: Path) -> None:
    flags = [
        f"--{name}={value}" for name, value in {**TINY, "corpus": text, "steps": 100_000, "eval_every": 1000}.items()
    ]
    command = [sys.executable, "-m", "coupledqk", "train", "--out", str(tmp_path / "run"), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert f"coupledqk train --resume {tmp_path / 'run'}" in errors
    run = Run(tmp_path / "run")
    newest = Checkpoints(run.path / "checkpoints", keep=2).newest()
    assert newest is not None
    assert damage(newest) is None
    assert int(newest.name.removeprefix("step-")) == run.records("train")[-1]["step"]


def test_damaged_checkpoints_are_passed_over_and_it_is_said(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    whole = run_to(config, tmp_path / "whole")
    run_to(config, tmp_path / "run", stop_at=9)
    newest = Checkpoints(tmp_path / "run/checkpoints", keep=2).newest()
    assert newest is not None
    with (newest / "model.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x7f")
    heard: list[Event] = []
    resumed = run_to(config, tmp_path / "run", hear=heard.append)
    assert heard[0].step == 8
    assert "damaged" in heard[0].notes[0]  # pyright: ignore
    assert trained_bits(resumed) == trained_bits(whole)


def test_when_no_good_checkpoint_is_left_nothing_is_overwritten(text: Path, tmp_path: Path) -> None:
    run_to(tiny(text), tmp_path / "run", stop_at=6)
    for checkpoint in (tmp_path / "run/checkpoints").glob("step-*"):
        (checkpoint / "state.pt").write_bytes(b"")
    with pytest.raises(CoupledQKError, match="no good one is left"):
        run_to(tiny(text), tmp_path / "run")
    assert Run(tmp_path / "run").records("train")


def test_only_runtime_settings_may_change_on_resume(text: Path, tmp_path: Path) -> None:
    config = tiny(text)
    run_to(config, tmp_path / "run", stop_at=5)
    with pytest.raises(CoupledQKError, match=r"train\.lr \(0\.01 there, 0\.02 now\)"):
        run_to(change(config, {"lr": 0.02}), tmp_path / "run")
    other_runtime = change(config, {"keep": 1, "gradient_checkpointing": True})
    assert identity(other_runtime) == identity(config)
    assert run_to(other_runtime, tmp_path / "run").result
    assert Run(tmp_path / "run").config == other_runtime


def test_a_run_is_not_resumed_on_text_that_has_changed(text: Path, tmp_path: Path) -> None:
    run_to(tiny(text), tmp_path / "run", stop_at=5)
    text.write_text(text.read_text() + "One more line.\n")
    with pytest.raises(CoupledQKError, match="has changed since"):
        run_to(tiny(text), tmp_path / "run")


def test_a_second_process_is_refused(text: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with run.lock(), pytest.raises(CoupledQKError, match="another process"):
        run_to(tiny(text), tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_folder_of_something_else_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("mine")
    with pytest.raises(CoupledQKError, match="is not a run folder"):
        run_to(tiny(text), tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_a_full_disk_harms_nothing_already_saved(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# numbers


def test_perplexity_is_what_its_definition_says(text: Path, tmp_path: Path) -> None:
    run = run_to(tiny(text), tmp_path / "run")
    model, valid = load_model(run, "final"), prepare(run.config.task).valid.astype(int).tolist()
    losses = []
    for start in range(0, len(valid) - 1, 16):
        window = torch.tensor(valid[start : start + 17])
        log_probabilities = F.log_softmax(model(window[None, :-1])[0].double(), dim=-1)
        losses += [-log_probabilities[i, target].item() for i, target in enumerate(window[1:])]
    assert len(losses) == len(valid) - 1
    final = run.result["final"]
    assert final["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert final["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    n_bytes = sum(token != 256 for token in valid)
    assert final["bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / n_bytes, rel=1e-5)
    assert run.result["best"]["loss"] == min(record["loss"] for record in run.records("valid"))
    assert run.result["corpus_hash"] == prepare(run.config.task).info.hash


def test_micro_batches_do_not_change_the_update(text: Path, tmp_path: Path) -> None:
    losses = []
    for size in (1, 4, 6):
        run = run_to(tiny(text, micro_batch=size), tmp_path / f"micro-{size}")
        losses.append([record["loss"] for record in run.records("train")])
    assert losses[0] == pytest.approx(losses[2], rel=1e-4)
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)


def test_the_best_weights_are_kept_beside_the_final_ones(text: Path, tmp_path: Path) -> None:
    # many passes over little text with a large step: the model overfits, so the best is not the last
    run = run_to(tiny(text, steps=150, lr=3e-2, eval_every=10, keep=1), tmp_path / "run")
    best, final = run.result["best"], run.result["final"]
    assert best["step"] < final["step"]
    corpus = prepare(run.config.task)
    for which, record in (("best", best), ("final", final)):
        measured = measure(
            load_model(run, which), valid_batches(corpus.valid, 16, 4), corpus.info.splits["valid"].bytes
        )
        assert measured["loss"] == pytest.approx(record["loss"], rel=1e-6)
    assert len(list((run.path / "checkpoints").iterdir())) == 2


def test_fp16_scales_the_loss_and_learns(text: Path, tmp_path: Path) -> None:
    heard: list[Event] = []
    run = run_to(tiny(text, precision="fp16", steps=60), tmp_path / "run", hear=heard.append)
    steps = [event for event in heard if isinstance(event, Step)]
    assert any(math.isfinite(event.grad_norm) for event in steps)
    assert run.records("train")[-1]["loss"] < 0.8 * run.records("train")[0]["loss"]
    newest = Checkpoints(run.path / "checkpoints", keep=2).newest()
    assert newest is not None
    assert torch.load(newest / "state.pt", weights_only=True)["scaler"]["scale"] > 1


def test_step_sizes_and_lambdas_are_logged_per_head(text: Path, tmp_path: Path) -> None:
    record = run_to(tiny(text, "euler_diff"), tmp_path / "run").records("valid")[-1]
    assert [len(row) for row in record["dt"]] == [4, 4]  # two sub-heads for each of two heads, in two layers
    assert [len(row) for row in record["lambda"]] == [2, 2]
    assert all(0.05 < dt < 0.2 for row in record["dt"] for dt in row)
    assert "dt" not in run_to(tiny(text, "standard"), tmp_path / "plain").records("valid")[-1]


@pytest.mark.parametrize(
    ("variant", "lr", "says"),
    [
        ("standard", 20.0, "worse than guessing"),
        ("hamiltonian", 2.0, "became nan"),
        ("standard", 1e30, "became nan"),
    ],
)
def test_divergence_stops_the_run_and_names_the_last_good_checkpoint(
    text: Path, tmp_path: Path, variant, lr, says
) -> None:
    with pytest.raises(DivergedError, match=says) as error:
        run_to(tiny(text, variant, lr=lr, steps=100, warmup=2, save_every=1, keep=100), tmp_path / "run")
    assert "lower lr" in str(error.value)
    found = re.search(r"the last good checkpoint is (\S+)\.", str(error.value))
    assert found
    assert damage(Path(found[1])) is None
    # from there the loss is still that of a model, not of a wreck
    model = load_model(Run(tmp_path / "run"), Path(found[1]), "cpu")
    corpus = prepare(tiny(text).task)
    assert measure(model, valid_batches(corpus.valid, 16, 4), 1)["loss"] < math.log(257) + 1


# starting from another run


def test_a_gated_coupled_run_starts_exactly_where_a_standard_one_ended(text: Path, tmp_path: Path) -> None:
    source = run_to(tiny(text, "standard"), tmp_path / "standard")
    config = tiny(text, "euler", gate=True, init_from=str(source.path))
    tokens = torch.arange(32)[None] % 16
    tokens = tokens[:, :16]
    assert torch.equal(new_model(config)(tokens), load_model(source)(tokens))
    resumed = run_to(config, tmp_path / "coupled")
    assert resumed.result["best"]["loss"] < source.result["best"]["loss"] + 0.1
    with pytest.raises(CoupledQKError, match="set gate=true"):
        new_model(tiny(text, "euler", init_from=str(source.path)))
    with pytest.raises(CoupledQKError, match="another architecture"):
        new_model(tiny(text, "standard", d_ff=64, init_from=str(source.path)))


# consumers


def test_tensorboard_gets_the_curves(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny(text)
    train_run(config, tmp_path / "run", lambda run: [RunLog(run, 1), tensorboard(run.path)])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    losses = [record["loss"] for record in Run(tmp_path / "run").records("train")]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses, rel=1e-6)
    assert len(events.Scalars("valid/perplexity")) == 4


def test_timing_is_kept_apart_from_what_a_repeated_run_reproduces(text: Path, tmp_path: Path) -> None:
    heard: list[Event] = []
    run = run_to(tiny(text), tmp_path / "run", hear=heard.append)
    assert "seconds" not in (run.path / "metrics.jsonl").read_text()
    seconds = [record["seconds"] for record in run.timings()]
    assert seconds == sorted(seconds)
    assert len(seconds) == 20
    assert sum(isinstance(event, Evaluation) for event in heard) == 4
