"""Intervals and verdicts on invented benches whose truth is known: how often they are right.

`python tests/test_simulation.py` prints the tables with many trials; the tests run the same with few.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from benches import Noise, fake_results
from numpy.typing import NDArray
from scipy import stats

from nearfield.analysis import statistics as ns
from nearfield.analysis.leaderboard import Board, standings

Floats = NDArray[np.float64]
Shape = Callable[[np.random.Generator, tuple[int, ...]], Floats]
SHAPES: dict[str, Shape] = {  # of the seeds' noise: mean 0, standard deviation 1
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: 1 - rng.exponential(size=size),  # now and then a run goes badly wrong
    "heavy": lambda rng, size: rng.standard_t(3, size=size) / sqrt(3),
}
FLAT = Noise(seed=0.004, fold=0.002, query=0.05, rest=0.02)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_quantiles(monkeypatch)


def remember_quantiles(patch: pytest.MonkeyPatch) -> None:
    """Thousands of boards ask for the same slow quantile of the critical difference."""
    patch.setattr(stats.studentized_range, "ppf", lru_cache(stats.studentized_range.ppf))


def board(truth: dict[str, float], seeds: int, rng: np.random.Generator, noise: Noise = FLAT) -> Board:
    return standings(fake_results(truth, seeds, 1, 0, 10, noise, rng=rng))


def margin(rate: float, trials: int) -> float:
    """Three standard errors of a simulated rate."""
    return 3 * sqrt(rate * (1 - rate) / trials)


# ---------------------------------------------------------------------------------------------------------------
# Coverage


def board_coverage(seeds: int, trials: int) -> tuple[float, float, float]:
    """How often on boards the t-interval holds the truth of these queries, and of new ones; the two-way one too."""
    rng = np.random.default_rng(seeds)
    held = np.zeros(3)
    for _ in range(trials):
        results = fake_results({"a": 0.3}, seeds, 2, 0, 60, Noise(0.004, 0.002, 0.05, 0.02), rng=rng)
        (one,) = standings(results).standings
        score, two_way = one.scores["map@r"], one.new_queries
        assert two_way is not None
        here = 0.3 + results.data["difficulty"]
        held[0] += abs(score.mean - here) <= (score.half_width or 0)
        held[1] += abs(score.mean - 0.3) <= (score.half_width or 0)
        held[2] += abs(two_way.mean - 0.3) <= (two_way.half_width or 0)
    same, new, both = held / trials
    return float(same), float(new), float(both)


def shape_coverage(shape: str, seeds: int, trials: int) -> float:
    """How often the t-interval over seeds holds the truth when their noise is not normal."""
    draws = SHAPES[shape](np.random.default_rng(seeds), (trials, seeds))
    found = [ns.mean_interval(draw) for draw in draws]
    return float(np.mean([abs(one.mean) <= (one.half_width or 0) for one in found]))


def bounded_coverage(seeds: int, trials: int, per_class: int = 1) -> float:
    """How often two-way intervals hold the truth, scores in [0, 1] with many near 0, queries alone or in classes."""
    rng = np.random.default_rng(seeds)

    def scores(s: int, q: int) -> Floats:  # (S, Q)
        classes = np.repeat(rng.normal(0, 0.9, size=q // per_class), per_class)  # 0.3 of the variance is theirs
        difficulty = rng.normal(-1.2, 1.3, size=q) + classes
        runs = rng.normal(0, 0.05, size=(s, 1)) + rng.normal(0, 0.3, size=(s, q))
        found: Floats = 1 / (1 + np.exp(-difficulty - runs))
        return found

    truth = float(np.mean([scores(1, 4000 * per_class).mean() for _ in range(200)]))
    found = [ns.two_way_interval(scores(seeds, 300)) for _ in range(trials)]
    return float(np.mean([abs(one.mean - truth) <= (one.half_width or 0) for one in found]))


def test_the_boards_intervals_cover_what_they_claim() -> None:
    same, new, both = board_coverage(4, 300)
    assert same == pytest.approx(0.95, abs=margin(0.95, 300))
    assert new < 0.9  # the t-interval is of new seeds on the same queries
    assert 0.95 - margin(0.95, 300) <= both <= 0.995


def test_the_t_interval_bears_noise_that_is_not_normal() -> None:
    for shape in ("skewed", "heavy"):
        assert shape_coverage(shape, 5, 1000) >= 0.86


def test_bounded_skewed_scores_are_covered_but_not_new_classes() -> None:
    assert bounded_coverage(5, 200) == pytest.approx(0.95, abs=margin(0.95, 200))
    assert bounded_coverage(5, 200, per_class=20) < 0.88  # the limit that `two_way_interval` states


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_coverage_of_many_trials(seeds: int) -> None:
    same, _, both = board_coverage(seeds, 2000)
    assert same == pytest.approx(0.95, abs=margin(0.95, 2000))
    assert 0.93 <= both <= 0.985
    assert bounded_coverage(seeds, 2000) == pytest.approx(0.95, abs=0.025)


# ---------------------------------------------------------------------------------------------------------------
# False positives


def false_verdicts(methods: int, seeds: int, trials: int, lower: int = 0) -> tuple[float, float]:
    """Shares of boards with a false verdict, and with a false gap in ranks, among equal methods; `lower` are worse."""
    rng = np.random.default_rng(methods)
    equal = [f"m{i}" for i in range(methods - lower)]
    truth = dict.fromkeys(equal, 0.3) | {f"low{i}": 0.25 - 0.01 * i for i in range(lower)}
    wrong = np.zeros(2)
    for _ in range(trials):
        found = board(truth, seeds, rng)
        assert found.verdicts is not None
        assert found.critical is not None
        pairs = [pair for pair in found.verdicts.pairs if pair.significant]
        wrong[0] += any(truth[pair.first] <= truth[pair.second] for pair in pairs)
        ranks = [found.critical.ranks[found.compared.index(name)] for name in equal]
        wrong[1] += max(ranks) - min(ranks) >= found.critical.difference
    verdict, gap = wrong / trials
    return float(verdict), float(gap)


def shape_errors(shape: str, methods: int, seeds: int, trials: int) -> float:
    """Family-wise error of the verdicts when the seeds' noise is not normal."""
    draws = SHAPES[shape](np.random.default_rng(methods), (trials, methods, seeds))
    return float(np.mean([any(v.significant for v in ns.verdicts(_named(draw)).pairs) for draw in draws]))


