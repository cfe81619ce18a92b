"""Places of matches near the top of their rankings, where classes are large and only the first few places count.

Axes: Q queries, N gallery items, n items along a side, r x w entries of a tile, m sampled items, M matches,
W candidates of a query, k pairs.

R-precision, MAP@R and R@K need no rank beyond P = max(R, K). A sample of the gallery tells each query a score, its
*floor*, that a few more than P items should exceed. Only these candidates are selected from the tiles, sorted, and the
matches among them placed. That they are enough is not believed but counted: a match below the floor cannot matter if at
least P items are above it. Queries for which that fails, or whose candidates do not fit, are left to `places.py`.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from nearfield.metrics.ranking.counter import Counter, Side, Widths, gallery_side, query_side, with_columns
from nearfield.metrics.ranking.matches import Matches, RankingTask
from nearfield.metrics.ranking.scan import (
    ThreadMap,
    above_each,
    sort_ascending,
    sort_rows,
    stable_order,
    where,
    workers,
)

SAMPLE = 512  # gallery items that are sampled
SURE = 2.5  # standard deviations by which the number of candidates should exceed P
SPARE = 4.0  # standard deviations above its mean for which there is room
WORTH = 8  # candidates per match up to which this is worth while
SIDE = 1024  # items along a side of a tile at most


class Plan(NamedTuple):
    """How many candidates of a query are wanted."""

    places: Tensor  # (Q,) int64: ranks beyond these do not matter
    sampled: Tensor  # (Q,) int64: how many items of the sample are above the floor
    room: Tensor  # (Q,) int64: candidates that are kept
    fits: Tensor  # (Q,) bool: whether to count these queries here


def plan_heads(task: RankingTask, relevant: Tensor) -> Plan:
    """What to select for queries with so many matches (Q,).

    The number of items above the s-th best of m sampled ones of N has about mean s N/m and deviation sqrt(s) N/m. It
    exceeds P by SURE deviations where s - SURE sqrt(s) = P m/N.
    """
    total = len(task.gallery_labels)
    first = max(task.best_depth or 1, task.rest_depth)
    places = torch.full_like(relevant, first) if task.best_only else relevant.clamp(min=first)
    rate = min(SAMPLE, total) / total
    root = (SURE + (SURE**2 + 4 * rate * places.double()).sqrt()) / 2
    sampled = root.square().ceil().long()
    expected = sampled / rate
    room = (expected + SPARE * sampled.double().sqrt() / rate).ceil().long()
    exact = task.rest_exact or (task.best_only and task.best_depth is None)
    fits = (expected <= WORTH * relevant) & (sampled < SAMPLE) & (not exact) & (total >= 2 * SAMPLE)
    return Plan(places, sampled, room, fits)


def count_heads(
    task: RankingTask, matches: Matches, plan: Plan, widths: Widths, one_set: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For every match, the number of irrelevant items that score higher, and that tie, (M,); queries that failed, (Q,).

    `plan` is that of the queries of `matches`. A match whose rank cannot matter has as many above it as items exist.
    """
    index = torch.arange(len(matches.rows), device=matches.rows.device)
    query = torch.repeat_interleave(index, matches.counts)  # (M,)
    first = matches.counts.cumsum(0) - matches.counts
    leader = first[query] + matches.above  # tied matches are counted once
    floor = _floors(task, matches.rows, plan.sampled)  # (Q,)
    near = matches.score >= floor.double()[query] - widths.margin  # (M,)
    counted = torch.unique_consecutive(leader)
    counted = counted[near[counted]]
    side = query_side(task, matches, query, counted, torch.zeros_like(counted, dtype=torch.bool), widths, one_set)
    place = torch.empty_like(task.labels)
    place[side.items] = torch.arange(len(side.items), device=place.device)
    place = place[matches.rows]  # (Q,) of each query on its side
    side.threshold[place] = torch.minimum(side.threshold[place], floor)
    columns = side if one_set else gallery_side(task)
    heads = _Heads(side, int(plan.room.max()))
    with workers(index.device) as pool:
        _stream(task, heads, side, columns, one_set, pool)
        table = sort_rows(heads.table, pool)
    counter = Counter(task, widths, len(matches.score))
    counter.add_heads(side, columns, table)
    counter.higher[~near[leader]] = len(task.gallery_labels)
    reach = table.shape[1] - torch.searchsorted(table[place], floor.double()[:, None])[:, 0]  # candidates above it
    listed = torch.zeros_like(index).index_add_(0, query, near.long())
    failed = (heads.used[place] > table.shape[1]) | ((reach + listed < plan.places) & (listed < matches.counts))
    if task.best_depth is None:
        failed |= ~near[first]  # its rank matters however deep it is
    return counter.higher[leader], counter.equal[leader], failed


