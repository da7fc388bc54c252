"""What `coupledqk bench` prints."""

from typing import Any

from .output import table

Row = dict[str, Any]

RELATIVE = "relative: to {baseline}, the median of the ratios within a round, with their quartiles"
ARITHMETIC = (
    "arithmetic: relative, if matrix products took all the time; in brackets with what the fused dynamics recompute"
)
PAPER = "paper: relative, for 8 × 512 tokens on an RTX 2080 Ti"


def report(result: dict[str, Any]) -> str:
    """The tables, with all that a reader needs to judge the figures."""
    about, model = result["about"], result["about"]["model"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    sha, plus, changes = (about["commit"] or "unknown").partition("+")
    head = [
        f"{about['preset']}: d_model {model['d_model']}, {model['n_heads']} heads, {model['n_layers']} layers, "
        f"d_ff {model['d_ff']}, {model['vocab_size']:,} tokens",
        f"{about['device']}, {about['threads']} CPU thread(s), {about['precision']}, {about['rounds']} rounds",
        about["machine"],
        f"{versions}, commit {sha[:12]}{plus}{changes}, {about['date']}",
    ]
    write = {"throughput": throughput_text, "decode": decode_text}.get(result["what"], growth_text)
    return "\n\n".join(["\n".join(head), write(result["rows"]).format(baseline=result["baseline"])])


def throughput_text(rows: list[Row]) -> str:
    size, memory_size = (
        f"{batch} × {rows[0]['seq_len']} tokens" for batch in (rows[0]["batch"], rows[0]["memory"]["batch"])
    )
    head = ["attention", "parameters", "tokens/s", "relative", "", "arithmetic", "paper"]
    tables = []
    for measure, title in (("forward", "Forward, without gradients"), ("training", "Forward + backward")):
        cells = [
            [row["name"], f"{row['parameters']:,}", *speed(row[measure]), arithmetic(row, measure), paper(row, measure)]
            for row in rows
        ]
        tables.append(f"{title}, {size}\n\n{table(head, cells)}")
    cells = [[row["name"], *memory(row), paper(row, "peak_mb")] for row in rows]
    title = f"Peak memory of forward + backward, {memory_size}"
    tables.append(f"{title}\n\n{table(['attention', 'MB', 'relative', 'paper'], cells)}")
    return "\n\n".join(
        [*tables, "\n".join([RELATIVE, ARITHMETIC, *([PAPER] if any(row["paper"] for row in rows) else [])])]
    )


def growth_text(rows: list[Row]) -> str:
    head = ["attention", "n", "tokens", "tokens/s", "relative", "", "arithmetic", "peak MB", "relative"]
    cells = [
        [
            row["name"],
            str(row["n_steps"] or ""),
            f"{row['batch']} × {row['seq_len']}",
            *speed(row["training"]),
            arithmetic(row, "training"),
            *memory(row),
        ]
        for row in rows
    ]
    return f"Forward + backward\n\n{table(head, cells)}\n\n{RELATIVE}\n{ARITHMETIC}"


def decode_text(rows: list[Row]) -> str:
    title = f"Greedy decoding with the cache: {rows[0]['new_tokens']} tokens after a prompt of {rows[0]['prompt']}"
    cells = [[row["name"], f"{row['parameters']:,}", *speed(row["decode"])] for row in rows]
    return f"{title}\n\n{table(['attention', 'parameters', 'tokens/s', 'relative', ''], cells)}\n\n{RELATIVE}"


def speed(measured: dict[str, Any]) -> list[str]:
    relative = measured["relative"]
    return [
        f"{measured['tokens_per_second']:,.0f}",
        f"{relative['median']:.3f}",
        f"{relative['low']:.3f}–{relative['high']:.3f}",
    ]


def memory(row: Row) -> list[str]:
    return [f"{row['memory']['peak_mb']:,.0f}", f"{row['relative_memory']:.2f}"]


def arithmetic(row: Row, measure: str) -> str:
    plain, recomputing = row["arithmetic"][measure], row["arithmetic"]["recomputing"]
    return f"{plain:.3f}" if measure == "forward" or plain == recomputing else f"{plain:.3f} ({recomputing:.3f})"


def paper(row: Row, measure: str) -> str:
    return f"{row['paper'][measure]:.2f}" if row["paper"] else ""
