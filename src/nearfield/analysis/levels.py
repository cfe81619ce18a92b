"""Three levels of a verdict, which are never mixed. Each says what would be drawn anew if the comparison were repeated.

    seeds      other random numbers; the same test images of the same dataset (`statistics.verdicts`)
    classes    other test classes of the same kind, and other seeds: queries of a class resemble each other, so that the
               class is the unit, crossed with seeds
    datasets   another dataset: the dataset is a random effect, and its own difference is known up to the error of its
               classes and seeds

None speaks of other training classes or another network. Pure: arrays in, small records out.

Axes: S seeds, Q queries, C classes, J datasets, L and T points of the grids of lambda and tau.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

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
PRIOR = sqrt(2)  # scale of a mean difference, in spreads of the methods: that of two methods picked at random
SURE = 0.95  # probability from which a verdict between datasets is a statement
_TAUS = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 99)])  # in units of the data's own scale
_LAMBDAS = np.exp(np.linspace(-3.5, 18.0, 25))
_NEGLIGIBLE = 1e-6  # of the weight of a grid's point beside the largest one


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
    Benavoli et al. (2017) with normal errors. Both priors have the scale g = `prior` and heavy tails, so that a method
    that is far worse than all others is believed:

        mu | lambda ~ N(0, lambda g^2),  lambda ~ InverseGamma(nu/2, nu/2),  nu = 1: Cauchy with scale g
        p(tau) = sqrt(sum_j tau^2 / (s_j^2 + tau^2)^2) / (1 + (tau / 2g)^2)

    Where prior and data contradict each other, the one with the heavier tail yields (Dawid, Biometrika 1973; O'Hagan,
    JRSS B 1979). Without errors the likelihood of mu is Student's with J - 1 degrees of freedom: the prior yields to
    three datasets if nu < 2, and 1 is Jeffreys' (1961) choice. Fitted to the mean differences of the 1,378 pairs of
    docs/suites/features.md, nu is 1.5 to 2. The root in p(tau) is Berger and Bernardo's reference prior of random
    effects (Bodnar et al., Statistics in Medicine 2017), which alone lets a tau of 10 explain differences of -10, -12
    and -8 around mu = 0. So it is multiplied by a half-Cauchy, Gelman's (Bayesian Analysis 2006) advice for as few as
    three groups, whose scale is well above what is expected: two methods picked at random differ by g on one dataset.

    With flat priors (`prior` inf) and no errors the answer is Student's prediction, t_{J-1}(mean d, s sqrt(1 + 1/J)).
    mu is integrated exactly, lambda and tau on a grid.
    """
    d, s = (np.asarray(each, dtype=np.float64) for each in (differences, errors))
    if d.ndim != 1 or d.shape != s.shape or len(d) < FEWEST_DATASETS or not np.isfinite([d, s]).all() or (s < 0).any():
        raise InputError(
            f"differences and errors must be finite, of at least {FEWEST_DATASETS} datasets, errors at least 0; got "
            f"{d.tolist()} and {s.tolist()}."
        )
    weights, centre, width, tau = _posterior(d, s, prior)

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


def _posterior(d: Floats, s: Floats, prior: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Weights of the grid's points that matter; given each, mean and standard deviation of the new theta, and tau."""
    scale = max(float(d.std(ddof=1)), float(s.mean()), 1e-12)
    s = np.maximum(s, 1e-4 * scale)  # an error of exactly 0 would make tau = 0 impossible
    tau = scale * _TAUS  # (T,)
    total = s**2 + tau[:, None] ** 2  # (T, J)
    known = (1 / total).sum(1)  # (T,) precision of the mean of the data
    mean = (d / total).sum(1) / known
    log_likelihood = (
        0.5 * np.log((tau[:, None] ** 2 / total**2).sum(1) + 1e-300)
        - 0.5 * np.log(total).sum(1)
        - 0.5 * ((d - mean[:, None]) ** 2 / total).sum(1)
        - np.log1p((tau / (2 * prior)) ** 2)
    )
    lam, before = _LAMBDAS[:, None], 1 / (_LAMBDAS[:, None] * prior**2)  # (L, 1) lambda, and the prior's precision
    share = before / (known + before)  # (L, T) how far the mean is drawn to 0
    log_posterior = (
        log_likelihood
        - 0.5 * np.log(lam * known + prior**-2)
        - 0.5 * share * known * mean**2
        - 0.5 * (np.log(lam) + 1 / lam)  # lambda's prior, nu = 1, on a logarithmic grid
    )
    weights = np.exp(log_posterior - log_posterior.max()) * np.gradient(tau)
    kept = weights > _NEGLIGIBLE * weights.max()
    width = np.sqrt(1 / (known + before) + tau**2)
    shown = np.broadcast_to(tau, weights.shape)
    return weights[kept] / weights[kept].sum(), ((1 - share) * mean)[kept], width[kept], shown[kept]


def spread_of_methods(scores: ArrayLike) -> float:
    """How far methods (K,) lie apart on one dataset: the interquartile range, as a standard deviation (/ 1.349).

    Differences are measured in it, so that a dataset on which all methods score low or high counts as any other.
    """
    values = np.asarray(scores, dtype=np.float64)
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.349 or float(values.std()) or 1.0


def _solve(below: Callable[[float], float], target: float, centre: Floats, width: Floats) -> float:
    """The quantile of a mixture of normals, which lies between those of its parts."""
    from scipy.optimize import brentq  # takes long to import

    parts = centre + width * float(ndtri(target))
    low, high = float(parts.min()), float(parts.max())
    return float(brentq(lambda x: below(x) - target, low - 1e-9, high + 1e-9, xtol=1e-6 * (high - low) + 1e-12))
