"""Retrieval metrics of embeddings: exact, streamed, independent of the order of rows.

Axes: Q queries, N gallery items, D dimensions.

A query's *matches* are the gallery items with its label. Without a gallery the other queries are the gallery, and a
query is left out of its own ranking by index. R is the number of a query's matches.
    recall@K     a match among the first K (hit rate)     r_precision  share of matches among the first R
    precision@K  share of matches among the first K       map@r        (1/R) sum over k <= R of rel(k) P(k)
    map          the same over all k                      mrr          1 / rank of the first match
Each is the mean over queries of a formula in `formulas.py`. Tied items come in random order and scores are expected
values, unless `ties` puts matches first or last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, overload

import torch
from typing_extensions import Unpack

from nearfield.errors import InputError
from nearfield.metrics import sharded
from nearfield.metrics.checks import Array, Distance
from nearfield.metrics.clustering import clustering_scores
from nearfield.metrics.diagnostics import diagnostic_scores
from nearfield.metrics.formulas import PerQuery, mean_scores, score_queries
from nearfield.metrics.sets import EvalSets, Gallery, read_sets
from nearfield.metrics.settings import (
    CLUSTERING,
    DEFAULT_KS,
    DEFAULT_METRICS,
    DIAGNOSTICS,
    VERIFICATION,
    EvalSettings,
    Options,
    Ties,
    read_settings,
)
from nearfield.metrics.verification import verification_scores


@overload
def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: Sequence[int] = ...,
    gallery: Gallery = ...,
    gallery_labels: Gallery = ...,
    metrics: Sequence[str] = ...,
    distance: Distance = ...,
    ties: Ties = ...,
    per_query: Literal[False] = ...,
    **options: Unpack[Options],
) -> dict[str, float]: ...


@overload
def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: Sequence[int] = ...,
    gallery: Gallery = ...,
    gallery_labels: Gallery = ...,
    metrics: Sequence[str] = ...,
    distance: Distance = ...,
    ties: Ties = ...,
    *,
    per_query: Literal[True],
    **options: Unpack[Options],
) -> tuple[dict[str, float], PerQuery]: ...


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: Sequence[int] = DEFAULT_KS,
    gallery: Gallery = None,
    gallery_labels: Gallery = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    distance: Distance = "cosine",
    ties: Ties = "expected",
    per_query: bool = False,
    **options: Unpack[Options],
) -> dict[str, float] | tuple[dict[str, float], PerQuery]:
    """The requested metrics as a flat dict of floats: `recall@K`, `precision@1`, `r_precision`, `map@r`, `nmi` ...

    embeddings, labels   (Q, D) and (Q,); tensors, arrays or lists; labels are integers or strings, of any size
    ks                   the K of recall@K and precision@K; more of them cost nothing. recall brings precision@1, the
                         same as recall@1; precision all K
    gallery, gallery_labels   rank these instead of the other queries (In-Shop); dicts of several galleries give
                         `name/recall@1` for each and the mean over galleries under the plain name
    metrics              recall, precision, r_precision, map_at_r, map, mrr; nmi, ami, f1 (k-means, on the queries);
                         roc_auc, fnmr, opis (all pairs); distance_ratio, effective_rank, uniformity (on the
                         queries); counts (`queries`, `queries_without_match`)
    distance             cosine; euclidean on the vectors as given; hamming on packed uint8 bits, or on the signs (> 0);
                         hyperbolic, in the Poincare ball of the method of that name, hyperbolic:C:CLIP in another
    ties                 expected, optimistic or pessimistic
    per_query            also return the scores of every query
    denominator          matched: means are over queries that have a match; all: the others count as 0
    protocol             loo: leave one out, as above; gallery1 (VehicleID): one random item per class is the gallery
                         and the others are queries; the mean over `repeats` draws from `seed`
    categories           one value per query: adds `recall@1/category` and so on
    kmeans               seed, restarts, iterations and averaging of the clustering
    fmr                  false match (accept) rates at which fnmr (false non-match rate) and tar = 1 - fnmr are given
    max_memory_mb        working memory beyond the embeddings
    distributed          the arguments are this rank's shard, which may be empty; every rank scores its queries against
                         the shards of all ranks and returns the result for all, the same as in one process
    """
    settings = read_settings(ks, metrics, distance, ties, options)
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery and gallery_labels must be given together; got only one of them.")
    if settings.protocol == "gallery1" and (gallery is not None or settings.distributed):
        raise InputError('protocol="gallery1" draws its own gallery in one process; remove gallery and distributed.')
    if isinstance(gallery, Mapping):
        result, found = _several_galleries(embeddings, labels, gallery, gallery_labels, settings)
    else:
        sets = read_sets(embeddings, labels, gallery, gallery_labels, settings)
        result, found = _gallery_scores(sets, settings)
        result |= _query_set_scores(sets, settings)
    if settings.wants("counts"):
        result |= {"queries": float(len(found.relevant)), "queries_without_match": float((found.relevant == 0).sum())}
    rounded = {name: score.float() for name, score in found.scores.items()}
    return (result, PerQuery(rounded, found.relevant)) if per_query else result


def _gallery_scores(sets: EvalSets, settings: EvalSettings) -> tuple[dict[str, float], PerQuery]:
    """Metrics that depend on the gallery: retrieval and verification; scores per query are float64."""
    if settings.protocol == "gallery1":
        result, found = _gallery_of_one_per_class(sets, settings)
    else:
        found = _all_queries(sets, settings)
        result = mean_scores(found, settings)
    if sets.categories is not None:
        groups = found.by(sets.categories)
        result |= {f"{name}/{group}": score for group, scores in groups.items() for name, score in scores.items()}
    if settings.wants(*VERIFICATION):
        self_index = torch.arange(len(sets.codes), device=sets.codes.device) if sets.one_set else None
        task = settings.ranking(sets.queries, sets.gallery, sets.codes, sets.gallery_codes, self_index)
        result |= _on_first_rank(lambda: verification_scores(task, settings.metrics, settings.fmr), settings)
    return result, found


def _all_queries(sets: EvalSets, settings: EvalSettings) -> PerQuery:
    """Scores of all queries; in a distributed run each rank scores its own, then all are gathered."""
    rows = torch.arange(len(sets.codes), device=sets.codes.device)[sets.mine]
    queries = sets.queries.part(rows) if settings.distributed else sets.queries
    self_index = rows if sets.one_set else None
    task = settings.ranking(queries, sets.gallery, sets.codes[rows], sets.gallery_codes, self_index)
    found = score_queries(task, settings)
    if not settings.distributed:
        return found
    scores = {name: sharded.gather_rows(score)[0] for name, score in found.scores.items()}
    return PerQuery(scores, sharded.gather_rows(found.relevant)[0])


def _gallery_of_one_per_class(sets: EvalSets, settings: EvalSettings) -> tuple[dict[str, float], PerQuery]:
    """VehicleID's protocol: one random item per class is the gallery, the others are queries; mean over the draws."""
    count, device = len(sets.codes), sets.codes.device
    generator = torch.Generator().manual_seed(settings.seed)
    means, scores = [], []
    was_query = torch.zeros(count, dtype=torch.int64, device=device)
    for _ in range(settings.repeats):
        shuffled = torch.randperm(count, generator=generator).to(device)
        order = shuffled[torch.argsort(sets.codes[shuffled], stable=True)]
        first = torch.cat([order.new_ones(1, dtype=torch.bool), sets.codes[order].diff() != 0])
        shown, rest = order[first], order[~first].sort().values
        if not len(rest):
            raise InputError("labels must hold a class of two items for gallery1; every class has a single item.")
        parts = [(sets.queries.part(index), sets.codes[index]) for index in (rest, shown)]
        found = score_queries(settings.ranking(parts[0][0], parts[1][0], parts[0][1], parts[1][1], None), settings)
        means.append(mean_scores(found, settings))
        was_query[rest] = 1
        nothing = torch.full((count,), torch.nan, dtype=torch.float64, device=device)
        scores.append({name: nothing.index_copy(0, rest, score) for name, score in found.scores.items()})
    together = {name: torch.stack([draw[name] for draw in scores]).nanmean(0) for name in scores[0]}
    return _mean_dict(means), PerQuery(together, was_query)


