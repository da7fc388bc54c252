"""Verdicts for conclusive, inconclusive and unusable evidence, and their error rates."""

import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coupledqk import CoupledQKError
from coupledqk.lab.priors import MOST_DF, contrasts, outcome_prior
from coupledqk.lab.verdicts import judge, judge_all
from coupledqk.outcome import Claim, Outcome
from coupledqk.report.tables import finding
from coupledqk.schema import from_dict, to_dict
from coupledqk.statistics import Prior, paired, relative_differences, welch
from test_lab_report import make_outcome

SUPPORTED, CONTRADICTED, EQUIVALENT, OPEN = "supported", "contradicted", "equivalent", "inconclusive"
TRIALS = 2000
SLACK = 3 * math.sqrt(0.05 * 0.95 / TRIALS)  # three standard errors of a rate near 5%


def claim(kind="lower", paper_effect=None, **more):
    return Claim("a claim", kind, "coupled", "standard", paper_effect=paper_effect, **more)


def around(mean, spread, n=3):
    """Values by seed with exactly this mean and standard deviation."""
    steps = np.linspace(-1, 1, n)
    return dict(enumerate((mean + spread / steps.std(ddof=1) * steps).tolist()))


def against_standard(effect, spread, n=3):
    """Cells whose relative differences have exactly this mean and standard deviation."""
    standard = around(20, 0.5, n)
    differences = around(effect * 20, spread * 20, n)
    return {"standard": standard, "coupled": {seed: standard[seed] + differences[(seed * 2) % n] for seed in standard}}


def simulated(effects, n=5, spread=0.01, seed=0):
    """Random experiments: a value is the sum of an effect of the seed, the effect of the cell and noise."""
    rng = np.random.default_rng(seed)
    for _ in range(TRIALS):
        shared = rng.normal(20, 0.5, n)
        cells = {label: shared + 20 * (effect + rng.normal(0, spread / 2**0.5, n)) for label, effect in effects.items()}
        yield {label: dict(enumerate(values.tolist())) for label, values in cells.items()}


def rates(the_claim, experiments):
    outcomes = [judge(the_claim, samples).finding for samples in experiments]
    return {outcome: outcomes.count(outcome) / len(outcomes) for outcome in (SUPPORTED, CONTRADICTED, EQUIVALENT, OPEN)}


@pytest.mark.parametrize(
    ("the_claim", "effect", "spread", "outcome"),
    [
        (claim("lower", -0.066), -0.066, 0.001, SUPPORTED),
        (claim("lower", -0.066), -0.010, 0.001, SUPPORTED),  # on the claimed side, but smaller than in the paper
        (claim("lower", -0.066), 0.000, 0.001, CONTRADICTED),  # excludes the paper's effect
        (claim("lower", -0.066), 0.010, 0.001, CONTRADICTED),  # on the opposite side
        (claim("lower", -0.066), -0.030, 0.020, OPEN),
        (claim("lower"), 0.000, 0.010, OPEN),  # nothing published to exclude
        (claim("lower"), 0.000, 0.001, EQUIVALENT),
        (claim("lower"), -0.005, 0.001, EQUIVALENT),  # a difference within the margin
        (claim("lower"), 0.010, 0.001, CONTRADICTED),
        (claim("higher", 0.018), 0.018, 0.001, SUPPORTED),
        (claim("higher", 0.018), -0.018, 0.001, CONTRADICTED),
        (claim("higher", 0.018), 0.010, 0.010, OPEN),
        (claim("equal"), 0.000, 0.001, SUPPORTED),
        (claim("equal"), 0.005, 0.001, SUPPORTED),  # a difference within the margin
        (claim("equal"), 0.005, 0.010, OPEN),
        (claim("equal", margin=0.001), 0.005, 0.001, CONTRADICTED),
        (claim("equal"), -0.020, 0.001, CONTRADICTED),
    ],
)
def test_findings_by_claim_effect_and_spread(the_claim, effect, spread, outcome) -> None:
    verdict = judge(the_claim, against_standard(effect, spread))
    assert verdict.finding == outcome
    assert verdict.evidence.effect == pytest.approx(effect, abs=1e-12)
    assert verdict.evidence.paired
    assert verdict.evidence.n == (3, 3)


