"""Exports runs as folders in the format of transformers, and imports them.

An export contains the files of `save_pretrained` (config.json, model.safetensors, tokenizer.json ...), a model card README.md,
and coupledqk.json: the run's configuration, facts and results, and the checksum of the weights they belong to.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, DiffLlamaForCausalLM, PreTrainedModel

from ..config import LMConfig, RunConfig, TrainConfig, text_of
from ..data.tokenizers import Tokenizer, from_json
from ..errors import CoupledQKError
from ..files import FileError, atomic_path, in_shell, read_json, sha256, write_atomic
from ..model import TransformerLM
from ..provenance import origin
from ..registry import plugin_of
from ..runs import Run
from ..runs.training import run_info
from ..schema import decode, from_dict, to_dict
from ..training.checkpoints import Checkpoints
from .card import model_card
from .configuration import CoupledQKConfig
from .diffllama import from_diffllama
from .modeling import CoupledQKForCausalLM
from .portable import add_code
from .tokenizers import from_fast, to_fast

RECORD = "coupledqk.json"
WEIGHTS = "model.safetensors"
_RECORD_SHAPE = {
    "weights": str, "config": dict[str, Any], "info": dict[str, Any], "result": dict[str, Any], "metrics": str,
    "tokenizer": dict[str, Any],
}  # fmt: skip


def to_transformers(model: TransformerLM, **settings: Any) -> CoupledQKForCausalLM:
    """The same model for transformers, with a copy of the weights. `settings` are those of a transformers configuration."""
    if model.int8_head is not None:
        raise CoupledQKError("a model with int8 weights cannot be converted: convert it before to_int8()")
    _check_materialized(model)
    theirs = CoupledQKForCausalLM(CoupledQKConfig.from_model_config(model.config, **settings))
    nn.Module.to(theirs, next(model.parameters()).dtype)
    theirs.model.load_state_dict(model.state_dict())
    theirs.lm_head.load_state_dict(model.embed.state_dict())  # a copy if tie_word_embeddings=False
    return theirs.eval()


def from_transformers(model: PreTrainedModel) -> TransformerLM:
    """Our model from one of our models in transformers or from a DiffLlama, with a copy of the weights."""
    _check_materialized(model)
    if isinstance(model, DiffLlamaForCausalLM):
        return from_diffllama(model)
    if not isinstance(model, CoupledQKForCausalLM):
        raise CoupledQKError(
            f"a {type(model).__name__} cannot become one of our models: expected CoupledQKForCausalLM or DiffLlamaForCausalLM"
        )
    if not model.config.tie_word_embeddings:
        raise CoupledQKError("tie_word_embeddings=False: our models have one matrix for both embeddings")
    with torch.device("meta"):
        ours = TransformerLM(model.config.to_model_config())
    weights = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    if other := weights.keys() ^ ours.state_dict().keys():
        raise CoupledQKError(
            f"the modules of this {type(model).__name__} have been changed ({min(other)}): merge or remove its adapters first"
        )
    ours.load_state_dict(weights, assign=True)
    return ours.eval()


def _check_materialized(model: nn.Module) -> None:
    if any(p.is_meta for p in model.parameters()):
        raise CoupledQKError(f"this {type(model).__name__} is on the meta device and has no weights: load them first")


def export_run(run: Run, folder: Path) -> None:
    """Writes the best model of a finished run, atomically."""
    seq_len = run.config.train.seq_len
    text_of(run.config)  # raises for a run without text
    if not run.result:
        raise CoupledQKError(
            f"{run.path} is not finished: train it first with `coupledqk train --resume {in_shell(run.path)}`"
        )
    if folder.exists():
        raise CoupledQKError(f"{folder} exists already: choose another folder, or remove it first")
    run.metrics()  # raises for a damaged log
    model, tokenizer = run.model(device="cpu"), run.tokenizer()
    end = tokenizer.end_of_text
    with atomic_path(folder) as temporary:
        to_transformers(model, bos_token_id=end, eos_token_id=end, pad_token_id=end).save_pretrained(temporary)
        attention = run.config.model.attention
        portable = plugin_of(attention.dynamics.method, attention.scoring.kind) is None
        if portable:
            add_code(temporary)
        to_fast(tokenizer, seq_len).save_pretrained(temporary)
        parameters = sum(p.numel() for p in model.parameters())
        (temporary / "README.md").write_text(model_card(run, parameters, portable=portable))
        record = {
            "weights": sha256(temporary / WEIGHTS),
            "config": to_dict(run.config),
            "info": run.info,
            "result": run.result,
            "metrics": (run.path / "metrics.jsonl").read_text(),
            "tokenizer": json.loads(tokenizer.to_json()),
        }
        (temporary / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def push_export(folder: Path, repository: str) -> str:
    """Uploads an exported folder to the hub, with the account that huggingface_hub is logged in with; returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    # the base class of HTTP errors, which depends on the version of huggingface_hub
    client_error: type[Exception] = HfHubHTTPError.__bases__[0]
    api = HfApi()
    try:
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository, commit_message="Upload by coupledqk export")
    except (client_error, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CoupledQKError(
            f"{folder} is written, but {repository} cannot be uploaded ({reason}): log in with `hf auth login`, then `hf "
            f"upload {repository} {folder}`"
        ) from None
    return str(address)


def import_run(folder: Path, path: Path) -> Run:
    """Makes a run folder from an export, or from any folder that `save_pretrained` wrote for one of our models or a DiffLlama.

    Weights that have not changed since the export keep their results; others are imported without results.
    """
    if path.exists():
        raise CoupledQKError(f"{path} exists already: choose another --out, or remove it first")
    model = load_exported(folder)
    record = read_record(folder)
    tokenizer = from_json(json.dumps(record["tokenizer"])) if record else _tokenizer(folder)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CoupledQKError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} tokens and its model {model.config.vocab_size}: save the "
            "tokenizer that the model was trained with"
        )
    config = from_dict(RunConfig, record["config"]) if record else _plain_config(model, tokenizer)
    unchanged = bool(record) and config.model == model.config and _has_weights(folder, record["weights"])
    best = _best(record["result"], folder) if unchanged else {"step": 0}
    with atomic_path(path) as temporary:
        run = Run(temporary)
        run.create(dataclasses.replace(config, model=model.config))  # config.json may be newer than the record
        run.write_json("tokenizer.json", json.loads(tokenizer.to_json()))
        metrics = {name: value for name, value in best.items() if name not in ("kind", "step", "tokens")}
        Checkpoints(temporary / "checkpoints", keep=1).save_best(best["step"], model, metrics)
        if unchanged:
            run.write_json("info.json", record["info"])
            write_atomic(temporary / "metrics.jsonl", record["metrics"])
            run.write_json("result.json", record["result"])
        else:
            # no corpus has this hash, so training cannot be resumed from weights of unknown origin
            unknown = {"corpus": f"unknown, imported from {folder.name}", "hash": None}
            info = run_info(path.name, run.config, model, unknown)
            run.write_json("info.json", {**info, "starts": [origin()]})
    return Run(path)


