"""How commands print."""

from collections.abc import Sequence

from ..runs import Run


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(head), "  ".join("─" * width for width in widths), *map(line, rows)])


def results_table(runs: Sequence[Run]) -> str:
    """One row per finished run: best and final validation perplexity, bits per byte, parameters, speed."""
    rows = []
    for run in runs:
        best, final, info = run.result["best"], run.result["final"], run.info
        speed = run.result["tokens_per_second"]
        rows.append(
            [
                info["variant"],
                str(run.config.seed),
                f"{best['perplexity']:.2f}",
                f"{final['perplexity']:.2f}",
                f"{best['bits_per_byte']:.4f}",
                f"{info['parameters']:,}",
                f"{speed:,.0f}" if speed else "",
            ]
        )
    head = ["attention", "seed", "perplexity: best", "final", "bits per byte", "parameters", "tokens/s"]
    return f"{table(head, rows)}\n\nPerplexity: {runs[0].result['perplexity_definition']}."
