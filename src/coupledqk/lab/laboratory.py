"""Runs experiments. Notebooks and all commands that train several runs use the same function."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..config import MOST_JOBS
from ..errors import CoupledQKError
from ..outcome import Outcome
from ..outcome_file import read
from ..provenance import available_cores
from ..schema import seeds_text
from .cells import Plan, make_plan
from .engine import Engine, LocalPool
from .experiment import Experiment, load
from .ladder import too_large
from .machines import LOCAL, Machines
from .memory import fit_together
from .overview import GridProgress, Silent
from .profiles import measure_attention
from .reuse import with_reused, write_outcome
from .runner import Overview, Queue, left_out, run_queue, stale


def run_experiment(
    experiment: Experiment | str | Path,
    scale: str | None = None,
    out: str | Path = "lab",
    *,
    seeds: Sequence[int] = (),
    rows: Sequence[str] = (),
    data_dir: str | Path | None = None,
    compiled: bool = False,
    reuse: Sequence[str | Path] = (),
    jobs: int | None = None,
    machines: Machines = LOCAL,
    progress: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Trains the runs of an experiment that are not finished yet, in parallel, and returns its outcome.

    `experiment` is the name of an experiment in the package, a TOML file, or an `Experiment`; `scale` is its first scale by
    default. Runs are stored in OUT/runs and the outcome in OUT/NAME-SCALE.json. Calling it again resumes interrupted runs and
    skips finished ones. A run that failed is a cell of the outcome with status "failed" and the error. `compiled` compiles the
    models with torch.compile. `reuse` are outcome files, or folders of them, whose results are taken over instead of training
    their runs. `machines` selects where the runs are trained: `Machines("ray", address="HOST:PORT")` is a Ray cluster.
    """
    if not isinstance(experiment, Experiment):
        experiment = load(str(experiment))
    if not experiment.scales:
        raise CoupledQKError(f"{experiment.name} trains nothing: run it with `coupledqk reproduce {experiment.name}`")
    data = None if data_dir is None else Path(data_dir)
    plan = make_plan(experiment, scale or next(iter(experiment.scales)), Path(out), seeds, data, rows, compiled)
    (plan,) = with_reused([plan], [Path(path) for path in reuse])
    run_plans([plan], jobs, GridProgress() if progress else Silent(), stop, machines=machines)
    return read(plan.outcome)


def run_plans(
    plans: Sequence[Plan],
    jobs: int | None = None,
    overview: Overview | None = None,
    stop: Callable[[], bool] = lambda: False,
    done: Callable[[], bool] = lambda: False,
    machines: Machines = LOCAL,
) -> Queue:
    """Trains the runs of several plans in one queue; runs that plans have in common are trained once.

    Conditions that would make it fail after training are checked first. `done` returns whether no more runs are needed.
    """
    if jobs is not None:
        check_jobs(jobs)
    require_statistics(plans)
    overview, queue = overview or GridProgress(), Queue.of(plans)
    for plan in plans:
        for line in notes(plan):
            overview.note(line)
    if machines.engine == "local":
        queue.fit_together = fit_together
        skipped = {plan.experiment.name: too_large(plan) for plan in plans}
        for name, rows in skipped.items():
            for label, reason in rows.items():
                overview.note(f"{name}: {label} is skipped: {reason}")
        queue.leave_out(skipped)
    run_queue(queue, open_engine(queue, jobs, machines), overview, stop, done)
    for plan in plans:
        if measure_attention(plan, overview.note):
            write_outcome(plan)
    return queue


def open_engine(queue: Queue, jobs: int | None, machines: Machines) -> Engine:
    """The engine that trains a queue. If no run is left to train, no cluster is contacted."""
    if machines.engine == "local" or not queue.waiting:
        return LocalPool(default_jobs(queue.plans) if jobs is None else jobs)
    configs = [cell.config for cell in queue.waiting]
    return machines.open_cluster(configs, jobs, queue.plans[0].out / "jobs")


def default_jobs(plans: Sequence[Plan]) -> int:
    """The number of cores divided by the number of threads per run; 1 if a run uses PyTorch's default number of threads."""
    threads = {cell.config.runtime.threads for plan in plans for cell in plan.cells}
    return 1 if None in threads else max(1, available_cores() // max(count or 1 for count in threads))


def check_jobs(jobs: int) -> None:
    if not 1 <= jobs <= MOST_JOBS:
        raise CoupledQKError(f"--jobs {jobs}: expected 1 to {MOST_JOBS:,}")


def require_statistics(plans: Sequence[Plan]) -> None:
    """Raises if the claims of a plan cannot be tested because SciPy is missing."""
    from ..statistics import scipy_special

    if any(plan.scale.claims for plan in plans):
        scipy_special()


def notes(plan: Plan) -> list[str]:
    """Notes for the user before a plan is run."""
    name, lines = plan.experiment.name, []
    if n_reused := len(plan.cells) - len(plan.own_cells):
        sources = ", ".join(outcome.name for outcome in plan.reused)
        lines.append(f"{name}: {n_reused} of {len(plan.cells)} results are taken from {sources}")
    if old := stale(plan):
        lines.append(
            f"{name}: its grid has changed since {plan.outcome} was written; these runs are no longer part of it and stay on "
            f"disk: {', '.join(old)}"
        )
    if more := left_out(plan):
        rows = "; ".join(f"{label}: {seeds_text(seeds)}" for label, seeds in more.items())
        lines.append(
            f"{name}: seeds that were trained before and are left out now ({rows}); --seeds with --rows adds them"
        )
    results = {(cell.label, cell.seed) for cell in plan.cells} | plan.reused_results
    few = [label for label in plan.labels if sum(of == label for of, _ in results) < 2]
    if few and plan.scale.claims:
        lines.append(
            f"{name}: one seed of {', '.join(few)}; a test requires at least two, so claims about such rows are not tested"
        )
    return lines