def load_exported(folder: Path) -> TransformerLM:
    """Loads the model of a folder in float32."""
    if not (folder / "config.json").is_file():
        raise CoupledQKError(
            f"{folder} is not an exported model: it has no config.json; `coupledqk export RUN DIR` writes one"
        )
    kinds = {"coupledqk": CoupledQKForCausalLM, "diffllama": DiffLlamaForCausalLM}
    config = read_json(folder / "config.json", "export the model again")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise CoupledQKError(
            f"{folder} holds a model of type {kind!r}: expected {' or '.join(kinds)}; "
            "coupledqk.couple adds dynamics to models of other types"
        )
    try:
        AutoConfig.from_pretrained(folder)  # raises for a newer format before any weight is read
    except StrictDataclassError as error:
        reason = " ".join(str(error).split())
        raise CoupledQKError(f"{folder / 'config.json'} is damaged ({reason}): export the model again") from None
    try:
        model, found = kinds[kind].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CoupledQKError(f"the weights in {folder} cannot be read: {str(error).splitlines()[0]}") from None
    if found["missing_keys"]:
        raise CoupledQKError(f"the weights in {folder} lack {min(found['missing_keys'])}: export the model again")
    if found["unexpected_keys"]:
        raise CoupledQKError(
            f"the weights in {folder} contain {min(found['unexpected_keys'])}, which the model of its config.json does "
            "not have: export the model again"
        )
    return from_transformers(model)


def _has_weights(folder: Path, checksum: str) -> bool:
    return (folder / WEIGHTS).is_file() and sha256(folder / WEIGHTS) == checksum


def read_record(folder: Path) -> dict[str, Any]:
    """The record that `coupledqk export` wrote; empty if there is none."""
    path, advice = folder / RECORD, "export the run again, or remove the file"
    if not path.is_file():
        return {}
    record = read_json(path, advice)
    try:
        for key, hint in _RECORD_SHAPE.items():
            decode(hint, record.get(key) if isinstance(record, dict) else None, key)
    except CoupledQKError as error:
        raise FileError(f"{path} is damaged ({error}): {advice}") from None
    return record


def _best(result: dict[str, Any], folder: Path) -> dict[str, Any]:
    best = result.get("best")
    if not isinstance(best, dict) or type(best.get("step")) is not int:
        raise FileError(f"{folder / RECORD} is damaged (its result has no best step): export the run again")
    return best


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").is_file():
        raise CoupledQKError(f"{folder} has no tokenizer.json: save the tokenizer there too, with its save_pretrained")
    return from_fast(AutoTokenizer.from_pretrained(folder))


def _plain_config(model: TransformerLM, tokenizer: Tokenizer) -> RunConfig:
    """The configuration of a model whose training is unknown."""
    train = TrainConfig(seq_len=min(model.config.n_positions, TrainConfig.seq_len))
    return RunConfig(model=model.config, task=LMConfig(tokenizer=tokenizer.name), train=train)
