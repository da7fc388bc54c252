"""Writes the files of a result: JSON with all timings, CSV with the figures, and SVG charts."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_atomic
from ..provenance import commit, machine, versions
from ..schema import flat
from .charts import charts
from .records import About, DecodeRow, Result, ThroughputRow

if TYPE_CHECKING:
    from .contenders import Contender, Setup

LIBRARIES = {"llama": "transformers", "diffllama": "transformers", "x-transformers": "x-transformers"}
"""For each peer, the distribution that provides it."""
SHAPE = ("d_model", "n_heads", "n_layers", "d_ff", "vocab_size", "n_positions")


def about(preset: str, contenders: Sequence[Contender], setup: Setup, rounds: int) -> About:
    """The description of a benchmark, as far as it is known before timing."""
    libraries = sorted({LIBRARIES[contender.peer] for contender in contenders if contender.peer in LIBRARIES})
    return About(
        preset=preset,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit(),
        versions={**versions(), **{name: importlib.metadata.version(name) for name in libraries}},
        machine=machine(),
        device=device_name(setup.device),
        threads=setup.threads,
        precision=setup.precision,
        rounds=rounds,
        model={name: getattr(contenders[0].config, name) for name in SHAPE},
    )


def device_name(device: str) -> str:
    import torch

    on_cuda = torch.device(device).type == "cuda"
    return f"{device} ({torch.cuda.get_device_name(device)})" if on_cuda else device


def save(result: Result, folder: Path) -> list[Path]:
    """Writes DATE-WHAT.json, .csv and .svg, with a number after WHAT if the folder already has such a result.

    A result for compiled models is named DATE-WHAT-compiled.
    """
    first = f"{result.about.date[:10]}-{result.what}{'-compiled' if result.about.compiled else ''}"
    names = chain([first], (f"{first}-{number}" for number in count(2)))
    stem = next(name for name in names if not (folder / f"{name}.json").exists())
    files = {
        f"{stem}.json": json.dumps(asdict(result), indent=2) + "\n",
        f"{stem}.csv": as_csv(result.rows),
        **{f"{stem}{suffix}.svg": chart for suffix, chart in charts(result).items()},
    }
    for name, text in files.items():
        write_atomic(folder / name, text)
    return [folder / name for name in files]


def as_csv(rows: Sequence[ThroughputRow | DecodeRow]) -> str:
    """One line per row, without the timings of individual rounds."""
    lines = [{key: value for key, value in flat(asdict(row)).items() if not isinstance(value, tuple)} for row in rows]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
