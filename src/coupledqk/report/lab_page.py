"""The report on experiments: all claims with their verdicts, then the tables, curves and provenance of each experiment."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from ..errors import CoupledQKError
from ..files import write_atomic
from ..outcome import Finding, Outcome
from ..schema import flat
from .baselines import NOTE, baselines_table, models_of_rows, objections
from .claims_chart import claims_chart
from .figures import CLAIMS, figure_name
from .ladder import charts, ladder_table
from .page import plain, render
from .runs_page import shared_and_different
from .shifts import NOTE as SHIFTS_NOTE
from .shifts import shifts_table
from .tables import (
    UNTESTED,
    Table,
    claims_table,
    costs_table,
    finding,
    is_tested,
    latex,
    markdown,
    markdown_text,
    results_table,
    seeds_table,
)

ENDINGS = (".html", ".md", ".tex")


def write_report(outcomes: Sequence[Outcome], out: Path, figures: Path | None = None) -> None:
    """Writes the report in the format given by the ending of `out`. A Markdown report links to the figures in a folder."""
    if not outcomes:
        raise CoupledQKError("no outcomes given: name at least one outcome file, or a folder that contains some")
    if out.suffix not in ENDINGS:
        raise CoupledQKError(f"{out}: expected a name that ends in {', '.join(ENDINGS)}")
    if out.suffix == ".html":
        text = html_report(outcomes)
    elif out.suffix == ".md":
        text = markdown_report(outcomes, os.path.relpath(figures, out.parent) if figures else None)
    else:
        text = latex_report(outcomes)
    write_atomic(out, text)


def html_report(outcomes: Sequence[Outcome]) -> str:
    anchors = {place: f"experiment-{place}" for place in range(1, len(outcomes) + 1)}
    return render(
        "lab.html",
        title=title(outcomes),
        claims_chart=claims_chart(outcomes),
        count=count(outcomes),
        finding=finding,
        baselines_note=NOTE,
        shifts=shifts_table(outcomes),
        shifts_note=SHIFTS_NOTE,
        sections=[section(outcome, anchors[place]) for place, outcome in enumerate(outcomes, 1)],
    )


def title(outcomes: Sequence[Outcome]) -> str:
    return outcomes[0].title if len(outcomes) == 1 else f"{len(outcomes)} experiments on coupled queries and keys"


def count(outcomes: Sequence[Outcome]) -> str:
    """The number of claims by finding, such as "12 claims: 5 supported, 3 contradicted, 4 inconclusive"."""
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]
    found = [verdict.finding if is_tested(verdict) else UNTESTED for verdict in verdicts]
    if not found:
        return "No claims."
    if len(found) == 1:
        return f"One claim: {found[0]}."
    counts = [f"{found.count(word)} {word}" for word in (*get_args(Finding), UNTESTED) if word in found]
    return f"{len(found)} claims: {', '.join(counts)}."


def section(outcome: Outcome, anchor: str) -> dict[str, Any]:
    """The values that the page's template needs for one experiment."""
    labels, base = [row.label for row in outcome.rows], flat(outcome.config)
    by_label = {cell.label: cell.settings for cell in outcome.cells}
    keys = dict.fromkeys(key for settings in by_label.values() for key in settings if key != "seed")
    return {
        "anchor": anchor,
        "outcome": outcome,
        "claims": claims_table(outcome),
        "results": results_table(outcome),
        "baselines": baselines_table(models_of_rows(outcome)),
        "problems": problems(outcome),
        "charts": [panel.svg() for panel in charts(outcome)],
        "ladder": ladder_table(outcome) if outcome.ladders else None,
        "costs": costs_table(outcome),
        "seeds": seeds_table(outcome),
        "labels": labels,
        "config": base,
        "settings": shared_and_different(
            [{k: by_label.get(label, {}).get(k, base.get(k)) for k in keys} for label in labels]
        ),
        "origin": origin(outcome),
    }


