"""Formats benchmark results as text tables. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Literal

from ..formats import NOTHING
from ..terminal import table
from .conditions import verdict
from .records import DecodeResult, DecodeRow, Result, Speed, ThroughputRow

RELATIVE = "relative: speed or memory relative to {baseline}; for speeds, the median of the ratios within a round and quartiles"
OVER_LAUNCHES = (
    "relative: speed or memory relative to {baseline}; for speeds, the median over {launches} launches of the median ratio\n"
    "within a round, and its interval ({confidence:.0%} confidence)"
)
MATMUL_BOUND = (
    "matmul-bound: relative speed if matrix products took all the time; in parentheses, including those that the fused\n"
    "dynamics recompute"
)
PAPER = "paper: the same ratio in the paper, for 8 × 512 tokens on an RTX 2080 Ti"
COMPILED = "compile s: seconds of the first pass, including compilation with empty caches"


def report(result: Result) -> str:
    """The tables of a result, with the machine, versions and settings."""
    about, model = result.about, result.about.model
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    sha, plus, changes = (about.commit or "unknown").partition("+")
    launched = f"{about.launches} launches of {about.rounds} rounds" if about.launches > 1 else f"{about.rounds} rounds"
    head = [
        f"{about.preset}: d_model {model['d_model']}, {model['n_heads']} heads, {model['n_layers']} layers, "
        f"d_ff {model['d_ff']}, {model['vocab_size']:,} tokens",
        f"{about.device}, {about.threads} CPU thread(s){', bound to cores' if about.pinned else ''}, {about.precision}, "
        f"{'compiled, ' if about.compiled else ''}{launched}",
        about.machine,
        f"{versions}, commit {sha[:12]}{plus}{changes}, {about.date}",
        *([verdict(about.conditions)] if result.format > 1 else []),
        *about.notes,
    ]
    if isinstance(result, DecodeResult):
        speed, body = result.rows[0].decode, decode_table(result.rows)
    else:
        speed = result.rows[0].training
        body = throughput_tables(result.rows) if result.what == "throughput" else growth_table(result.rows)
    text = "\n\n".join(["\n".join(head), f"{body}\n{relative_note(speed).format(baseline=result.baseline)}"])
    return text if about.device == "cpu" else f"To share this result, paste it into an issue:\n\n```\n{text}\n```"


def relative_note(speed: Speed) -> str:
    """Explains the columns of relative speeds. `{baseline}` in the text is a placeholder."""
    over = speed.over_launches
    if over is None:
        return RELATIVE
    return OVER_LAUNCHES.format(baseline="{baseline}", launches=len(speed.by_launch), confidence=over.confidence)


def throughput_tables(rows: Sequence[ThroughputRow]) -> str:
    size = f"{rows[0].batch} × {rows[0].seq_len} tokens"
    passes: dict[Literal["forward", "training"], str] = {"training": "Forward + backward"}
    if rows[0].forward is not None:
        passes = {"forward": "Forward, without gradients", **passes}
    tables = [f"{title}, {size}\n\n{pass_table(rows, measure)}" for measure, title in passes.items()]
    if rows[0].memory is not None:
        cells = [[row.name, *memory_cells(row), paper_cell(row, "peak_mb")] for row in rows]
        title = f"Peak memory of forward + backward, {rows[0].memory.batch} × {rows[0].seq_len} tokens"
        tables.append(f"{title}\n\n{table(['attention', 'MB', 'relative', 'paper'], cells)}")
    notes = [MATMUL_BOUND]
    if any(row.paper for row in rows):
        notes.append(PAPER)
    if any(row.compile_seconds is not None for row in rows):
        notes.append(COMPILED)
    return "\n\n".join([*tables, "\n".join(notes)])


def pass_table(rows: Sequence[ThroughputRow], measure: Literal["forward", "training"]) -> str:
    compiled = measure == "training" and any(row.compile_seconds is not None for row in rows)
    head = ["attention", "parameters", "tokens/s", "relative", "", "matmul-bound", "paper"]
    cells = [
        [
            row.name,
            f"{row.parameters:,}",
            *speed_cells(getattr(row, measure)),
            bound_cell(row, measure),
            paper_cell(row, measure),
            *([f"{row.compile_seconds:.1f}" if row.compile_seconds is not None else NOTHING] if compiled else []),
        ]
        for row in rows
    ]
    return table([*head, *(["compile s"] if compiled else [])], cells)


def growth_table(rows: Sequence[ThroughputRow]) -> str:
    head = [
        "attention",
        "n",
        "width",
        "layers",
        "tokens",
        "tokens/s",
        "relative",
        "",
        "matmul-bound",
        "peak MB",
        "relative",
    ]
    cells = [
        [
            row.name,
            str(row.n_steps or ""),
            str(row.d_model or ""),
            str(row.n_layers or ""),
            f"{row.batch} × {row.seq_len}",
            *speed_cells(row.training),
            bound_cell(row, "training"),
            *memory_cells(row),
        ]
        for row in rows
    ]
    return f"Forward + backward\n\n{table(head, cells)}\n\n{MATMUL_BOUND}"


def decode_table(rows: Sequence[DecodeRow]) -> str:
    title = f"Greedy decoding with the cache: {rows[0].new_tokens} tokens after a prompt of {rows[0].prompt}"
    cells = [[row.name, f"{row.parameters:,}", *speed_cells(row.decode)] for row in rows]
    return f"{title}\n\n{table(['attention', 'parameters', 'tokens/s', 'relative', ''], cells)}\n"


def kernel_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Formats the rows of `dynamics.triton.compile_report` as a table."""
    return table([name.replace("_", " ") for name in rows[0]], [list(map(str, row.values())) for row in rows])


def speed_cells(speed: Speed) -> list[str]:
    relative = speed.over_launches or speed.relative
    return [f"{speed.tokens_per_second:,.0f}", f"{relative.median:.3f}", f"{relative.low:.3f}–{relative.high:.3f}"]


def memory_cells(row: ThroughputRow) -> list[str]:
    if row.memory is None or row.relative_memory is None:
        return [NOTHING, NOTHING]
    return [f"{row.memory.peak_mb:,.0f}", f"{row.relative_memory:.2f}"]


def bound_cell(row: ThroughputRow, measure: Literal["forward", "training"]) -> str:
    plain, recomputing = getattr(row.arithmetic, measure), row.arithmetic.recomputing
    return f"{plain:.3f}" if measure == "forward" or plain == recomputing else f"{plain:.3f} ({recomputing:.3f})"


def paper_cell(row: ThroughputRow, measure: Literal["forward", "training", "peak_mb"]) -> str:
    return f"{getattr(row.paper, measure):.2f}" if row.paper else ""
