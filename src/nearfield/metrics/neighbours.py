"""The nearest items of every query, exact and streamed.

Axes: Q queries, N gallery items, r x w entries of a tile, k neighbours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfield.metrics.checks import Array, Distance, embedding_matrix, require_distance, same_width, whole_number
from nearfield.metrics.ranking.vectors import VectorSet, pair_scores, vector_sets

ROWS, COLUMNS = 1024, 8192
EXTRA = 8  # more candidates than asked for, so that float64 decides their order


def nearest_neighbours(
    queries: Array, gallery: Array | None = None, k: int = 5, distance: Distance = "cosine"
) -> tuple[Tensor, Tensor]:
    """Scores and gallery indices of the k nearest items of every query, nearest first; (Q, k) float32 and int64.

    Without a gallery the other queries are searched. A score is a cosine, a negative distance, or a negative number of
    differing bits. Candidates are found in float32 and ordered in float64, equal scores by index.
    """
    require_distance(distance)
    data = embedding_matrix(queries, "queries", distance)
    other = data if gallery is None else embedding_matrix(gallery, "gallery", distance)
    same_width(data, other)
    available = len(other) - (gallery is None)
    k = whole_number("k", k, 1, available)
    left, right = vector_sets(data, None if gallery is None else other, distance)
    blocks = torch.arange(len(data), device=data.device).split(ROWS)
    found = [_search(left, right, rows, k, gallery is None) for rows in blocks]
    scores, index = (torch.cat(parts) for parts in zip(*found, strict=True))
    return _natural(scores, left).float(), index


def _search(left: VectorSet, right: VectorSet, rows: Tensor, k: int, one_set: bool) -> tuple[Tensor, Tensor]:
    """Exact scores and indices for a block of queries, (r, k) each."""
    total = len(right.norm)
    want = min(k + EXTRA, total - one_set)
    source = left.left(rows, torch.float32)  # (r, E)
    best = torch.full((len(rows), 0), 0.0, device=rows.device)
    index = torch.zeros((len(rows), 0), dtype=torch.int64, device=rows.device)
    for cols in torch.arange(total, device=rows.device).split(COLUMNS):
        tile = source @ right.right(cols, torch.float32).T  # (r, w)
        if one_set:
            tile.masked_fill_(rows[:, None] == cols, -torch.inf)
        part, place = tile.topk(min(want, tile.shape[1]), dim=1)
        best, index = torch.cat([best, part], 1), torch.cat([index, cols[place]], 1)
        best, place = best.topk(min(want, best.shape[1]), dim=1)
        index = index.gather(1, place)
    index = index.sort(dim=1).values
    exact = torch.stack([pair_scores(left, right, rows, column) for column in index.T], 1)  # (r, want)
    if one_set:
        exact.masked_fill_(index == rows[:, None], -torch.inf)
    place = exact.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return exact.gather(1, place), index.gather(1, place)


def _natural(scores: Tensor, items: VectorSet) -> Tensor:
    """Human-readable scores: cosines, negative distances, negative numbers of differing bits."""
    if items.ball is not None and items.frame is not None:
        t = (-4 * scores / items.frame.reach**2).clamp(min=0)  # the distance is arcosh(1 + t) / sqrt(c)
        return -(t + (t * (t + 2)).sqrt()).log1p() / math.sqrt(items.ball.c)
    if items.frame is not None:
        return -(-2 * scores).clamp(min=0).sqrt() * items.frame.reach
    return (scores - items.width) / 2 if items.exact else scores