PUBLISHED = {
    "standard": around(24.22, 0.12),
    "mlp_only": around(23.81, 0.31, 10),
    "euler": around(22.55, 0.04),
    "hamiltonian": around(22.62, 0.04),
    "web/standard": around(40.64, 0.23),
    "web/hamiltonian": around(44.85, 0.14),
}


@pytest.mark.parametrize(
    ("of_the_paper", "effect", "outcome"),
    [
        (Claim("coupling helps", "lower", "hamiltonian", "standard", paired=False), 22.62 / 24.22 - 1, SUPPORTED),
        (Claim("coupled ≫ uncoupled", "lower", "hamiltonian", "mlp_only", paired=False), 22.62 / 23.81 - 1, SUPPORTED),
        (Claim("Euler ≈ Hamiltonian", "equal", "euler", "hamiltonian", paired=False), 22.55 / 22.62 - 1, SUPPORTED),
        (Claim("8× variance", "less_variable", "hamiltonian", "mlp_only"), 0.04 / 0.31 - 1, SUPPORTED),
        (Claim("steadier than standard", "less_variable", "hamiltonian", "standard"), 0.04 / 0.12 - 1, OPEN),
    ],
)
def test_findings_for_the_papers_own_numbers(of_the_paper, effect, outcome) -> None:
    verdict = judge(of_the_paper, PUBLISHED)
    assert verdict.finding == outcome
    assert verdict.evidence.effect == pytest.approx(effect)
    assert not verdict.evidence.paired


@pytest.mark.parametrize("by_seed", [True, False])
def test_an_interaction_is_the_difference_of_two_relative_effects(by_seed) -> None:
    corpus = Claim(
        "coherent corpora gain",
        "interaction",
        "hamiltonian",
        "standard",
        ("web/hamiltonian", "web/standard"),
        -0.17,
        paired=by_seed,
    )
    rng = np.random.default_rng(0)
    samples = {label: dict(enumerate(rng.normal(x[1], 0.2, 4).tolist())) for label, x in PUBLISHED.items()}
    verdict = judge(corpus, samples)
    here, there = (
        relative_differences(list(samples[a].values()), list(samples[b].values()))
        for a, b in (("hamiltonian", "standard"), ("web/hamiltonian", "web/standard"))
    )
    expected = (paired if by_seed else welch)(here, there)
    assert verdict.evidence.effect == pytest.approx(expected.value)
    assert verdict.evidence.interval == pytest.approx(expected.interval())
    assert verdict.evidence.paired == by_seed
    assert verdict.finding == SUPPORTED
    assert judge(replace(corpus, paper_effect=None), samples).finding == SUPPORTED, "claimed to be negative"
    assert (
        judge(
            Claim("", "interaction", "standard", "hamiltonian", ("web/standard", "web/hamiltonian"), -0.17), samples
        ).finding
        == CONTRADICTED
    )


@given(st.floats(1e-3, 1e3), st.floats(-0.05, 0.05), st.sampled_from(["lower", "higher", "equal", "less_variable"]))
@settings(max_examples=30, deadline=None)
def test_verdicts_do_not_depend_on_the_unit(unit, effect, kind) -> None:
    samples = against_standard(effect, 0.004)
    scaled = {label: {seed: unit * x for seed, x in runs.items()} for label, runs in samples.items()}
    ours, theirs = judge(claim(kind), samples).evidence, judge(claim(kind), scaled).evidence
    assert ours.interval == pytest.approx(theirs.interval)
    assert ours.p == pytest.approx(theirs.p)


def test_the_rate_of_false_positives_is_low() -> None:
    found = rates(claim("lower"), simulated({"standard": 0, "coupled": 0}))
    assert found[SUPPORTED] == pytest.approx(0.025, abs=SLACK)
    assert found[CONTRADICTED] == pytest.approx(0.025, abs=SLACK)


def test_the_papers_effect_is_rarely_contradicted_if_it_exists() -> None:
    assert rates(claim("lower", -0.01), simulated({"standard": 0, "coupled": -0.01}))[CONTRADICTED] < 0.025 + SLACK


def test_the_papers_effect_is_contradicted_if_it_does_not_exist() -> None:
    assert rates(claim("lower", -0.066), simulated({"standard": 0, "coupled": 0}))[CONTRADICTED] > 0.9


