"""Retrieval on classes that nothing was learned from: every image is a query among all other images of those classes.

Axes: N images, Q queries, C classes, D dims.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from nearfield.analysis.statistics import two_way_variance
from nearfield.data import Dataset
from nearfield.metrics.dataset_scores import query_labels, score_test

LEVEL = 0.95
METRICS = ("map@r", "recall@1")
PerQuery = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Range:
    """A mean over queries, and its interval over classes: other classes of the same kind would give another mean."""

    mean: float
    low: float
    high: float

    def facts(self) -> dict[str, float]:
        """As JSON takes it."""
        return asdict(self)


def over_classes(scores: npt.NDArray[Any], classes: npt.NDArray[Any], least: float = 0.0) -> Range:
    """The mean of scores (Q,) and its 95 % t-interval with the class as the unit, inside `least` to 1.

    Queries without a match (NaN) do not count. Queries of a class are not independent: the variance is that of the
    class means, each weighted by its share of the queries.
    """
    known = np.isfinite(scores)
    values, codes = scores[known].astype(np.float64), np.unique(classes[known], return_inverse=True)[1]
    counts = np.bincount(codes)
    means = np.bincount(codes, values) / counts  # (C,)
    mean = float(values.mean())
    if len(counts) < 2:
        return Range(mean, least, 1.0)
    variance, freedom = two_way_variance(means[None], counts / counts.sum())
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * sqrt(variance)
    return Range(mean, max(least, mean - half), min(1.0, mean + half))


def scores_of_queries(dataset: Dataset, embeddings: npt.NDArray[Any]) -> PerQuery:
    """The scores of every test image as a query, for embeddings (N, D) of all images."""
    found = score_test(dataset, embeddings[dataset.test_rows()], metrics=("recall", "map_at_r"), ks=(1,))[1]
    return {name: found[name] for name in METRICS}


def expectation(dataset: Dataset, trained: PerQuery | None, untrained: PerQuery) -> dict[str, Any]:
    """What to expect on new classes of the untrained network and, if there is one, of the trained one."""
    classes = query_labels(dataset)
    parts: dict[str, tuple[PerQuery, float]] = {"untrained": (untrained, 0.0)}
    if trained is not None:
        parts["trained"] = (trained, 0.0)
        parts["difference"] = ({name: trained[name] - untrained[name] for name in METRICS}, -1.0)
    found = {
        part: {name: over_classes(scores[name], classes, least).facts() for name in METRICS}
        for part, (scores, least) in parts.items()
    }
    return {"classes": len(dataset.test_classes), "images": len(classes), **found}
