"""The statistics agree with SciPy; simulations with 3 to 10 seeds check coverage and error rates."""

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
    Prior,
    SequentialTest,
    SpreadRatio,
    bootstrap_interval,
    compare_prior,
    detectable_effect,
    estimate_prior,
    holm,
    holm_levels,
    paired,
    pairs_needed,
    relative_differences,
    spread_ratio,
    student_quantile,
    summary,
    welch,
)
from coupledqk.statistics.simulations import Table, prior_coverage, sequential_stops, table_coverage

SEEDS = [3, 5, 10]
TRIALS = 4000
NOISE = 3 * math.sqrt(0.05 * 0.95 / TRIALS)  # three standard errors of a rate near 5%
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=5)


def draws(n, mean=0.0, std=1.0, trials=TRIALS, seed=0):
    """`trials` samples of n seeds each."""
    return np.random.default_rng(seed).normal(mean, std, (trials, n)).tolist()


def rate(outcomes):
    return sum(outcomes) / len(outcomes)


@pytest.mark.parametrize("n", [2, *SEEDS])
def test_the_paired_test_agrees_with_scipy(n) -> None:
    ours, theirs = draws(n, 22.6, trials=1)[0], draws(n, 24.2, trials=1, seed=1)[0]
    expected, estimate = stats.ttest_rel(ours, theirs), paired(ours, theirs)
    assert estimate.p() == pytest.approx(expected.pvalue)
    assert estimate.interval(0.9) == pytest.approx(tuple(expected.confidence_interval(0.9)))


@pytest.mark.parametrize("n", [2, *SEEDS])
def test_welchs_test_agrees_with_scipy(n) -> None:
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
def test_the_test_of_equality_agrees_with_two_one_sided_tests_of_scipy(n) -> None:
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
    shared = np.random.default_rng(1).normal(24, 1, (TRIALS, n))  # the effect of a seed on both
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


def test_the_test_of_a_ratio_of_spreads_is_conservative_if_seeds_shift_both_alike() -> None:
    shared = np.random.default_rng(1).normal(24, 1, (TRIALS, 5))
    samples = zip((shared + draws(5)).tolist(), (shared + draws(5, seed=2)).tolist(), strict=True)
    assert rate([spread_ratio(a, b).p() <= 0.05 for a, b in samples]) < 0.05 - NOISE


def test_the_ratio_of_spreads_agrees_with_scipys_f_distribution() -> None:
    ratio = SpreadRatio(0.5, (2, 9))
    low, high = ratio.interval(0.9)
    assert (0.5 / low) ** 2 == pytest.approx(stats.f.ppf(0.95, 2, 9))
    assert (0.5 / high) ** 2 == pytest.approx(stats.f.ppf(0.05, 2, 9))
    assert ratio.p() == pytest.approx(2 * stats.f.cdf(0.25, 2, 9))
    assert SpreadRatio(2.0, (9, 2)).p() == pytest.approx(ratio.p())  # the reciprocal ratio


@pytest.mark.parametrize("n", SEEDS)
def test_equality_is_found_in_5_percent_of_trials_if_the_difference_equals_the_margin(n) -> None:
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


def test_the_detectable_margin_with_a_known_spread_is_the_limit_of_many_degrees_of_freedom() -> None:
    expected = stats.norm.ppf(0.95) + stats.norm.ppf(0.9)
    assert Estimate(0, 1.0, math.inf).detectable_margin() == pytest.approx(expected)
    assert Estimate(0, 1.0, 1e5).detectable_margin() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("n", SEEDS)
def test_the_detectable_ratio_is_detected_with_80_percent_power(n) -> None:
    smallest = SpreadRatio(1.0, (n - 1, 9)).detectable_ratio()
    samples = zip(draws(n, 24, smallest), draws(10, 24, 1, seed=1), strict=True)
    assert rate([spread_ratio(a, b).interval()[1] < 1 for a, b in samples]) == pytest.approx(0.8, abs=2 * NOISE)


@pytest.mark.parametrize(("n", "least"), [(3, 0.70), (5, 0.88), (10, 0.925)])
def test_bootstrap_intervals_have_the_coverage_that_the_sample_range_allows(n, least) -> None:
    trials = 1000
    intervals = [bootstrap_interval(a, resamples=1000) for a in draws(n, trials=trials)]
    covered = rate([low <= 0 <= high for low, high in intervals])
    most = min(0.95, 1 - 2 ** (1 - n))
    assert least < covered < most + 3 * math.sqrt(most * (1 - most) / trials)


def test_bootstrap_intervals_of_many_values_agree_with_students_t_and_are_repeatable() -> None:
    values = draws(400, 24, trials=1)[0]
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert bootstrap_interval(values) == pytest.approx(tuple(expected), abs=0.01)
    assert bootstrap_interval(values) == bootstrap_interval(values) != bootstrap_interval(values, seed=1)


