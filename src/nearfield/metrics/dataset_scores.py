"""Scores of the test split of a dataset, under the dataset's own protocol.

    self, closed    every test image is a query against all other test images
    query-gallery   the queries are ranked against the gallery (In-Shop)
    vehicleid       each list separately, under two protocols: `small/gallery1/recall@1` against one random image of
                    every vehicle, the mean of ten draws; `small/loo/recall@1` leave-one-out, as FastAP's code does it.
                    Names without a prefix repeat `loo` of the longest list: with a single match, MAP@R equals R@1.

Axes: T test images, Q queries, D dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearfield.data.dataset import Dataset, Integers
from nearfield.errors import InputError
from nearfield.metrics.checks import Distance
from nearfield.metrics.remembered import remembered_metrics
from nearfield.metrics.settings import DEFAULT_METRICS, RETRIEVAL

SIZES = {"test_800": "small", "test_1600": "medium", "test_2400": "large"}  # the names of VehicleID's lists in papers
DRAWS = 10  # of its galleries
DatasetScores = tuple[dict[str, float], dict[str, NDArray[np.float32]]]


def score_test(
    dataset: Dataset,
    embeddings: Tensor | NDArray[Any],
    distance: Distance = "cosine",
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    ks: Sequence[int] | None = None,
) -> DatasetScores:
    """Mean scores, and the scores of every query, for embeddings (T, D) in the order of `dataset.test_rows()`.

    Queries keep the order of their rows; scores of a query (Q,) are NaN where it has no match. `seed` draws the
    galleries of VehicleID. Clustering and diagnostics are computed on the queries. `ks` defaults to
    those of the dataset's papers.
    """
    rows = dataset.test_rows()
    if len(embeddings) != len(rows):
        raise InputError(f"embeddings must have a row for each of the {len(rows)} test images; got {len(embeddings)}.")
    used = {"metrics": tuple(metrics or DEFAULT_METRICS), "ks": tuple(ks or dataset.ks)}
    common: dict[str, Any] = {**used, "distance": distance}
    labels = dataset.labels[rows]
    if dataset.test_lists:
        lists = {SIZES.get(name, name): _places(name, listed, rows) for name, listed in dataset.test_lists.items()}
        return _score_lists(embeddings, labels, lists, seed, common)
    if dataset.is_query is not None and dataset.is_gallery is not None:
        q, g = (np.flatnonzero(flags[rows]) for flags in (dataset.is_query, dataset.is_gallery))
        return _score(embeddings[q], labels[q], {**common, "gallery": embeddings[g], "gallery_labels": labels[g]})
    return _score(embeddings, labels, common)


def query_labels(dataset: Dataset) -> Integers:
    """The classes (Q,) of the queries whose scores `score_test` returns without a prefix, in their order."""
    rows = dataset.test_rows()
    if dataset.test_lists:
        longest = max(dataset.test_lists, key=lambda name: len(dataset.test_lists[name]))
        rows = np.sort(dataset.test_lists[longest])
    elif dataset.is_query is not None and dataset.is_gallery is not None:
        rows = rows[dataset.is_query[rows]]
    return dataset.labels[rows]


def _score_lists(
    embeddings: Tensor | NDArray[Any], labels: Integers, lists: dict[str, Integers], seed: int, common: dict[str, Any]
) -> DatasetScores:
    """Scores of each list under both protocols; those of the longest list without a prefix too."""
    retrieval = tuple(name for name in common["metrics"] if name in RETRIEVAL)
    drawn = {**common, "metrics": retrieval, "protocol": "gallery1", "repeats": DRAWS, "seed": seed}
    forms = {"loo": common, **({"gallery1": drawn} if retrieval else {})}
    longest = max(lists, key=lambda name: len(lists[name]))
    scores: dict[str, float] = {}
    queries: dict[str, NDArray[np.float32]] = {}
    for name, places in lists.items():
        for form, options in forms.items():
            found = _score(embeddings[places], labels[places], options)
            for prefix in (f"{name}/{form}/", *([""] if (name, form) == (longest, "loo") else [])):
                scores |= {prefix + key: value for key, value in found[0].items()}
                queries |= {prefix + key: values for key, values in found[1].items()}
    return scores, queries


def _score(embeddings: Tensor | NDArray[Any], labels: Integers, options: dict[str, Any]) -> DatasetScores:
    return remembered_metrics(embeddings, labels, **options)


def _places(name: str, listed: Integers, rows: Integers) -> Integers:
    """Positions of the rows of a list among the test rows, ascending."""
    if not np.isin(listed, rows).all():
        raise InputError(f"test_lists[{name!r}] must hold test images only; it lists an image of the training split.")
    return np.searchsorted(rows, np.sort(listed)).astype(np.int64)
