"""Overhead of the laboratory over bare training, and the speedup from a second job.

The same cells of the mini recipe are trained three times: sequentially in this process without the laboratory, by the
laboratory with one job, and by the laboratory with several jobs. The overhead is the difference between the first two,
including the start of the worker process.

    python benchmarks/scheduling.py
    python benchmarks/scheduling.py --cells 12 --steps 464 --jobs 2
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from coupledqk.config import text_of
from coupledqk.data.shards import prepare
from coupledqk.lab.cells import Cell, Plan, make_plan
from coupledqk.lab.engine import LocalPool
from coupledqk.lab.experiment import Experiment, load
from coupledqk.lab.overview import GridProgress
from coupledqk.lab.runner import Queue, run_queue
from coupledqk.provenance import commit, machine, versions
from coupledqk.runs.training import train_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--steps", type=int, default=928)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        first = plan(out / "first", arguments.cells, arguments.steps)
        prepare(text_of(first.cells[0].config))
        bare = seconds(first, None)
        one = seconds(plan(out / "one", arguments.cells, arguments.steps), 1)
        several = seconds(plan(out / "several", arguments.cells, arguments.steps), arguments.jobs)
    print(f"{machine()}; {versions()}; commit {commit()}")
    print(
        f"{arguments.cells} cells of {arguments.steps} steps: {bare:.1f} s without the laboratory, {one:.1f} s with one job"
    )
    print(f"scheduling: {100 * (one - bare) / one:+.2f}% of the grid's wall-clock time")
    print(f"{arguments.jobs} jobs: {several:.1f} s, {one / several:.2f} × the speed of one job")


def plan(out: Path, n_cells: int, steps: int) -> Plan:
    """The first cells of the ablation experiment, with fewer steps."""
    experiment: Experiment = load("ablation")
    settings = {**experiment.scales["mini"].settings, "steps": steps, "warmup": steps // 15}
    scale = replace(experiment.scales["mini"], settings=settings)
    whole = make_plan(replace(experiment, scales={"mini": scale}), "mini", out)
    by_seed: list[Cell] = sorted(whole.cells, key=lambda cell: cell.seed)
    return replace(whole, cells=tuple(by_seed[:n_cells]))


def seconds(plan: Plan, jobs: int | None) -> float:
    start = time.perf_counter()
    if jobs is not None:
        run_queue(Queue.of([plan]), LocalPool(jobs), GridProgress())
    else:
        for cell in plan.cells:
            train_run(cell.config, plan.run(cell).path)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
