"""Three levels of a verdict, which are never mixed. Each says what would be drawn anew if the comparison were repeated.

    seeds      other random numbers; the same test images of the same dataset (`statistics.verdicts`)
    classes    other test classes of the same kind, and other seeds: queries of a class resemble each other, so that the
               class is the unit, crossed with seeds
    datasets   another dataset: the dataset is a random effect, and its own difference is known up to the error of its
               classes and seeds (`new_dataset`)

None speaks of other training classes or another network. Pure: arrays in, small records out.

Axes: S seeds, Q queries, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

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
FEWEST_CLASSES = 5  # from which the level can speak at all


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
