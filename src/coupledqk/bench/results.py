"""A result and the files it is kept in: JSON with everything, CSV with the figures, SVG to look at."""

import csv
import datetime
import importlib.metadata
import io
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from ..files import write_atomic
from ..provenance import commit, machine, versions
from ..report.chart import Series, line_chart
from ..schema import flat
from .contenders import Contender, Setup
from .timing import Spread, spread

Row = Mapping[str, Any]
LIBRARIES = {"llama": "transformers", "diffllama": "transformers", "x-transformers": "x-transformers"}


def describe(contenders: Sequence[Contender], setup: Setup, rounds: int) -> dict[str, Any]:
    """Where, when and of what."""
    libraries = {LIBRARIES[c.peer] for c in contenders if c.peer}
    config = contenders[0].config
    shape = {
        name: getattr(config, name) for name in ("d_model", "n_heads", "n_layers", "d_ff", "vocab_size", "n_positions")
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {**versions(), **{name: importlib.metadata.version(name) for name in sorted(libraries)}},
        "machine": machine(),
        "device": device_name(setup.device),
        "threads": setup.threads,
        "precision": setup.precision,
        "rounds": rounds,
        "model": shape,
    }


def device_name(device: str) -> str:
    on_cuda = torch.device(device).type == "cuda"
    return f"{device} ({torch.cuda.get_device_name(device)})" if on_cuda else device


def save(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """As DATE-WHAT.json, .csv and .svg, with a number behind WHAT if there is one already."""
    first = f"{result['about']['date'][:10]}-{result['what']}"
    names = chain([first], (f"{first}-{number}" for number in count(2)))
    stem = next(name for name in names if not (folder / f"{name}.json").exists())
    files = {
        f"{stem}.json": json.dumps(result, indent=2) + "\n",
        f"{stem}.csv": as_csv(result["rows"]),
        **{f"{stem}{suffix}.svg": chart for suffix, chart in charts(result).items()},
    }
    for name, text in files.items():
        write_atomic(folder / name, text)
    return [folder / name for name in files]


def as_csv(rows: Sequence[Row]) -> str:
    """A line per contender, without the single rounds."""
    lines = [{key: value for key, value in flat(row).items() if not isinstance(value, list)} for row in rows]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def charts(result: Mapping[str, Any]) -> dict[str, str]:
    """SVG by the ending of its file's name."""
    rows = result["rows"]
    if result["what"] == "decode":
        return {"": by_round(rows, "decode", result["baseline"], "Decoding")}
    if result["what"] == "throughput":
        return {"": by_round(rows, "training", result["baseline"], "Forward + backward")}
    place, label = ("seq_len", "tokens in a sequence") if result["what"] == "lengths" else ("n_steps", "steps n")
    return {
        "-time": against(
            rows, place, label, "seconds of forward + backward", lambda row: spread(row["training"]["seconds"])
        ),
        "-speed": against(rows, place, label, "relative speed", lambda row: Spread(**row["training"]["relative"])),
        "-memory": against(rows, place, label, "peak memory, MB", lambda row: spread([row["memory"]["peak_mb"]])),
    }


def by_round(rows: Sequence[Row], measure: str, baseline: str, title: str) -> str:
    """Every contender's speed in every round, over the baseline's."""
    base = next(row for row in rows if row["name"] == baseline)[measure]["seconds"]
    series = []
    for row in rows:
        ratios = [b / own for b, own in zip(base, row[measure]["seconds"], strict=True)]
        series.append(Series(row["name"], list(enumerate(ratios, start=1))))
    return line_chart(series, "round", f"speed relative to {baseline}", title=title)


def against(rows: Sequence[Row], place: str, x_label: str, y_label: str, value: Callable[[Row], Spread]) -> str:
    """A curve with a band for each name, through the rows that have a `place`."""
    series = []
    for name in dict.fromkeys(row["name"] for row in rows if row[place] is not None):
        curve = [(row[place], value(row)) for row in rows if row["name"] == name]
        points, band = [(x, y.median) for x, y in curve], [(y.low, y.high) for _, y in curve]
        series.append(Series(name, points, band))
    doubling = place == "seq_len"
    return line_chart(series, x_label, y_label, doubling, doubling, title=f"{y_label} against {x_label}")