def test_the_detectable_effect_is_detected_with_80_percent_power() -> None:
    detectable = judge(claim(), against_standard(0, 0.01, n=5)).evidence.detectable
    found = rates(claim("lower"), simulated({"standard": 0, "coupled": -detectable}))
    assert found[SUPPORTED] == pytest.approx(0.8, abs=2 * SLACK)


def test_verdicts_on_equality_have_the_nominal_error_rate_at_the_margin() -> None:
    found = rates(claim("equal"), simulated({"standard": 0, "coupled": 0.01}, spread=0.002))
    assert found[SUPPORTED] == pytest.approx(0.05, abs=SLACK)
    assert found[CONTRADICTED] == pytest.approx(0.05, abs=SLACK)


FAMILY = [claim(primary=True), *(Claim(label, "lower", label, "standard") for label in "abcd")]


def test_the_other_claims_of_an_experiment_share_one_error_rate() -> None:
    experiments = simulated(dict.fromkeys(("standard", "coupled", *"abcd"), 0))
    verdicts = [judge_all(FAMILY, samples) for samples in experiments]
    assert np.mean([excludes_zero(v[0]) for v in verdicts]) == pytest.approx(0.05, abs=SLACK)
    assert np.mean([any(map(excludes_zero, v[1:])) for v in verdicts]) < 0.05 + SLACK


def excludes_zero(verdict) -> bool:
    low, high = verdict.evidence.interval
    return low > 0 or high < 0


def test_outcome_interval_and_adjusted_p_agree() -> None:
    effects = {"standard": 0, "coupled": 0, "a": -0.03, "b": -0.02, "c": 0.02, "d": -0.01}
    for samples, _ in zip(simulated(effects), range(200), strict=False):
        for verdict in judge_all(FAMILY, samples):
            assert (verdict.evidence.p <= 0.05) == excludes_zero(verdict)
            assert verdict.evidence.equivalent or (verdict.finding != OPEN) == excludes_zero(verdict)
            assert verdict.evidence.confidence >= 0.95 - 1e-12


def test_the_primary_claim_is_judged_independently() -> None:
    samples = next(simulated(dict.fromkeys(("standard", "coupled", *"abcd"), -0.01)))
    prior = Prior(sd=0.01, df=8)
    verdicts = judge_all(FAMILY, samples, prior=prior)
    assert verdicts[0] == judge(FAMILY[0], samples, prior=prior)
    assert all(v.evidence.p >= judge(v.claim, samples, prior=prior).evidence.p for v in verdicts[1:])


def test_variances_are_moderated_over_the_claims_of_an_experiment() -> None:
    samples = against_standard(-0.01, 0.004)
    labels = "abcd"
    for i, label in enumerate(labels):
        samples[label] = {seed: x * (1 + 0.006 * (seed == i % 3)) for seed, x in samples["standard"].items()}
    alone, shared = judge(claim(primary=True), samples).evidence, judge_all(FAMILY, samples)[0].evidence
    assert (alone.df, alone.effect) == (2, shared.effect)
    assert shared.df > 4
    assert shared.interval[1] - shared.interval[0] < alone.interval[1] - alone.interval[0]


def test_a_look_of_a_sequential_comparison_has_its_own_level() -> None:
    samples = against_standard(-0.01, 0.004, n=5)
    assert judge_all([claim(primary=True)], samples, level=0.01)[0].evidence.confidence == pytest.approx(0.99)


@pytest.mark.parametrize("number", [0, 2])
def test_an_experiment_has_one_primary_claim(number) -> None:
    claims = [claim(primary=i < number) for i in range(3)]
    with pytest.raises(CoupledQKError, match=f"one primary claim, given {number}"):
        judge_all(claims, {})
    assert judge_all([], {}) == []


def test_one_seed_is_reported_and_does_not_raise() -> None:
    verdict = judge(claim(), {"standard": {0: 24.0}, "coupled": {0: 22.0}})
    assert (verdict.finding, verdict.evidence) == (OPEN, None)
    assert verdict.sentence == "1 seed: a test needs two."


def test_a_claim_without_common_runs_says_which_are_missing() -> None:
    verdict = judge(claim(), {"standard": {0: 24.0}})
    assert (verdict.finding, verdict.evidence) == (OPEN, None)
    assert verdict.sentence == "no finished runs to compare; coupled has no run with seed 0."


