"""Exact places of every query's matches, from streamed tiles of similarities, without sorting the gallery.

Axes: Q queries, N gallery items, E coordinates, M matches (a query with a relevant item), k selected pairs of a tile.

A query needs, for each match, how many other items score higher and how many tie. Items below its worst match do not
matter: that score is the query's *floor*. With queries ordered by floor, one number is the floor of a whole tile, one
comparison selects the few pairs of the tile that matter to anybody, and only those are sorted and counted. When the
queries are the gallery, a tile serves its rows and its columns, and half of all products are never computed.

Tiles are products in float32. A pair nearer to a match than their rounding error (`margin`) cannot be ordered by them
and is scored again in float64. Scores tie when they differ by at most 2^-40 of their scale (`tie_width`): duplicates tie
wherever they stand in a tile, and the counts are those of float64 arithmetic whatever the BLAS library does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfield.matches import Matches, Task, match_lists, query_chunks, relevant_counts, sort_ascending
from nearfield.ties import Places
from nearfield.vectors import ROUNDING, Vectors, scale

BITS = 13  # a pair's row and column in a block of 2^13 items share one sortable integer with its score
TILE = 1024  # rows and columns of one product


@dataclass(frozen=True)
class Widths:
    """How near two scores must be to be called equal (`tie`), and to be scored again in float64 (`margin`)."""

    tie: float
    margin: float


@dataclass(frozen=True)
class Side:
    """The queries along one side of a tile: their items, floors and the matches to place."""

    items: Tensor  # (n,) index of each item in its vectors
    labels: Tensor  # (n,)
    floor: Tensor  # (n,) float32, ascending
    row: Tensor  # (M,) the query of each match, ascending
    score: Tensor  # (M,) float64
    higher: Tensor  # (M,) int64, counted so far: other items that score higher
    equal: Tensor  # (M,) int64, counted so far: other items that tie

    def block(self, start: int, stop: int) -> Side:
        """The queries start..stop, sharing the counters of this side."""
        ends = torch.tensor([start, stop], device=self.row.device)
        first, last = torch.searchsorted(self.row, ends).tolist()
        part = slice(first, last)
        span = slice(start, stop)
        return Side(
            self.items[span], self.labels[span], self.floor[span],
            self.row[part] - start, self.score[part], self.higher[part], self.equal[part],
        )  # fmt: skip


def match_places(task: Task) -> Iterator[tuple[Tensor, Places]]:
    """Queries that have matches, with the places of those: (rows, Places) for groups of queries with equally many."""
    widths = score_widths(task.queries, task.gallery)
    relevant = relevant_counts(task)
    chunks = query_chunks(task, relevant)
    for rows in chunks:
        matches = match_lists(task, rows, widths.tie)
        higher, equal = _count_all(task, matches, widths, one_set=task.one_set and len(chunks) == 1)
        yield from _places(matches, higher, equal, relevant)


def score_widths(queries: Vectors, gallery: Vectors) -> Widths:
    """Tie width and rounding margin of the scores between two sets of vectors.

    The margin is four times the usual statistical bound sqrt(E) u of an inner product's rounding error (Higham and Mary,
    2019), and more if a sample of products shows that the device rounds more coarsely than float32 should.
    """
    unit = scale(queries, gallery)
    if queries.exact:
        return Widths(0.5, 0.5)
    margin = 4 * queries.width**0.5 * ROUNDING * unit
    some, other = (torch.arange(min(256, len(v.norm)), device=v.norm.device) for v in (queries, gallery))
    coarse = queries.left(some, torch.float32) @ gallery.right(other, torch.float32).T
    error = float((coarse.double() - queries.left(some) @ gallery.right(other).T).abs().max())
    return Widths(2.0**-40 * unit, max(margin, 4 * error))


def _places(matches: Matches, higher: Tensor, equal: Tensor, relevant: Tensor) -> Iterator[tuple[Tensor, Places]]:
    """Reshape the counts of queries with equally many listed matches to (queries, matches)."""
    sizes, runs = torch.unique_consecutive(matches.counts, return_counts=True)
    row = entry = 0
    for size, run in zip(sizes.tolist(), runs.tolist(), strict=True):
        rows = matches.rows[row : row + run]
        part = slice(entry, entry + size * run)
        above, tied = matches.above[part].view(run, size).double(), matches.tied[part].view(run, size).double()
        over, same = higher[part].view(run, size), equal[part].view(run, size)
        yield rows, Places(over + above, above, same + tied, tied, relevant[rows].double())
        row, entry = row + run, entry + size * run


def _count_all(task: Task, matches: Matches, widths: Widths, one_set: bool) -> tuple[Tensor, Tensor]:
    """For every match, the number of irrelevant items that score higher, and that tie; (M,) int64 each."""
    query = torch.repeat_interleave(torch.arange(len(matches.rows), device=matches.rows.device), matches.counts)
    start = matches.counts.cumsum(0) - matches.counts
    leader = start[query] + matches.above  # tied matches are counted once, by the first of them
    active = torch.unique_consecutive(leader)
    low = torch.full((len(matches.rows),), torch.inf, dtype=torch.float64, device=query.device)
    low.scatter_reduce_(0, query[active], matches.score[active], "amin")
    order = torch.argsort(low, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    active = active[torch.argsort(place[query[active]], stable=True)]
    counted = torch.zeros(2, len(active), dtype=torch.int64, device=order.device)
    side = Side(
        matches.rows[order], task.labels[matches.rows[order]], (low[order] - widths.margin).float(),
        place[query[active]], matches.score[active], counted[0], counted[1],
    )  # fmt: skip
    _stream(task, side, widths, one_set)
    full = torch.zeros(2, len(matches.score), dtype=torch.int64, device=order.device)
    full[:, active] = counted
    return full[0][leader], full[1][leader]


def _stream(task: Task, side: Side, widths: Widths, one_set: bool) -> None:
    """Count over all tiles; one_set computes only the tiles on and above the diagonal."""
    columns = _with_the_rest(task, side) if one_set else _gallery_side(task)
    sources = columns if one_set else side
    size = block_size(task)
    for top in range(0, len(side.items), size):
        rows = sources.block(top, top + size)
        left = task.queries.left(rows.items, torch.float32)
        for start in range(top if one_set else 0, len(columns.items), size):
            cols = columns.block(start, start + size)
            right = task.gallery.right(cols.items, torch.float32)
            for r, c, value in _selected(left, right, rows.floor, task.memory):
                differ = rows.labels[r] != cols.labels[c]
                _count(task, rows, cols.items, r, c, value, differ, widths)
                if one_set and start > top:
                    _count(task, cols, rows.items, c, r, value, differ, widths)


def block_size(task: Task) -> int:
    """Items along one side of a block of tiles: coordinates of two blocks take an eighth of the memory, or less."""
    return min(1 << BITS, max(TILE // 4, task.memory // (128 * task.queries.width)))


def _gallery_side(task: Task) -> Side:
    items = torch.arange(len(task.gallery_labels), device=task.gallery_labels.device)
    none = items[:0]
    return Side(items, task.gallery_labels, task.gallery.norm.new_empty(0), none, none, none, none)


def _with_the_rest(task: Task, side: Side) -> Side:
    """All items in one order: the queries, then the items that have no match and are only ranked."""
    rest = torch.ones(len(task.labels), dtype=torch.bool, device=side.items.device)
    rest[side.items] = False
    items = torch.cat([side.items, rest.nonzero()[:, 0]])
    floor = torch.cat([side.floor, side.floor.new_full((len(items) - len(side.floor),), torch.inf)])
    return Side(items, task.labels[items], floor, side.row, side.score, side.higher, side.equal)


def _selected(left: Tensor, right: Tensor, floor: Tensor, memory: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pairs (row, column, score) of a block that score above their row's floor or nearly so, a bounded number at a time."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    pending = 0
    buffer = left.new_empty(TILE * TILE)
    for r in range(0, len(left), TILE):
        for c in range(0, len(right), TILE):
            rows, cols = left[r : r + TILE], right[c : c + TILE]
            height, width = len(rows), len(cols)
            product = torch.mm(rows, cols.T, out=buffer[: height * width].view(height, width))
            flat = where(product > floor[r])
            found.append((flat // width + r, flat % width + c, product.flatten()[flat]))
            pending += len(flat)
            if pending > memory // 512:
                yield _joined(found)
                found, pending = [], 0
    if pending:
        yield _joined(found)


def _joined(found: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    rows, cols, values = zip(*found, strict=True)
    return torch.cat(rows), torch.cat(cols), torch.cat(values)


def where(mask: Tensor) -> Tensor:
    """Flat indices of the true entries; numpy finds them several times faster on the CPU."""
    if mask.device.type != "cpu":
        return mask.flatten().nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def _count(
    task: Task, side: Side, others: Tensor, r: Tensor, c: Tensor, value: Tensor, differ: Tensor, widths: Widths
) -> None:
    """Add the pairs (r, c) with their scores to the counters of `side`, whose queries are the r."""
    keep = where(differ & (value > side.floor[r]))
    key = sort_ascending(_key(r[keep], value[keep]) | c[keep])  # (k,) by query, then score
    near = widths.margin
    top = torch.searchsorted(key, _key(side.row, (side.score + near).float()) | ((1 << BITS) - 1), right=True)
    bottom = torch.searchsorted(key, _key(side.row, (side.score - near).float()))
    end = torch.searchsorted(key, side.row + 1 << BITS + 32)
    side.higher.add_(end - top)
    if task.queries.exact:
        side.equal.add_(top - bottom)
    else:
        _settle(task, side, others, key, bottom, top, widths.tie)


def _key(row: Tensor, value: Tensor) -> Tensor:
    """Row and score as one integer in the same order, leaving the lowest bits free for the column."""
    bits = value.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() + (1 << 31)
    return (row << BITS + 32) | (ordered << BITS)


def _settle(
    task: Task, side: Side, others: Tensor, key: Tensor, bottom: Tensor, top: Tensor, tie_width: float
) -> None:
    """Decide in float64 the pairs bottom..top of each match, which float32 cannot order."""
    doubt = top - bottom
    entries = where(doubt > 0)
    chunk = doubt[entries].cumsum(0).div(max(1, task.memory // 512), rounding_mode="floor")
    for part in entries.split(torch.unique_consecutive(chunk, return_counts=True)[1].tolist()):
        entry = torch.repeat_interleave(part, doubt[part])  # (k,)
        first = torch.repeat_interleave(doubt[part].cumsum(0) - doubt[part], doubt[part])
        pair = key[bottom[entry] + torch.arange(len(entry), device=key.device) - first]
        gap = _exact(task, side.items, others, side.row[entry], pair & ((1 << BITS) - 1)) - side.score[entry]
        side.higher.index_add_(0, entry, (gap > tie_width).long())
        side.equal.index_add_(0, entry, (gap.abs() <= tie_width).long())


def _exact(task: Task, queries: Tensor, items: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Float64 scores of the pairs (queries[r], items[c]), r ascending: pair by pair, or by products when they are dense."""
    slab = max(1, task.memory // (64 * len(items)))
    spans = torch.unique_consecutive(r.div(slab, rounding_mode="floor"), return_counts=True)[1].tolist()
    scores, right = [], None
    for rows, cols in zip(r.split(spans), c.split(spans), strict=True):
        if len(rows) * 32 > slab * len(items):
            right = task.gallery.right(items) if right is None else right
            first = int(rows[0])
            product = task.queries.left(queries[first : int(rows[-1]) + 1]) @ right.T
            scores.append(product[rows - first, cols])
        else:
            for some, other in zip(rows.split(4096), cols.split(4096), strict=True):
                scores.append((task.queries.left(queries[some]) * task.gallery.right(items[other])).sum(1))
    return torch.cat(scores)