@given(p_values)
def test_holm_equals_the_closed_bonferroni_test(ps) -> None:
    def of_all_sets_with(i):
        others = [j for j in range(len(ps)) if j != i]
        sets = [(i, *rest) for size in range(len(ps)) for rest in itertools.combinations(others, size)]
        return max(min(1.0, len(s) * min(ps[j] for j in s)) for s in sets)

    assert holm(ps) == pytest.approx([of_all_sets_with(i) for i in range(len(ps))])


@given(p_values, st.floats(0.001, 0.5))
def test_holms_levels_and_adjusted_p_values_give_the_same_decisions(ps, level) -> None:
    for p, adjusted, its_level in zip(ps, holm(ps), holm_levels(ps, level), strict=True):
        assert (p <= its_level) == (adjusted <= level) or math.isclose(adjusted, level)
        assert level / len(ps) <= its_level <= level


def test_holm_controls_the_family_wise_error_rate() -> None:
    null = np.random.default_rng(0).uniform(size=(TRIALS, 6)).tolist()
    assert rate([min(holm(ps)) <= 0.05 for ps in null]) == pytest.approx(0.05, abs=NOISE)


@pytest.mark.parametrize("test", [paired, welch, spread_ratio])
def test_values_that_cannot_be_tested_are_refused(test) -> None:
    with pytest.raises(CoupledQKError, match="1 seed: a test needs two"):
        test([24.0], [22.0])
    with pytest.raises(CoupledQKError, match="not finite"):
        test([24.0, math.nan], [22.0, 22.5])
    with pytest.raises(CoupledQKError, match="all seeds give the same"):
        test([24.1, 24.1, 24.1], [22.3, 22.3, 22.3])


