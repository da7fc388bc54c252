"""Three GLUE tasks, from a local folder in GLUE's own layout or from the Hugging Face hub.

    FOLDER/SST-2/train.tsv, dev.tsv             FOLDER/MNLI/train.tsv, dev_matched.tsv

Columns are identified by their names in the first line. The training file may be any train*.tsv, and files may be gzipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import CoupledQKError
from .hub import HubCorpus
from .text import blocks

Split = Literal["train", "dev"]


class Example(NamedTuple):
    sentences: tuple[str, ...]
    """One sentence, or a pair of sentences."""
    label: int


@dataclass(frozen=True)
class GLUETask:
    folder: str
    columns: tuple[str, ...]
    """Names of the columns with the sentences."""
    label_column: str
    labels: tuple[str, ...]
    """Labels as written in the files, in the order of their numbers on the hub."""
    hub_columns: tuple[str, ...]
    hub_train: int
    """Number of training examples on the hub."""
    dev: str = "dev"
    hub_dev: str = "validation"


GLUE_TASKS = {
    "sst2": GLUETask("SST-2", ("sentence",), "label", ("0", "1"), ("sentence",), 67_349),
    "mnli": GLUETask(
        "MNLI",
        ("sentence1", "sentence2"),
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        ("premise", "hypothesis"),
        392_702,
        dev="dev_matched",
        hub_dev="validation_matched",
    ),
    "qnli": GLUETask(
        "QNLI", ("question", "sentence"), "label", ("entailment", "not_entailment"), ("question", "sentence"), 104_743
    ),
}


def read_glue(dataset: str, split: Split, data_dir: Path | None = None, limit: int | None = None) -> list[Example]:
    """The first `limit` examples of a split, or all of them, with the white space around sentences removed."""
    task = GLUE_TASKS[dataset]
    found = _from_hub(dataset, task, split) if data_dir is None else _from_file(_find(data_dir, task, split), task)
    examples = list(islice(found, limit))
    if not examples:
        raise CoupledQKError(f"{dataset} has no {split} examples in {data_dir or 'the hub'}: expected some")
    return examples


def count_train(dataset: str, data_dir: Path | None = None, limit: int | None = None) -> int:
    """The number of training examples that `read_glue` returns."""
    if data_dir is not None:
        return len(read_glue(dataset, "train", data_dir, limit))
    available = GLUE_TASKS[dataset].hub_train
    return available if limit is None else min(limit, available)


def _from_hub(dataset: str, task: GLUETask, split: Split) -> Iterator[Example]:
    hub = HubCorpus("GLUE", "nyu-mll/glue", revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c", subset=dataset)
    for row in hub.rows("train" if split == "train" else task.hub_dev):
        yield Example(tuple(row[column].strip() for column in task.hub_columns), row["label"])


def _find(data_dir: Path, task: GLUETask, split: Split) -> Path:
    pattern = "train*" if split == "train" else task.dev
    folder = data_dir / task.folder
    files = sorted({*folder.glob(f"{pattern}.tsv"), *folder.glob(f"{pattern}.tsv.gz")})
    if len(files) != 1:
        found = f"found {', '.join(file.name for file in files)}" if files else "there is none"
        raise CoupledQKError(f"expected one file {folder / pattern}.tsv or .tsv.gz, but {found}")
    return files[0]


def _from_file(path: Path, task: GLUETask) -> Iterator[Example]:
    header, *lines = "".join(blocks(path, "strict")).split("\n")
    header = header.rstrip("\r").split("\t")
    wanted = (*task.columns, task.label_column)
    for column in wanted:
        if column not in header:
            raise CoupledQKError(f"{path} has no column {column!r}: its first line names {', '.join(header)}")
    places = [header.index(column) for column in wanted]
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) <= max(places):
            raise CoupledQKError(f"{path}, line {number}: {len(cells)} columns, expected {len(header)}")
        *sentences, label = (cells[place].strip() for place in places)
        if label not in task.labels:
            raise CoupledQKError(
                f"{path}, line {number}, column {task.label_column!r}: label {label!r}, expected {' or '.join(task.labels)}"
            )
        yield Example(tuple(sentences), task.labels.index(label))
