"""Three levels of a verdict, which are never mixed. Each says what would be drawn anew if the comparison were repeated.

    seeds      other random numbers; the same test images of the same dataset (`statistics.verdicts`)
    classes    other test classes of the same kind, and other seeds: queries of a class resemble each other, so that the
               class is the unit, crossed with seeds
    datasets   another dataset: the dataset is a random effect, and its own difference is known up to the error of its
               classes and seeds

None speaks of other training classes or another network. Pure: arrays in, small records out.

Axes: S seeds, Q queries, C classes, J datasets, T points of a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtr, stdtrit

from nearfield.analysis.statistics import (
    Comparison,
    Floats,
    Interval,
    Verdict,
    Verdicts,
    compare,
    holm,
    two_way_variance,
)
from nearfield.errors import InputError

Level = Literal["seeds", "classes", "datasets"]
SAYS: dict[Level, str] = {
    "seeds": "for new seeds on the same test images",
    "classes": "for new test classes of this dataset and new seeds",
    "datasets": "for a new dataset",
}
FEWEST_CLASSES, FEWEST_DATASETS = 5, 3  # from which a level can speak at all
ROPE = 0.1  # region of practical equivalence: a tenth of the spread of the methods on a dataset
PRIOR = sqrt(2)  # of a mean difference, in spreads of the methods: that of two methods picked at random
SURE = 0.95  # probability from which a verdict between datasets is a statement
_GRID = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 249)])  # of tau, in units of the data's own scale


# ---------------------------------------------------------------------------------------------------------------
# Classes


def by_class(queries: ArrayLike, classes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean scores (S, C) of the queries (S, Q) of each class, and each class's share of the queries, (C,).

    A query without a score (it has no match) is left out, and so is a class without any.
    """
    values = np.asarray(queries, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(classes):
        raise InputError(f"queries must have a column for each of the {len(classes)} classes; got {values.shape}.")
    kept = ~np.isnan(values).any(axis=0)
    _, number = np.unique(classes[kept], return_inverse=True)
    counts = np.bincount(number)
    sums = np.stack([np.bincount(number, weights=row) for row in values[:, kept]])
    return sums / counts, counts / counts.sum()


def compare_classes(a: Floats, b: Floats, shares: Floats, level: float = 0.95) -> Comparison:
    """Paired comparison of mean scores (S, C) over new classes and new seeds; classes count by their share of queries.

    Difference ± t_nu sqrt(V), with V of `two_way_variance`: classes crossed with seeds. What holds for new classes and
    new seeds holds for new seeds alone, so neither p nor the interval is smaller than those of the seeds.
    """
    if a.shape != b.shape:
        raise InputError(f"a and b must share seeds and classes; got {a.shape} and {b.shape}.")
    gaps = a - b
    difference = float((gaps @ shares).mean())
    seeds = compare(a @ shares, b @ shares, level)
    variance, freedom = two_way_variance(gaps, shares)
    if variance == 0.0:
        return Comparison(Interval(difference, 0.0), 0.0, float(difference == 0), len(a))
    half = max(float(stdtrit(freedom, (1 + level) / 2)) * sqrt(variance), seeds.difference.half_width or 0.0)
    p = max(2 * float(stdtr(freedom, -abs(difference) / sqrt(variance))), seeds.p)
    return Comparison(Interval(difference, half), sqrt(variance), p, len(a))


def class_verdicts(scores: Mapping[str, Floats], shares: Floats, level: float = 0.95) -> Verdicts:
    """For every pair of methods, mean scores (S, C) each: which is better for new test classes; Holm over all pairs."""
    if len(scores) < 2:
        raise InputError(f"scores must hold at least two methods; got {len(scores)}.")
    order = sorted(scores, key=lambda name: -float((scores[name] @ shares).mean()))
    names = list(combinations(order, 2))
    found = [compare_classes(scores[a], scores[b], shares, level) for a, b in names]
    adjusted = holm([one.p for one in found])
    pairs = tuple(
        Verdict(a, b, one, float(p), bool(p < 1 - level), None)
        for (a, b), one, p in zip(names, found, adjusted, strict=True)
    )
    worse = {pair.second for pair in pairs if pair.significant and pair.first == order[0]}
    return Verdicts(pairs, tuple(name for name in order if name not in worse))


# ---------------------------------------------------------------------------------------------------------------
# Datasets


@dataclass(frozen=True)
class NewDataset:
    """What is known of the difference a - b on a dataset that was not seen; the three probabilities sum to 1."""

    mean: float  # of the difference over datasets
    spread: float  # of the true difference between datasets, tau: the posterior mean
    better: float  # probability that a is better by more than the region of practical equivalence
    equal: float  # that the difference lies inside
    worse: float
    positive: float  # probability that a is better at all
    low: float  # 95 % interval of the difference on a new dataset
    high: float
    datasets: int

    @property
    def decided(self) -> Literal["better", "equal", "worse", ""]:
        """What has a probability of `SURE` or more; nothing if nothing has."""
        if self.better >= SURE:
            return "better"
        if self.worse >= SURE:
            return "worse"
        return "equal" if self.equal >= SURE else ""


def new_dataset(differences: ArrayLike, errors: ArrayLike, rope: float = ROPE, prior: float = PRIOR) -> NewDataset:
    """The difference on a new dataset, from those of J datasets (J,) and their standard errors (J,).

    d_j ~ N(theta_j, s_j^2), theta_j ~ N(mu, tau^2), and the new theta ~ N(mu, tau^2): the hierarchical model of Corani,
    Benavoli et al. (2017) with normal errors. tau has Berger and Bernardo's reference prior of random effects (Bodnar
    et al., Statistics in Medicine 2017), sqrt(sum_j tau^2 / (s_j^2 + tau^2)^2), and mu ~ N(0, prior^2). With a flat
    prior of mu (`prior` inf) and no errors the answer is Student's prediction, t_{J-1}(mean d, s sqrt(1 + 1/J)). mu is
    integrated exactly, tau on a grid.
    """
    d, s = (np.asarray(each, dtype=np.float64) for each in (differences, errors))
    if d.ndim != 1 or d.shape != s.shape or len(d) < FEWEST_DATASETS or not np.isfinite([d, s]).all() or (s < 0).any():
        raise InputError(
            f"differences and errors must be finite, of at least {FEWEST_DATASETS} datasets, errors at least 0; got "
            f"{d.tolist()} and {s.tolist()}."
        )
    scale = max(float(d.std(ddof=1)), float(s.mean()), 1e-12)
    s = np.maximum(s, 1e-4 * scale)  # an error of exactly 0 would make tau = 0 impossible
    tau = scale * _GRID  # (T,)
    total = s**2 + tau[:, None] ** 2  # (T, J)
    precision = (1 / total).sum(1) + 1 / prior**2
    centre = (d / total).sum(1) / precision  # of mu given tau
    log_posterior = (
        0.5 * np.log((tau[:, None] ** 2 / total**2).sum(1) + 1e-300)
        - 0.5 * np.log(total).sum(1)
        - 0.5 * np.log(precision)
        - 0.5 * ((d - centre[:, None]) ** 2 / total).sum(1)
        - 0.5 * (centre / prior) ** 2
    )
    weights = np.exp(log_posterior - log_posterior.max()) * np.gradient(tau)
    weights /= weights.sum()
    width = np.sqrt(1 / precision + tau**2)  # of the new theta given tau

    def below(x: float) -> float:
        return float(weights @ ndtr((x - centre) / width))

    return NewDataset(
        mean=float(weights @ centre),
        spread=float(weights @ tau),
        better=1 - below(rope),
        equal=below(rope) - below(-rope),
        worse=below(-rope),
        positive=1 - below(0.0),
        low=_solve(below, 0.025, centre, width),
        high=_solve(below, 0.975, centre, width),
        datasets=len(d),
    )


def spread_of_methods(scores: ArrayLike) -> float:
    """How far methods (K,) lie apart on one dataset: the interquartile range, as a standard deviation (/ 1.349).

    Differences are measured in it, so that a dataset on which all methods score low or high counts as any other.
    """
    values = np.asarray(scores, dtype=np.float64)
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.349 or float(values.std()) or 1.0


def _solve(below: Callable[[float], float], target: float, centre: Floats, width: Floats) -> float:
    from scipy.optimize import brentq  # takes long to import

    far = 50 * float(width.max())
    return float(brentq(lambda x: below(x) - target, float(centre.min()) - far, float(centre.max()) + far))
