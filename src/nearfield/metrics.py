"""Retrieval metrics of embeddings: `retrieval_metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from nearfield import ties as tie
from nearfield.errors import InputError, RunError
from nearfield.inputs import DISTANCES, Array, Distance, embedding_matrix, label_codes, one_of, same_length
from nearfield.matches import Task, relevant_counts
from nearfield.rank import match_places
from nearfield.ties import TIES, Places, Ties
from nearfield.vectors import vectors

RETRIEVAL = ("recall", "r_precision", "map_at_r", "map", "mrr")
CLUSTERING = ("nmi", "ami", "f1")
METRICS = RETRIEVAL + CLUSTERING


@dataclass(frozen=True)
class PerQuery:
    """Scores of every query; NaN where a query has no match."""

    scores: dict[str, Tensor]  # name -> (Q,) float32
    relevant: Tensor  # (Q,) int64, matches that exist


@overload
def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: Sequence[int] = ...,
    gallery: Array | None = ...,
    gallery_labels: Array | None = ...,
    metrics: Sequence[str] = ...,
    distance: Distance = ...,
    ties: Ties = ...,
    per_query: Literal[False] = ...,
) -> dict[str, float]: ...


@overload
def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: Sequence[int] = ...,
    gallery: Array | None = ...,
    gallery_labels: Array | None = ...,
    metrics: Sequence[str] = ...,
    distance: Distance = ...,
    ties: Ties = ...,
    *,
    per_query: Literal[True],
) -> tuple[dict[str, float], PerQuery]: ...


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    metrics: Sequence[str] = ("recall", "r_precision", "map_at_r", "nmi"),
    distance: Distance = "cosine",
    ties: Ties = "expected",
    per_query: bool = False,
) -> dict[str, float] | tuple[dict[str, float], PerQuery]:
    """Retrieval metrics as a flat dict of floats."""
    for name in metrics:
        one_of("metrics", name, METRICS)
    one_of("distance", distance, DISTANCES)
    one_of("ties", ties, TIES)
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery and gallery_labels must be given together; found only one of them.")
    queries = embedding_matrix(embeddings, "embeddings", distance)
    items = queries if gallery is None else embedding_matrix(gallery, "gallery", distance)
    codes, item_codes = label_codes(labels, gallery_labels, queries.device)
    same_length(queries, codes, "embeddings", "labels")
    if item_codes is None:
        item_codes, self_index = codes, torch.arange(len(codes), device=codes.device)
    else:
        same_length(items, item_codes, "gallery", "gallery_labels")
        self_index = None
    if items.shape[1] != queries.shape[1]:
        raise InputError(f"gallery must have the dimension of embeddings, {queries.shape[1]}; found {items.shape[1]}.")
    left, _ = _coordinates(queries, items, distance)
    ready = vectors(queries, distance)
    task = Task(ready, ready if gallery is None else vectors(items, distance), codes, item_codes, self_index)
    found = _query_scores(task, ks, metrics, ties)
    matched = found.relevant > 0
    if not bool(matched.any()):
        raise InputError("labels must give at least one query a match; every class has a single item.")
    result = {name: float(score[matched].double().mean()) for name, score in found.scores.items()}
    if set(metrics) & set(CLUSTERING):
        result |= _clustering(left if distance == "cosine" else queries, codes, metrics)
    return (result, found) if per_query else result


def _coordinates(queries: Tensor, items: Tensor, distance: str) -> tuple[Tensor, Tensor]:
    queries, items = queries.double(), items.double()
    if distance == "cosine":
        return torch.nn.functional.normalize(queries, dim=1), torch.nn.functional.normalize(items, dim=1)
    if distance == "hamming":
        return (queries > 0).double() * 2 - 1, (items > 0).double() * 2 - 1
    half, one = items.square().sum(1, keepdim=True) / 2, torch.ones_like(queries[:, :1])
    return torch.cat([queries, one], 1), torch.cat([items, -half], 1)


def _query_scores(task: Task, ks: Sequence[int], metrics: Sequence[str], ties: Ties) -> PerQuery:
    count = task.labels.shape[0]
    scores: dict[str, Tensor] = {}
    for rows, places in match_places(task):
        for name, score in _block_scores(places.settled(ties), ks, metrics).items():
            scores.setdefault(name, torch.full((count,), torch.nan, device=score.device))[rows] = score.float()
    return PerQuery(scores, relevant_counts(task))


def _block_scores(places: Places, ks: Sequence[int], metrics: Sequence[str]) -> dict[str, Tensor]:
    scores: dict[str, Tensor] = {}
    if "recall" in metrics:
        scores |= {f"recall@{k}": tie.recall_at(places, k) for k in ks}
        scores["precision@1"] = tie.recall_at(places, 1)
    if "r_precision" in metrics:
        scores["r_precision"] = tie.r_precision(places)
    if "map_at_r" in metrics:
        scores["map@r"] = tie.map_at_r(places)
        if bool((scores["map@r"] > tie.r_precision(places) + 1e-9).any()):
            raise RunError("MAP@R exceeds R-precision, which cannot be: please report this as a bug.")
    if "map" in metrics:
        scores["map"] = tie.average_precision(places)
    if "mrr" in metrics:
        scores["mrr"] = tie.reciprocal_rank(places)
    return scores


def _clustering(vectors: Tensor, codes: Tensor, metrics: Sequence[str]) -> dict[str, float]:
    import faiss  # type: ignore[import-untyped]
    from sklearn import metrics as sk

    clusters = int(codes.max()) + 1
    kmeans = faiss.Kmeans(vectors.shape[1], clusters, niter=20, seed=0, min_points_per_centroid=1)
    data = vectors.float().cpu().numpy()
    kmeans.train(data)
    found, truth = kmeans.index.search(data, 1)[1][:, 0], codes.cpu().numpy()
    result = {"nmi": float(sk.normalized_mutual_info_score(truth, found)), "ami": 0.0}
    if "ami" in metrics:
        result["ami"] = float(sk.adjusted_mutual_info_score(truth, found))
    return {name: result[name] for name in ("nmi", "ami") if name in metrics}


def nearest_neighbours(
    queries: Array, gallery: Array | None = None, k: int = 5, distance: Distance = "cosine"
) -> tuple[Tensor, Tensor]:
    """Scores (higher is nearer) and indices of the k nearest items of every query; (Q, k) each."""
    one = embedding_matrix(queries, "queries", distance)
    items = one if gallery is None else embedding_matrix(gallery, "gallery", distance)
    left, right = _coordinates(one, items, distance)
    parts = []
    for rows in torch.arange(len(left)).split(256):
        scores = left[rows] @ right.T
        if gallery is None:
            scores[torch.arange(len(rows)), rows] = -torch.inf
        parts.append(scores.topk(k, dim=1))
    return torch.cat([p.values for p in parts]).float(), torch.cat([p.indices for p in parts])
