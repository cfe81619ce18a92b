"""The statistics against slow obvious versions, against scipy, and against simulations whose truth is known."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from nearfield.analysis import statistics as ns
from nearfield.errors import InputError

Floats = NDArray[np.float64]
SEEDS = [0.61, 0.64, 0.60, 0.66, 0.63]
OTHER = [0.58, 0.63, 0.59, 0.60, 0.61]
tied = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=9)


def runs(rng: np.random.Generator, shape: tuple[int, int, int], seed: float, query: float, rest: float) -> Floats:
    """Scores (S, F, Q) around a true mean of 0: effects of seeds, of folds within a seed, of queries, and noise."""
    s, f, q = shape
    effects = rng.normal(size=(s, 1, 1)) * seed + rng.normal(size=(s, f, 1)) * seed / 2
    scores: Floats = effects + rng.normal(size=(1, 1, q)) * query + rng.normal(size=shape) * rest
    return scores


def margin(rate: float, trials: int) -> float:
    """Three standard errors of a simulated rate."""
    return 3 * sqrt(rate * (1 - rate) / trials)


# ---------------------------------------------------------------------------------------------------------------
# Intervals


def test_mean_interval_is_scipys() -> None:
    found = ns.mean_interval(SEEDS, 0.9)
    low, high = stats.t.interval(0.9, 4, np.mean(SEEDS), stats.sem(SEEDS))
    assert found.half_width is not None
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high))
    assert ns.mean_interval(np.array([SEEDS, SEEDS]).T, 0.9) == found  # two equal folds are one


def test_one_seed_has_no_interval_and_equal_seeds_a_closed_one() -> None:
    assert ns.mean_interval([0.5]) == ns.Interval(0.5, None)
    assert ns.mean_interval([0.5, 0.5]) == ns.Interval(0.5, 0.0)
    assert ns.two_way_interval([[0.0, 1.0, 1.0, 0.0]]) == ns.Interval(0.5, None)
    assert ns.two_way_interval(np.full((3, 5), 0.25)) == ns.Interval(0.25, 0.0)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_t_interval_covers_as_often_as_it_says(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    found = [ns.mean_interval(rng.normal(size=seeds)) for _ in range(2000)]
    covered = np.mean([abs(one.mean) <= (one.half_width or 0) for one in found])
    assert covered == pytest.approx(0.95, abs=margin(0.95, 2000))


def test_the_two_way_interval_is_the_slow_formula() -> None:
    """Variances of the mean: between seeds, between queries, minus that of single answers, which is in both."""
    s, q = 4, 30
    scores = runs(np.random.default_rng(1), (s, 1, q), 1.0, 2.0, 0.5)[:, 0]
    rows, columns = [np.mean(row) for row in scores], [np.mean(column) for column in scores.T]
    between_seeds = sum((row - scores.mean()) ** 2 for row in rows) / (s - 1) / s
    between_queries = sum((column - scores.mean()) ** 2 for column in columns) / (q - 1) / q
    cells = [[scores[i, j] - rows[i] - columns[j] + scores.mean() for j in range(q)] for i in range(s)]
    single = sum(cell**2 for row in cells for cell in row) / ((s - 1) * (q - 1)) / (s * q)
    freedom = (between_seeds + between_queries) ** 2 / (between_seeds**2 / (s - 1) + between_queries**2 / (q - 1))
    found = ns.two_way_interval(scores)
    assert found.mean == pytest.approx(scores.mean())
    assert found.half_width == pytest.approx(
        stats.t.ppf(0.975, freedom) * sqrt(between_seeds + between_queries - single)
    )


def test_queries_are_shared_between_seeds() -> None:
    difficulty = np.random.default_rng(0).normal(size=400)
    found = ns.two_way_interval(np.broadcast_to(difficulty, (5, 400)))
    assert found.half_width == pytest.approx(1.96 * difficulty.std(ddof=1) / 20, rel=0.01)


def two_way_coverage(shape: tuple[int, int, int], noise: tuple[float, float, float], trials: int) -> float:
    """How often the two-way interval contains the truth, folds averaged within their seed."""
    rng = np.random.default_rng(0)
    found = [ns.two_way_interval(runs(rng, shape, *noise).mean(axis=1)) for _ in range(trials)]
    return float(np.mean([abs(one.mean) <= (one.half_width or 0) for one in found]))


def test_the_two_way_interval_covers_with_few_seeds() -> None:
    assert two_way_coverage((3, 2, 30), (1.0, 0.5, 0.5), 600) >= 0.95 - margin(0.95, 600)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [(1.0, 0.5, 0.5), (0.1, 1.0, 1.0), (0.001, 1.0, 0.5), (0.0, 0.05, 1.0)])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_two_way_interval_covers_whatever_the_noise_is_made_of(
    seeds: int, noise: tuple[float, float, float]
) -> None:
    assert 0.95 - margin(0.95, 2000) <= two_way_coverage((seeds, 4, 100), noise, 2000) <= 0.99


# ---------------------------------------------------------------------------------------------------------------
# Comparisons


def test_compare_is_the_paired_t() -> None:
    found = ns.compare(SEEDS, OTHER)
    gaps = np.subtract(SEEDS, OTHER)
    t = gaps.mean() / (sqrt(sum((gap - gaps.mean()) ** 2 for gap in gaps) / 4) / sqrt(5))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), 4))
    assert found.difference.half_width is not None
    interval = stats.ttest_rel(SEEDS, OTHER).confidence_interval()
    assert found.difference.mean - found.difference.half_width == pytest.approx(interval.low)


def test_folds_are_averaged_within_their_seed() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    assert ns.compare(a, b) == ns.compare(a.mean(axis=1), b.mean(axis=1))


def test_comparisons_without_noise_or_with_one_seed() -> None:
    assert ns.compare([0.5], [0.1]) == ns.Comparison(ns.Interval(0.4, None), 0.0, 1.0, 1)
    assert ns.compare(SEEDS, SEEDS) == ns.Comparison(ns.Interval(0.0, 0.0), 0.0, 1.0, 5)
    assert ns.compare([0.1 + 0.2] * 4, [0.3] * 4).p == 1.0  # a difference in the last digit is rounding
    assert ns.compare([0.5, 0.5], [0.25, 0.25]).p == 0.0
    two = ns.compare([0.5, 0.75], [0.5, 0.25])
    assert two.p == pytest.approx(0.5)  # t = 1 with one degree of freedom


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_the_step_down_rule(p: list[float]) -> None:
    found = ns.holm(p)
    for alpha in (0.01, 0.05, 0.3):
        rejected = set()
        for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] * (len(p) - step) >= alpha:
                break
            rejected.add(i)
        assert set(np.flatnonzero(found < alpha)) == rejected
    assert (found >= p).all()
    assert (found <= 1).all()


# ---------------------------------------------------------------------------------------------------------------
# Verdicts


def test_verdicts_say_what_is_significant_and_how_many_seeds_are_missing() -> None:
    noise = np.array([-0.01, 0.01, 0.0, 0.005, -0.005])
    found = ns.verdicts({"low": 0.2 + noise, "best": 0.9 + noise[::-1], "close": 0.898 + np.roll(noise, 1)})
    texts = {(v.first, v.second): v.text for v in found.pairs}
    assert texts["best", "low"] == "best is better than low"
    assert texts["close", "low"] == "close is better than low"
    assert texts["best", "close"].startswith("not significantly different; about ")
    assert found.like_best == ("best", "close")
    assert all(v.p >= v.comparison.p for v in found.pairs)
    assert all(v.comparison.difference.mean > 0 for v in found.pairs)


def test_verdicts_without_an_estimate_of_seeds() -> None:
    same = ns.verdicts({"a": SEEDS, "b": SEEDS})
    assert same.pairs[0].text == "not significantly different"
    assert same.like_best == ("a", "b")
    assert ns.verdicts({"a": [0.9], "b": [0.1]}).pairs[0].text == "not significantly different"
    hair = ns.verdicts({"a": [0.5, 0.7, 0.6], "b": [0.7, 0.6, 0.5 - 1e-6]}).pairs[0]
    assert (hair.significant, hair.more_seeds) == (False, None)


def test_two_seeds_can_differ_significantly() -> None:
    found = ns.verdicts({"a": [0.9, 0.9001], "b": [0.1, 0.1]})
    assert found.pairs[0].significant
    assert found.like_best == ("a",)


def equal_methods(rng: np.random.Generator, methods: int, seeds: int) -> dict[str, Floats]:
    """Methods with the same expectation but unequal spreads, some of it shared between methods of a seed."""
    shared = rng.normal(size=seeds)
    return {f"m{k}": shared + (1 + k) * rng.normal(size=seeds) for k in range(methods)}


@pytest.mark.parametrize(("methods", "seeds"), [(2, 3), (4, 5), (6, 10)])
def test_equal_methods_seldom_differ_significantly(methods: int, seeds: int) -> None:
    rng, trials = np.random.default_rng(seeds), 400
    wrong = np.mean(
        [any(v.significant for v in ns.verdicts(equal_methods(rng, methods, seeds)).pairs) for _ in range(trials)]
    )
    assert wrong <= 0.05 + margin(0.05, trials)


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds"), [(2, 3), (5, 5), (10, 5), (8, 10)])
def test_family_wise_error_of_many_trials(methods: int, seeds: int) -> None:
    rng, trials = np.random.default_rng(seeds), 2000
    wrong = np.mean(
        [any(v.significant for v in ns.verdicts(equal_methods(rng, methods, seeds)).pairs) for _ in range(trials)]
    )
    assert wrong <= 0.05 + margin(0.05, trials)


def power(effect: float, seeds: int, alpha: float) -> float:
    """Exact power of the two-sided paired t-test, by the noncentral t."""
    critical = stats.t.ppf(1 - alpha / 2, seeds - 1)
    return float(stats.nct.sf(critical, seeds - 1, effect * sqrt(seeds)))


def test_a_real_difference_is_found_as_often_as_theory_says() -> None:
    rng, trials = np.random.default_rng(8), 600
    results = [{"a": 1.5 + rng.normal(size=8), "b": np.zeros(8)} for _ in range(trials)]
    shown = np.mean([ns.verdicts(one).like_best == ("a",) for one in results])
    expected = power(1.5, 8, 0.05)
    assert shown == pytest.approx(expected, abs=margin(expected, trials))


@pytest.mark.parametrize("effect", [0.3, 0.7, 1.5])
def test_needed_seeds_reach_the_power_they_promise(effect: float) -> None:
    observed = np.array([-1.0, 1.0, 0.0]) + effect  # spread 1, not significant with three seeds
    (verdict,) = ns.verdicts({"a": observed, "b": np.zeros(3)}).pairs
    assert verdict.more_seeds is not None
    total = 3 + verdict.more_seeds
    assert 0.75 <= power(effect, total, 0.05) <= 0.9
    assert power(effect, total - 2, 0.05) < 0.8


def test_needed_seeds_are_about_right_when_estimated_from_five() -> None:
    rng, truth = np.random.default_rng(9), 18  # seeds that an effect of 0.7 needs in theory
    totals = []
    for _ in range(400):
        (verdict,) = ns.verdicts({"a": 0.7 + rng.normal(size=5), "b": np.zeros(5)}).pairs
        totals.append(5 if verdict.significant else 5 + (verdict.more_seeds or 10_000))
    assert power(0.7, truth, 0.05) == pytest.approx(0.8, abs=0.03)
    quarter, half, three_quarters = np.quantile(totals, [0.25, 0.5, 0.75])
    assert truth / 1.5 <= half <= truth * 1.5
    assert truth / 2.5 <= quarter <= three_quarters <= truth * 2.5


# ---------------------------------------------------------------------------------------------------------------
# Ranks


def test_critical_difference_has_demsars_constants() -> None:
    for methods, q in ((2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)):
        found = ns.critical_difference(np.random.default_rng(0).random((12, methods)))
        assert found.difference == pytest.approx(q * sqrt(methods * (methods + 1) / 72), abs=0.001)


def test_friedman_is_scipys_with_and_without_ties() -> None:
    rng = np.random.default_rng(10)
    for scores in (rng.random((9, 4)), rng.integers(0, 3, (9, 4)).astype(float)):
        found = ns.critical_difference(scores)
        assert found.p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
        slow = [[1 + sum(row > one) + (sum(row == one) - 1) / 2 for one in row] for row in scores]
        assert found.ranks == pytest.approx(np.mean(slow, axis=0))


def test_friedman_of_two_methods_is_the_sign_test() -> None:
    wins, losses = 7, 2
    found = ns.critical_difference([[1.0, 0.0]] * wins + [[0.0, 1.0]] * losses + [[0.5, 0.5]])
    assert found.p == pytest.approx(stats.chi2.sf((wins - losses) ** 2 / (wins + losses), 1))


def test_bars_join_methods_closer_than_the_critical_difference() -> None:
    scores = np.tile([0.1, 0.4, 0.3, 0.2, 0.0], (6, 1))  # ranks 4 1 2 3 5, difference 2.49
    found = ns.critical_difference(scores)
    assert found.ranks == (4, 1, 2, 3, 5)
    assert found.groups == ((1, 2, 3), (2, 3, 0), (3, 0, 4))
    assert ns.critical_difference(np.tile([0.0, 1.0], (50, 1))).groups == ()
    equal = ns.critical_difference(np.ones((3, 4)))
    assert (equal.p, equal.groups) == (1.0, ((0, 1, 2, 3),))


@given(tied, st.randoms())
def test_kendall_tau_counts_pairs_in_the_same_order(a: list[float], random: Any) -> None:
    b = [float(random.randint(0, 4)) for _ in a]
    pairs = [(np.sign(a[i] - a[j]), np.sign(b[i] - b[j])) for i, j in combinations(range(len(a)), 2)]
    total = sqrt(sum(x != 0 for x, _ in pairs) * sum(y != 0 for _, y in pairs))
    found = ns.kendall_tau(a, b)
    assert found is None if total == 0 else found == pytest.approx(sum(x * y for x, y in pairs) / total)


def test_rank_shift_is_the_arithmetic_of_the_ledger() -> None:
    honest = {"a": 0.50, "b": 0.60, "c": 0.55, "d": 0.50}
    found = ns.rank_shift(honest, {"a": 0.70, "b": 0.61, "c": 0.56, "d": 0.51})
    assert found.methods == ("b", "c", "a", "d")
    assert found.ranks == (1, 2, 3.5, 3.5)
    assert found.biased_ranks == (2, 3, 1, 4)
    assert found.gains == pytest.approx((0.01, 0.01, 0.20, 0.01))
    assert found.tau == pytest.approx(stats.kendalltau([1, 2, 3.5, 3.5], [2, 3, 1, 4]).statistic)
    assert ns.rank_shift(honest, honest).tau == pytest.approx(1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_best_of_n_is_the_mean_maximum_over_all_subsets(scores: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(scores)))
    expected = np.mean([max(subset) for subset in combinations(scores, n)]) - np.mean(scores)
    assert ns.best_of_n_bias(scores, n) == pytest.approx(expected, abs=1e-12)


def test_best_of_n_estimates_the_maximum_of_new_seeds_without_bias() -> None:
    rng = np.random.default_rng(11)
    found = np.mean([ns.best_of_n_bias(rng.normal(size=6), 3) for _ in range(4000)])
    assert found == pytest.approx(3 / (2 * sqrt(np.pi)), abs=0.02)  # E max of three standard normals


# ---------------------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ns.mean_interval([0.1, float("nan")]), "values must be finite; 1 values"),
        (lambda: ns.mean_interval([]), r"values must be non-empty.*\(0,\)"),
        (lambda: ns.mean_interval([0.1], level=1.0), "level .* got 1.0"),
        (lambda: ns.mean_interval([0.1, 0.2], level=95), "level .* got 95"),
        (lambda: ns.two_way_interval(np.full((2, 3), np.nan)), "scores must be finite"),
        (lambda: ns.two_way_interval([0.1, 0.2]), r"axes in \(2,\).*\(2,\)"),
        (lambda: ns.two_way_interval([[0.1], [0.2]], level=0.0), "level"),
        (lambda: ns.compare([1, 2, 3], [1, 2]), r"a and b must share seeds.*\(3,\) and \(2,\)"),
        (lambda: ns.compare(np.ones((3, 4)), np.ones((3, 2))), r"\(3, 4\) and \(3, 2\)"),
        (lambda: ns.verdicts({"ms": [1, 2, 3], "nca": [1, 2]}), "nca and ms|ms and nca"),
        (lambda: ns.verdicts({"ms": [1, 2], "nca": [1, np.inf]}), "nca must be finite"),
        (lambda: ns.verdicts({"ms": [1, 2]}), "at least two methods; got 1"),
        (lambda: ns.critical_difference(np.ones((3, 1))), "at least two methods; got 1"),
        (lambda: ns.critical_difference(np.ones((3, 2)), level=2), "level"),
        (lambda: ns.kendall_tau([1, 2], [1, 2, 3]), "2 and 3 values"),
        (lambda: ns.rank_shift({"a": 1, "b": 2}, {"a": 1, "c": 1}), r"\['b', 'c'\]"),
        (lambda: ns.best_of_n_bias(SEEDS, 6), "number of seeds, 5; got 6"),
        (lambda: ns.best_of_n_bias(SEEDS, 0), "got 0"),
    ],
)
def test_refusals_name_the_argument_and_the_value(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