def _floors(task: RankingTask, rows: Tensor, sampled: Tensor) -> Tensor:
    """The score of each query with the `sampled`-best of some gallery items, (Q,) float32."""
    total = len(task.gallery_labels)
    some = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:SAMPLE].to(rows.device)
    right = task.gallery.right(some, torch.float32)  # (m, E)
    found = []
    step = max(1, task.memory // (64 * max(SAMPLE, task.queries.width)))
    for part, best in zip(rows.split(step), sampled.split(step), strict=True):
        product = task.queries.left(part, torch.float32) @ right.T  # (r, m)
        if task.self_index is not None:
            product.masked_fill_(task.self_index[part, None] == some, -torch.inf)
        found.append(sort_ascending(product).gather(1, (SAMPLE - best)[:, None])[:, 0])
    return torch.cat(found)


class _Heads:
    """The candidates of the queries along a side: float64 scores that hold the column in their lowest bits."""

    def __init__(self, side: Side, width: int) -> None:
        self.threshold = side.threshold.clone()  # (n,) only scores above it are selected
        self.table = torch.full((len(side.items), width), -torch.inf, dtype=torch.float64, device=side.items.device)
        self.used = torch.zeros_like(side.items)  # (n,) candidates that were found, even if there was no room

    def add(self, first: int, size: int, row: Tensor, column: Tensor, value: Tensor) -> None:
        """Add scores of queries first .. first + size, in the order of `row`, which counts from `first`; (k,) each."""
        width = self.table.shape[1]
        span = slice(first, first + size)
        count = torch.bincount(row, minlength=size)
        slot = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count - self.used[span])[row]
        self.used[span] += count
        full = self.used[span] > width
        if bool(full.any()):
            self.threshold[span][full] = torch.inf
            keep = slot < width
            row, column, value, slot = row[keep], column[keep], value[keep], slot[keep]
        self.table.view(-1)[(row + first) * width + slot] = with_columns(value, column)


def _stream(task: RankingTask, heads: _Heads, side: Side, columns: Side, one_set: bool, pool: ThreadMap) -> None:
    """Collect the candidates from all tiles; if the queries are the gallery, from those on and above the diagonal."""
    size = min(SIDE, max(64, isqrt(task.memory // 128)))
    size = -(-len(columns.items) // -(-len(columns.items) // size))  # tiles are about equally large
    kept = 16 * len(columns.items) * task.gallery.width <= task.memory
    blocks = [task.gallery.right(part, torch.float32) for part in columns.items.split(size)] if kept else None
    buffer = torch.empty(size * size, device=side.items.device)
    for top in range(0, len(side.items), size):
        left = task.queries.left(side.items[top : top + size], torch.float32)  # (r, E)
        labels = side.labels[top : top + size]
        for start in range(top if one_set else 0, len(columns.items), size):
            part = slice(start, start + size)
            right = (
                blocks[start // size] if blocks else task.gallery.right(columns.items[part], torch.float32)
            )  # (w, E)
            shape = len(left), len(right)
            tile = torch.mm(left, right.T, out=buffer[: shape[0] * shape[1]].view(shape))
            r, c = _others(
                above_each(tile, heads.threshold[top : top + size, None], pool), labels, columns.labels[part]
            )
            heads.add(top, shape[0], r, c + start, tile[r, c])
            if one_set and start > top:
                r, c = _others(above_each(tile, heads.threshold[None, part], pool), labels, columns.labels[part])
                order = stable_order(c)
                r, c = r[order], c[order]
                heads.add(start, shape[1], c, r + top, tile[r, c])


def _others(pairs: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the pairs whose labels differ: neither matches nor a query with itself."""
    r, c = pairs
    keep = where(rows[r] != columns[c])
    return r[keep], c[keep]
