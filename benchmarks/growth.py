"""Scaling of time and memory of forward + backward with the sequence length, the number of steps, the width and the depth.

Runs four sweeps of `coupledqk bench` with standard, euler and hamiltonian at preset tiny with 8,192 tokens, and saves each
before the next begins. The slopes are least-squares fits with 95% intervals from their residuals. For length and width they are
exponents (log-log fits). For steps and layers they are linear: the cost of each additional step or layer, as a share of the
time or memory of the smallest standard model. The figure DATE-growth.svg shows all curves.

    python benchmarks/growth.py --save results/bench
    python benchmarks/growth.py --only widths depths --save results/bench
    python benchmarks/growth.py --fit results/bench/2026-11-16-lengths.json results/bench/2026-11-16-n-steps.json
"""

import argparse
from dataclasses import replace
from pathlib import Path

from coupledqk.bench.benchmark import Benchmark
from coupledqk.bench.charts import charts
from coupledqk.bench.conditions import verdict
from coupledqk.bench.records import ThroughputResult, read_result
from coupledqk.bench.results import save
from coupledqk.bench.sweeps import slopes
from coupledqk.files import write_atomic
from coupledqk.report.chart import chart_grid
from coupledqk.terminal import table

COMMON = Benchmark("tiny", 8192, ("euler", "hamiltonian"), batch=1, rounds=3, training_only=True)
SWEEPS = {
    "lengths": replace(COMMON, lengths=(256, 512, 1024, 2048, 4096, 8192), rounds=2),
    "n-steps": replace(COMMON, n_steps=(1, 2, 4, 8, 16)),
    "widths": replace(COMMON, widths=(128, 256, 512, 1024)),
    "depths": replace(COMMON, depths=(2, 4, 8, 16)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS), help="sweeps to measure")
    parser.add_argument("--fit", nargs="+", type=Path, default=[], help="results to fit instead of measuring")
    parser.add_argument("--save", type=Path, help="folder for the results and the figure")
    options = parser.parse_args()
    results = [read_result(path) for path in options.fit]
    for name in [] if options.fit else options.only:
        result = SWEEPS[name].measure(lambda text, name=name: print(f"{name}: {text}", flush=True))
        results.append(result)
        if options.save is not None:
            print(*save(result, options.save), sep="\n")
    found = [result for result in results if isinstance(result, ThroughputResult)]
    print(slope_table(found))
    for result in found:
        print(f"{result.what}: {verdict(result.about.conditions)}")
    if options.save is not None:
        path = options.save / f"{found[-1].about.date[:10]}-growth.svg"
        write_atomic(path, figure(found))
        print(path)


def slope_table(results: list[ThroughputResult]) -> str:
    cells = [
        [result.what, each.name, each.quantity, each.scale, f"{each.slope:.3f}", f"{each.low:.3f}–{each.high:.3f}"]
        for result in results
        for each in slopes(result)
    ]
    return table(["against", "attention", "of", "scale", "slope", "95% interval"], cells)


def figure(results: list[ThroughputResult]) -> str:
    """A figure with one row per sweep: time and memory."""
    drawn = [charts(result) for result in results]
    return chart_grid([chart for each in drawn for suffix, chart in each.items() if suffix != "-speed"], columns=2)


if __name__ == "__main__":
    main()
