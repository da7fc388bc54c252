"""A run is a folder. Torch-free, so that reports can read runs without it.

config.toml      the complete configuration
info.json        what else decides or explains the numbers: corpus and its hash; commit, versions and machine of each start
metrics.jsonl    deterministic values, a line per record ("train" or "valid")
timing.jsonl     wall-clock values
result.json      best and final validation, written when the run is finished; of a language model also n-gram baselines on the
                 same tokens and the loss by the length of the context (`baselines.py` reads them)
tokenizer.json   what is needed to encode and decode text
checkpoints/     step-0001000/ ... and best-0001000/
lock/            which process is training it (`lease.py`)
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from . import lease
from .config import DataConfig, RunConfig, RuntimeConfig, SentenceConfig, identity, text_of
from .errors import CoupledQKError
from .files import write_atomic
from .schema import flat, from_toml, leaves, to_toml
from .variants import VARIANTS


class RunFolder:
    """Reads and writes a run folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lease: lease.Lease | None = None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run."""
        run = cls(path)
        if not run.path.is_dir():
            raise CoupledQKError(f"{path}: no such run folder; `coupledqk runs` lists the ones below a folder")
        if not (run.path / "config.toml").is_file():
            raise CoupledQKError(f"{path} is not a run folder: it has no config.toml")
        return run

    def create(self, config: RunConfig) -> None:
        """Makes the folder, or takes it over as it was left, with what `runtime` says now."""
        self.refuse_other(config)
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path / "config.toml", to_toml(config))
        self.__dict__.pop("config", None)

    @cached_property
    def config(self) -> RunConfig:
        try:
            return from_toml(RunConfig, (self.path / "config.toml").read_text())
        except CoupledQKError as error:
            raise CoupledQKError(f"{self.path / 'config.toml'}: {error}") from None

    @property
    def info(self) -> dict[str, Any]:
        """Empty until the run is started. "starts" has an entry for the first start and for each resume."""
        info = self._json("info.json")
        if info and "starts" not in info:  # written before every start was kept
            info["starts"] = [{key: info.pop(key, None) for key in ("started", "commit", "versions", "machine")}]
        return info

    @property
    def result(self) -> dict[str, Any]:
        """Empty until the run is finished."""
        return self._json("result.json")

    def write_json(self, name: Literal["info.json", "result.json"], data: dict[str, Any]) -> None:
        write_atomic(self.path / name, json.dumps(data, indent=2) + "\n")

    def metrics(self, kind: Literal["train", "valid"] | None = None) -> list[dict[str, Any]]:
        """The logged values of training, of validation, or of both in the order in which they were logged."""
        records = read_jsonl(self.path / "metrics.jsonl")
        return [record for record in records if kind is None or record["kind"] == kind]

    def timings(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.path / "timing.jsonl"))

    @property
    def status(self) -> Literal["finished", "running", "interrupted"]:
        if self.result:
            return "finished"
        return "running" if lease.is_held(self._lock_path) else "interrupted"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process at a time writes to a run, on all machines that share its disk. Heartbeats show that it lives."""
        held = lease.acquire(self._lock_path)
        if held is None:
            raise CoupledQKError(f"another process is training into {self.path}: wait for it, or choose another --out")
        with held:
            self._lease = held
            try:
                yield
            finally:
                self._lease = None

    def check_lock(self) -> None:
        """Raises if this process has lost the run to another one. Cheap; without a lock of its own it does nothing."""
        if self._lease is not None:
            self._lease.check()

    def verify_lock(self) -> None:
        """`check_lock` that always asks the disk, for use before something is written that must not be lost."""
        if self._lease is not None:
            self._lease.verify()

    def cut_logs(self, step: int) -> None:
        """Forgets what was logged after `step`: it will be computed again."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            path = self.path / name
            kept = [record for record in read_jsonl(path) if record["step"] <= step]
            write_atomic(path, "".join(json.dumps(record) + "\n" for record in kept))

    def refuse_other(self, config: RunConfig) -> None:
        """Raises if the folder holds something else than a run that computes what `config` computes."""
        if not (self.path / "config.toml").is_file():
            if self.path.is_dir() and any(child.name != "lock" for child in self.path.iterdir()):
                raise CoupledQKError(f"{self.path} exists and is not a run folder: choose another --out")
            return
        if identity(config) == identity(self.config):
            return
        ours, theirs = flat(dataclasses.asdict(self.config)), flat(dataclasses.asdict(config))
        changed = [
            f"{path} ({ours.get(path)!r} there, {theirs.get(path)!r} now)"
            for path in leaves(config)
            if not path.startswith("runtime.") and path != "task.data_dir" and ours.get(path) != theirs.get(path)
        ]
        raise CoupledQKError(
            f"{self.path} holds another run; different are {', '.join(changed)}: choose another --out, or the same settings"
        )

    @property
    def _lock_path(self) -> Path:
        return self.path / "lock"

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            return json.loads(path.read_text()) if path.is_file() else {}
        except json.JSONDecodeError as error:
            raise CoupledQKError(
                f"{path} is damaged ({error}): move it away; resuming the run writes it again"
            ) from None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log; a last line torn by a killed process is left out."""
    if not path.is_file():
        return
    with path.open() as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


def variant_name(config: RunConfig) -> str:
    """The name of the run's attention variant, or "custom". Normalised queries and keys go with any variant."""
    attention = config.model.attention
    plain = replace(attention, qk_norm=False)
    return next((name for name, variant in VARIANTS.items() if variant in (attention, plain)), "custom")


def published(config: RunConfig) -> RunConfig:
    """The configuration of a language model's run without what says more about a machine than about the model."""
    text, source = text_of(config), config.init_from
    task = replace(text, corpus=Path(text.corpus).name, data_dir=None)
    return replace(config, task=task, init_from=source and Path(source).name, runtime=RuntimeConfig())


def task_name(config: RunConfig) -> str:
    """What a run learns, in a word: its corpus, or the name of its task."""
    task = config.task
    if isinstance(task, DataConfig):
        return Path(task.corpus).name.partition(".")[0] or "corpus"
    return task.dataset if isinstance(task, SentenceConfig) else task.kind


def default_name(config: RunConfig) -> str:
    """A readable folder name that no other run has."""
    return f"{task_name(config)}-{variant_name(config)}-s{config.seed}-{identity(config)}"


def find_runs(folder: Path) -> list[RunFolder]:
    return [RunFolder(path.parent) for path in sorted(folder.rglob("config.toml"))]