def _named(draw: Floats) -> dict[str, Floats]:
    return {str(i): scores for i, scores in enumerate(draw)}


def fold_blocks(methods: int, seeds: int, folds: int, trials: int) -> tuple[float, float]:
    """False gaps in ranks of equal methods with seeds as blocks, and with the folds of every seed as blocks."""
    rng = np.random.default_rng(folds)
    wrong = np.zeros(2)
    for _ in range(trials):
        scores = rng.normal(size=(seeds, 1, methods)) + rng.normal(size=(seeds, folds, methods)) / 2  # (S, F, K)
        for i, blocks in enumerate((scores.mean(axis=1), scores.reshape(-1, methods))):
            found = ns.critical_difference(blocks)
            wrong[i] += max(found.ranks) - min(found.ranks) >= found.difference
    by_seed, by_fold = wrong / trials
    return float(by_seed), float(by_fold)


def test_equal_methods_get_no_verdict() -> None:
    verdict, gap = false_verdicts(5, 5, 150)
    assert verdict <= 0.05 + margin(0.05, 150)
    assert gap <= 0.05 + margin(0.05, 150)


def test_equal_methods_among_worse_ones_get_no_verdict() -> None:
    verdict, _ = false_verdicts(6, 5, 150, lower=3)
    assert verdict <= 0.05 + margin(0.05, 150)


@pytest.mark.parametrize("shape", ["skewed", "heavy"])
def test_noise_that_is_not_normal_makes_no_verdicts(shape: str) -> None:
    assert shape_errors(shape, 4, 5, 300) <= 0.05 + margin(0.05, 300)


def test_folds_are_no_blocks() -> None:
    by_seed, by_fold = fold_blocks(5, 5, 4, 300)
    assert by_seed <= 0.05 + margin(0.05, 300)
    assert by_fold > 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds", "lower"), [(10, 5, 0), (10, 5, 5), (25, 5, 0), (10, 10, 0)])
def test_family_wise_error_of_many_boards(methods: int, seeds: int, lower: int) -> None:
    verdict, gap = false_verdicts(methods, seeds, 600, lower)
    assert verdict <= 0.05 + margin(0.05, 600)
    assert gap <= 0.05 + margin(0.05, 600)


# ---------------------------------------------------------------------------------------------------------------
# Power, and how many more seeds


def power(methods: int, seeds: int, gap: float, trials: int) -> float:
    """Share of true differences that are shown, `gap` standard deviations of a seed between neighbours."""
    rng = np.random.default_rng(seeds)
    noise = Noise(seed=0.004, fold=0.0, query=0.05, rest=0.0)
    truth = {f"m{i}": 0.3 - 0.004 * gap * i for i in range(methods)}
    found = [board(truth, seeds, rng, noise).verdicts for _ in range(trials)]
    return float(np.mean([pair.significant for one in found if one for pair in one.pairs]))


def needed(effect: float, alpha: float) -> int:
    """Seeds that a paired t-test needs for 80 % power, exactly."""
    return next(
        n for n in range(2, 10_000) if stats.nct.sf(stats.t.ppf(1 - alpha / 2, n - 1), n - 1, effect * sqrt(n)) >= 0.8
    )


