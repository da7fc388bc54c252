"""Prints the tables of docs/performance.md as Markdown, from result files.

Training speeds are relative to standard, with a column for eager and one for compiled models. Each is the median over launches
with its interval, or the median over rounds with quartiles in files of one launch. Decoding speeds are relative to the
file's baseline. If several files contain the same row, the speed with the most timings and the last measured memory are used.

    python benchmarks/summary.py results/bench/2026-11-16-throughput-2.json results/bench/2026-11-17-throughput.json
    python benchmarks/summary.py results/bench/2026-11-16-decode-3.json
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coupledqk.bench.benchmark import paper_ratios
from coupledqk.bench.conditions import verdict
from coupledqk.bench.records import DecodeResult, Result, Speed, ThroughputResult, ThroughputRow, read_result
from coupledqk.formats import NOTHING

PAPER_STEPS = (None, 3)
"""Numbers of steps for which the paper reports a speed."""


@dataclass
class Line:
    """The measurements of one attention variant or peer."""

    timings: int = 0
    eager: str = NOTHING
    compiled: str = NOTHING
    bound: str = NOTHING
    memory: str = NOTHING
    paper: tuple[str, str] = (NOTHING, NOTHING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON files written by `coupledqk bench --save`")
    options = parser.parse_args()
    results = {path: read_result(path) for path in options.files}
    training = [result for result in results.values() if isinstance(result, ThroughputResult)]
    if training:
        print(training_table(training), end="\n\n")
    for result in results.values():
        if isinstance(result, DecodeResult):
            cells = [[f"`{row.name}`", speed_cell(row.decode)] for row in result.rows]
            print(markdown(["", f"relative to {result.baseline}"], cells), end="\n\n")
    for path, result in results.items():
        print(f"- `{path.name}`: {source(result)}")


def training_table(results: Sequence[ThroughputResult]) -> str:
    lines: dict[str, Line] = {}
    for result in results:
        for row in result.rows:
            fill(lines.setdefault(label(row), Line()), row, result.about.compiled)
    head = ["", "eager", "compiled", "matmul-bound estimate", "peak memory", "paper (GPU): speed", "memory"]
    cells = [[name, line.eager, line.compiled, line.bound, line.memory, *line.paper] for name, line in lines.items()]
    return markdown(head, cells)


def fill(line: Line, row: ThroughputRow, compiled: bool) -> None:
    if compiled:
        line.compiled = speed_cell(row.training)
        return
    if len(row.training.seconds) >= line.timings:
        line.timings, line.eager = len(row.training.seconds), speed_cell(row.training)
    line.bound = f"{row.arithmetic.recomputing:.2f}"
    if row.memory is not None and row.relative_memory is not None:
        line.memory = f"{row.relative_memory:.2f} ({row.memory.batch} × {row.seq_len})"
    paper = paper_ratios(row.name) if row.n_steps in PAPER_STEPS else None
    if paper is not None:
        line.paper = (f"{paper.training:.2f}", f"{paper.peak_mb:.2f}")


def label(row: ThroughputRow) -> str:
    return f"`{row.name}`" if row.n_steps is None else f"`{row.name}`, n = {row.n_steps}"


def speed_cell(speed: Speed) -> str:
    relative = speed.over_launches or speed.relative
    return f"{relative.median:.3f} ({relative.low:.3f}–{relative.high:.3f})"


def source(result: Result) -> str:
    about = result.about
    commit = (about.commit or "unknown")[:12]
    told = verdict(about.conditions) if result.format > 1 else "it is not recorded whether the machine was busy"
    return f"{about.launches} launch(es) of {about.rounds} rounds, {about.device}, commit {commit}; {told}"


def markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


if __name__ == "__main__":
    main()
