"""The statistics against SciPy's, and by simulation with 3 to 10 seeds: intervals cover, tests err as rarely as they say."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coupledqk import CoupledQKError
from coupledqk.statistics import (
    Estimate,
    SpreadRatio,
    bootstrap_interval,
    holm,
    holm_levels,
    paired,
    relative_differences,
    spread_ratio,
    summary,
    welch,
)

SEEDS = [3, 5, 10]
TRIALS = 4000
NOISE = 3 * math.sqrt(0.05 * 0.95 / TRIALS)  # three standard errors of a rate near 5%
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=5)


def draws(n, mean=0.0, std=1.0, trials=TRIALS, seed=0):
    """So many samples of n seeds each."""
    return np.random.default_rng(seed).normal(mean, std, (trials, n)).tolist()


def rate(outcomes):
    return sum(outcomes) / len(outcomes)


@pytest.mark.parametrize("n", [2, *SEEDS])
def test_the_paired_test_is_scipys(n) -> None:
    ours, theirs = draws(n, 22.6, trials=1)[0], draws(n, 24.2, trials=1, seed=1)[0]
    expected, estimate = stats.ttest_rel(ours, theirs), paired(ours, theirs)
    assert estimate.p() == pytest.approx(expected.pvalue)
    assert estimate.interval(0.9) == pytest.approx(tuple(expected.confidence_interval(0.9)))


@pytest.mark.parametrize("n", [2, *SEEDS])
def test_welchs_test_is_scipys(n) -> None:
    ours, theirs = draws(n, 22.6, 0.04, trials=1)[0], draws(7, 23.8, 0.3, trials=1)[0]
    expected, estimate = stats.ttest_ind(ours, theirs, equal_var=False), welch(ours, theirs)
    assert estimate.p() == pytest.approx(expected.pvalue)
    assert estimate.df == pytest.approx(expected.df)
    assert estimate.interval(0.99) == pytest.approx(tuple(expected.confidence_interval(0.99)))


def test_summary_is_mean_and_sample_deviation() -> None:
    values = draws(5, 24, trials=1)[0]
    assert summary(values).mean == pytest.approx(np.mean(values))
    assert summary(values).std == pytest.approx(np.std(values, ddof=1))
    assert math.isnan(summary([24.0]).std)


def test_relative_differences_are_in_units_of_the_baselines_mean() -> None:
    assert relative_differences([19.0, 42.0], [20.0, 40.0]) == pytest.approx([-1 / 30, 2 / 30])


@pytest.mark.parametrize("n", SEEDS)
def test_equality_is_two_one_sided_tests_of_scipys(n) -> None:
    differences = draws(n, 0.2, 0.3, trials=1)[0]
    above = stats.ttest_1samp(differences, -0.5, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, 0.5, alternative="less").pvalue
    assert paired(differences, [0.0] * n).p_equal(0.5) == pytest.approx(max(above, below))


@given(st.floats(-3, 3), st.floats(0.1, 2), st.integers(1, 9), st.floats(0.001, 0.2))
def test_tests_and_intervals_agree(value, error, df, level) -> None:
    estimate = Estimate(value, error, df)
    low, high = estimate.interval(1 - level)
    assert (estimate.p() <= level) == (low > 0 or high < 0) or math.isclose(estimate.p(), level)
    low, high = estimate.interval(1 - 2 * level)
    within = low >= -1 and high <= 1
    assert (estimate.p_equal(1.0) <= level) == within or math.isclose(estimate.p_equal(1.0), level)


@pytest.mark.parametrize("n", SEEDS)
def test_paired_intervals_cover_the_truth(n) -> None:
    shared = np.random.default_rng(1).normal(24, 1, (TRIALS, n))  # what a seed does to both
    ours, theirs = shared + draws(n, -1, 0.1), shared + draws(n, 0, 0.1, seed=2)
    intervals = [paired(a, b).interval() for a, b in zip(ours.tolist(), theirs.tolist(), strict=True)]
    assert rate([low <= -1 <= high for low, high in intervals]) == pytest.approx(0.95, abs=NOISE)


@pytest.mark.parametrize("n", SEEDS)
def test_welch_intervals_cover_the_truth_where_spreads_differ(n) -> None:
    samples = zip(draws(n, 22.6, 0.04), draws(10, 23.8, 0.31, seed=1), strict=True)
    intervals = [welch(a, b).interval() for a, b in samples]
    assert rate([low <= -1.2 <= high for low, high in intervals]) == pytest.approx(0.95, abs=NOISE)


@pytest.mark.parametrize("n", SEEDS)
def test_intervals_of_a_ratio_of_spreads_cover_the_truth(n) -> None:
    samples = zip(draws(n, 22.6, 0.04), draws(10, 23.8, 0.31, seed=1), strict=True)
    intervals = [spread_ratio(a, b).interval() for a, b in samples]
    assert rate([low <= 0.04 / 0.31 <= high for low, high in intervals]) == pytest.approx(0.95, abs=NOISE)


def test_a_ratio_of_spreads_is_cautious_where_seeds_move_both_alike() -> None:
    shared = np.random.default_rng(1).normal(24, 1, (TRIALS, 5))
    samples = zip((shared + draws(5)).tolist(), (shared + draws(5, seed=2)).tolist(), strict=True)
    assert rate([spread_ratio(a, b).p() <= 0.05 for a, b in samples]) < 0.05 - NOISE


def test_the_ratio_of_spreads_follows_scipys_f() -> None:
    ratio = SpreadRatio(0.5, (2, 9))
    low, high = ratio.interval(0.9)
    assert (0.5 / low) ** 2 == pytest.approx(stats.f.ppf(0.95, 2, 9))
    assert (0.5 / high) ** 2 == pytest.approx(stats.f.ppf(0.05, 2, 9))
    assert ratio.p() == pytest.approx(2 * stats.f.cdf(0.25, 2, 9))
    assert SpreadRatio(2.0, (9, 2)).p() == pytest.approx(ratio.p())  # seen from the other side


@pytest.mark.parametrize("n", SEEDS)
def test_equality_is_rarely_found_where_the_difference_is_the_margin(n) -> None:
    found = [paired(a, [24.0] * n).p_equal(0.5) <= 0.05 for a in draws(n, 24.5, 0.1)]
    assert rate(found) == pytest.approx(0.05, abs=NOISE)


@pytest.mark.parametrize("n", SEEDS)
def test_the_detectable_effect_is_detected_with_80_percent_power(n) -> None:
    smallest = Estimate(0, 0.1 / math.sqrt(n), n - 1).detectable_effect()
    found = [paired(a, [24.0] * n).p() <= 0.05 for a in draws(n, 24 + smallest, 0.1)]
    assert rate(found) == pytest.approx(0.8, abs=2 * NOISE)


@pytest.mark.parametrize("n", SEEDS)
def test_equality_within_the_detectable_margin_is_shown_with_80_percent_power(n) -> None:
    margin = Estimate(0, 0.1 / math.sqrt(n), n - 1).detectable_margin()
    found = [paired(a, [24.0] * n).p_equal(margin) <= 0.05 for a in draws(n, 24, 0.1)]
    assert rate(found) == pytest.approx(0.8, abs=2 * NOISE)


@pytest.mark.parametrize("n", SEEDS)
def test_the_detectable_ratio_is_detected_with_80_percent_power(n) -> None:
    smallest = SpreadRatio(1.0, (n - 1, 9)).detectable_ratio()
    samples = zip(draws(n, 24, smallest), draws(10, 24, 1, seed=1), strict=True)
    assert rate([spread_ratio(a, b).interval()[1] < 1 for a, b in samples]) == pytest.approx(0.8, abs=2 * NOISE)


@pytest.mark.parametrize(("n", "least"), [(3, 0.70), (5, 0.88), (10, 0.925)])
def test_bootstrap_intervals_cover_what_the_samples_range_allows(n, least) -> None:
    trials = 1000
    intervals = [bootstrap_interval(a, resamples=1000) for a in draws(n, trials=trials)]
    covered = rate([low <= 0 <= high for low, high in intervals])
    most = min(0.95, 1 - 2 ** (1 - n))
    assert least < covered < most + 3 * math.sqrt(most * (1 - most) / trials)


def test_bootstrap_intervals_of_many_values_are_students_and_repeatable() -> None:
    values = draws(400, 24, trials=1)[0]
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert bootstrap_interval(values) == pytest.approx(tuple(expected), abs=0.01)
    assert bootstrap_interval(values) == bootstrap_interval(values) != bootstrap_interval(values, seed=1)


@given(p_values)
def test_holm_is_the_closed_test_of_bonferroni(ps) -> None:
    def of_all_sets_with(i):
        others = [j for j in range(len(ps)) if j != i]
        sets = [(i, *rest) for size in range(len(ps)) for rest in itertools.combinations(others, size)]
        return max(min(1.0, len(s) * min(ps[j] for j in s)) for s in sets)

    assert holm(ps) == pytest.approx([of_all_sets_with(i) for i in range(len(ps))])


@given(p_values, st.floats(0.001, 0.5))
def test_holms_levels_decide_as_its_adjusted_p_do(ps, level) -> None:
    for p, adjusted, its_level in zip(ps, holm(ps), holm_levels(ps, level), strict=True):
        assert (p <= its_level) == (adjusted <= level) or math.isclose(adjusted, level)
        assert level / len(ps) <= its_level <= level


def test_holm_rarely_finds_anything_where_there_is_nothing() -> None:
    null = np.random.default_rng(0).uniform(size=(TRIALS, 6)).tolist()
    assert rate([min(holm(ps)) <= 0.05 for ps in null]) == pytest.approx(0.05, abs=NOISE)


@pytest.mark.parametrize("test", [paired, welch, spread_ratio])
def test_values_of_which_no_test_can_be_made_are_refused(test) -> None:
    with pytest.raises(CoupledQKError, match="1 seed: a test needs two"):
        test([24.0], [22.0])
    with pytest.raises(CoupledQKError, match="not finite"):
        test([24.0, math.nan], [22.0, 22.5])
    with pytest.raises(CoupledQKError, match="all seeds give the same"):
        test([24.1, 24.1, 24.1], [22.3, 22.3, 22.3])


def test_what_cannot_be_related_is_refused() -> None:
    with pytest.raises(CoupledQKError, match="3 values against 2 cannot be paired"):
        paired([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(CoupledQKError, match="must be positive and is 0"):
        relative_differences([0.5, 1.0], [0.0, 0.0])
    with pytest.raises(CoupledQKError, match="0 seeds: a mean needs one"):
        summary([])


def test_without_scipy_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(CoupledQKError, match=r"pip install 'coupledqk\[lab\]'"):
        paired([1.0, 2.0], [1.5, 2.0]).interval()
