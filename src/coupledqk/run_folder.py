"""Run folders, each of which contains a run. Torch-free, so that reports can read runs without importing torch.

config.toml      the complete configuration
info.json        further information about the results: corpus and its hash; commit, versions and machine of each start
metrics.jsonl    deterministic values, one line per record ("train" or "valid")
timing.jsonl     wall-clock values
result.json      best and final validation, written when the run is finished; for a language model also n-gram baselines on the
                 same tokens and the loss by the length of the context (read by `baselines.py`)
tokenizer.json   the definition of the tokenizer
checkpoints/     step-0001000/ ... and best-0001000/
lock/            the lease of the process that trains the run (`lease.py`)

Each of these files contains a checksum of its content (`sealed.py`; checkpoints have a file of checksums), so that damage is
detected when it is read. Folders written before checksums were introduced can be read as well.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

from . import lease
from .config import DataConfig, RunConfig, RuntimeConfig, SentenceConfig, TrainConfig, identity, text_of
from .errors import CoupledQKError
from .files import FileError, file_errors, in_shell, is_temporary, make_folder, remove_leftovers, write_atomic
from .plugins import MissingPluginError
from .schema import decode, flat, from_toml, leaves, parse_toml, to_toml
from .sealed import Log, log_lines, read_sealed_json, read_sealed_toml, write_json, write_toml
from .variants import VARIANTS

LOGS = ("metrics.jsonl", "timing.jsonl")


@dataclass(frozen=True)
class Whole:
    """The part of a run's logs that is complete."""

    until: float
    """Last step up to which all records exist; infinite if none is missing."""
    fault: str | None = None
    """Description of the damaged or missing record after that step."""
    unvalidated: int | None = None
    """The next step, if only its validation is missing."""


