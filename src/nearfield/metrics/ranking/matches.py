"""What is ranked, and the scores of every query's matches: in float64, sorted, with the ties among them.

Axes: q queries, M matches of all of them together, P matches of one query, E coordinates; m classes with a queries and
g gallery items each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nearfield.metrics.ranking.scan import sort_ascending
from nearfield.metrics.ranking.vectors import VectorSet

PIECE = 4096  # gallery items of a class scored at once


@dataclass(frozen=True)
class RankingTask:
    """What to rank: queries against a gallery, items with the same label being matches; and how far ranks matter."""

    queries: VectorSet
    gallery: VectorSet
    labels: Tensor  # (Q,) int64
    gallery_labels: Tensor  # (N,) int64
    self_index: Tensor | None  # (Q,) index of each query in the gallery: never its own match or neighbour
    best_only: bool = False  # rank only the best match of each query
    best_depth: int | None = (
        None  # the best match's rank is needed up to max(best_depth, R) only, R matches; None: always
    )
    rest_exact: bool = True  # False: the ranks of the other matches are needed up to max(rest_depth, R) only
    rest_depth: int = 1
    memory: int = 512 << 20  # bytes of working memory

    @property
    def room(self) -> int:
        """Matches that can be worked on at once."""
        return max(1, self.memory // 384)

    @property
    def one_set(self) -> bool:
        """Whether the queries are the gallery, so that a tile of scores serves its rows and its columns."""
        return self.queries is self.gallery


class Matches(NamedTuple):
    """Matches of q queries, query after query, best first; matches that tie share one score."""

    rows: Tensor  # (q,) the queries, those with equally many matches together
    counts: Tensor  # (q,) matches listed per query
    score: Tensor  # (M,) float64
    above: Tensor  # (M,) matches of the query that score higher
    tied: Tensor  # (M,) matches of the query that share the score, itself included


@dataclass(frozen=True)
class MatchPlaces:
    """Where the listed matches of B queries stand in the ranking, best first; float64 tensors of shape (B, P)."""

    above: Tensor  # items that score higher
    matches_above: Tensor  # matches among them
    tied: Tensor  # items that share the score, the match itself included
    matches_tied: Tensor  # matches among them
    relevant: Tensor  # (B,) number of matches that exist; all of them are listed, or only the best


def relevant_counts(task: RankingTask) -> Tensor:
    """Number of relevant gallery items of each query, (Q,) int64."""
    classes = int(max(task.labels.max(), task.gallery_labels.max())) + 1
    found = torch.bincount(task.gallery_labels, minlength=classes)[task.labels]
    return found if task.self_index is None else found - 1


def query_chunks(task: RankingTask, relevant: Tensor) -> list[Tensor]:
    """Queries that have matches, ordered by (number of matches, label), in chunks whose padded lists fit in memory."""
    order = torch.argsort(task.labels, stable=True)
    order = order[torch.argsort(relevant[order], stable=True)]
    order = order[relevant[order] > 0]
    counts = relevant[order]
    chunks = []
    while len(order):
        ends = torch.arange(1, len(counts) + 1, device=counts.device)
        entries = counts * ends  # ascending: padded entries of a chunk that ends here
        size = max(1, int(torch.searchsorted(entries, task.room, right=True)))
        chunks.append(order[:size])
        order, counts = order[size:], counts[size:]
    return chunks


def match_lists(task: RankingTask, rows: Tensor, tie_width: float) -> Matches:
    """Score, sort and group the matches of `rows`, which must be sorted by (number of matches, label)."""
    score, above, tied, counts = [], [], [], []
    for query, gallery in _classes(task, rows):
        values = _class_scores(task, query, gallery)  # (m a, P) descending
        first, last = _tie_groups(values, tie_width)
        values = values.gather(1, first)
        if task.best_only:
            values, first, last = values[:, :1], first[:, :1], last[:, :1]
        counts.append(torch.full((values.shape[0],), values.shape[1], device=rows.device))
        score.append(values.flatten())
        above.append(first.flatten())
        tied.append((last - first).flatten())
    return Matches(rows, torch.cat(counts), torch.cat(score), torch.cat(above), torch.cat(tied))


def _classes(task: RankingTask, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries (m, a) and gallery items (m, g) of classes with equally many of both, covering `rows` in order."""
    items = torch.argsort(task.gallery_labels, stable=True)
    sizes = torch.bincount(task.gallery_labels)
    starts = sizes.cumsum(0) - sizes
    labels, members = torch.unique_consecutive(task.labels[rows], return_counts=True)
    shapes, runs = torch.unique_consecutive(torch.stack([members, sizes[labels]], 1), dim=0, return_counts=True)
    row = label = 0
    for (a, g), run in zip(shapes.tolist(), runs.tolist(), strict=True):
        step = max(1, task.memory // (64 * (a + min(g, PIECE)) * task.queries.width + 64 * a * g))
        for first in range(0, run, step):
            m = min(step, run - first)
            query = rows[row : row + m * a].view(m, a)
            place = starts[labels[label : label + m], None] + torch.arange(g, device=rows.device)  # (m, g)
            yield query, items[place]
            row, label = row + m * a, label + m


def _class_scores(task: RankingTask, query: Tensor, gallery: Tensor) -> Tensor:
    """Scores of each query with the members of its class, itself left out by index, descending; (m a, P) float64."""
    dtype = torch.float32 if task.queries.exact else torch.float64
    m, a = query.shape
    left = task.queries.left(query.flatten(), dtype).view(m, a, -1)  # (m, a, E)
    parts = []
    for piece in gallery.split(PIECE, dim=1):
        right = task.gallery.right(piece.flatten(), dtype).view(m, piece.shape[1], -1)  # (m, g, E)
        parts.append(torch.bmm(left, right.transpose(1, 2)).double())
    values = torch.cat(parts, 2) if len(parts) > 1 else parts[0]  # (m, a, g)
    if task.self_index is not None:
        values.masked_fill_(gallery[:, None, :] == task.self_index[query][:, :, None], -torch.inf)
    values = sort_ascending(values.flatten(0, 1)).flip(1)
    return values if task.self_index is None else values[:, :-1]


def _tie_groups(values: Tensor, tie_width: float) -> tuple[Tensor, Tensor]:
    """First place and place after the last of each value's tie group in its descending row, (q, P) each."""
    place = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    breaks = values[:, :-1] - values[:, 1:] > tie_width  # (q, P - 1)
    edge = torch.ones_like(values[:, :1], dtype=torch.bool)
    first = torch.where(torch.cat([edge, breaks], 1), place, 0).cummax(1).values
    ends = torch.where(torch.cat([breaks, edge], 1), place + 1, values.shape[1])
    return first, ends.flip(1).cummin(1).values.flip(1)
