"""Cost of an engine for the start of a grid and for the training of its runs, with Ray and with the local pool.

The same runs are trained by worker processes of the local pool and as tasks of a Ray instance on this machine, in turn
for several rounds. The time of a grid has three parts: the start, until the first run has taken a step; training, until the
last run has finished; and the end, until the engine has stopped. Start and end do not depend on the length of the runs. Each
run has one thread, and both engines train as many runs at a time. The tokens are prepared before anything is timed.

    python benchmarks/engines.py --save results/bench
    python benchmarks/engines.py --runs 4 --steps 50 --rounds 1

It takes about 15 minutes on two idle cores, with runs of one minute. The figures are meaningless on a busy machine.
"""

import argparse
import datetime
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from coupledqk.config import text_of
from coupledqk.data.shards import prepare
from coupledqk.lab.cells import Cell, Plan, make_plan
from coupledqk.lab.engine import Engine, LocalPool
from coupledqk.lab.engine_ray import RayEngine
from coupledqk.lab.experiment import Experiment, ListedScale
from coupledqk.lab.overview import Silent
from coupledqk.lab.runner import Queue, run_queue
from coupledqk.measure import PERPLEXITY
from coupledqk.provenance import available_cores, commit, machine, versions
from coupledqk.recipes import recipe
from coupledqk.run_folder import RunFolder


@dataclass(frozen=True)
class Times:
    start: float
    """Seconds until the first run has taken a step."""
    training: float
    """Seconds from the first step until the last run has finished."""
    end: float
    """Seconds from the end of the last run until the engine has stopped."""


class Clock(Silent):
    """Records when the first run has taken a step and when the last run has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.first_step: float | None = None
        self.last_end = 0.0

    def step(self, cell: Cell, step: int) -> None:
        if step and self.first_step is None:
            self.first_step = time.perf_counter()

    def ended(self, cell: Cell, run: RunFolder, how: str, error: str | None) -> None:
        self.last_end = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=available_cores())
    parser.add_argument("--save", type=Path, help="folder for DATE-engines.md")
    options = parser.parse_args()
    engines: dict[str, Callable[[], Engine]] = {
        "local": lambda: LocalPool(options.jobs),
        "ray": lambda: RayEngine(None, options.jobs, cpus=1),
    }
    found: dict[str, list[Times]] = {name: [] for name in engines}
    with tempfile.TemporaryDirectory() as folder:
        for round_number in range(options.rounds):
            order = list(engines) if round_number % 2 == 0 else list(engines)[::-1]
            for name in order:
                plan = plan_of(Path(folder, f"{name}-{round_number}"), options.runs, options.steps)
                prepare(text_of(plan.cells[0].config))
                found[name].append(timed(plan, engines[name]))
    text = described(found, options)
    print(text)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        path = options.save / f"{datetime.date.today()}-engines.md"
        path.write_text(text + "\n")
        print(path)


def plan_of(out: Path, n_runs: int, steps: int) -> Plan:
    settings: dict[str, Any] = {"steps": steps, "eval_every": steps, "log_every": 1}
    settings |= {"threads": 1, "device": "cpu", "compile": False}
    cells = tuple(
        Cell("hamiltonian", seed, recipe("mini", "hamiltonian", seed=seed, **settings)) for seed in range(n_runs)
    )
    scale = ListedScale(PERPLEXITY, cells)
    return make_plan(Experiment("engines", "Engines", "benchmark", "", {"mini": scale}), "mini", out)


def timed(plan: Plan, open_engine: Callable[[], Engine]) -> Times:
    clock, began = Clock(), time.perf_counter()
    queue = Queue.of([plan])
    run_queue(queue, open_engine(), clock)
    stopped = time.perf_counter()
    assert not queue.troubles, queue.troubles
    assert clock.first_step is not None
    return Times(clock.first_step - began, clock.last_end - clock.first_step, stopped - clock.last_end)


def described(found: dict[str, list[Times]], options: argparse.Namespace) -> str:
    pairs = list(zip(found["ray"], found["local"], strict=True))
    start, end = (
        median(ray.start - local.start for ray, local in pairs),
        median(ray.end - local.end for ray, local in pairs),
    )
    ratio = median(ray.training / local.training for ray, local in pairs)
    whole = median(sum(astuple(ray)) / sum(astuple(local)) for ray, local in pairs)
    rows = [
        f"| {name} | {number} | {times.start:.1f} | {times.training:.1f} | {times.end:.1f} |"
        for name, all_times in found.items()
        for number, times in enumerate(all_times, 1)
    ]
    return "\n".join(
        [
            f"{options.runs} runs of {options.steps} steps (mini, hamiltonian), {options.jobs} at a time, one thread each.",
            f"{machine()}; {versions()}; commit {commit()}.",
            "",
            "| engine | round | start (s) | training (s) | end (s) |",
            "| --- | --: | --: | --: | --: |",
            *rows,
            "",
            f"Ray adds {start:.1f} s to the start, {100 * (ratio - 1):+.1f}% to training and {end:.1f} s to the end, "
            f"{100 * (whole - 1):+.1f}% in all (medians over rounds).",
        ]
    )


if __name__ == "__main__":
    main()
