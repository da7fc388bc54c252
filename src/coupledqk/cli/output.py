"""How commands print."""

import statistics
from collections.abc import Sequence

from ..run_folder import RunFolder, measure_name
from ..terminal import table


def mean_and_std(values: Sequence[float]) -> str:
    """With ddof 1; the value alone if there is only one."""
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.4f}"


def results_table(runs: Sequence[RunFolder]) -> str:
    """One row per finished run of one task: best and final measure, parameters, speed."""
    measure = measure_name(runs[0].config)
    beside, form = ("bits_per_byte", ".2f") if measure == "perplexity" else ("loss", ".4f")
    rows = []
    for run in runs:
        best, final, speed = run.result["best"], run.result["final"], run.result["tokens_per_second"]
        rows.append(
            [
                run.info["variant"],
                str(run.config.seed),
                f"{best[measure]:{form}}",
                f"{final[measure]:{form}}",
                f"{best[beside]:.4f}",
                f"{run.info['parameters']:,}",
                f"{speed:,.0f}" if speed else "",
            ]
        )
    head = ["attention", "seed", f"{measure}: best", "final", beside.replace("_", " "), "parameters", "tokens/s"]
    return f"{table(head, rows)}\n\n{measure.capitalize()}: {runs[0].result['definition']}."
