"""Outcome files: the outcome of an experiment as JSON.

The laboratory writes the file after every cell, and reports are made from it; `results/lab` contains those of this project.
JSON has no NaN: null represents a number that is not finite (a run that diverged, the standard deviation of a single seed).
"""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from .errors import CoupledQKError
from .files import read_json, write_atomic
from .measure import ACCURACY, MEASURES, PERPLEXITY
from .outcome import FORMAT, Finding, Outcome
from .schema import from_dict


def read(path: str | Path) -> Outcome:
    """Reads an outcome file."""
    data = _load(Path(path))
    if not _is_outcome(data):
        raise CoupledQKError(
            f"{path} is not the outcome of an experiment: expected a file written by `coupledqk reproduce`"
        )
    if data["format"] not in (1, FORMAT):
        raise CoupledQKError(
            f"{path} has format {data['format']!r}, this version reads 1 to {FORMAT}: update coupledqk, or create it "
            "again with `coupledqk reproduce`"
        )
    try:
        if data["format"] == 1:
            data = _from_format_1(data)
        return from_dict(Outcome, data, null_is_nan=True)
    except CoupledQKError as error:
        raise CoupledQKError(f"{path} is damaged: {error}") from None


_FINDINGS_1: dict[str, Finding] = {
    "holds here": "supported",
    "does not hold here": "contradicted",
    "cannot tell with this many seeds": "inconclusive",
}


def _from_format_1(data: dict[str, Any]) -> dict[str, Any]:
    """Converts an outcome of format 1 to format 2. Malformed values are left unchanged, and the decoder reports them."""
    data["format"] = FORMAT
    if isinstance(metric := data.get("metric"), dict):
        key = str(metric.get("key")).removeprefix("best.").partition(".")[0]
        data["metric"] = replace(MEASURES.get(key, PERPLEXITY), definition=str(metric.get("definition")))
        data["task_measure"] = ACCURACY if metric.get("better") == "higher" else PERPLEXITY
    for row in _tables(data, "rows"):
        bits = row.pop("bits_per_byte", None)
        row["companions"] = {} if bits is None else {"bits_per_byte": bits}
    for verdict in _tables(data, "verdicts"):
        found = verdict.pop("outcome", None)
        verdict["finding"] = _FINDINGS_1.get(found, found) if isinstance(found, str) else found
        if isinstance(evidence := verdict.get("evidence"), dict):
            evidence["detectable"] = evidence.pop("smallest", None)
    return data


def _tables(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    listed = data.get(key)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def outcomes_at(path: Path) -> list[Outcome]:
    """The outcome in a file, or all outcomes in a folder; there are none in a folder of runs."""
    if not path.exists():
        raise CoupledQKError(f"{path}: no such file or folder; `coupledqk reproduce` and `coupledqk train` write them")
    if path.is_file() and path.suffix != ".json":
        raise CoupledQKError(
            f"{path}: expected an outcome file, which ends in .json, a folder of outcome files, or run folders"
        )
    return read_all(path) if path.is_dir() else [read(path)]


def read_all(folder: str | Path) -> list[Outcome]:
    """Reads the outcome files of a folder in the order of their names. Other JSON files are ignored."""
    return [read(path) for path in sorted(Path(folder).glob("*.json")) if _is_outcome(_load(path))]


def write(outcome: Outcome, path: str | Path) -> None:
    write_atomic(path, to_json(outcome))


def to_json(outcome: Outcome) -> str:
    """An outcome as JSON. Equal outcomes give identical bytes, and each cell is one line of the file."""
    data = _plain(dataclasses.asdict(outcome))
    cells = ",\n".join(f"  {json.dumps(cell, ensure_ascii=False)}" for cell in data.pop("cells"))
    text = json.dumps({**data, "cells": []}, indent=1, ensure_ascii=False, allow_nan=False)
    return text.removesuffix("[]\n}") + f"[\n{cells}\n ]\n}}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load(path: Path) -> Any:
    if not path.exists():
        raise CoupledQKError(f"{path}: no such file; `coupledqk reproduce` writes outcome files")
    return read_json(path, "restore it, or run its experiment again")


def _is_outcome(data: Any) -> bool:
    return isinstance(data, dict) and {"format", "experiment", "rows"} <= data.keys()