def test_missing_runs_are_excluded_on_both_sides_and_reported() -> None:
    whole = against_standard(-0.05, 0.002, n=5)
    some = {label: dict(runs) for label, runs in whole.items()}
    del some["standard"][3]
    verdict = judge(claim(), some)
    kept = {label: {seed: runs[seed] for seed in (0, 1, 2, 4)} for label, runs in whole.items()}
    assert verdict.evidence == judge(claim(), kept).evidence
    assert verdict.finding == SUPPORTED
    assert verdict.sentence.endswith("; standard has no run with seed 3.")


def with_failures(samples, label, *seeds, value=math.nan):
    return samples | {label: samples[label] | dict.fromkeys(seeds, value)}


@pytest.mark.parametrize(
    ("the_claim", "effect", "who", "better", "outcome"),
    [
        (claim("lower"), -0.05, "coupled", "lower", OPEN),  # however good the other runs are
        (claim("lower"), -0.05, "standard", "lower", SUPPORTED),  # a failed baseline can only help
        (claim("lower"), 0.05, "coupled", "lower", CONTRADICTED),
        (claim("lower"), 0.05, "standard", "lower", OPEN),
        (claim("lower"), 0.0, "coupled", "lower", OPEN),  # not equivalent: one of them failed
        (claim("equal"), 0.0, "standard", "lower", OPEN),
        (claim("higher"), 0.05, "coupled", "lower", SUPPORTED),  # claimed to be worse, and failed
        (claim("higher"), 0.05, "coupled", "higher", OPEN),  # accuracy
        (claim("higher"), 0.05, "standard", "higher", SUPPORTED),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_failed_run_counts_against_its_cell(the_claim, effect, who, better, outcome, value) -> None:
    verdict = judge(the_claim, with_failures(against_standard(effect, 0.002, n=5), who, 1, value=value), better)
    assert verdict.finding == outcome
    assert (
        f"{who} {'diverged' if math.isnan(value) else 'did not reach the target'} with seed 1, which counts"
        in verdict.sentence
    )


@pytest.mark.parametrize(("who", "outcome"), [("coupled", CONTRADICTED), ("standard", SUPPORTED)])
def test_a_variant_that_always_fails_counts_as_worse(who, outcome) -> None:
    verdict = judge(claim(), with_failures(against_standard(0, 0.002, n=5), who, *range(5)))
    assert (verdict.finding, verdict.evidence) == (outcome, None)


def test_the_sentence_says_where_the_interval_of_finished_runs_lies_and_what_failed_runs_decide() -> None:
    samples = with_failures(against_standard(-0.05, 0.002, n=8), "coupled", 1)
    verdict = judge(claim("lower"), samples)
    assert (verdict.finding, finding(make_outcome(verdicts=(verdict,)), verdict)) == (OPEN, "inconclusive (1 failed)")
    assert ": in the runs that finished, the interval lies on the claimed side; " in verdict.sentence
    equal = judge(claim("equal"), with_failures(against_standard(0, 0.001, n=8), "coupled", 1))
    assert equal.finding == OPEN
    assert "in the runs that finished, the interval lies within the margin of ±1%" in equal.sentence
    lost = judge(claim("equal"), with_failures(against_standard(0, 0.001, n=8), "coupled", *range(5)))
    assert lost.finding == CONTRADICTED
    assert "in the runs that finished, the interval lies within the margin" in lost.sentence
    assert "the difference in failed runs is significant and determines the verdict" in lost.sentence


def test_runs_that_miss_a_target_are_not_compared_with_the_baseline_that_defines_it() -> None:
    """Without any effect, half of the runs miss the final loss of their baseline, which never misses it."""
    samples = with_failures(against_standard(-0.03, 0.02, n=8), "coupled", *range(5), value=math.inf)
    verdict = judge(claim(), samples)
    assert verdict.finding == OPEN
    assert "in the runs that reached the target, " in verdict.sentence
    assert "significant" not in verdict.sentence
    assert judge(claim(paper_effect=-0.58), samples).finding == CONTRADICTED, "more than any run saved"


def test_claims_decided_by_failed_runs_share_the_error_rate_of_the_others() -> None:
    samples = against_standard(0, 0.002, n=4)
    samples |= {label: dict.fromkeys(range(4), math.nan) for label in "abcd"}
    assert judge(FAMILY[1], samples).finding == CONTRADICTED, "p = 0.029 by itself"
    assert [verdict.finding for verdict in judge_all(FAMILY, samples)[1:]] == [OPEN] * 4


@pytest.mark.parametrize("by_seed", [True, False])
@pytest.mark.parametrize("failing", [["there"], ["there", "base"], ["standard", "there", "base"]])
def test_failed_runs_of_any_rows_leave_an_interaction_inconclusive(by_seed, failing) -> None:
    samples = against_standard(0, 0.002, n=2) | {"there": around(20, 1, 8), "base": around(21, 1, 8)}
    for label in failing:
        samples = with_failures(samples, label, *samples[label])
    verdict = judge(claim("interaction", elsewhere=("there", "base"), paired=by_seed), samples)
    assert verdict.finding == OPEN
    assert "there diverged with seeds 0-7" in verdict.sentence
    assert "significant" not in verdict.sentence


def test_seeds_in_which_both_fail_do_not_affect_the_interval() -> None:
    samples = with_failures(with_failures(against_standard(-0.05, 0.002, n=5), "coupled", 1), "standard", 1)
    assert judge(claim(), samples).finding == SUPPORTED


def test_seeds_in_which_both_fail_count_in_both_rates_of_failure() -> None:
    """14 and 9 of 16 runs failed (p = 0.11); in the other half of the seeds 6 and 1 of 8 (p = 0.04)."""
    samples = with_failures(against_standard(0, 0.002, n=16), "coupled", *range(14))
    assert judge(claim(), with_failures(samples, "standard", *range(8), 14)).finding == OPEN


def test_significant_differences_in_failed_runs_have_at_most_the_nominal_error_rate() -> None:
    finished = against_standard(0, 0.01, n=16)
    decided = []
    for diverges in np.random.default_rng(0).random((TRIALS // 4, 2, 16)) < 0.7:
        ours, theirs = (np.flatnonzero(each).tolist() for each in diverges)
        samples = with_failures(with_failures(finished, "coupled", *ours), "standard", *theirs)
        decided.append("determines the verdict" in judge(claim(), samples).sentence)
    assert np.mean(decided) < 0.05 - SLACK


def test_equivalence_is_reported_together_with_a_contradiction() -> None:
    verdict = judge(claim("lower", -0.066), against_standard(0, 0.001))
    assert verdict.finding == CONTRADICTED
    assert verdict.evidence.equivalent
    assert "the published −6.60% outside, and the effect lies within the margin of ±1%" in verdict.sentence


@pytest.mark.parametrize("kind", ["lower", "higher", "equal", "less_variable", "interaction"])
@pytest.mark.parametrize("by_seed", [True, False])
@pytest.mark.parametrize(
    "samples",
    [
        {},
        {"standard": {}, "coupled": {0: 1.0, 1: 2.0}},
        {"standard": {0: 1.0, 1: math.inf}, "coupled": {1: 2.0, 2: math.nan}},
        {"standard": {0: 0.0, 1: 0.0}, "coupled": {0: 1.0, 1: 1.0}},
        {"standard": {0: 1.0, 1: 1.0}, "coupled": {0: 1.0, 1: 1.0}},
    ],
)
def test_unusable_evidence_is_inconclusive(kind, by_seed, samples) -> None:
    elsewhere = ("coupled", "standard") if kind == "interaction" else None
    effect = -0.1 if kind == "interaction" else None
    verdict = judge(claim(kind, effect, elsewhere=elsewhere, paired=by_seed), samples)
    assert (verdict.finding, verdict.evidence) == (OPEN, None)
    assert verdict.sentence.endswith(".")


def test_the_sentence_states_the_finding_and_the_reason() -> None:
    assert judge(claim("lower", -0.066), against_standard(-0.017, 0.004, n=5)).sentence == (
        "coupled is −1.70% against standard (95% interval −2.20% to −1.20%, 5 paired seeds, p < 0.001): "
        "the interval lies on the claimed side, with the published −6.60% outside it; 80% power to detect an effect of 0.67%."
    )
    assert judge(claim("equal"), against_standard(0.004, 0.01)).sentence == (
        "coupled is +0.40% against standard (90% interval −1.29% to +2.09%, 3 paired seeds, p = 0.204): "
        "the interval lies neither within nor beyond the margin of ±1%; 80% power to show equality within ±2.66%."
    )
    assert judge(
        claim("less_variable", -0.87), {"coupled": around(22.6, 0.04), "standard": around(24, 0.12)}
    ).sentence == (
        "The standard deviation of coupled is 0.33× that of standard (95% interval 0.05× to 2.08×, 3 and 3 seeds, p = 0.200): "
        "a ratio of 1 and the published 0.13× lie inside the interval; 80% power to detect a ratio of 0.08×."
    )


def test_claims_can_be_read_from_toml_and_converted_back() -> None:
    text = """
    text = "coherent corpora gain"
    kind = "interaction"
    variant = "wikitext/hamiltonian"
    baseline = "wikitext/standard"
    elsewhere = ["web/hamiltonian", "web/standard"]
    paper_effect = -0.17
    primary = true
    source = "lm_corpus"
    """
    read = from_dict(Claim, tomllib.loads(text))
    assert read.elsewhere == ("web/hamiltonian", "web/standard")
    assert from_dict(Claim, to_dict(read)) == read


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "smaller"}, "unknown kind 'smaller'"),
        ({"kind": "lower", "paper_effect": 0.066}, "expected a negative number for 'lower'"),
        ({"kind": "less_variable", "paper_effect": 7.75}, "expected a negative number for 'less_variable'"),
        ({"kind": "equal", "margin": 0.0}, "margin=0.0: expected a share"),
        ({"kind": "interaction", "paper_effect": -0.1}, "elsewhere=None: expected 2 labels"),
        ({"kind": "lower", "elsewhere": ("a", "b")}, "expected 0 labels"),
        ({"kind": "lower", "baseline": "coupled"}, "a cell other than the baseline"),
    ],
)
def test_an_inconsistent_claim_is_refused(fields, message) -> None:
    with pytest.raises(CoupledQKError, match=message):
        Claim(**{"text": "a claim", "variant": "coupled", "baseline": "standard"} | fields)


