"""Language modelling: a corpus in, a trained run out."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..config import RunConfig, identity
from ..data.batches import train_batch, valid_batches
from ..data.shards import TokenizedCorpus, prepare
from ..data.tokenizers import Tokenizer, from_json
from ..dynamics import Dynamics
from ..errors import CoupledQKError
from ..files import write_atomic
from ..model import TransformerLM
from ..provenance import commit, machine, versions
from ..runs import Run, variant_name
from ..scoring import Differential
from ..training.checkpoints import Checkpoints, load_weights, read_weights
from ..training.events import Event, Finished
from ..training.logs import Consumer
from ..training.loop import Batch, train


class LanguageModelling:
    """The Task of predicting each next token of a corpus."""

    def __init__(self, config: RunConfig, corpus: TokenizedCorpus) -> None:
        self.config, self.corpus = config, corpus
        self.seed = config.seed if config.data_seed is None else config.data_seed
        self.chance_loss = math.log(config.model.vocab_size)

    def batch(self, step: int) -> Batch:
        train = self.config.train
        return train_batch(self.corpus.train, train.seq_len, train.batch_size, self.seed, step)

    def loss_sum(self, model: nn.Module, micro: Batch) -> Tensor:
        return model(*micro, reduction="sum")

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        rows = self.config.runtime.micro_batch or self.config.train.batch_size
        batches = valid_batches(self.corpus.valid, self.config.train.seq_len, rows)
        n_bytes = self.corpus.info.splits["valid"].bytes
        return {**measure(model, batches, n_bytes), **head_settings(model)}


@torch.no_grad()
def measure(model: nn.Module, batches: Iterable[Batch], n_bytes: int) -> dict[str, float]:
    """Mean loss in nats per token, its exponential, and bits per byte of the text."""
    device = next(model.parameters()).device
    total, count = 0.0, 0
    for inputs, targets in batches:
        total += float(model(inputs.to(device), targets.to(device), reduction="sum"))
        count += int((targets >= 0).sum())
    loss = total / count
    return {"loss": loss, "perplexity": perplexity(loss), "bits_per_byte": total / math.log(2) / n_bytes}


def perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def perplexity_definition(split: str, seq_len: int, tokenizer: str) -> str:
    return (
        f"exp of the mean loss per {tokenizer} token over the whole {split} split, end-of-text tokens included, in "
        f"non-overlapping windows of {seq_len} tokens, each target once"
    )


def head_settings(model: nn.Module) -> dict[str, list[list[float]]]:
    """What the heads have learned: step sizes dt and differential λ, a row per layer; absent where there are none."""
    dt = [m.step_size for m in model.modules() if isinstance(m, Dynamics)]
    lam = [m.strength() for m in model.modules() if isinstance(m, Differential)]
    rows = {"dt": [t for t in dt if isinstance(t, Tensor)], "lambda": lam}
    return {name: [t.reshape(-1).tolist() for t in tensors] for name, tensors in rows.items() if tensors}


def pretrain(
    config: RunConfig,
    path: Path,
    consumers: Callable[[Run], list[Consumer]],
    stop: Callable[[], bool] = lambda: False,
    preparing: Callable[[], AbstractContextManager[Callable[[int], None] | None]] = nullcontext,
) -> Run:
    """Trains a run into a folder, from wherever it was left; a finished one is returned as it is.

    While `preparing`, what it yields hears how many bytes of the corpus have been tokenized.
    """
    run = Run(path)
    run.refuse_other(config)
    with run.lock():
        run.create(config)
        if run.result:
            return run
        device = pick_device(config.runtime.device)
        if config.runtime.threads is not None:
            torch.set_num_threads(config.runtime.threads)
        with preparing() as on_bytes:
            corpus = prepare(config.data, on_bytes)
        if run.info and run.info["corpus"]["hash"] != corpus.info.hash:
            raise CoupledQKError(
                f"the text of {config.data.corpus} has changed since {path} began: bring it back, or train into another --out"
            )
        model = build_model(config).to(device)
        write_atomic(run.path / "tokenizer.json", corpus.tokenizer.to_json())
        run.write_json("info.json", describe(run, model, corpus))
        checkpoints = Checkpoints(run.path / "checkpoints", config.runtime.keep)
        listeners = consumers(run)
        event: Event | None = None
        for event in train(model, LanguageModelling(config, corpus), config, checkpoints, stop):
            for listen in listeners:
                listen(event)
        if isinstance(event, Finished):
            run.write_json("result.json", summarise(run))
    return run


def build_model(config: RunConfig) -> TransformerLM:
    """The model a run starts from."""
    model = TransformerLM(config.model, seed=config.seed if config.init_seed is None else config.init_seed)
    model.gradient_checkpointing = config.runtime.gradient_checkpointing
    if config.init_from is not None:
        start_from(model, Run.open(config.init_from))
    return model


def start_from(model: TransformerLM, source: Run) -> None:
    """Loads a run's best weights. Dynamics that it lacks may be added if a gate makes them the identity at the start."""
    weights = read_weights(_checkpoint(source, "best"))
    fresh = model.state_dict()
    misfits = [name for name in weights if name not in fresh or fresh[name].shape != weights[name].shape]
    missing = [name for name in fresh if name not in weights]
    if misfits or any(".dynamics." not in name for name in missing):
        example = (misfits + [name for name in missing if ".dynamics." not in name])[0]
        raise CoupledQKError(
            f"{source.path} has another architecture: {example} does not fit; use its model settings, apart from the dynamics"
        )
    if missing and not model.config.attention.dynamics.gate and model.config.attention.dynamics.method != "affine":
        raise CoupledQKError(
            f"{source.path} has no dynamics of this kind: set gate=true, so that they start as the identity"
        )
    model.load_state_dict({**fresh, **weights})


