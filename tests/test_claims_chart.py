"""The chart of claims shows the numbers of the table of claims."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from coupledqk.outcome import Claim
from coupledqk.report.claims_chart import claims_chart
from coupledqk.report.lab_page import html_report
from test_lab_report import make_outcome

LOWER = Claim("coupling <lowers> perplexity", "lower", "hamiltonian", "standard", paper_effect=-0.06, primary=True)
HIGHER = Claim("gqa has a higher perplexity", "higher", "gqa", "standard")
FIGURE = '<figure class="plot claims-chart">'
MEANS = {"standard": 40.0, "hamiltonian": 38.0, "gqa": 40.0}


def positions(chart: str, mark: str) -> list[float]:
    return [float(x) for x in re.findall(rf'<path class="{mark}"[^>]* d="M([\d.]+) ', chart)]


def test_effects_intervals_and_published_effects_share_one_scale() -> None:
    outcome = make_outcome(MEANS, claims=[LOWER, HIGHER])
    chart = claims_chart([outcome])
    assert chart is not None
    ElementTree.fromstring(chart)  # well-formed, although a claim contains <
    evidence = [verdict.evidence for verdict in outcome.verdicts if verdict.evidence]
    (low, high, effect), (zero, published) = (
        [float(x) for x in re.findall(r'class="line" d="M([\d.]+) \d+H([\d.]+)', chart)[0]] + positions(chart, "marks")[:1],
        positions(chart, "axis"),
    )  # fmt: skip
    per_point = (published - zero) / -6
    expected = [100 * value for value in (*evidence[0].interval, evidence[0].effect)]
    assert [(x - zero) / per_point for x in (low, high, effect)] == pytest.approx(expected, abs=0.05)
    assert all(f">{verdict.finding}</text>" in chart for verdict in outcome.verdicts)


def test_a_huge_interval_does_not_hide_the_others() -> None:
    outcome = make_outcome({**MEANS, "diff": 40.0}, claims=[LOWER, HIGHER, replace(HIGHER, variant="diff")])
    *others, last = outcome.verdicts
    assert last.evidence is not None
    huge = replace(last, evidence=replace(last.evidence, interval=(-50.0, 50.0)))
    chart = claims_chart([replace(outcome, verdicts=(*others, huge))])
    assert chart is not None
    widths = [float(high) - float(low) for low, high in re.findall(r'class="line" d="M([\d.]+) \d+H([\d.]+)', chart)]
    assert widths[2] == max(widths)
    assert min(widths) > max(widths) / 20
    pair = claims_chart([replace(outcome, verdicts=(others[0], huge))])
    assert pair is not None
    low, high = map(float, re.findall(r'class="line" d="M([\d.]+) \d+H([\d.]+)', pair)[0])
    assert high - low > 50, "one of two intervals is huge"


def test_claims_about_the_spread_over_seeds_are_left_out() -> None:
    spread = replace(HIGHER, kind="less_variable")
    outcome = make_outcome(MEANS, claims=[LOWER, spread])
    assert outcome.verdicts[1].evidence is not None
    assert claims_chart([outcome]) == claims_chart([make_outcome(MEANS, claims=[LOWER])])


def test_claims_that_could_not_be_tested_are_left_out() -> None:
    alone = make_outcome(MEANS, claims=[LOWER], seeds=[0])
    assert claims_chart([alone]) is None
    assert FIGURE not in html_report([alone, alone])
    both = html_report([make_outcome(MEANS, claims=[LOWER]), replace(alone, experiment="other")])
    assert both.count(FIGURE) == 1
    assert "ablation: hamiltonian against standard" in both


@pytest.mark.parametrize(
    ("variant", "baseline", "expected"),
    [
        ("hamiltonian", "standard", "hamiltonian against standard"),
        ("lora + coupling on QNLI", "lora on QNLI", "lora + coupling against lora, on QNLI"),
        (
            "euler, 0.4M, learned positions",
            "gqa, 0.4M, learned positions",
            "euler against gqa, 0.4M, learned positions",
        ),
    ],
)
def test_the_common_part_of_two_labels_is_named_once(variant: str, baseline: str, expected: str) -> None:
    outcome = make_outcome({variant: 40.0, baseline: 41.0}, claims=[replace(LOWER, variant=variant, baseline=baseline)])
    chart = claims_chart([outcome, replace(outcome, experiment="other")])
    assert chart is not None
    assert f">ablation: {expected}</text>" in chart


def test_claims_that_differ_only_at_their_end_have_different_labels() -> None:
    text = "coupled queries and keys lead to a lower perplexity than standard ones against "
    claims = [replace(LOWER, text=f"{text}{name}", baseline=name) for name in ("standard", "gqa")]
    claims[1] = replace(claims[1], primary=False)
    chart = claims_chart([make_outcome(MEANS, claims=claims)])
    assert chart is not None
    assert all(f">hamiltonian against {name}</text>" in chart for name in ("standard", "gqa"))