# --- the prior of compare ---------------------------------------------------------------------------------------------------


def with_identities(outcome: Outcome, kind: str = "") -> Outcome:
    """The outcome with identities that differ between rows."""
    cells = (replace(cell, identity=f"{kind}{cell.label}-{cell.seed}") for cell in outcome.cells)
    return replace(outcome, cells=tuple(cells))


def test_the_prior_is_estimated_from_the_contrasts_and_shared_runs_count_once():
    outcome = with_identities(make_outcome())
    found = list(contrasts(outcome))
    rows = {row.label: row for row in outcome.rows}
    for label, contrast in zip(("euler", "diff"), found, strict=True):
        differences = [
            rows[label].seeds[i] / rows["standard"].mean - rows["standard"].seeds[i] / rows["standard"].mean
            for i in range(5)
        ]
        assert contrast.variance == pytest.approx(np.var(differences, ddof=1))
        assert contrast.estimate.df == 4
    prior = outcome_prior([outcome], "here")
    assert prior.source == "2 contrasts with 8 degrees of freedom, from here"
    assert prior.df <= MOST_DF
    assert min(c.variance for c in found) / 2 < prior.sd**2 < max(c.variance for c in found)
    fewer = with_identities(make_outcome(seeds=range(3)))
    assert outcome_prior([fewer, outcome], "here") == prior, "the seeds of `fewer` are among those of `outcome`"
    assert outcome_prior([outcome, with_identities(outcome, "other ")]).source.startswith("4 contrasts with 16 ")


def test_contrasts_with_a_coupled_baseline_or_other_settings_are_not_part_of_the_prior():
    among_coupled = [Claim("a", "lower", "euler", "standard", primary=True), Claim("b", "lower", "diff", "euler")]
    outcome = with_identities(make_outcome(claims=among_coupled))
    with pytest.raises(
        CoupledQKError, match="1 paired contrasts of perplexity in the outcomes: a prior requires at least two"
    ):
        outcome_prior([outcome])
    outcome = with_identities(make_outcome())
    cells = (
        replace(cell, settings={**cell.settings, "train.lr": 1.0}) if cell.label == "diff" else cell
        for cell in outcome.cells
    )
    assert len(list(contrasts(replace(outcome, cells=tuple(cells))))) == 1
