"""The paper's ladder, and the rungs of a ladder that fit on this machine."""

import math

from ..costs import count_parameters
from ..errors import CoupledQKError
from ..outcome import Ladder, Published, Rung
from ..statistics import Estimate
from ..terminal import duration
from .cells import Plan, base_config, status
from .estimates import Speeds
from .experiment import Scale, load, scale_of
from .memory import least_memory, memory_here

DAY = 24.0
"""Maximum expected duration of a run in hours. Rungs with longer runs are skipped."""
PAPER = {"60M": "ablation", "150M": "medium", "350M": "large"}
"""The paper's three sizes, as named in the paper, and the experiments that contain their numbers."""


def paper_ladder() -> Ladder:
    """The paper's three sizes, each with an interval from its means and standard deviations over three seeds."""
    rungs = []
    for size, name in PAPER.items():
        scale = scale_of(load(name), "paper")
        ours, theirs = (scale.published[label] for label in ("hamiltonian", "standard"))
        estimate = _welch(ours, theirs)
        count = count_parameters(base_config(scale).model)
        rungs.append(Rung(size, count, estimate.value, estimate.interval(), theirs.n or 0))
    return Ladder("the paper", tuple(rungs))


def _welch(ours: Published, theirs: Published) -> Estimate:
    """The relative difference of two published means, with Welch's standard error and degrees of freedom."""
    if not all(each.std and each.n for each in (ours, theirs)):
        raise CoupledQKError("an interval requires the standard deviation and the number of seeds of both means")
    parts = [((each.std or 0) ** 2 / (each.n or 1), (each.n or 1) - 1) for each in (ours, theirs)]
    variance = sum(part for part, _ in parts)
    df = variance**2 / sum(part**2 / own for part, own in parts)
    return Estimate((ours.mean - theirs.mean) / theirs.mean, math.sqrt(variance) / theirs.mean, df)


def too_large(plan: Plan) -> dict[str, str]:
    """The rows of a ladder that cannot be trained on this machine, with the reason by label: a run requires more memory than
    available, or takes more than a day."""
    if not isinstance(plan.scale, Scale) or not plan.scale.ladders:
        return {}
    speeds, found = Speeds.of(plan.out / "runs"), {}
    for label in plan.labels:
        cells = [cell for cell in plan.own_cells if cell.label == label]
        if all(status(plan.run(cell)) == "finished" for cell in cells):
            continue
        config = cells[0].config
        if (needed := least_memory(config)) > (there := memory_here(config)):
            found[label] = (
                f"a run needs at least {needed / 2**30:.1f} GiB of memory, and {there / 2**30:.1f} GiB are available"
            )
        elif (hours := speeds.measure(config)) > DAY:
            found[label] = f"a run takes about {duration(3600 * hours)} on this machine, which is more than a day"
    return found
