"""`AccuracyCalculator` under the conventions of pytorch-metric-learning 2.9, computed by this library's evaluator.

Tied items count by their expected place, where PML takes the order of rows. Axes: Q queries, N references.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearfield.compat.pml.errors import NotMapped
from nearfield.errors import InputError
from nearfield.metrics import nearest_neighbours, retrieval_metrics

KEYS = {  # PML's name: ours, and the key of its value
    "AMI": ("ami", "ami"),
    "NMI": ("nmi", "nmi"),
    "mean_average_precision": ("map", "map"),
    "mean_average_precision_at_r": ("map_at_r", "map@r"),
    "mean_reciprocal_rank": ("mrr", "mrr"),
    "precision_at_1": ("recall", "precision@1"),
    "r_precision": ("r_precision", "r_precision"),
}
CLUSTERING = ("AMI", "NMI")
CUT = ("mean_average_precision", "mean_reciprocal_rank")  # that k cuts off


class _Sets(NamedTuple):
    """What is ranked for what."""

    queries: Tensor  # (Q, D)
    labels: np.ndarray[Any, Any]  # (Q,)
    references: Tensor  # (N, D)
    reference_labels: np.ndarray[Any, Any]  # (N,)
    one_set: bool  # whether the first references are the queries


class AccuracyCalculator:
    """Scores of embeddings by their Euclidean distances, which are not normalised first.

    `k` cuts off mean_average_precision and mean_reciprocal_rank alone: r_precision and mean_average_precision_at_r are
    exact for any k, where PML returns wrong values if k is smaller than a class. precision_at_1 needs no k.
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        label_comparison_fn: Any = None,
        device: Any = None,
        knn_func: Any = None,
        kmeans_func: Any = None,
    ) -> None:
        if avg_of_avgs and return_per_class:
            raise InputError("avg_of_avgs and return_per_class must not be given both; leave one out.")
        for name, given in (
            ("label_comparison_fn", label_comparison_fn),
            ("knn_func", knn_func),
            ("kmeans_func", kmeans_func),
        ):
            if given is not None:
                raise NotMapped(
                    f"AccuracyCalculator({name}=...)", "the evaluator compares labels and ranks exactly itself."
                )
        if not (k is None or k == "max_bin_count" or (isinstance(k, int) and k > 0)):
            raise InputError(f"k must be a whole number above 0, None or 'max_bin_count'; got {k!r}.")
        self.metrics = self._chosen(tuple(KEYS), include, exclude)
        self.avg_of_avgs, self.return_per_class, self.k, self.device = avg_of_avgs, return_per_class, k, device

    @staticmethod
    def _chosen(known: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> tuple[str, ...]:
        for given in (include, exclude):
            if not isinstance(given, (tuple, list)):
                raise TypeError(f"include and exclude must be tuples or lists of metrics; got {type(given).__name__}.")
            if unknown := set(given) - set(KEYS):
                raise InputError(f"metrics must be among {', '.join(KEYS)}; got {', '.join(sorted(unknown))}.")
        return tuple(name for name in known if (not include or name in include) and name not in exclude)

    def get_curr_metrics(self) -> list[str]:
        """The metrics that are computed."""
        return list(self.metrics)

    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The metrics of queries among references, or among each other without any; NaN where no query has a match.

        With `ref_includes_query` the first references are the queries, and none is ranked for itself.
        """
        wanted = self._chosen(self.metrics, include, exclude)
        q, labels = _vectors(query), _labels(query_labels)
        if reference is None:
            r, known, ref_includes_query = q, labels, True
        else:
            r, known = _vectors(reference), _labels(reference_labels)
        if len(q) != len(labels) or len(r) != len(known):
            raise InputError(
                f"labels must be one for each embedding; got {len(labels)} for {len(q)}, {len(known)} for {len(r)}."
            )
        if ref_includes_query and not (torch.allclose(q, r[: len(q)]) and np.array_equal(labels, known[: len(q)])):
            raise InputError("ref_includes_query needs the queries, and their labels, as the first references.")
        sets = _Sets(q, labels, r, known, ref_includes_query)
        ranked = [name for name in wanted if name not in CLUSTERING and not (self.k is not None and name in CUT)]
        cut = [name for name in wanted if self.k is not None and name in CUT]
        scores = self._ranked(sets, ranked) if ranked else {}
        if cut:
            scores |= self._cut(sets, cut)
        result = {name: self._mean(score, labels) for name, score in scores.items()}
        if grouped := [name for name in wanted if name in CLUSTERING]:
            found = retrieval_metrics(q, labels, metrics=[KEYS[name][0] for name in grouped], distance="euclidean")
            result |= {name: found[KEYS[name][1]] for name in grouped}
        return {name: result[name] for name in wanted}

    @staticmethod
    def _ranked(sets: _Sets, names: Sequence[str]) -> dict[str, Tensor]:
        """Scores of every query, (Q,), NaN without a match; all references are scored where they hold the queries."""
        q, labels, r, known, one_set = sets
        gallery: dict[str, Any] = {} if one_set else {"gallery": r, "gallery_labels": known}
        items, of = (r, known) if one_set else (q, labels)
        metrics = [KEYS[name][0] for name in names]
        _, found = retrieval_metrics(
            items, of, (1,), metrics=metrics, distance="euclidean", per_query=True, denominator="all", **gallery
        )
        return {name: found.scores[KEYS[name][1]][: len(q)].double().cpu() for name in names}

    def _cut(self, sets: _Sets, names: Sequence[str]) -> dict[str, Tensor]:
        """Average precision and reciprocal rank among the first k items, (Q,)."""
        q, labels, r, known, one_set = sets
        values, counts = np.unique(known, return_counts=True)
        place = np.searchsorted(values, labels).clip(max=len(values) - 1)
        matches = torch.from_numpy(np.where(values[place] == labels, counts[place] - one_set, 0))
        k = int(matches.max()) if self.k == "max_bin_count" else int(self.k or 1)
        k = max(1, min(k, len(r) - one_set))
        index = nearest_neighbours(r if one_set else q, None if one_set else r, k, "euclidean")[1][: len(q)].cpu()
        hit = torch.from_numpy(known[index.numpy()] == labels[:, None]).double()
        rank = torch.arange(1, k + 1, dtype=torch.float64)
        scores = {
            "mean_average_precision": (hit * hit.cumsum(1) / rank).sum(1) / matches,
            "mean_reciprocal_rank": (hit / rank).amax(1),
        }
        return {name: scores[name].masked_fill(matches == 0, math.nan) for name in names}

    def _mean(self, scores: Tensor, labels: np.ndarray[Any, Any]) -> float | list[float]:
        """The mean over queries with a match, over classes, or that of every class."""
        matched = ~scores.isnan()
        kept, of = scores[matched], labels[matched.numpy()]
        if not len(kept):
            return [math.nan] * len(np.unique(labels)) if self.return_per_class else math.nan
        if not (self.avg_of_avgs or self.return_per_class):
            return float(kept.mean())
        _, codes = np.unique(of, return_inverse=True)
        sums = np.bincount(codes, kept.numpy()) / np.bincount(codes)
        return list(sums.tolist()) if self.return_per_class else float(sums.mean())


def _vectors(given: Any) -> Tensor:
    """Embeddings as floating-point numbers, (Q, D)."""
    found = torch.as_tensor(given).detach()
    return found if found.is_floating_point() else found.float()


def _labels(given: Any) -> np.ndarray[Any, Any]:
    """Labels as integers, (Q,); PML's testers give them as (Q, 1)."""
    found: np.ndarray[Any, Any] = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    found = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
    if found.ndim != 1:
        raise NotMapped(f"labels of shape {found.shape}", "several labels of an item need a comparison of their own.")
    if found.dtype.kind == "f":
        if not (found == np.rint(found)).all():
            raise InputError("labels must be whole numbers; got others.")
        found = found.astype(np.int64)
    return found
