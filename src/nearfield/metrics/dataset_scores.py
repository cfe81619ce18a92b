"""Scores of embeddings of a dataset's test part, as that part is meant to be scored.

    self, closed    every test image searches all others
    query-gallery   the queries search the gallery (In-Shop)
    vehicleid       every list on its own, in two forms: `small/gallery1/recall@1` against one random image of every
                    vehicle, the mean of ten draws; `small/loo/recall@1` leaving one out, as FastAP's code scores it.
                    The plain names repeat `loo` of the longest list: where there is one match to find, MAP@R is R@1.

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
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.checks import Distance
from nearfield.metrics.settings import DEFAULT_KS, DEFAULT_METRICS, RETRIEVAL

SIZES = {"test_800": "small", "test_1600": "medium", "test_2400": "large"}  # as papers call the lists of VehicleID
DRAWS = 10  # of its galleries
DatasetScores = tuple[dict[str, float], dict[str, NDArray[np.float32]]]


def score_test(
    dataset: Dataset,
    embeddings: Tensor | NDArray[Any],
    distance: Distance = "cosine",
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    ks: Sequence[int] = DEFAULT_KS,
) -> DatasetScores:
    """Scores, and those of every query, of embeddings (T, D) of `dataset.test_rows()`, in that order.

    Queries come in the order of their rows; their scores (Q,) are NaN where there is no match to find. `seed` draws the
    galleries of VehicleID. Clusters and diagnostics are those of the queries.
    """
    rows = dataset.test_rows()
    if len(embeddings) != len(rows):
        raise InputError(f"embeddings must have a row for each of the {len(rows)} test images; got {len(embeddings)}.")
    common: dict[str, Any] = {"metrics": tuple(metrics or DEFAULT_METRICS), "ks": tuple(ks), "distance": distance}
    labels = dataset.labels[rows]
    if dataset.test_lists:
        lists = {SIZES.get(name, name): _places(name, listed, rows) for name, listed in dataset.test_lists.items()}
        return _score_lists(embeddings, labels, lists, seed, common)
    if dataset.is_query is not None and dataset.is_gallery is not None:
        q, g = (np.flatnonzero(flags[rows]) for flags in (dataset.is_query, dataset.is_gallery))
        return _score(embeddings[q], labels[q], {**common, "gallery": embeddings[g], "gallery_labels": labels[g]})
    return _score(embeddings, labels, common)


def _score_lists(
    embeddings: Tensor | NDArray[Any], labels: Integers, lists: dict[str, Integers], seed: int, common: dict[str, Any]
) -> DatasetScores:
    """Scores of each list in both forms, and the longest list's under plain names."""
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
    scores, queries = retrieval_metrics(embeddings, labels, per_query=True, **options)
    return scores, {name: values.cpu().numpy() for name, values in queries.scores.items()}


def _places(name: str, listed: Integers, rows: Integers) -> Integers:
    """Where the rows of a list are among the test rows; both ascend."""
    if not np.isin(listed, rows).all():
        raise InputError(f"test_lists[{name!r}] must hold test images only; it lists one that is not.")
    return np.searchsorted(rows, np.sort(listed)).astype(np.int64)