def _several_galleries(
    embeddings: Array, labels: Array, gallery: Mapping[str, Array], gallery_labels: Gallery, settings: EvalSettings
) -> tuple[dict[str, float], PerQuery]:
    """Scores against each gallery under its name, and their means over galleries."""
    if not isinstance(gallery_labels, Mapping) or gallery.keys() != gallery_labels.keys() or not gallery:
        raise InputError("gallery_labels must be a dict with the same names as gallery, at least one.")
    results, found = {}, {}
    for name, items in gallery.items():
        sets = read_sets(embeddings, labels, items, gallery_labels[name], settings, name)
        results[name], found[name] = _gallery_scores(sets, settings)
    result = _mean_dict(list(results.values())) | _query_set_scores(sets, settings)
    result |= {f"{name}/{key}": value for name, part in results.items() for key, value in part.items()}
    keys = next(iter(found.values())).scores
    scores = {key: torch.stack([part.scores[key] for part in found.values()]).nanmean(0) for key in keys}
    scores |= {f"{name}/{key}": score for name, part in found.items() for key, score in part.scores.items()}
    relevant = torch.stack([part.relevant for part in found.values()]).sum(0)
    return result, PerQuery(scores, relevant)


def _query_set_scores(sets: EvalSets, settings: EvalSettings) -> dict[str, float]:
    """Metrics that depend on the queries alone: clustering and diagnostics."""

    def compute() -> dict[str, float]:
        clusters: dict[str, float] = {}
        if settings.wants(*CLUSTERING):
            clusters = clustering_scores(sets.queries, sets.codes, settings.metrics, settings.kmeans)
        return clusters | diagnostic_scores(sets.queries, sets.codes, settings.metrics)

    return _on_first_rank(compute, settings) if settings.wants(*CLUSTERING, *DIAGNOSTICS) else {}


def _on_first_rank(compute: Callable[[], dict[str, float]], settings: EvalSettings) -> dict[str, float]:
    """Compute here, or in a distributed run on rank 0 for all."""
    return sharded.from_first_rank(compute) if settings.distributed else compute()


def _mean_dict(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
