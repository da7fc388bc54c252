"""Draws figures of the documentation: python docs/images/draw.py [FOLDER]

orbits.svg shows the dynamics, effects.svg the effects on perplexity that results/lab contains with enough pairs of seeds, and
ladder.svg the effect by model size.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from coupledqk import evolve
from coupledqk.measure import PERPLEXITY
from coupledqk.outcome import Outcome
from coupledqk.outcome_file import read, read_all
from coupledqk.report.chart import Series, line_chart
from coupledqk.report.claims_chart import claims_chart
from coupledqk.report.ladder import ladder_panel

RESULTS, ENOUGH = Path(__file__).parents[2] / "results" / "lab", 8
STEPS, STEP_SIZE, START = 44, 0.3, (1.0, 0.0)


def force(q: torch.Tensor) -> torch.Tensor:
    return -torch.tanh(q)


def orbit(method: str) -> list[tuple[float, float]]:
    """One coordinate of a query and of its key, after each step."""
    q, k = (torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in START)
    points = [START]
    for _ in range(STEPS):
        q, k = evolve(q, k, STEP_SIZE, force, n_steps=1, method=method)
        points.append((q.item(), k.item()))
    return points


def outcomes() -> list[Outcome]:
    """The outcomes on perplexity, with the claims that were tested with at least `ENOUGH` pairs of seeds.

    A comparison that several experiments contain is shown once.
    """
    found, shown = [], set()
    for outcome in (each for each in read_all(RESULTS) if each.metric.key == PERPLEXITY.key):
        verdicts = []
        for verdict in outcome.verdicts:
            evidence = verdict.evidence
            if evidence and min(evidence.n) >= ENOUGH and (evidence.effect, evidence.n) not in shown:
                verdicts.append(verdict)
                shown.add((evidence.effect, evidence.n))
        if verdicts:
            found.append(replace(outcome, verdicts=tuple(verdicts)))
    return found


def draw(folder: Path) -> None:
    series = [Series("leapfrog", orbit("leapfrog")), Series("Euler", orbit("euler"))]
    title = f"q′ = k, k′ = −tanh(q): {STEPS} steps of {STEP_SIZE}"
    chart = line_chart(series, "query coordinate q", "key coordinate k", title=title)
    (folder / "orbits.svg").write_text(chart, "utf-8")
    (folder / "effects.svg").write_text(claims_chart(outcomes()) or "", "utf-8")
    ladder = ladder_panel(read(RESULTS / "ladder-mini.json"))
    (folder / "ladder.svg").write_text(ladder.svg() if ladder else "", "utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