def origin(outcome: Outcome) -> dict[str, Any]:
    where = flat(asdict(outcome.origin))
    return {"command": outcome.command, "date": outcome.date, **where, **flat({"coherence": outcome.coherence})}


def problems(outcome: Outcome) -> list[str]:
    """Notes on failed and missing runs."""
    lines = [
        f"{cell.label}, seed {cell.seed}, failed: {cell.error or 'the reason is not known'}"
        for cell in outcome.cells
        if cell.status == "failed"
    ]
    unfinished: dict[str, list[str]] = {}
    for cell in outcome.cells:
        if cell.status not in ("finished", "failed"):
            unfinished.setdefault(cell.label, []).append(f"{cell.seed} ({cell.status})")
    lines += [f"Not finished: {label}, seed {', '.join(seeds)}." for label, seeds in unfinished.items()]
    if outcome.rows and max(row.n for row in outcome.rows) == 1:
        lines.append("One seed does not support a claim: differences of this size may be noise.")
    return lines + objections(models_of_rows(outcome))


def markdown_report(outcomes: Sequence[Outcome], figures: str | None = None) -> str:
    parts = [f"# {markdown_text(title(outcomes))}\n"]
    if claims := [(outcome.title, table) for outcome in outcomes if (table := claims_table(outcome)).rows]:
        parts += [f"{count(outcomes)}\n"]
        for name, table in claims:
            parts += [f"**{markdown_text(name)}**\n"] if len(outcomes) > 1 else []
            parts += [markdown(table)]
        if figures is not None and claims_chart(outcomes):
            parts += [f"![Effects of all tested claims]({figures}/{CLAIMS}.svg)\n"]
    if (shifts := shifts_table(outcomes)).rows:
        parts += [f"**{shifts.caption}.** {SHIFTS_NOTE}\n", markdown(shifts)]
    for outcome in outcomes:
        parts += [f"## {markdown_text(outcome.title)}\n"] if len(outcomes) > 1 else []
        paragraphs = [f"{outcome.source}, {outcome.scale} scale, {outcome.date}.", *outcome.answer, outcome.caption]
        parts += [f"{markdown_text(text)}\n" for text in paragraphs if text]
        parts += [markdown(results_table(outcome)), _definition(outcome)]
        parts += ["".join(f"- {markdown_text(line)}\n" for line in problems(outcome))]
        baselines = baselines_table(models_of_rows(outcome))
        parts += [markdown(baselines)] if baselines else []
        parts += [markdown(ladder_table(outcome))] if outcome.ladders else []
        parts += ["".join(_verdict_lines(outcome)), markdown(costs_table(outcome))]
        if figures is not None:
            names = [(panel.title, figure_name(outcome, panel)) for panel in charts(outcome)]
            parts += ["".join(f"![{markdown_text(text)}]({figures}/{name}.svg)\n" for text, name in names)]
        parts += ["".join(f"- {key}: {markdown_text(plain(value))}\n" for key, value in origin(outcome).items())]
    return "\n".join(part for part in parts if part)


def _definition(outcome: Outcome) -> str:
    metric = outcome.metric
    return f"{metric.name.capitalize()}: {markdown_text(metric.definition)}; {metric.better} is better.\n"


def _verdict_lines(outcome: Outcome) -> list[str]:
    return [
        f"{place}. **{markdown_text(verdict.claim.text)}** {finding(outcome, verdict).capitalize()}. "
        f"{markdown_text(verdict.sentence)}\n"
        for place, verdict in enumerate(outcome.verdicts, 1)
    ]


def latex_report(outcomes: Sequence[Outcome]) -> str:
    """The tables in LaTeX, for inclusion in a paper."""
    tables: list[Table] = []
    for outcome in outcomes:
        tables += [claims_table(outcome)] if outcome.verdicts else []
        tables += [results_table(outcome), costs_table(outcome)]
    if (shifts := shifts_table(outcomes)).rows:
        tables.append(shifts)
    return "% needs \\usepackage{booktabs}\n\n" + "\n".join(map(latex, tables))