def more_seeds(effect: float, pilot: int, trials: int, others: int = 0) -> tuple[int, tuple[float, ...], float]:
    """Needed seeds; quartiles of what a pilot without a verdict asks for; how often so many seeds then show it.

    `effect` is in standard deviations of the paired difference. `others` are methods equal to the second.
    """
    rng = np.random.default_rng(pilot)
    names = ["a", "b", *(f"o{i}" for i in range(others))]
    alpha = 0.05 / len(list(combinations(names, 2)))
    asked, shown = [], []

    def draw(seeds: int) -> dict[str, Floats]:
        scores = {name: rng.normal(size=seeds) / sqrt(2) for name in names}
        return {**scores, "a": scores["a"] + effect}

    for _ in range(trials):
        first = draw(pilot)
        found = next(v for v in ns.verdicts(first).pairs if {v.first, v.second} == {"a", "b"})
        if found.significant:
            continue
        asked.append(pilot + (found.more_seeds or 10_000))
        if found.more_seeds and found.more_seeds < 500:
            again = draw(found.more_seeds)
            whole = {name: np.concatenate([first[name], again[name]]) for name in names}
            pair = next(v for v in ns.verdicts(whole).pairs if {v.first, v.second} == {"a", "b"})
            shown.append(pair.significant and pair.first == "a")
    return needed(effect, alpha), tuple(np.quantile(asked, [0.25, 0.5, 0.75]).tolist()), float(np.mean(shown))


def test_power_grows_with_seeds() -> None:
    found = [power(3, seeds, 2.0, 40) for seeds in (2, 4, 7, 11)]
    assert found == sorted(found)
    assert found[0] < 0.2
    assert found[-1] > 0.9


def test_the_true_best_is_hardly_ever_called_worse() -> None:
    rng = np.random.default_rng(4)
    truth = {f"m{i}": 0.3 - 0.002 * i for i in range(4)}
    kept = [board(truth, 5, rng) for _ in range(100)]
    assert np.mean(["m0" in one.like_best for one in kept]) >= 0.95


@pytest.mark.parametrize(("effect", "pilot", "others"), [(1.0, 5, 0), (0.5, 10, 0), (1.0, 6, 1)])
def test_the_seeds_asked_for_are_right_on_average(effect: float, pilot: int, others: int) -> None:
    truth, (_, middle, _), shown = more_seeds(effect, pilot, 100, others)
    assert truth / 1.8 <= middle <= truth * 1.8
    assert shown >= 0.6


# ---------------------------------------------------------------------------------------------------------------
# Tables


def main() -> None:
    say = sys.stdout.write
    say("\ncoverage of 95 % intervals on the board, 2000 trials\n")
    say("| seeds | t, same queries | t, new queries | two-way |\n")
    for seeds in (2, 3, 5, 10):
        say("| {} | {:.3f} | {:.3f} | {:.3f} |\n".format(seeds, *board_coverage(seeds, 2000)))
    say("\nother noise, 4000 trials of t, 2000 of the two-way interval\n")
    say("| seeds | t, skewed | t, heavy | two-way, in [0, 1] | two-way, new classes of 20 |\n")
    for seeds in (3, 5, 10):
        row = [shape_coverage(shape, seeds, 4000) for shape in ("skewed", "heavy")]
        row += [bounded_coverage(seeds, 2000), bounded_coverage(seeds, 2000, per_class=20)]
        say(f"| {seeds} | {' | '.join(f'{rate:.3f}' for rate in row)} |\n")
    say("\nfalse positives (family-wise), 1000 boards, 400 of 25 methods\n")
    say("| methods | of them worse | seeds | verdicts | ranks |\n")
    for methods, lower, seeds in ((2, 0, 5), (5, 0, 3), (10, 0, 5), (10, 5, 5), (25, 0, 5), (10, 0, 10)):
        verdict, gap = false_verdicts(methods, seeds, 1000 if methods < 25 else 400, lower)
        say(f"| {methods} | {lower} | {seeds} | {verdict:.3f} | {gap:.3f} |\n")
    say("\nother noise, 10 methods, 5 seeds, 1000 trials\n")
    for shape in SHAPES:
        say(f"| {shape} | {shape_errors(shape, 10, 5, 1000):.3f} |\n")
    say("\nranks, 10 methods, 5 seeds of 4 folds: blocks are seeds, blocks are folds, 1000 trials\n")
    say("| {:.3f} | {:.3f} |\n".format(*fold_blocks(10, 5, 4, 1000)))
    say("\npower: share of true differences shown, neighbours a standard deviation apart\n")
    for methods in (5, 25):
        shown = [
            f"{seeds} seeds {power(methods, seeds, 1.0, 200 if methods < 9 else 40):.2f}" for seeds in (2, 3, 5, 10)
        ]
        say(f"| {methods} methods | {' | '.join(shown)} |\n")
    say("\nmore seeds, 1000 pilots\n| effect | pilot | others | needed | asked: quartiles | then shown |\n")
    for effect, pilot, others in ((2.0, 3, 0), (1.0, 5, 0), (0.7, 5, 0), (0.5, 10, 0), (1.0, 5, 3), (1.0, 10, 3)):
        truth, quartiles, then = more_seeds(effect, pilot, 1000, others)
        asked = ", ".join(f"{one:.0f}" for one in quartiles)
        say(f"| {effect} | {pilot} | {others} | {truth} | {asked} | {then:.2f} |\n")


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        remember_quantiles(patch)
        main()
