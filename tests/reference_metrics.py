"""Slow, obvious retrieval metrics: every pair scored on its own, every order of tied items written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TIE = 1e-14  # scores closer than this, relative to the largest, are equal


def in_ball(rows: Array, c: float = 0.1, clip: float = 2.3) -> Array:
    """Embeddings as points of the Poincare ball, scaled to radius 1."""
    points = []
    for x in rows.astype(np.float64):
        z = x * min(1.0, clip / (math.hypot(*x) + 1e-5))
        length = max(math.hypot(*z), 1e-12)
        points.append(z / length * min(math.tanh(math.sqrt(c) * length), 1 - 1e-3))
    return np.array(points)


def pair_score(query: Array, item: Array, distance: str) -> float:
    """Similarity of two vectors, higher is nearer, summed without rounding."""
    if distance == "hyperbolic":
        p, q = in_ball(np.stack([query, item]))
        apart = math.fsum((float(a) - float(b)) ** 2 for a, b in zip(p, q, strict=True))
        return -apart / (1 - math.fsum(a * a for a in p)) / (1 - math.fsum(b * b for b in q))
    if distance == "hamming":
        return -float(np.sum((query > 0) != (item > 0)))
    if distance == "euclidean":
        return -math.fsum((float(a) - float(b)) ** 2 for a, b in zip(query, item, strict=True))
    norms = math.hypot(*map(float, query)) * math.hypot(*map(float, item))
    return math.fsum(float(a) * float(b) for a, b in zip(query, item, strict=True)) / norms if norms else 0.0


def score_matrix(queries: Array, items: Array, distance: str) -> Array:
    """`pair_score` of all pairs in float64, for sets too large for sums without rounding."""
    queries, items = queries.astype(np.float64), items.astype(np.float64)
    if distance == "hamming":
        return -np.asarray(((queries > 0)[:, None] != (items > 0)[None]).sum(-1), np.float64)
    if distance == "euclidean":
        return -np.asarray(np.square(queries[:, None] - items[None]).sum(-1))
    if distance == "hyperbolic":
        p, q = in_ball(queries), in_ball(items)
        room = [1 - np.square(rows).sum(1) for rows in (p, q)]
        return -np.asarray(np.square(p[:, None] - q[None]).sum(-1) / room[0][:, None] / room[1])
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, items)]
    return np.asarray(units[0] @ units[1].T)


def ranked_groups(scores: Sequence[float], relevant: Sequence[bool]) -> list[tuple[int, int]]:
    """(items, relevant items) of each group of tied scores, from the highest score down."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    width = TIE * max((abs(score) for score in scores), default=1.0)
    edges = [0] + [k + 1 for k, (a, b) in enumerate(pairwise(order)) if scores[a] - scores[b] > width] + [len(order)]
    return [(stop - start, sum(relevant[i] for i in order[start:stop])) for start, stop in pairwise(edges)]


def orders(size: int, hits: int, ties: str) -> list[list[bool]]:
    """Every order of a group of `size` items with `hits` relevant ones that the tie policy allows, equally likely."""
    if ties == "optimistic":
        return [[k < hits for k in range(size)]]
    if ties == "pessimistic":
        return [[k >= size - hits for k in range(size)]]
    return [[k in chosen for k in range(size)] for chosen in combinations(range(size), hits)]


def query_scores(
    scores: Sequence[float], relevant: Sequence[bool], ks: Sequence[int], ties: str = "expected"
) -> dict[str, float] | None:
    """Expected metrics of one query; None without a relevant item. Groups are independent, so their means add up."""
    total = int(sum(relevant))
    if total == 0:
        return None
    names = [f"{metric}@{k}" for metric in ("recall", "precision") for k in {1, *ks}]
    names += ["r_precision", "map@r", "map", "mrr"]
    found = dict.fromkeys(names, 0.0)
    before = hits_before = 0
    for size, hits in ranked_groups(scores, relevant):
        if ties == "expected" and math.comb(size, hits) > 500:
            _add_expectation(found, size, hits, before, hits_before, total, ks)
        else:
            cases = orders(size, hits, ties)
            for case in cases:
                _add_case(found, case, before, hits_before, total, ks, 1 / len(cases))
        before, hits_before = before + size, hits_before + hits
    return found


def _add_case(
    found: dict[str, float], case: list[bool], before: int, hits: int, total: int, ks: Sequence[int], weight: float
) -> None:
    """Add what one group contributes when it stands in this order after `before` items, `hits` of them relevant."""
    for place, is_hit in enumerate(case, start=before + 1):
        if not is_hit:
            continue
        hits += 1
        _add_hit(found, place, hits / place, weight, weight * (hits == 1), total, ks)


def _add_expectation(
    found: dict[str, float], size: int, group_hits: int, before: int, hits: int, total: int, ks: Sequence[int]
) -> None:
    """The same for a group too large to write out, place by place."""
    nothing_yet = 1.0 if hits == 0 else 0.0
    for k in range(size):
        chance = group_hits / size
        earlier = hits + k * (group_hits - 1) / (size - 1) if size > 1 else hits
        first = nothing_yet * group_hits / (size - k)
        _add_hit(found, before + k + 1, (earlier + 1) / (before + k + 1), chance, first, total, ks)
        nothing_yet *= max(size - k - group_hits, 0) / (size - k)


