"""Verdicts for new classes and for new datasets: against slow, obvious versions and known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from suites import fake_suite

from nearfield.analysis.calibration import (
    confident,
    leave_one_dataset_out,
    overconfidence,
    reliability,
    simulate,
    split_halves,
)
from nearfield.analysis.calibration_text import CASES, Case, units
from nearfield.analysis.levels import by_class, class_verdicts, compare_classes
from nearfield.analysis.new_dataset import (
    _TAUS,
    _VARIANCES,
    SCALES,
    STEADINESS,
    NewDataset,
    Prior,
    _evidence,
    learn,
    new_dataset,
    prior_of,
    spread_of_methods,
)
from nearfield.analysis.statistics import compare, two_way_interval, two_way_variance
from nearfield.analysis.suite import assemble, collect, one_dataset, reversed_sides
from nearfield.analysis.suite_text import agreements, headline, leaderboard, lines, markdown, pairs
from nearfield.errors import InputError, RunError

# ---------------------------------------------------------------------------------------------------------------
# Classes


def test_scores_of_classes_are_means_of_their_queries_and_queries_without_a_match_are_left_out() -> None:
    queries = np.array([[1.0, 0.0, 0.5, np.nan, 0.2], [0.0, 0.0, 0.5, np.nan, 0.4]])
    scores, shares = by_class(queries, np.array([7, 7, 3, 3, 9]))
    assert scores.tolist() == [[0.5, 0.5, 0.2], [0.5, 0.0, 0.4]]  # classes 3, 7, 9
    assert shares.tolist() == [0.25, 0.5, 0.25]
    assert (scores @ shares).tolist() == pytest.approx(np.nanmean(queries, axis=1).tolist(), abs=1e-12)


def test_as_many_labels_as_queries_are_needed() -> None:
    with pytest.raises(InputError, match="column for each of the 2 classes"):
        by_class(np.zeros((3, 4)), np.array([0, 1]))


def test_the_variance_over_classes_is_that_of_the_slow_sum() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(4, 6)), rng.uniform(size=6)
    shares = weights / weights.sum()
    s, c = values.shape
    means = [sum(shares[j] * values[i, j] for j in range(c)) for i in range(s)]
    seeds = np.var(means, ddof=1) / s
    part = [[shares[j] * (values[i, j] - means[i]) for j in range(c)] for i in range(s)]
    classes = c / (c - 1) * sum(np.mean([part[i][j] for i in range(s)]) ** 2 for j in range(c))
    both = c / (c - 1) * sum(np.var([part[i][j] for i in range(s)], ddof=1) / s for j in range(c))
    variance, _ = two_way_variance(values, shares)
    assert variance == pytest.approx(max(seeds + classes - both, seeds, classes), abs=1e-12)


def test_classes_of_one_query_each_are_queries() -> None:
    values = np.random.default_rng(1).normal(size=(5, 30))
    scores, shares = by_class(values, np.arange(30))
    found = compare_classes(scores, np.zeros_like(scores), shares)
    expected = two_way_interval(values)
    assert found.difference.mean == pytest.approx(expected.mean, abs=1e-12)
    assert found.difference.half_width == pytest.approx(expected.half_width, abs=1e-12)


def test_a_verdict_for_new_classes_is_never_surer_than_one_for_new_seeds() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        a, b = rng.normal(size=(2, 3, 12))
        found = compare_classes(a, b, np.full(12, 1 / 12))
        seeds = compare(a.mean(axis=1), b.mean(axis=1))
        assert found.p >= seeds.p - 1e-12
        assert (found.difference.half_width or 0) >= (seeds.difference.half_width or 0) - 1e-12


def test_a_difference_that_comes_from_one_class_holds_for_seeds_but_not_for_new_classes() -> None:
    rng = np.random.default_rng(3)
    b = rng.normal(size=(5, 20)) * 0.001
    a = b.copy()
    a[:, 0] += 1.0
    shares = np.full(20, 0.05)
    assert compare(a @ shares, b @ shares).p < 1e-6
    assert compare_classes(a, b, shares).p > 0.2
    found = class_verdicts({"a": a, "b": b, "c": b - 1}, shares)
    significant = {(pair.first, pair.second): pair.significant for pair in found.pairs}
    assert significant == {("a", "b"): False, ("a", "c"): True, ("b", "c"): True}
    assert found.like_best == ("a", "b")


# ---------------------------------------------------------------------------------------------------------------
# Datasets


def flat_in_mu(of_tau: np.ndarray) -> Prior:
    """A mean that may be anything, and these weights of tau."""
    weights = np.zeros((len(_VARIANCES), len(_TAUS)))
    weights[-1] = of_tau
    return Prior(weights)


@pytest.mark.parametrize("count", [3, 6, 20])
def test_without_errors_and_with_a_flat_prior_it_is_students_prediction(count: int) -> None:
    gaps = np.random.default_rng(count).normal(0.4, 1.0, count)
    found = new_dataset(gaps, np.zeros(count), rope=0.1, prior=flat_in_mu(np.ones(len(_TAUS))))
    exact = stats.t(count - 1, gaps.mean(), gaps.std(ddof=1) * np.sqrt(1 + 1 / count))
    assert found.better == pytest.approx(exact.sf(0.1), abs=2e-4)
    assert found.worse == pytest.approx(exact.cdf(-0.1), abs=2e-4)
    assert found.positive == pytest.approx(exact.sf(0.0), abs=2e-4)
    assert (found.low, found.high) == pytest.approx(exact.interval(0.95), rel=0.01)  # the grid of tau ends
    assert found.better + found.equal + found.worse == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("differences", "spreads"),
    [([0.9, 0.1, 0.5, 0.4], [0.3, 0.2, 0.25, 0.4]), ([-10, -12, -8], [0.3, 0.2, 0.4]), ([-9, -7, -1], [0.5, 0.5, 0.5])],
)
@pytest.mark.parametrize("error", [0.0, 0.7])
def test_the_posterior_is_that_of_the_double_integral(
    differences: list[float], spreads: list[float], error: float
) -> None:
    """Slow and obvious: mu and tau on one grid, prior times likelihood."""
    gaps, errors = (np.array(each) for each in (differences, spreads))
    mu, tau = stats.cauchy.ppf(np.linspace(0, 1, 1502)[1:-1], gaps.mean())[:, None], np.geomspace(0.01, 100, 1000)
    density = stats.cauchy.pdf(mu, 0, 0.5) * np.gradient(mu, axis=0) * tau  # the steps of both grids
    density = density * 2 * tau * stats.invgamma.pdf(tau**2, 4 / 2, scale=4 / 2 * 0.8**2)
    for gap, each in zip(gaps, errors, strict=True):
        density = density * stats.norm.pdf(gap, mu, np.sqrt(each**2 + tau**2))
    density /= density.sum()
    found, width = new_dataset(gaps, errors, 0.1, prior_of(0.5, 0.8, 4), error), np.hypot(tau, error)
    assert found.better == pytest.approx(float((density * stats.norm.sf((0.1 - mu) / width)).sum()), abs=1e-3)
    assert found.worse == pytest.approx(float((density * stats.norm.cdf((-0.1 - mu) / width)).sum()), abs=1e-3)
    assert found.mean == pytest.approx(float((density * mu).sum()), abs=0.01)
    for edge, share in ((found.low, 0.025), (found.high, 0.975)):
        assert float((density * stats.norm.cdf((edge - mu) / width)).sum()) == pytest.approx(share, abs=1e-3)


def test_the_likelihood_of_a_pair_is_that_of_correlated_normals() -> None:
    rng = np.random.default_rng(0)
    d, s = rng.normal(size=(2, 4)), rng.uniform(0.1, 1, size=(2, 4))
    log_likelihood, _, _ = _evidence(d, s)
    for pair, v, t in ((0, 3, 5), (1, 20, 40), (0, 29, 10)):
        covariance = np.diag(s[pair] ** 2 + _TAUS[t] ** 2) + _VARIANCES[v]
        exact = stats.multivariate_normal(cov=covariance).logpdf(d[pair]) + 2 * np.log(2 * np.pi)
        assert log_likelihood[pair, v, t] == pytest.approx(exact, abs=1e-7)


def test_the_learned_prior_weighs_every_setting_by_its_likelihood() -> None:
    rng = np.random.default_rng(1)
    d, s = rng.normal(size=(6, 3)), rng.uniform(0.1, 0.5, size=(6, 3))  # four methods
    log_likelihood, _, _ = _evidence(d, s)
    priors = [prior_of(g, h, k).weights for g in SCALES for h in SCALES for k in STEADINESS]
    likelihoods = [np.prod([(prior * np.exp(pair)).sum() ** (2 / 4) for pair in log_likelihood]) for prior in priors]
    expected = sum(each * prior for each, prior in zip(likelihoods, priors, strict=True)) / sum(likelihoods)
    np.testing.assert_allclose(learn(d, s).weights, expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(learn(-d[::-1, ::-1], s[::-1, ::-1]).weights, expected, rtol=1e-9, atol=1e-15)


def test_the_same_three_differences_say_less_where_those_of_other_methods_do_not_travel() -> None:
    rng = np.random.default_rng(2)
    means, own, errors = rng.normal(size=(100, 1)), rng.normal(size=(100, 3)), np.full((100, 3), 0.1)

    def answer(travels: float, adds: float) -> NewDataset:
        return new_dataset([0.9, 1.1, 1.0], [0.1] * 3, prior=learn(travels * means + adds * own, errors))

    travelling, local = answer(1.4, 0.1), answer(0.1, 1.4)
    assert travelling.better > 0.99
    assert local.better < 0.85
    assert local.spread > 3 * travelling.spread


@pytest.mark.parametrize("error", [0.01, 0.3, 1.0])
def test_a_method_that_is_far_worse_everywhere_is_worse_and_a_small_difference_is_undecided(error: float) -> None:
    assert new_dataset([-10.0, -12.0, -8.0], [error] * 3).decided == "worse"
    assert new_dataset([10.0, 12.0, 8.0], [error] * 3).decided == "better"
    assert new_dataset([0.3, 0.2, 0.4], [0.3] * 3).decided == ""
    assert new_dataset([-10.0, 12.0, -8.0], [error] * 3).decided == ""


def test_the_farther_the_differences_the_nearer_is_the_answer_to_that_of_flat_priors() -> None:
    spread, prior = np.array([-1.0, 0.2, 0.8, 0.0]), prior_of(1.0, 1.0, 4.0)
    flat_prior = flat_in_mu(prior.weights.sum(0))
    for far, close in ((30.0, 0.02), (300.0, 0.001)):
        found, flat = (new_dataset(far + spread, [0.1] * 4, prior=each) for each in (prior, flat_prior))
        assert abs(found.mean - flat.mean) < 30 * close
        assert abs(found.positive - flat.positive) < close


def test_sides_can_be_exchanged() -> None:
    gaps, errors = np.array([0.9, -0.1, 0.5, 0.4]), np.array([0.3, 0.2, 0.25, 0.4])
    one, other = new_dataset(gaps, errors), reversed_sides(new_dataset(-gaps, errors))
    for name in ("mean", "better", "equal", "worse", "positive", "low", "high"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-8)


def test_a_difference_that_changes_its_sign_is_undecided_and_equal_methods_are_equal() -> None:
    assert new_dataset([1.0, -1.0, 0.8, -0.7, 1.2], [0.01] * 5).decided == ""
    assert new_dataset([1.0, 1.1, 0.9, 1.0, 1.05], [0.02] * 5).decided == "better"
    assert new_dataset([0.01, -0.01, 0.0, 0.005, 0.0], [0.005] * 5).decided == "equal"


@pytest.mark.parametrize("gaps", [[0.1, 0.2], [0.1, np.nan, 0.3]])
def test_three_datasets_are_needed(gaps: list[float]) -> None:
    with pytest.raises(InputError, match="at least 3 datasets"):
        new_dataset(gaps, [0.1] * len(gaps))


def test_the_spread_of_methods_ignores_a_broken_one_and_is_never_zero() -> None:
    assert spread_of_methods(stats.norm.ppf(np.linspace(0.001, 0.999, 999))) == pytest.approx(1.0, abs=0.01)
    assert spread_of_methods([0.5, 0.51, 0.52, 0.53, 0.0]) < 0.03
    assert spread_of_methods([0.5, 0.5]) == 1.0


# ---------------------------------------------------------------------------------------------------------------
# Calibration


@pytest.mark.parametrize("case", [case for case in CASES if case[1] < 10], ids=units)
def test_every_level_does_what_it_promises_where_the_truth_is_known(case: Case) -> None:
    level, size, population = case
    found = simulate(level, np.random.default_rng(0), 250 if level == "datasets" else 400, size, population)
    assert 0.92 <= found.coverage <= 0.995
    assert found.false_positives <= 0.08
    least = 0.6 if population == "local" else 0.9
    count, held = confident(found.said, least)
    assert count > 50
    assert held >= least - 0.03
    assert abs(overconfidence(found.said)) < 0.1


def test_statements_are_grouped_by_their_probability() -> None:
    said = [(0.55, True), (0.58, False), (0.97, True), (1.0, True), (1.0, False)]
    low, high = reliability(said)
    assert [low.said, low.held, low.count] == pytest.approx([0.565, 0.5, 2])
    assert [high.held, high.count] == pytest.approx([2 / 3, 3])
    assert high.low < high.held < high.high


def test_levels_that_are_mixed_would_be_caught() -> None:
    """Seeds alone cannot speak of new classes: their interval covers the mean of new classes far too rarely."""
    rng = np.random.default_rng(4)
    covered = []
    for _ in range(200):
        gaps = rng.normal(size=(1, 20)) + 0.1 * rng.normal(size=(5, 20))
        found = compare(gaps.mean(axis=1), np.zeros(5))
        covered.append(abs(found.difference.mean) <= (found.difference.half_width or 0))
    assert np.mean(covered) < 0.6


# ---------------------------------------------------------------------------------------------------------------
# A suite


def test_a_suite_finds_the_order_and_says_its_level_everywhere() -> None:
    suite = collect(fake_suite(5))
    assert suite.methods[0] == "good"
    assert suite.methods[-1] == "poor"
    assert suite.level == "datasets"
    assert suite.pair("good", "poor").decided == "better"
    assert suite.pair("poor", "good").decided == "worse"
    assert suite.pair("fair", "same").decided != "better"
    assert headline(suite).startswith("Level datasets (for a new dataset): good")
    assert all(line.startswith(("Level datasets", "Level classes", "Level seeds", "Budget")) for line in lines(suite))


def test_what_differs_between_datasets_is_undecided_for_a_new_one_but_decided_for_seeds() -> None:
    suite = collect(fake_suite(6, shift=0.05))
    assert suite.pair("fair", "same").decided == ""
    for each in suite.datasets:
        found = {frozenset((p.first, p.second)): p.significant for p in each.board.verdicts.pairs}  # type: ignore[union-attr]
        assert found[frozenset(("fair", "same"))]


def test_two_datasets_speak_of_classes_only_and_without_classes_of_seeds() -> None:
    results = fake_suite(2)
    assert collect(results).level == "classes"
    assert headline(collect(results)).startswith("Level classes (for new test classes")
    unknown = {name: replace(each, query_classes=None) for name, each in results.items()}
    assert collect(unknown).level == "seeds"
    three = {name: replace(each, query_classes=None) for name, each in fake_suite(3).items()}
    assert collect(three).level == "datasets"  # with the errors of the seeds


def test_its_own_data_say_whether_verdicts_hold() -> None:
    suite = collect(fake_suite(5, queries=120))
    left = leave_one_dataset_out(suite)
    assert [len(said) for said in left.values()] == [6] * 5
    assert confident([one for said in left.values() for one in said], 0.9)[1] == 1.0
    assert leave_one_dataset_out(collect(fake_suite(3))) == {}
    halves = split_halves(suite.datasets[0], np.random.default_rng(0))
    assert len(halves) == 10 * 6
    assert confident(halves, 0.9)[1] > 0.9


def test_tables_hold_every_method_pair_and_dataset() -> None:
    suite = collect(fake_suite(4))
    board = leaderboard(suite)
    assert [row[0] for row in board.rows] == list(suite.methods)
    assert len(pairs(suite).rows) == 6
    assert [row[0] for row in agreements(suite).rows] == [each.name for each in suite.datasets]
    text = markdown(suite, {"Ranks": "ranks.svg"})
    assert "![Ranks](ranks.svg)" in text
    assert "Level datasets" in text


def test_methods_that_are_missing_on_a_dataset_are_not_compared() -> None:
    results = fake_suite(3)
    one = [one_dataset(name, each, "map@r") for name, each in results.items()]
    assert "poor" in assemble(one, "map@r").methods
    del one[1].seeds["poor"]
    assert "poor" not in assemble(one, "map@r").methods
    for each in one:
        each.seeds.clear()
    with pytest.raises(RunError, match="two finished seeds"):
        assemble(one, "map@r")