class RunFolder:
    """Reads and writes a run folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lease: lease.Lease | None = None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Opens an existing run."""
        run = cls(path)
        if not run.path.is_dir():
            raise CoupledQKError(f"{path}: no such run folder; `coupledqk runs` lists the ones below a folder")
        if not (run.path / "config.toml").is_file():
            raise CoupledQKError(f"{path} is not a run folder: it has no config.toml")
        return run

    def create(self, config: RunConfig) -> None:
        """Creates the folder, or opens an existing one with new runtime settings."""
        self.refuse_other(config)
        make_folder(self.path)
        for folder in (self.path, self.path / "checkpoints"):
            remove_leftovers(folder)
        write_toml(self.path / "config.toml", to_toml(config))
        self.__dict__.pop("config", None)

    @cached_property
    def config(self) -> RunConfig:
        text = read_sealed_toml(self.path / "config.toml")
        try:
            return from_toml(RunConfig, text)
        except CoupledQKError as error:
            raise type(error)(f"{self.path / 'config.toml'}: {error}") from None

    @property
    def missing_plugin(self) -> str | None:
        """The file of the plugin that the configuration needs and this process has not loaded; None if there is none."""
        try:
            _ = self.config
        except MissingPluginError:
            return parse_toml(read_sealed_toml(self.path / "config.toml"))["plugin"]["path"]
        return None

    @property
    def info(self) -> dict[str, Any]:
        """The content of info.json; empty until the run is started. "starts" has an entry for each start and resume."""
        info = self.read_json("info.json", "move it away; resuming the run writes it again")
        if info and "starts" not in info:  # written by a version that recorded only one start
            info["starts"] = [{key: info.pop(key, None) for key in ("started", "commit", "versions", "machine")}]
        return info

    @property
    def result(self) -> dict[str, Any]:
        """The content of result.json; empty until the run is finished."""
        result = self._result()
        result.pop("logs", None)
        return result

    def read_json(self, name: str, advice: str) -> dict[str, Any]:
        """The content of a JSON file in the folder, verified; empty if it does not exist. `advice` ends the error message for a
        damaged file and tells the user what to do."""
        path = self.path / name
        if not path.is_file():
            return {}
        data = read_sealed_json(path, advice)
        for key, hint in _SHAPES.get(name, {}).items():
            try:
                decode(hint, data.get(key), key)
            except CoupledQKError as error:
                raise FileError(f"{path} is damaged ({error}): {advice}") from None
        return data

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        """Writes a file of the folder. The result must be written last, since it refers to the logs it was computed from."""
        if name == "result.json":
            logs = {log: Log.read(self.path / log) for log in LOGS}
            data = {**data, "logs": {log: found.crc for log, found in logs.items() if found.sealed}}
        write_json(self.path / name, data, indent=None if name == "tokenizer.json" else 2)

    def metrics(self, kind: Literal["train", "valid"] | None = None) -> list[dict[str, Any]]:
        """The logged values of training, of validation, or of both in the order in which they were logged."""
        return [record for record in self._read_log("metrics.jsonl") if kind is None or record["kind"] == kind]

    def timings(self) -> list[dict[str, Any]]:
        return self._read_log("timing.jsonl")

    def _read_log(self, name: str) -> list[dict[str, Any]]:
        """The records of a log. Unless the run is finished, an incomplete last line, which may still be written, is ignored."""
        result, log = self._result(), _read_log(self.path / name)
        fault = log.fault if result or not log.torn else None
        if fault is None and name in result.get("logs", {}) and log.crc != result["logs"][name]:
            fault = f"{self.path / name} is damaged (it is not the log that result.json was computed from)"
        if fault:
            raise FileError(
                f"{fault}: restore the file, or resume the run with `coupledqk train --resume {in_shell(self.path)}`, "
                "which computes it again from the newest checkpoint before the damage"
            )
        return log.records

    def _result(self) -> dict[str, Any]:
        return self.read_json("result.json", "move it away; resuming the run writes it again")

    def whole(self) -> Whole:
        """The part of the logs that is complete. Training has to repeat the steps after it."""
        found = [Whole(float("inf"))]
        finished = self._result().get("logs", {})
        for name in LOGS:
            log = _read_log(self.path / name)
            if log.fault or log.sealed or name in finished:
                last, missing = _last_whole_step(log, _expected(self.config.train, name == "metrics.jsonl"))
                fault = log.fault or f"{self.path / name} has no record after step {last}"
                found.append(Whole(last, fault, int(last) + 1 if missing == "valid" else None))
        return min(found, key=lambda each: each.until)

    @property
    def status(self) -> Literal["finished", "running", "interrupted"]:
        if self.result:
            return "finished"
        return "running" if lease.is_held(self._lock_path) else "interrupted"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run against other processes on all machines that share its disk. Heartbeats keep the lock valid."""
        with file_errors(self.path, "write"):
            held = lease.acquire(self._lock_path)
        if held is None:
            raise lease.HeldLeaseError(
                f"another process is training into {self.path}: wait for it, or choose another --out"
            )
        with held:
            self._lease = held
            try:
                yield
            finally:
                self._lease = None

    def check_lock(self) -> None:
        """Raises if another process has taken over the run. It is cheap, and does nothing if this process has no lock."""
        if self._lease is not None:
            self._lease.check()

    def verify_lock(self) -> None:
        """Like `check_lock`, but always reads the disk. It is called before writing files that must not be lost."""
        if self._lease is not None:
            self._lease.verify()

    def cut_logs(self, step: int) -> None:
        """Removes the records after `step` and the result, which will be computed again."""
        for name in LOGS:
            kept = [record for record in _read_log(self.path / name).records if record["step"] <= step]
            write_atomic(self.path / name, log_lines(kept)[0])
        with file_errors(self.path / "result.json", "remove"):
            (self.path / "result.json").unlink(missing_ok=True)

    def refuse_other(self, config: RunConfig) -> None:
        """Raises if the folder contains anything other than a run with the identity of `config`."""
        if not (self.path / "config.toml").is_file():
            names = [child.name for child in self.path.iterdir()] if self.path.is_dir() else []
            if any(name != "lock" and not is_temporary(name) for name in names):
                raise CoupledQKError(f"{self.path} exists and is not a run folder: choose another --out")
            return
        if self._is_damaged(config) or identity(config) == identity(self.config):
            return
        ours, theirs = flat(dataclasses.asdict(self.config)), flat(dataclasses.asdict(config))
        changed = [
            f"{path} ({ours.get(path)!r} there, {theirs.get(path)!r} now)"
            for path in leaves(config)
            if not path.startswith("runtime.") and path != "task.data_dir" and ours.get(path) != theirs.get(path)
        ]
        raise CoupledQKError(
            f"{self.path} contains another run with different settings: {', '.join(changed)}; choose another --out, or use "
            "the same settings"
        )

    def _is_damaged(self, config: RunConfig) -> bool:
        """Whether config.toml is damaged and can be written again, since info.json contains the identity of the same run."""
        try:
            return not self.config
        except CoupledQKError:
            if self.info.get("identity") == identity(config):
                return True
            raise

    @property
    def _lock_path(self) -> Path:
        return self.path / "lock"


_NUMBER = float | None
_SHAPES: dict[str, dict[str, Any]] = {
    "info.json": {"corpus": dict[str, Any], "parameters": int, "starts": tuple[dict[str, Any], ...] | None},
    "result.json": {
        "best": dict[str, Any],
        "final": dict[str, Any],
        "seconds": _NUMBER,
        "tokens_per_second": _NUMBER,
        "definition": str,
        "logs": dict[str, int] | None,
    },
}
"""Required keys and their types, by file."""


def _read_log(path: Path) -> Log:
    """The records of a log, up to the first invalid line."""
    log = Log.read(path)
    for number, record in enumerate(log.records):
        try:
            if path.name == "metrics.jsonl":
                decode(Literal["train", "valid"], record.get("kind"), "kind")
                decode(float, record.get("loss"), "loss")
            elif "tokens_per_second" not in record:
                raise CoupledQKError("tokens_per_second is missing")
            for key in ("tokens", "lr", "grad_norm", "perplexity", "accuracy", "seconds", "tokens_per_second"):
                decode(_NUMBER, record.get(key), key)
        except CoupledQKError as error:
            fault = f"{path}, line {number + 1}, is damaged ({error})"
            return replace(log, records=log.records[:number], fault=fault, torn=False)
    return log


def _expected(train: TrainConfig, metrics: bool) -> Iterator[tuple[str | None, int]]:
    """The kind and the step of every record that training logs, in order."""
    for step in count(1):
        if step % train.log_every == 0:
            yield ("train" if metrics else None), step
        if metrics and (step % train.eval_every == 0 or step == train.steps):
            yield "valid", step
        if step == train.steps:
            return


def _last_whole_step(log: Log, expected: Iterator[tuple[str | None, int]]) -> tuple[float, str | None]:
    """The last step before the first missing record, and the kind of that record; infinite if none is missing."""
    for (kind, step), record in zip(expected, [*log.records, None], strict=False):
        if record is None or (record.get("kind"), record["step"]) != (kind, step):
            return step - 1, kind
    return float("inf"), None


def variant_name(config: RunConfig) -> str:
    """The name of the run's attention variant, or "custom". Normalisation of queries and keys is ignored."""
    attention = config.model.attention
    plain = replace(attention, qk_norm=False)
    return next((name for name, variant in VARIANTS.items() if variant in (attention, plain)), "custom")


def published(config: RunConfig) -> RunConfig:
    """The configuration of a language model's run without settings that depend on the machine."""
    text, source = text_of(config), config.init_from
    task = replace(text, corpus=Path(text.corpus).name, data_dir=None)
    return replace(config, task=task, init_from=source and Path(source).name, runtime=RuntimeConfig())


def task_name(config: RunConfig) -> str:
    """A short name of the run's corpus or task."""
    task = config.task
    if isinstance(task, DataConfig):
        return Path(task.corpus).name.partition(".")[0] or "corpus"
    return task.dataset if isinstance(task, SentenceConfig) else task.kind


def default_name(config: RunConfig) -> str:
    """A readable and unique folder name."""
    return f"{task_name(config)}-{variant_name(config)}-s{config.seed}-{identity(config)}"


def find_runs(folder: Path) -> list[RunFolder]:
    """The runs in a folder and its subfolders. Folders that cannot be read or have been deleted are skipped."""
    return [
        RunFolder(path) for path in sorted(Path(path) for path, _, names in os.walk(folder) if "config.toml" in names)
    ]