def _add_hit(
    found: dict[str, float], place: int, precision: float, chance: float, first: float, total: int, ks: Sequence[int]
) -> None:
    """Add a relevant item at `place` that is there with probability `chance`, and is the first one with `first`."""
    found["mrr"] += first / place
    for k in {1, *ks}:
        found[f"recall@{k}"] += first * (place <= k)
        found[f"precision@{k}"] += chance * (place <= k) / k
    found["map"] += chance * precision / total
    if place <= total:
        found["r_precision"] += chance / total
        found["map@r"] += chance * precision / total


def all_query_scores(
    embeddings: Array,
    labels: Sequence[int] | Array,
    ks: Sequence[int],
    gallery: Array | None = None,
    gallery_labels: Sequence[int] | Array | None = None,
    distance: str = "cosine",
    ties: str = "expected",
) -> list[dict[str, float] | None]:
    """Metrics of every query, one by one; without a gallery the others are ranked and the query itself is left out."""
    items = embeddings if gallery is None else gallery
    classes = labels if gallery_labels is None else gallery_labels
    result = []
    for i, (query, label) in enumerate(zip(embeddings, labels, strict=True)):
        others = [j for j in range(len(items)) if gallery is not None or j != i]
        scores = [pair_score(query, items[j], distance) for j in others]
        result.append(query_scores(scores, [classes[j] == label for j in others], ks, ties))
    return result


def mean_scores(per_query: Sequence[dict[str, float] | None]) -> dict[str, float]:
    """Mean over the queries that have a relevant item."""
    kept = [scores for scores in per_query if scores is not None]
    return {name: math.fsum(scores[name] for scores in kept) / len(kept) for name in kept[0]}


def compared(embeddings: Array, distance: str) -> Array:
    """The vectors that diagnostics describe: of unit length for cosine, signs for Hamming, as given for Euclidean."""
    rows = np.asarray(embeddings, dtype=np.float64)
    if distance == "hamming":
        return np.where(rows > 0, 1.0, -1.0)
    if distance == "hyperbolic":
        return in_ball(rows)
    return unit_rows(rows) if distance == "cosine" else rows


def unit_rows(rows: Array) -> Array:
    """Every row divided by its length; a row of zeros stays one."""
    return np.stack([row / math.hypot(*row) if math.hypot(*row) else row for row in rows])


def uniformity(embeddings: Array, distance: str) -> float:
    """log of the mean of exp(-2 |x - y|^2) over all pairs of two different rows, scaled to unit length."""
    rows = unit_rows(compared(embeddings, distance))
    pairs = [math.exp(-2 * math.fsum((x - y) ** 2)) for x, y in combinations(rows, 2)]
    return math.log(math.fsum(pairs) / len(pairs))


def effective_rank(embeddings: Array, distance: str) -> float:
    """exp of the entropy of the singular values divided by their sum."""
    values = np.linalg.svd(compared(embeddings, distance), compute_uv=False)
    shares = [value / values.sum() for value in values if value > 0]
    return math.exp(-math.fsum(share * math.log(share) for share in shares))


def opis(scores: Array, labels: Array, gallery_labels: Array | None = None) -> float:
    """Operating-point inconsistency of (Q, N) cosines: mean over 21 thresholds of the variance over classes of U_c.

    Scores are placed in 2^20 bins of [-1, 1]. The thresholds are evenly spaced from the lowest bin that at most a tenth
    of all pairs of different classes reach, to the lowest that at most a hundredth reach.
    """
    own = gallery_labels is None
    columns = labels if gallery_labels is None else gallery_labels
    bins = np.rint((scores.astype(np.float64) + 1) / 2 * (2**20 - 1)).astype(int)
    pairs = [(i, j) for i in range(len(labels)) for j in range(len(columns)) if not own or j > i]
    other = np.sort([bins[i, j] for i, j in pairs if labels[i] != columns[j]])
    edges = [int(b) for b in np.unique([0, *other, *other + 1])]
    low, high = (next(b for b in edges if (other >= b).sum() <= rate * len(other)) for rate in (0.1, 0.01))
    variances = []
    for threshold in np.rint(np.linspace(low, high, 21)).astype(int):
        utilities = []
        for c in np.unique(np.concatenate([labels, columns])):
            same = [bins[i, j] >= threshold for i, j in pairs if labels[i] == c == columns[j]]
            one = [
                (i, j) for i, j in pairs if labels[i] != columns[j] and (labels[i] == c or (own and columns[j] == c))
            ]
            apart = [bins[i, j] < threshold for i, j in one]
            if same and apart:
                right, rejected = np.mean(same), np.mean(apart)
                utilities.append(2 * right * rejected / (right + rejected) if right + rejected else 0.0)
        variances.append(np.var(utilities))
    return float(np.mean(variances))