def load_model(run: Run, checkpoint: Literal["best", "final"] = "best", device: str = "auto") -> TransformerLM:
    """A trained model, ready to evaluate or to sample from."""
    with torch.device("meta"):
        model = TransformerLM(run.config.model)
    model.to_empty(device=pick_device(device))
    load_weights(model, _checkpoint(run, checkpoint))
    return model.eval()


def run_tokenizer(run: Run) -> Tokenizer:
    return from_json((run.path / "tokenizer.json").read_text())


def _checkpoint(run: Run, which: str) -> Path:
    checkpoints = Checkpoints(run.path / "checkpoints", keep=1)
    folder = checkpoints.best() if which == "best" else checkpoints.newest()
    if folder is None:
        raise CoupledQKError(
            f"{run.path} has no {which} checkpoint yet: train it with `coupledqk train --resume {run.path}`"
        )
    return folder


def pick_device(name: str) -> torch.device:
    """ "auto" takes a GPU if there is one."""
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


def describe(run: Run, model: nn.Module, corpus: TokenizedCorpus) -> dict[str, Any]:
    return {
        "name": run.path.name,
        "variant": variant_name(run.config),
        "identity": identity(run.config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "corpus": {**dataclasses.asdict(corpus.info), "hash": corpus.info.hash},
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        "started": run.info.get("started") or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def summarise(run: Run) -> dict[str, Any]:
    valid, timings = run.records("valid"), run.timings()
    speeds = sorted(t["tokens_per_second"] for t in timings if t["tokens_per_second"])
    return {
        "best": min(valid, key=lambda record: record["loss"]),
        "final": valid[-1],
        "steps": valid[-1]["step"],
        "tokens": valid[-1]["tokens"],
        "seconds": timings[-1]["seconds"] if timings else None,
        "tokens_per_second": speeds[len(speeds) // 2] if speeds else None,
        "corpus_hash": run.info["corpus"]["hash"],
        "perplexity_definition": perplexity_definition("valid", run.config.train.seq_len, run.config.data.tokenizer),
    }
