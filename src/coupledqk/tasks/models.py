"""The initial model of a run (new, or with the weights and the tokenizer of another run), and its device."""

import json
import os
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..config import DataConfig, RunConfig, SentenceConfig
from ..data.tokenizers import Tokenizer, from_json
from ..dynamics import METHODS, set_impl
from ..errors import CoupledQKError
from ..files import in_shell
from ..model import TransformerLM
from ..run_folder import RunFolder
from ..training.checkpoints import Checkpoints, checkpoint_step, read_weights
from .lora import merged


def new_model(config: RunConfig) -> TransformerLM:
    """The language model that a run starts from."""
    refuse_beyond_memory(config)
    model = TransformerLM(config.model, seed=config.seed if config.init_seed is None else config.init_seed)
    model.gradient_checkpointing = config.runtime.gradient_checkpointing
    set_impl(model, config.runtime.impl)
    if config.init_from is not None:
        start_from(model, RunFolder.open(config.init_from))
    return model


def refuse_beyond_memory(config: RunConfig) -> None:
    """Raises if the weights, and on a CPU also their gradients and AdamW's moments, would not fit in memory."""
    model, d = config.model, config.model.d_model
    attention = 2 * d * d + 2 * d * d // model.attention.group_size
    table = model.n_positions if model.positions == "learned" else 0
    parameters = d * (model.vocab_size + table) + model.n_layers * (attention + 3 * d * model.d_ff)
    trains_all = (
        "lora" not in getattr(config.task, "method", "full") and pick_device(config.runtime.device).type == "cpu"
    )
    needed = parameters * 4 * (4 if trains_all else 1)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise CoupledQKError(
            f"the model has about {parameters:,} parameters, which need {needed / 1e9:,.1f} GB of memory, and this machine has "
            f"{there / 1e9:,.1f} GB: choose a smaller d_model, d_ff, n_layers, vocab_size or n_positions"
        )


def start_from(model: TransformerLM, source: RunFolder) -> None:
    """Loads a run's best weights. The model may have additional dynamics if a gate makes them initially the identity."""
    weights = run_weights(source, "best")
    fresh = model.state_dict()
    misfits = [name for name in weights if name not in fresh or fresh[name].shape != weights[name].shape]
    missing = [name for name in fresh if name not in weights]
    if misfits or any(".dynamics." not in name for name in missing):
        example = (misfits + [name for name in missing if ".dynamics." not in name])[0]
        raise CoupledQKError(
            f"{source.path} has another architecture: {example} does not fit; use its model settings, apart from the dynamics"
        )
    dynamics = model.config.attention.dynamics
    if missing and not dynamics.gate and not METHODS[dynamics.method].starts_as_identity:
        raise CoupledQKError(
            f"{source.path} has no dynamics of this kind: set gate=true, so that they start as the identity"
        )
    model.load_state_dict({**fresh, **weights})


def run_tokenizer(run: RunFolder) -> Tokenizer:
    data = run.read_json("tokenizer.json", "restore it, or resume the run, which writes it again unless it is finished")
    if not data:
        raise CoupledQKError(f"{run.path} has no tokenizer.json: expected a run on text that was started")
    try:
        return from_json(json.dumps(data))
    except CoupledQKError as error:
        raise CoupledQKError(f"{run.path / 'tokenizer.json'}: {error}") from None


def tokenizer_for(text: DataConfig, source: RunFolder) -> Tokenizer:
    """The tokenizer of the run that training starts from. Raises if the settings name a different kind of tokenizer."""
    tokenizer = run_tokenizer(source)
    if tokenizer.name != text.tokenizer.partition("@")[0]:
        raise CoupledQKError(
            f"tokenizer={text.tokenizer!r}, but {source.path} reads {tokenizer.name}: set tokenizer={tokenizer.name}"
        )
    return tokenizer


def run_weights(run: RunFolder, checkpoint: Literal["best", "final"] | Path) -> dict[str, Tensor]:
    """The trained weights of a plain language model, with low-rank updates merged."""
    if isinstance(run.config.task, SentenceConfig):
        raise CoupledQKError(f"{run.path} has been trained to classify sentences: expected a language model's run")
    return merged(read_weights(checkpoint if isinstance(checkpoint, Path) else _checkpoint(run, checkpoint)))


def _checkpoint(run: RunFolder, which: Literal["best", "final"]) -> Path:
    best = Checkpoints(run.path / "checkpoints", keep=1).best()
    folder = best if which == "best" else final_checkpoint(run)
    if folder is None:
        raise CoupledQKError(
            f"{run.path} has no {which} checkpoint yet: train it with `coupledqk train --resume {in_shell(run.path)}`"
        )
    return folder


def final_checkpoint(run: RunFolder) -> Path | None:
    """The most recent checkpoint; or the best weights, if they are also the final ones and no checkpoint was kept."""
    checkpoints = Checkpoints(run.path / "checkpoints", keep=1)
    newest, best = checkpoints.newest(), checkpoints.best()
    if newest is not None or best is None or not run.result:
        return newest
    return best if checkpoint_step(best) == run.result["final"]["step"] else None


def pick_device(name: str) -> torch.device:
    """The device with this name; "auto" selects a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise CoupledQKError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]}): try device=cpu"
        ) from None
    return device
