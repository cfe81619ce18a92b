"""Counts, for every match of every query, of the other items that score higher and of those that tie.

Axes: n queries along one side of a tile, w items along the other, M matches, K deep matches per query, k pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfield.metrics.ranking.matches import Matches, RankingTask
from nearfield.metrics.ranking.scan import CROWD, order_rows, sort_ascending, where
from nearfield.metrics.ranking.vectors import pair_scores

COLUMN_BITS = 13  # a pair's row and column in a block of 2^13 items share one sortable integer with its score
COLUMN = (1 << COLUMN_BITS) - 1


@dataclass(frozen=True)
class Widths:
    """How near two scores must be to tie, and how near for float32 to be unable to order them (`margin`)."""

    tie: float
    margin: float


@dataclass(frozen=True)
class Side:
    """Queries along one side of a tile, with the matches to be counted; `entry` points into the counters."""

    items: Tensor  # (n,) index of each item in its vectors
    labels: Tensor  # (n,)
    threshold: Tensor  # (n,) float32: only scores above it matter to the shallow matches
    row: Tensor  # (M,) place on this side of each shallow match's query, ascending
    score: Tensor  # (M,) float64
    entry: Tensor  # (M,)
    deep: Tensor  # (K, n) float64 scores of the deep matches, +inf where a query has fewer
    deep_entry: Tensor  # (K, n), -1 where a query has fewer

    def block(self, start: int, stop: int) -> Side:
        """Queries start..stop."""
        ends = torch.tensor([start, stop], device=self.row.device)
        first, last = torch.searchsorted(self.row, ends).tolist()
        span, part = slice(start, stop), slice(first, last)
        deep = self.deep[:, span]
        depth = int((deep < torch.inf).sum(0).max()) if deep.numel() else 0
        return Side(
            self.items[span], self.labels[span], self.threshold[span],
            self.row[part] - start, self.score[part], self.entry[part],
            deep[:depth], self.deep_entry[:depth, span],
        )  # fmt: skip

    def cuts(self, margin: float) -> Tensor:
        """The float32 scores above which an entry is surely, and possibly, above each deep match; (K, 2, n)."""
        return torch.stack([self.deep + margin, self.deep - margin], 1).float()


def query_side(
    task: RankingTask, matches: Matches, query: Tensor, counted: Tensor, is_deep: Tensor, widths: Widths, one_set: bool
) -> Side:
    """All queries by number of deep matches, then by threshold; with one set, the items without matches too."""
    device = query.device
    items = matches.rows
    if one_set:
        alone = torch.ones(len(task.labels), dtype=torch.bool, device=device)
        alone[items] = False
        items = torch.cat([items, alone.nonzero()[:, 0]])
    owner, score = query[counted], matches.score[counted]
    threshold = torch.full((len(items),), torch.inf, dtype=torch.float64, device=device)
    threshold.scatter_reduce_(0, owner[~is_deep], score[~is_deep], "amin")
    depth = torch.bincount(owner[is_deep], minlength=len(items))
    order = torch.argsort(threshold, stable=True)
    order = order[torch.argsort(depth[order], stable=True, descending=True)]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=device)
    column = place[owner]
    shallow, deep = where(~is_deep), where(is_deep)
    shallow = shallow[torch.argsort(column[shallow], stable=True)]
    level = torch.arange(len(deep), device=device) - (depth.cumsum(0) - depth)[owner[deep]]
    shape = (int(depth.max()) if len(depth) else 0, len(items))
    deep_score = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
    deep_entry = torch.full(shape, -1, device=device)
    deep_score[level, column[deep]] = score[deep]
    deep_entry[level, column[deep]] = counted[deep]
    return Side(
        items[order], task.labels[items[order]], (threshold[order] - widths.margin).float(),
        column[shallow], score[shallow], counted[shallow], deep_score, deep_entry,
    )  # fmt: skip


def gallery_side(task: RankingTask) -> Side:
    """The gallery as columns of tiles, with no matches to be counted."""
    items = torch.arange(len(task.gallery_labels), device=task.gallery_labels.device)
    none, empty = items[:0], items[:0].double()
    return Side(items, task.gallery_labels, items.float(), none, empty, none, empty.view(0, 0), none.view(0, 0))


class Counter:
    """The counts over all tiles seen so far."""

    def __init__(self, task: RankingTask, widths: Widths, matches: int) -> None:
        self.task, self.widths = task, widths
        self.higher, self.equal = torch.zeros(2, matches, dtype=torch.int64, device=task.labels.device)  # (M,) each
        self.room = max(1, task.memory // 512)  # pairs worked on at once

    def add_pairs(self, side: Side, other: Side, r: Tensor, c: Tensor, value: Tensor) -> None:
        """Count the pairs of query r and item c of the other side for the shallow matches."""
        keep = where(value > side.threshold[r])
        r = r[keep]
        key = sort_ascending(_key(r, value[keep]) | c[keep])  # (k,) by query, then score
        if not len(key):
            return
        margin = self.widths.margin
        top = torch.searchsorted(key, _key(side.row, (side.score + margin).float()) | COLUMN, right=True)
        low = _key(side.row, (side.score - margin).float())
        near = where(key[(top - 1).clamp(min=0)] >= low)
        bottom = top.clone()
        bottom[near] = torch.searchsorted(key, low[near]).minimum(top[near])
        end = torch.bincount(r, minlength=len(side.items)).cumsum(0)[side.row]
        self._add(side, other, side.entry, side.row, side.score, bottom, top, end, key & COLUMN)

    def add_deep(self, side: Side, counts: Tensor) -> None:
        """Add the numbers of entries above the `cuts` of each deep match, (K, 2, n)."""
        known = where(side.deep_entry >= 0)
        entry = side.deep_entry.flatten()[known]
        self.higher.index_add_(0, entry, counts[:, 0].flatten()[known])
        if self.task.queries.exact:
            self.equal.index_add_(0, entry, (counts[:, 1] - counts[:, 0]).flatten()[known])

    def add_near(self, side: Side, other: Side, near: Tensor) -> None:
        """Compare in float64 the entries between the two cuts of a deep match: level, query and item, (3, u)."""
        for level, r, c in (part.unbind() for part in near.split(self.room, dim=1)):
            self._compare(side, other, side.deep_entry[level, r], r, c, side.deep[level, r])

    def add_sorted(self, side: Side, other: Side, tile: Tensor) -> None:
        """Count a tile (n, w) for many deep matches per query by sorting its rows."""
        width, margin, exact = tile.shape[1], self.widths.margin, self.task.queries.exact
        for start, part in self._parts(side, width):
            block = tile[start : start + len(part.items)]
            deep = part.deep.T.contiguous()  # (n, K)
            order, bottom, top = order_rows(block, deep - margin, deep + margin, exact)
            known = where(part.deep_entry.T >= 0)
            bottom, top = bottom.flatten()[known], top.flatten()[known]
            if not exact and int((top - bottom).sum()) * CROWD > block.numel():
                self.add_exact(part, other)
                continue
            row, entry, score = known // len(part.deep), part.deep_entry.T.flatten()[known], deep.flatten()[known]
            self.higher.index_add_(0, entry, width - top)
            if exact:
                self.equal.index_add_(0, entry, top - bottom)
                continue
            for match, pair in self._doubts(bottom, top):
                r, c = row[match], order[row[match], pair]
                gap = block[r, c].double() - score[match]
                self.higher.index_add_(0, entry[match], (gap > margin).long())
                near = where(gap.abs() <= margin)
                self._compare(part, other, entry[match[near]], r[near], c[near], score[match[near]])

    def add_exact(self, side: Side, other: Side) -> None:
        """Count all pairs of two sides for the deep matches in float64, where float32 can order too few of them."""
        right = self.task.gallery.right(other.items)  # (w, E)
        for _, part in self._parts(side, len(right)):
            product = self.task.queries.left(part.items) @ right.T  # (n, w)
            product.masked_fill_(part.labels[:, None] == other.labels, -torch.inf)
            key, score = sort_ascending(product), part.deep.T.contiguous()
            higher = len(right) - torch.searchsorted(key, score + self.widths.tie, right=True)  # (n, K)
            reach = len(right) - torch.searchsorted(key, score - self.widths.tie)
            self.add_deep(part, torch.stack([higher.T, reach.T], 1))
            known = where(part.deep_entry >= 0)
            self.equal.index_add_(0, part.deep_entry.flatten()[known], (reach - higher).T.flatten()[known])

    def _parts(self, side: Side, width: int) -> Iterator[tuple[int, Side]]:
        """Queries with deep matches and where they begin, a few at a time: their float64 rows must fit in memory."""
        step = max(1, self.task.memory // (64 * width))
        for start in range(0, len(side.items), step):
            part = side.block(start, start + step)
            if len(part.deep):
                yield start, part

    def _add(
        self, side: Side, other: Side, entry: Tensor, row: Tensor, score: Tensor,
        bottom: Tensor, top: Tensor, end: Tensor, column: Tensor,
    ) -> None:  # fmt: skip
        """Count sorted pairs: bottom..top of them are too near to each match's score to order, top..end above it."""
        self.higher.index_add_(0, entry, end - top)
        if self.task.queries.exact:
            self.equal.index_add_(0, entry, top - bottom)
            return
        for match, pair in self._doubts(bottom, top):
            self._compare(side, other, entry[match], row[match], column[pair], score[match])

    def _doubts(self, bottom: Tensor, top: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each match with each number from its bottom to below its top, (k,) each; as many at once as there is room."""
        doubt = top - bottom
        unsure = where(doubt > 0)
        chunk = doubt[unsure].cumsum(0).div(self.room, rounding_mode="floor")
        for part in unsure.split(torch.unique_consecutive(chunk, return_counts=True)[1].tolist()):
            match = torch.repeat_interleave(part, doubt[part])  # (k,)
            before = torch.repeat_interleave(doubt[part].cumsum(0) - doubt[part], doubt[part])
            yield match, bottom[match] + torch.arange(len(match), device=match.device) - before

    def _compare(self, side: Side, other: Side, entry: Tensor, r: Tensor, c: Tensor, score: Tensor) -> None:
        """Compare in float64 the pairs (r, c), which float32 cannot order against a match's score; (k,) each."""
        if len(r):
            gap = pair_scores(self.task.queries, self.task.gallery, side.items[r], other.items[c]) - score
            self.higher.index_add_(0, entry, (gap > self.widths.tie).long())
            self.equal.index_add_(0, entry, (gap.abs() <= self.widths.tie).long())


def _key(row: Tensor, value: Tensor) -> Tensor:
    """Row and float32 score as one integer in the same order, the lowest bits left free for the column."""
    bits = value.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() + (1 << 31)
    return (row << COLUMN_BITS + 32) | (ordered << COLUMN_BITS)
