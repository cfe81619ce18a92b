"""Do verdicts hold as often as they say? Asked of a suite's own data, and of simulations whose truth is known.

    left-out dataset   "A beats B on a new dataset with probability p" is said from all datasets but one, and looked up
                       on the one left out
    split halves       the class level speaks from half of the test classes and half of the seeds of the others
    simulations        seeds, classes and suites of datasets drawn from normal distributions, with outliers among the
                       methods, or with differences most of which do not travel: coverage of the 95 % intervals, and how
                       often equal methods are called different

Axes: S seeds, C classes, J datasets, R repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from nearfield.analysis.levels import FEWEST_CLASSES, Level, compare_classes
from nearfield.analysis.new_dataset import FEWEST_DATASETS, SURE, learn, new_dataset
from nearfield.analysis.statistics import Floats, compare, two_way_variance
from nearfield.analysis.suite import OneDataset, Suite, differences

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
Rows = NDArray[np.int64]
Population = Literal["normal", "outliers", "local"]
PRIOR = sqrt(2)  # of a mean difference, in spreads of the methods: that of two methods picked at random
OUTLIERS, FAR, UNSTEADY = 0.2, 6.0, 3.0  # share of outliers; how much farther they are, and how much less steady
METHODS, OWN = 8, 0.5  # of a simulated suite; what a dataset adds to a difference, beside what travels
Said = tuple[float, bool]  # the probability of a statement, at least 1/2, and whether it came true


@dataclass(frozen=True)
class Bin:
    """Statements of about the same probability."""

    said: float  # mean probability
    held: float  # share that came true
    low: float  # 95 % interval of that share (Wilson), as if statements were independent
    high: float
    count: int


@dataclass(frozen=True)
class Simulated:
    """What a level does where the truth is known."""

    level: Level
    coverage: float  # of its 95 % interval
    false_positives: float  # share of equal methods that are called different
    said: tuple[Said, ...]  # which of two methods is better, for what the level draws anew
    repetitions: int


def reliability(said: Sequence[Said], edges: Sequence[float] = EDGES) -> list[Bin]:
    """Statements by probability: said and held; empty bins are left out."""
    from scipy import stats

    found = []
    for low, high in pairwise(edges):
        inside = [(p, yes) for p, yes in said if low <= p < high or (p == high == edges[-1])]
        if inside:
            count, held = len(inside), sum(yes for _, yes in inside)
            interval = stats.binomtest(held, count).proportion_ci(0.95, method="wilson")
            mean = sum(p for p, _ in inside) / count
            found.append(Bin(mean, held / count, float(interval.low), float(interval.high), count))
    return found


def overconfidence(said: Sequence[Said]) -> float:
    """Mean probability that was said minus the share that came true; positive if verdicts say too much."""
    return float(np.mean([p - yes for p, yes in said])) if said else 0.0


# ---------------------------------------------------------------------------------------------------------------
# A suite's own data


def leave_one_dataset_out(suite: Suite) -> dict[str, list[Said]]:
    """What all datasets but one say of every pair, and whether the one left out, by name, agrees.

    The truth there is not known: what is said is the sign of the difference that is measured, with its error. Nothing
    is said with fewer than four datasets.
    """
    found: dict[str, list[Said]] = {}
    if len(suite.datasets) <= FEWEST_DATASETS:
        return found
    gaps, errors = differences(suite.datasets, suite.methods)
    for out, left in enumerate(suite.datasets):
        others, their_errors = np.delete(gaps, out, axis=1), np.delete(errors, out, axis=1)
        prior = learn(others, their_errors)
        found[left.name] = [
            _oriented(new_dataset(d, s, prior=prior, error=error).positive, bool(measured > 0))
            for d, s, measured, error in zip(others, their_errors, gaps[:, out], errors[:, out], strict=True)
        ]
    return found


def split_halves(each: OneDataset, rng: np.random.Generator, splits: int = 10) -> list[Said]:
    """What half of the classes and seeds says of every pair, and whether the other half agrees.

    The other half's difference has the variances of both, and pairs differ as methods picked at random do (`PRIOR`).
    """
    if not each.board.classes:
        return []
    seeds, classes = next(iter(each.board.classes.values())).shape
    if seeds < 4 or classes < 2 * FEWEST_CLASSES:
        return []
    found: list[Said] = []
    for _ in range(splits):
        halves = list(zip(_halves(seeds, rng), _halves(classes, rng), strict=True))
        for a, b in combinations(each.board.classes, 2):
            gaps = each.board.classes[a] - each.board.classes[b]  # (S, C)
            (d, v, nu), (other, w, mu) = (_part(gaps, each.board.shares, *half) for half in halves)
            if v + w > 0:
                freedom = (v + w) ** 2 / (v**2 / nu + w**2 / mu)
                found.append(_oriented(_positive(d, v, freedom, w, PRIOR * each.spread), other > 0))
    return found


def _halves(count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    order = rng.permutation(count)
    return order[: count // 2], order[count // 2 :]


def _part(gaps: Floats, shares: Floats, rows: Rows, columns: Rows) -> tuple[float, float, float]:
    """Mean difference in some rows and columns, its variance, and the degrees of freedom."""
    own = shares[columns] / shares[columns].sum()
    part = gaps[np.ix_(rows, columns)]
    return float((part @ own).mean()), *two_way_variance(part, own)


# ---------------------------------------------------------------------------------------------------------------
# Simulations


def simulate(
    level: Level, rng: np.random.Generator, repetitions: int = 300, size: int = 6, population: Population = "normal"
) -> Simulated:
    """Draw comparisons of two methods: as many equal ones, for false positives, as ones with a mean difference.

    `size` is how many of the level's unit there are; of classes eight times as many. A statement is about what the
    level draws anew. Populations other than "normal" are of the level of datasets.
    """

    def comparison(differ: bool) -> tuple[bool, bool, Said]:
        if level == "datasets":
            return _datasets(rng, differ, size, population)
        return _DRAWS[level](rng, PRIOR * rng.normal() if differ else 0.0, size)

    equal = [comparison(False) for _ in range(repetitions)]
    drawn = [comparison(True) for _ in range(repetitions)]
    return Simulated(
        level,
        coverage=float(np.mean([inside for inside, _, _ in drawn])),
        false_positives=float(np.mean([different for _, different, _ in equal])),
        said=tuple(statement for _, _, statement in drawn),
        repetitions=repetitions,
    )


def _seeds(rng: np.random.Generator, truth: float, size: int) -> tuple[bool, bool, Said]:
    gaps = truth + rng.normal(size=size)
    found = compare(gaps, np.zeros(size))
    half, mean, variance = found.difference.half_width or 0.0, found.difference.mean, found.spread**2 / size
    return abs(mean - truth) <= half, found.p < 0.05, _oriented(_positive(mean, variance, size - 1), truth > 0)


def _classes(rng: np.random.Generator, truth: float, size: int) -> tuple[bool, bool, Said]:
    """Classes of unequal size, crossed with five seeds."""
    count, seeds = 8 * size, 5
    weights = rng.uniform(0.2, 1.0, count)
    shares = weights / weights.sum()
    drawn = rng.normal(size=(seeds, 1)) * 0.5 + rng.normal(size=(1, count)) * 4 + rng.normal(size=(seeds, count))
    gaps = truth + drawn
    found = compare_classes(gaps, np.zeros_like(gaps), shares)
    half, mean = found.difference.half_width or 0.0, found.difference.mean
    positive = _positive(mean, *two_way_variance(gaps, shares))
    return abs(mean - truth) <= half, found.p < 0.05, _oriented(positive, truth > 0)


def _datasets(rng: np.random.Generator, differ: bool, size: int, population: Population) -> tuple[bool, bool, Said]:
    """A suite of `METHODS`, the first two of which are compared: means, what each dataset adds, and errors.

    Methods picked at random differ by N(0, `PRIOR`^2), in spreads; what a dataset adds has `OWN` times that spread, or,
    if differences are local, the two change places. Outliers are `FAR` times as far and vary `UNSTEADY` times as much.
    """
    travels, own = PRIOR / sqrt(2), OWN * PRIOR / sqrt(2)  # of one method: half the variance of a difference
    if population == "local":
        travels, own = own, travels
    far = (rng.uniform(size=METHODS) < OUTLIERS) * (population == "outliers")
    means = travels * rng.normal(size=METHODS) * np.where(far, FAR, 1.0)  # (K,)
    if not differ:
        means[1] = means[0]
    adds = own * np.where(far, UNSTEADY, 1.0)[:, None] * rng.normal(size=(METHODS, size + 1))
    truth = means[:, None] + adds  # (K, J + 1), the last dataset is the new one
    errors = 0.3 * rng.uniform(0.5, 1.5, size)  # of a difference
    seen = truth[:, :-1] + errors / sqrt(2) * rng.normal(size=(METHODS, size))
    gaps = np.array([seen[a] - seen[b] for a, b in combinations(range(METHODS), 2)])  # (P, J)
    prior = learn(gaps, np.broadcast_to(errors, gaps.shape))
    found, new = new_dataset(gaps[0], errors, prior=prior), truth[0, -1] - truth[1, -1]
    return found.low <= new <= found.high, found.decided in ("better", "worse"), _oriented(found.positive, new > 0)


_DRAWS = {"seeds": _seeds, "classes": _classes}


def _positive(mean: float, variance: float, freedom: float, more: float = 0.0, prior: float = PRIOR) -> float:
    """Probability that a difference is above 0, or with `more` that another estimate of that variance will be.

    The difference is N(0, prior^2) before it is seen; afterwards N(k mean, k variance) with k = p^2 / (p^2 + variance).
    """
    k = prior**2 / (prior**2 + variance)
    error = sqrt(k * variance + more)
    return float(stdtr(freedom, k * mean / error)) if error else float(mean > 0)


def _oriented(positive: float, truth: bool) -> Said:
    """The statement on the likelier side."""
    return (positive, truth) if positive >= 0.5 else (1 - positive, not truth)


def confident(said: Sequence[Said], least: float = SURE) -> tuple[int, float]:
    """How many statements have at least this probability, and the share of them that came true."""
    sure = [yes for p, yes in said if p >= least]
    return len(sure), float(np.mean(sure)) if sure else 1.0
