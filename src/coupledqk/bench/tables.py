"""Benchmark results as text. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Literal

from ..terminal import table
from .records import DecodeResult, DecodeRow, Result, Speed, ThroughputRow

RELATIVE = "relative: to {baseline}, the median of the ratios within a round, with their quartiles"
MATMUL_BOUND = (
    "matmul-bound: relative speed if matrix products took all the time; in parentheses with those that the fused dynamics\n"
    "recompute"
)
PAPER = "paper: relative, for 8 × 512 tokens on an RTX 2080 Ti"


def report(result: Result) -> str:
    """The tables, with the machine, versions and settings a reader needs to judge the figures."""
    about, model = result.about, result.about.model
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    sha, plus, changes = (about.commit or "unknown").partition("+")
    head = [
        f"{about.preset}: d_model {model['d_model']}, {model['n_heads']} heads, {model['n_layers']} layers, "
        f"d_ff {model['d_ff']}, {model['vocab_size']:,} tokens",
        f"{about.device}, {about.threads} CPU thread(s), {about.precision}, {about.rounds} rounds",
        about.machine,
        f"{versions}, commit {sha[:12]}{plus}{changes}, {about.date}",
    ]
    if isinstance(result, DecodeResult):
        body = decode_table(result.rows)
    else:
        body = throughput_tables(result.rows) if result.what == "throughput" else growth_table(result.rows)
    text = "\n\n".join(["\n".join(head), body.format(baseline=result.baseline)])
    return text if about.device == "cpu" else f"To share this result, paste it into an issue:\n\n```\n{text}\n```"


def throughput_tables(rows: Sequence[ThroughputRow]) -> str:
    size, memory_size = (f"{batch} × {rows[0].seq_len} tokens" for batch in (rows[0].batch, rows[0].memory.batch))
    head = ["attention", "parameters", "tokens/s", "relative", "", "matmul-bound", "paper"]
    tables = []
    passes: dict[Literal["forward", "training"], str] = {
        "forward": "Forward, without gradients",
        "training": "Forward + backward",
    }
    for measure, title in passes.items():
        cells = [
            [
                row.name,
                f"{row.parameters:,}",
                *speed_cells(getattr(row, measure)),
                bound_cell(row, measure),
                paper_cell(row, measure),
            ]
            for row in rows
        ]
        tables.append(f"{title}, {size}\n\n{table(head, cells)}")
    cells = [[row.name, *memory_cells(row), paper_cell(row, "peak_mb")] for row in rows]
    title = f"Peak memory of forward + backward, {memory_size}"
    tables.append(f"{title}\n\n{table(['attention', 'MB', 'relative', 'paper'], cells)}")
    notes = [RELATIVE, MATMUL_BOUND, *([PAPER] if any(row.paper for row in rows) else [])]
    return "\n\n".join([*tables, "\n".join(notes)])


def growth_table(rows: Sequence[ThroughputRow]) -> str:
    head = ["attention", "n", "tokens", "tokens/s", "relative", "", "matmul-bound", "peak MB", "relative"]
    cells = [
        [
            row.name,
            str(row.n_steps or ""),
            f"{row.batch} × {row.seq_len}",
            *speed_cells(row.training),
            bound_cell(row, "training"),
            *memory_cells(row),
        ]
        for row in rows
    ]
    return f"Forward + backward\n\n{table(head, cells)}\n\n{RELATIVE}\n{MATMUL_BOUND}"


def decode_table(rows: Sequence[DecodeRow]) -> str:
    title = f"Greedy decoding with the cache: {rows[0].new_tokens} tokens after a prompt of {rows[0].prompt}"
    cells = [[row.name, f"{row.parameters:,}", *speed_cells(row.decode)] for row in rows]
    return f"{title}\n\n{table(['attention', 'parameters', 'tokens/s', 'relative', ''], cells)}\n\n{RELATIVE}"


def kernel_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of `dynamics.triton.compile_report`."""
    return table([name.replace("_", " ") for name in rows[0]], [list(map(str, row.values())) for row in rows])


def speed_cells(speed: Speed) -> list[str]:
    relative = speed.relative
    return [f"{speed.tokens_per_second:,.0f}", f"{relative.median:.3f}", f"{relative.low:.3f}–{relative.high:.3f}"]


def memory_cells(row: ThroughputRow) -> list[str]:
    return [f"{row.memory.peak_mb:,.0f}", f"{row.relative_memory:.2f}"]


def bound_cell(row: ThroughputRow, measure: Literal["forward", "training"]) -> str:
    plain, recomputing = getattr(row.arithmetic, measure), row.arithmetic.recomputing
    return f"{plain:.3f}" if measure == "forward" or plain == recomputing else f"{plain:.3f} ({recomputing:.3f})"


def paper_cell(row: ThroughputRow, measure: Literal["forward", "training", "peak_mb"]) -> str:
    return f"{getattr(row.paper, measure):.2f}" if row.paper else ""
