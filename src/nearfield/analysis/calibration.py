"""Do verdicts hold as often as they say? Asked of a suite's own data, and of simulations whose truth is known.

    left-out dataset   "A beats B on a new dataset with probability p" is said from all datasets but one, and looked up
                       on the one left out
    split halves       the class level speaks from half of the test classes and half of the seeds of the others
    simulations        datasets, classes and seeds drawn from normal distributions, or with outliers among the methods:
                       coverage of the 95 % intervals, and how often equal methods are called different

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

from nearfield.analysis.levels import (
    FEWEST_CLASSES,
    FEWEST_DATASETS,
    PRIOR,
    ROPE,
    SURE,
    Level,
    compare_classes,
    new_dataset,
)
from nearfield.analysis.statistics import Floats, compare, two_way_variance
from nearfield.analysis.suite import OneDataset, Suite

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
Rows = NDArray[np.int64]
Population = Literal["normal", "outliers"]
OUTLIERS, FAR, UNSTEADY = 0.2, 6.0, 3.0  # share of outliers; how much larger their difference is, and its spread
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


def leave_one_dataset_out(suite: Suite) -> list[Said]:
    """What all datasets but one say of every pair, and whether the one left out agrees; none with fewer than four."""
    if len(suite.datasets) <= FEWEST_DATASETS:
        return []
    found: list[Said] = []
    for a, b in combinations(suite.methods, 2):
        pairs = [each.difference(a, b) for each in suite.datasets]
        for out, (truth, _) in enumerate(pairs):
            rest = [pair for number, pair in enumerate(pairs) if number != out]
            gaps, errors = zip(*rest, strict=True)
            found.append(_oriented(new_dataset(gaps, errors).positive, truth > 0))
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

    Mean differences are N(0, `PRIOR`^2), in spreads of the methods; of the population "outliers" one in five is `FAR`
    times as large, and what its datasets add to it is `UNSTEADY` times as large. `size` is how many of the level's unit
    there are; of classes eight times as many. A statement is about what the level draws anew.
    """

    def comparison(differ: bool) -> tuple[bool, bool, Said]:
        far, unsteady = 1.0, 1.0
        if population == "outliers" and rng.uniform() < OUTLIERS:
            far, unsteady = FAR, UNSTEADY
        return _DRAWS[level](rng, far * PRIOR * rng.normal() if differ else 0.0, size, unsteady)

    equal = [comparison(False) for _ in range(repetitions)]
    drawn = [comparison(True) for _ in range(repetitions)]
    return Simulated(
        level,
        coverage=float(np.mean([inside for inside, _, _ in drawn])),
        false_positives=float(np.mean([different for _, different, _ in equal])),
        said=tuple(statement for _, _, statement in drawn),
        repetitions=repetitions,
    )


def _seeds(rng: np.random.Generator, truth: float, size: int, noise: float) -> tuple[bool, bool, Said]:
    gaps = truth + rng.normal(size=size) * noise
    found = compare(gaps, np.zeros(size))
    half, mean, variance = found.difference.half_width or 0.0, found.difference.mean, found.spread**2 / size
    return abs(mean - truth) <= half, found.p < 0.05, _oriented(_positive(mean, variance, size - 1), truth > 0)


def _classes(rng: np.random.Generator, truth: float, size: int, noise: float) -> tuple[bool, bool, Said]:
    """Classes of unequal size, crossed with five seeds."""
    count, seeds = 8 * size, 5
    weights = rng.uniform(0.2, 1.0, count)
    shares = weights / weights.sum()
    drawn = rng.normal(size=(seeds, 1)) * 0.5 + rng.normal(size=(1, count)) * 4 + rng.normal(size=(seeds, count))
    gaps = truth + drawn * noise
    found = compare_classes(gaps, np.zeros_like(gaps), shares)
    half, mean = found.difference.half_width or 0.0, found.difference.mean
    positive = _positive(mean, *two_way_variance(gaps, shares))
    return abs(mean - truth) <= half, found.p < 0.05, _oriented(positive, truth > 0)


def _datasets(rng: np.random.Generator, truth: float, size: int, noise: float) -> tuple[bool, bool, Said]:
    """A mean difference, what each dataset adds, and the error of its classes and seeds; then one dataset more."""
    spread, errors = 0.7 * noise, 0.3 * rng.uniform(0.5, 1.5, size)
    gaps = truth + rng.normal(size=size) * spread + rng.normal(size=size) * errors
    new = truth + rng.normal() * spread
    found = new_dataset(gaps, errors, ROPE)
    return found.low <= new <= found.high, found.decided in ("better", "worse"), _oriented(found.positive, new > 0)


_DRAWS = {"seeds": _seeds, "classes": _classes, "datasets": _datasets}


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
