"""Runs small enough for tests: trained, stopped, resumed and compared."""

import json
from contextlib import nullcontext
from pathlib import Path

import torch

from coupledqk.config import RunConfig
from coupledqk.recipes import recipe
from coupledqk.runs import Run
from coupledqk.runs.training import train_run
from coupledqk.training.checkpoints import Checkpoints
from coupledqk.training.events import Event

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

TINY_TASK = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "d_ff": 32,
    "batch_size": 8,
    "lr": 1e-2,
    "steps": 20,
    "warmup": 2,
    "eval_every": 10,
    "log_every": 1,
    "save_every": 7,
    "device": "cpu",
}


def tiny(text: Path, variant: str = "hamiltonian", **settings) -> RunConfig:
    return recipe("nano", variant, corpus=str(text), **{**TINY, **settings})


def run_to(config: RunConfig, path: Path, stop_at: int | None = None, on_event=lambda event: None) -> Run:
    """Trains, and asks for a stop once step `stop_at` is done."""
    done = 0

    def listen(event: Event) -> None:
        nonlocal done
        done = event.step
        on_event(event)

    return train_run(
        config,
        path,
        lambda run: [nullcontext(listen)],
        lambda: stop_at is not None and done >= stop_at,
    )


def trained_bits(run: Run) -> dict[str, bytes | str]:
    """The exact results of a run: weights, optimizer, loss scaler, counters, metrics."""
    checkpoint = newest(run)
    state = torch.load(checkpoint / "state.pt", weights_only=True)
    return {
        "step": checkpoint.name,
        "weights": (checkpoint / "model.safetensors").read_bytes(),
        "state": repr(sorted_state(state)),
        "metrics": (run.path / "metrics.jsonl").read_text(),
        "result": json.dumps(run.result["best"]),
    }


def sorted_state(value):
    if isinstance(value, dict):
        return {key: sorted_state(value[key]) for key in sorted(value, key=str)}
    return value.double().flatten().tolist() if isinstance(value, torch.Tensor) else value


def newest(run: Run) -> Path:
    folder = Checkpoints(run.path / "checkpoints", keep=1).newest()
    assert folder is not None
    return folder


def assert_resumes_to_the_same_bits(config: RunConfig, folder: Path) -> None:
    whole = run_to(config, folder / "whole")
    parts = run_to(config, folder / "parts", stop_at=9)
    assert parts.status == "interrupted"
    parts = run_to(config, folder / "parts")
    for file in ("model.safetensors", "state.pt"):
        assert (newest(parts) / file).read_bytes() == (newest(whole) / file).read_bytes()
    assert (parts.path / "metrics.jsonl").read_text() == (whole.path / "metrics.jsonl").read_text()
