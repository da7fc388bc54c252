"""Registry of all readers of files that others may have written or damaged.

To add a reader, write a function of the samples that returns a valid file and a function that reads it, and decorate it.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tomli_w
from samples import (
    EXPERIMENT,
    Samples,
    bench_result,
    bpe_definition,
    json_lines,
    packed,
    small_outcome,
    without_checksums,
)

from coupledqk import lease, outcome_file
from coupledqk.bench.records import read_result
from coupledqk.cli.train import Train
from coupledqk.coupling.settings import from_table
from coupledqk.data.cache import read_header
from coupledqk.data.glue import read_glue
from coupledqk.data.text import read as read_documents
from coupledqk.data.tokenizers import from_json
from coupledqk.files import read_text, read_toml
from coupledqk.lab.cells import ERROR_FILE, make_plan
from coupledqk.lab.experiment import load_file
from coupledqk.lab.summary import outcome_summary
from coupledqk.report.listing import run_record
from coupledqk.report.snapshot import Snapshot
from coupledqk.runs import Run
from coupledqk.schema import to_dict
from coupledqk.training.checkpoints import Checkpoints, damage, load_weights
from coupledqk.training.state_files import load_state


@dataclass(frozen=True)
class Reader:
    file: Path
    """A file with valid content."""
    read: Callable[[], object]
    """Reads the file: returns, or raises an error that is meant for the user."""


READERS: dict[str, Callable[[Samples], Reader]] = {}


def reader(name: str):
    def register(make: Callable[[Samples], Reader]) -> Callable[[Samples], Reader]:
        READERS[name] = make
        return make

    return register


@reader("configuration")
def _(samples: Samples) -> Reader:
    file = samples.file("settings.toml", (samples.finished.path / "config.toml").read_bytes())
    return Reader(file, lambda: Train(config=file).run_config([]))


@reader("experiment")
def _(samples: Samples) -> Reader:
    file = samples.file("experiment.toml", EXPERIMENT)

    def read() -> None:
        experiment = load_file(file)
        for scale in experiment.scales:
            make_plan(experiment, scale)

    return Reader(file, read)


@reader("outcome")
def _(samples: Samples) -> Reader:
    file = samples.file("outcome.json", small_outcome())

    def read() -> None:
        found = outcome_file.read(file)
        outcome_file.to_json(found)
        outcome_summary(found)

    return Reader(file, read)


@reader("bench result")
def _(samples: Samples) -> Reader:
    file = samples.file("bench.json", bench_result())
    return Reader(file, lambda: read_result(file))


def _of_run(name: str, old: bool) -> Callable[[Samples], Reader]:
    """A file of a finished run, read by everything that reports use."""

    def make(samples: Samples) -> Reader:
        folder = samples.folder / f"{'old' if old else 'new'} {name}"
        shutil.copytree(samples.finished.path, folder, ignore=shutil.ignore_patterns("checkpoints"))
        for path in folder.glob("*.*") if old else ():
            path.write_text(without_checksums(path.read_text()))

        def read() -> None:
            run = Run.open(folder)
            if name == "tokenizer.json":
                run.tokenizer()
                return
            if name in ("config.toml", "metrics.jsonl"):
                run_record(run)
            if name in ("metrics.jsonl", "timing.jsonl"):
                run.whole()
            snapshot = Snapshot.read(folder)
            _ = snapshot.best, snapshot.latest, snapshot.tokens_per_second, snapshot.baselines, snapshot.position_losses

        return Reader(folder / name, read)

    return make


for _name in ("config.toml", "info.json", "result.json", "metrics.jsonl", "timing.jsonl", "tokenizer.json"):
    READERS[f"{_name} of a run"] = _of_run(_name, old=False)
    READERS[f"{_name} of a run without checksums"] = _of_run(_name, old=True)


@reader("error of a cell")
def _(samples: Samples) -> Reader:
    run = Run(samples.folder / "failed")
    run.path.mkdir()
    run.write_json(ERROR_FILE, {"error": "the loss became nan", "diverged": True})
    return Reader(run.path / ERROR_FILE, lambda: run.read_json(ERROR_FILE, "move it away"))


@reader("lease of a run")
def _(samples: Samples) -> Reader:
    folder = samples.folder / "lock"
    shutil.copytree(samples.finished.path / "lock", folder)
    return Reader(next(folder.iterdir()), lambda: lease.is_held(folder))


def _checkpoint(samples: Samples, name: str) -> Path:
    newest = Checkpoints(samples.finished.path / "checkpoints", keep=1).newest()
    assert newest is not None
    return Path(shutil.copytree(newest, samples.folder / f"checkpoint for {name}")) / name


@reader("checksums of a checkpoint")
def _(samples: Samples) -> Reader:
    file = _checkpoint(samples, "checksums.json")
    return Reader(file, lambda: damage(file.parent))


@reader("weights")
def _(samples: Samples) -> Reader:
    file = _checkpoint(samples, "model.safetensors")
    return Reader(file, lambda: load_weights(file.parent))


@reader("state of a checkpoint")
def _(samples: Samples) -> Reader:
    file = _checkpoint(samples, "state.pt")
    return Reader(file, lambda: load_state(file))


@reader("tokenizer")
def _(samples: Samples) -> Reader:
    file = samples.file("tokenizer.json", bpe_definition())
    return Reader(file, lambda: from_json(read_text(file)))


@reader("header of cached tokens")
def _(samples: Samples) -> Reader:
    header = next((samples.folder / "cache").rglob("header.json"))
    folder = Path(shutil.copytree(header.parent, samples.folder / "tokens"))
    return Reader(folder / "header.json", lambda: read_header(folder))


@reader("text")
def _(samples: Samples) -> Reader:
    file = samples.file("documents.txt", "one\n<|endoftext|>\ntwo é\n<|endoftext|>\nthree\n")
    return Reader(file, lambda: list(read_documents(file, "strict")))


@reader("JSON lines")
def _(samples: Samples) -> Reader:
    file = samples.file("documents.jsonl", json_lines())
    return Reader(file, lambda: list(read_documents(file, "strict")))


@reader("gzip")
def _(samples: Samples) -> Reader:
    file = samples.file("documents.jsonl.gz", packed(json_lines()))
    return Reader(file, lambda: list(read_documents(file, "strict")))


@reader("GLUE")
def _(samples: Samples) -> Reader:
    file = samples.file("glue/SST-2/train.tsv", "sentence\tlabel\nfine film\t1\ndull\t0\nan é\t1\n")
    return Reader(file, lambda: read_glue("sst2", "train", samples.folder / "glue"))


@reader("settings of a coupling")
def _(samples: Samples) -> Reader:
    table = {"model_type": "llama", "format": 1, "dynamics": to_dict(samples.config.model.attention.dynamics)}
    file = samples.file("coupling.toml", tomli_w.dumps(table))
    return Reader(file, lambda: from_table(read_toml(file), str(file)))


@reader("record of an exported model")
def _(samples: Samples) -> Reader:
    from coupledqk.hf.export import RECORD, read_record

    run = samples.finished
    record = {
        "weights": "0" * 64,
        "config": to_dict(run.config),
        "info": run.info,
        "result": run.result,
        "metrics": (run.path / "metrics.jsonl").read_text(),
        "tokenizer": json.loads(run.tokenizer().to_json()),
    }
    file = samples.file(f"export/{RECORD}", json.dumps(record))
    return Reader(file, lambda: read_record(file.parent))
