"""Places of matches read off sorted rows of scores, where classes are large.

Axes: Q queries, N gallery items, r queries of a tile, K listed matches of a query (padded), M matches, P places,
d doubtful matches.

A tile holds the float32 scores of some queries with the whole gallery. Matches are hidden in it, the highest P scores
of what is left are sorted, and every match finds its place among them by bisection. P is N if all ranks matter;
R-precision, MAP@R and R@K need none beyond max(R, K), so that only so many are selected. A match to which some score is
nearer than float32 can tell is *doubtful*: the row itself says which items those are, and they are scored again in
float64. A row with many doubtful matches is computed in float64 as a whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfield.metrics.ranking.counter import Widths
from nearfield.metrics.ranking.matches import Matches, RankingTask
from nearfield.metrics.ranking.scan import ThreadMap, between, highest, where, workers
from nearfield.metrics.ranking.vectors import pair_scores

TILE = 1 << 21  # entries of a tile
ROWS = 64  # of a tile at least, if memory allows: a product of few rows is slow
HIDDEN = -torch.inf  # score of a query's matches, and of itself, in a tile
FEWEST, SHARE = 8, 1200  # matches of a query, at least, and one in so many items of the gallery: else tiles are faster
CROWD = 40  # doubtful matches up to which a row is not computed in float64


def suits(task: RankingTask, relevant: Tensor) -> Tensor:
    """Whether to count queries with so many matches here, (Q,) bool: they have many, and the gallery fits in memory."""
    total = len(task.gallery_labels)
    return (relevant >= max(FEWEST, total // SHARE)) & (16 * total * task.gallery.width <= task.memory)


def count_by_rows(task: RankingTask, matches: Matches, relevant: Tensor, widths: Widths) -> tuple[Tensor, Tensor]:
    """For every match, the number of irrelevant items that score higher, and that tie; (M,) int64 each.

    A match whose rank cannot matter has as many above it as items exist.
    """
    total = len(task.gallery_labels)
    found = torch.empty(2, len(matches.score), dtype=torch.int64, device=matches.rows.device)
    ends = matches.counts.cumsum(0)
    places = places_that_matter(task, relevant)
    step = max(1, min(max(ROWS, TILE // total), task.memory // (64 * total)))
    with workers(found.device) as pool:
        gallery = _Gallery(task, widths, step, pool)
        for start in range(0, len(matches.rows), step):
            part = slice(start, start + step)
            counts, stop = matches.counts[part], ends[part]
            listed = torch.arange(int(counts.max()), device=found.device)
            real = listed < counts[:, None]  # (r, K)
            entry = (stop - counts)[:, None] + listed.minimum(counts[:, None] - 1)
            score = matches.score[entry].masked_fill_(~real, torch.inf)
            leader = torch.where(real, matches.above[entry], listed)  # tied matches are counted once
            counted = gallery.count(matches.rows[part], score, leader == listed, int(places[part].max()))
            counted = counted.gather(2, leader.expand(2, -1, -1)).flatten(1)
            found[:, int(stop[0] - counts[0]) : int(stop[-1])] = counted[:, where(real)]
    return found[0], found[1]


def places_that_matter(task: RankingTask, relevant: Tensor) -> Tensor:
    """Ranks beyond these do not matter to queries with so many matches, (Q,)."""
    if task.rest_exact or task.best_depth is None:
        return torch.full_like(relevant, len(task.gallery_labels))
    places = relevant if not task.best_only else torch.zeros_like(relevant)
    return places.clamp(min=max(task.best_depth, task.rest_depth), max=len(task.gallery_labels))


class _Gallery:
    """The gallery by label, so that a query's matches are neighbours, and room for a tile of some queries."""

    def __init__(self, task: RankingTask, widths: Widths, queries: int, pool: ThreadMap) -> None:
        self.task, self.widths, self.pool = task, widths, pool
        self.items = torch.argsort(task.gallery_labels, stable=True)  # (N,)
        self.labels = task.gallery_labels[self.items]
        self.vectors = task.gallery.right(self.items, torch.float32)  # (N, E)
        self.buffer = self.vectors.new_empty(queries * len(self.items))

    def count(self, rows: Tensor, score: Tensor, leads: Tensor, places: int) -> Tensor:
        """Irrelevant items above, and level with, the scores of matches (r, K) that lead their ties; (2, r, K)."""
        shape = len(rows), len(self.items)
        left = self.task.queries.left(rows, torch.float32)  # (r, E)
        tile = torch.mm(left, self.vectors.T, out=self.buffer[: shape[0] * shape[1]].view(shape))
        self._hide(tile, rows)
        table = highest(tile, places, self.pool)  # (r, P) ascending
        cuts = torch.stack([score + self.widths.margin, score - self.widths.margin]).float()  # (2, r, K)
        higher = places - torch.searchsorted(table, cuts[0], right=True)
        reach = places - torch.searchsorted(table, cuts[1])
        exact, cut_off = self.task.queries.exact, places < shape[1]
        unsure = leads & (higher < reach)
        if exact:
            unsure &= (reach == places) & cut_off  # others may tie beyond the table
        counts = torch.stack([higher, reach - higher])
        if cut_off:
            counts[0].masked_fill_(higher == places, shape[1])
        crowded = torch.zeros_like(rows, dtype=torch.bool) if exact else unsure.sum(1) > CROWD
        doubt = where(unsure & ~crowded[:, None])
        if len(doubt):
            self._resolve(counts.view(2, -1), doubt, rows, tile, cuts.view(2, -1), score.flatten())
        size = max(1, self.task.memory // (64 * shape[1]))
        for some in where(crowded).split(size) if bool(crowded.any()) else ():
            counts[:, some] = self._in_float64(rows[some], score[some])
        return counts

    def _hide(self, tile: Tensor, rows: Tensor) -> None:
        """Give pairs of equal labels (matches, or a query with itself) the lowest score."""
        labels, sizes = torch.unique_consecutive(self.task.labels[rows], return_counts=True)
        starts, stops = (torch.searchsorted(self.labels, labels, right=side) for side in (False, True))
        row = 0
        for size, start, stop in zip(sizes.tolist(), starts.tolist(), stops.tolist(), strict=True):
            tile[row : row + size, start:stop] = HIDDEN
            row += size

    def _resolve(self, counts: Tensor, doubt: Tensor, rows: Tensor, tile: Tensor, cuts: Tensor, score: Tensor) -> None:
        """Count in float64 what is near the doubtful matches (d,), which are flat places in `counts` (2, r K)."""
        row = doubt // (counts.shape[1] // len(rows))
        which, column = between(tile, row, cuts[1, doubt], cuts[0, doubt])
        if self.task.queries.exact:
            gap = torch.zeros(len(which), device=tile.device)
        else:
            pairs = rows[row[which]], self.items[column]
            gap = pair_scores(self.task.queries, self.task.gallery, *pairs) - score[doubt[which]]
        counts[0].index_add_(0, doubt[which], (gap > self.widths.tie).long())
        counts[1, doubt] = torch.bincount(which[gap.abs() <= self.widths.tie], minlength=len(doubt))

    def _in_float64(self, rows: Tensor, score: Tensor) -> Tensor:
        """The same of rows in which float32 can tell too little, (2, r, K)."""
        product = self.task.queries.left(rows) @ self.task.gallery.right(self.items).T  # (r, N)
        self._hide(product, rows)
        total, tie = product.shape[1], self.widths.tie
        table = highest(product, total, self.pool)
        higher = total - torch.searchsorted(table, score + tie, right=True)
        reach = total - torch.searchsorted(table, score - tie)
        return torch.stack([higher, reach - higher])