def test_samples_that_cannot_be_paired_or_averaged_are_refused() -> None:
    with pytest.raises(CoupledQKError, match="3 values against 2 cannot be paired"):
        paired([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(CoupledQKError, match="must be positive and is 0"):
        relative_differences([0.5, 1.0], [0.0, 0.0])
    with pytest.raises(CoupledQKError, match="0 seeds: a mean needs one"):
        summary([])


def test_without_scipy_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(CoupledQKError, match=r"pip install 'coupledqk\[lab\]'"):
        paired([1.0, 2.0], [1.5, 2.0]).interval()


# --- moderated variances ------------------------------------------------------------------------------------------------------


def test_moderation_is_the_posterior_mean_with_the_priors_degrees_of_freedom() -> None:
    moderated = Prior(sd=2.0, df=6).moderate(Estimate(1.0, 3.0 / math.sqrt(4), 3))
    assert moderated.value == 1.0
    assert moderated.df == 9
    assert moderated.standard_error == pytest.approx(math.sqrt((6 * 4 + 3 * 9) / 9 / 4))
    certain = Prior(sd=2.0, df=math.inf).moderate(Estimate(1.0, 3.0, 3))
    assert (certain.df, certain.standard_error) == (math.inf, 1.0)
    assert certain.interval() == pytest.approx((1 - 1.959964, 1 + 1.959964))


def test_a_prior_is_recovered_from_many_variances() -> None:
    random = np.random.default_rng(0)
    sd = 0.02 * np.sqrt(6 / random.chisquare(6, 4000))
    variances = sd**2 * random.chisquare(4, 4000) / 4
    prior = estimate_prior(variances.tolist(), [4] * 4000, shared=0)
    assert prior is not None
    assert prior.sd == pytest.approx(0.02, rel=0.03)
    assert prior.df == pytest.approx(6, rel=0.1)


def test_equal_variances_are_pooled_and_a_single_one_has_no_prior() -> None:
    assert estimate_prior([1.0], [4]) is None
    prior = estimate_prior([1.0, 1.0, 1.0], [4, 4, 4])
    assert prior is not None
    assert math.isinf(prior.df)
    assert prior.moderate(Estimate(0, 1, 4)).df == pytest.approx(12 / 1.5)


@pytest.mark.parametrize(("n_seeds", "n_arms", "variance_df"), [(3, 5, math.inf), (3, 12, 4.0), (5, 5, 10.0)])
def test_moderated_intervals_cover_with_a_shared_baseline_and_are_shorter(n_seeds, n_arms, variance_df) -> None:
    found = table_coverage(Table(n_seeds, n_arms, variance_df), trials=3000 // n_arms)
    assert found.moderated == pytest.approx(0.95, abs=0.015)
    assert found.length < 0.9


@pytest.mark.parametrize(("n_seeds", "noisiest"), [(3, 0.84), (8, 0.89)])
def test_moderated_intervals_have_nominal_coverage_on_average_but_not_in_the_noisiest_arm(n_seeds, noisiest) -> None:
    random, trials, covered = np.random.default_rng(0), 2000, np.zeros(5)
    for _ in range(trials):
        differences = random.standard_normal((n_seeds, 5)) * [1, 1, 1, 1, 3]
        prior = estimate_prior(differences.var(0, ddof=1).tolist(), [n_seeds - 1] * 5)
        assert prior is not None
        for arm, values in enumerate(differences.T.tolist()):
            low, high = prior.moderate(paired(values, [0.0] * n_seeds)).interval()
            covered[arm] += low <= 0 <= high
    assert covered.mean() / trials == pytest.approx(0.94, abs=0.015)
    assert covered[-1] / trials == pytest.approx(noisiest, abs=0.025)


def test_intervals_moderated_by_the_shipped_prior_have_nominal_coverage() -> None:
    prior = compare_prior()
    assert 0.001 < prior.sd < 0.1
    assert prior.source
    assert prior_coverage(5, prior, trials=2000).moderated == pytest.approx(0.95, abs=0.015)


# --- sequential tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior_df", [0.0, 4.0])
def test_sequential_testing_after_every_pair_keeps_its_error_rate(prior_df) -> None:
    test = SequentialTest(last=12, prior_df=prior_df)
    found = sequential_stops(test, effect=0.0, trials=20_000)
    assert found.significant == pytest.approx(0.05, abs=0.006)
    assert found.covered == pytest.approx(0.95, abs=0.006)


@pytest.mark.parametrize(("last", "rate_of_errors"), [(8, 0.107), (32, 0.069)])
def test_pairs_that_vary_three_times_as_much_as_the_prior_says_have_more_errors(last, rate_of_errors) -> None:
    found = sequential_stops(SequentialTest(last, prior_df=compare_prior().df), 0.0, trials=10_000, noise=3.0)
    assert found.significant == pytest.approx(rate_of_errors, abs=0.012)


def test_testing_at_5_percent_after_every_pair_inflates_the_error_rate() -> None:
    x = np.random.default_rng(0).standard_normal((5000, 12))
    looks = [
        abs(x[:, :n].mean(1)) > student_quantile(0.975, n - 1) * x[:, :n].std(1, ddof=1) / n**0.5 for n in range(4, 13)
    ]
    assert np.any(looks, axis=0).mean() > 0.12


@pytest.mark.parametrize("prior_df", [0.0, 4.0])
def test_an_effect_is_found_with_the_promised_power_and_fewer_pairs_if_it_is_large(prior_df) -> None:
    test = SequentialTest(last=16, prior_df=prior_df)
    detectable = test.detectable_effect(sd=1.0)
    found = sequential_stops(test, detectable, trials=5000)
    assert 0.78 < found.significant < 0.87
    assert found.covered > 0.94
    large = sequential_stops(test, 2 * detectable, trials=5000)
    assert large.mean_pairs < 9
    assert large.wrong_sign < 0.001


def test_early_looks_are_stricter_and_looks_outside_the_plan_are_refused() -> None:
    test = SequentialTest(last=8)
    levels = [test.nominal_level(n) for n in range(4, 9)]
    assert levels == sorted(levels)
    assert 0.02 < levels[-1] < 0.05
    for n in (3, 9):
        with pytest.raises(CoupledQKError, match=f"n={n}: expected 4 to 8 pairs"):
            test.nominal_level(n)
    with pytest.raises(CoupledQKError, match="first=4: expected 2 to 3"):
        SequentialTest(last=3)


# --- power --------------------------------------------------------------------------------------------------------------------


def test_the_number_of_pairs_needed_detects_an_effect_and_one_pair_fewer_does_not() -> None:
    n = pairs_needed(0.02, sd=0.018)
    assert detectable_effect(n, 0.018) <= 0.02 < detectable_effect(n - 1, 0.018)
    x = np.random.default_rng(0).normal(0.02, 0.018, (4000, n))
    found = abs(x.mean(1)) > student_quantile(0.975, n - 1) * x.std(1, ddof=1) / math.sqrt(n)
    assert found.mean() >= 0.78


def test_the_detectable_effect_agrees_with_that_of_an_estimate() -> None:
    assert detectable_effect(5, 0.1) == pytest.approx(Estimate(0, 0.1 / math.sqrt(5), 4).detectable_effect())
    assert detectable_effect(3, 0.1, prior_df=8) < detectable_effect(3, 0.1)
    assert detectable_effect(5, 0.1, prior_df=1e6) == pytest.approx(
        detectable_effect(5, 0.1, prior_df=math.inf), rel=0.01
    )


def test_with_a_prior_power_is_averaged_over_its_standard_deviations() -> None:
    effect = detectable_effect(8, 1.0, prior_df=4)
    random = np.random.default_rng(0)
    sd = np.sqrt(4 / random.chisquare(4, 20_000))
    x = random.standard_normal((20_000, 8)) * sd[:, None] + effect
    variance = (7 * x.var(1, ddof=1) + 4) / 11
    found = abs(x.mean(1)) > student_quantile(0.975, 11) * np.sqrt(variance / 8)
    assert found.mean() == pytest.approx(0.8, abs=0.012)


@pytest.mark.parametrize("df", [1, 2.5, 24, math.inf])
@pytest.mark.parametrize("probability", [0.6, 0.975, 0.9995])
def test_quantiles_agree_with_students_t(df, probability) -> None:
    assert student_quantile(probability, df) == pytest.approx(stats.t.ppf(probability, df), rel=1e-9)
