"""Exact places of every query's matches in its ranking, counted in streamed tiles of scores, without sorting.

Axes: Q queries, N gallery items, n items along a side of a block, E coordinates, M matches, r x w entries of a tile,
K deep matches per query (padded), k pairs.

For each match of a query: how many other items score higher, and how many tie? A random sample of the gallery tells
which matches are *shallow*, near the top of their ranking, and which are *deep*. The worst shallow match is the query's
threshold: few pairs score above it, so they are selected from the tile, sorted and counted. A deep match is counted by
comparing whole rows with its score. When the queries are the gallery, a tile serves its rows and its columns, and half
of all products are never computed.

Tiles are computed in float32. A pair whose score is nearer to a match's than the rounding error (`margin`) is scored
again in float64. Scores tie when they differ by no more than float64 rounding (`tie`): duplicates tie wherever they
stand in a tile, and the counts are those of float64 arithmetic whatever the BLAS library does.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nearfield.metrics.ranking.counter import COLUMN_BITS, Counter, Side, Widths, gallery_side, query_side
from nearfield.metrics.ranking.matches import (
    Matches,
    MatchPlaces,
    RankingTask,
    match_lists,
    query_chunks,
    relevant_counts,
)
from nearfield.metrics.ranking.scan import ThreadMap, scan, sort_ascending, workers
from nearfield.metrics.ranking.sorted_rows import count_by_rows, suits
from nearfield.metrics.ranking.vectors import VectorSet

HIDDEN = torch.finfo(torch.float32).min  # score of a match in a tile, where only other items count
SELECT, COMPARE, SORT = 50.0, 0.3, 4.0  # ns per entry of a tile: to select and sort; to compare; in a sorted row
TILE_ENTRIES = 1 << 22  # entries of a tile at most
MANY = 12  # deep matches per query from which sorting rows is cheaper than comparing them


def match_places(task: RankingTask) -> Iterator[tuple[Tensor, MatchPlaces]]:
    """Queries that have matches, and where these stand: (rows, places) for groups of queries with equally many."""
    widths = score_widths(task.queries, task.gallery)
    relevant = relevant_counts(task)
    for chunk in query_chunks(task, relevant):
        large = suits(task, relevant[chunk])
        for rows, count in ((chunk[large], count_by_rows), (chunk[~large], count_by_tiles)):
            if len(rows):
                matches = match_lists(task, rows, widths.tie)
                higher, equal = count(task, matches, relevant[rows], widths)
                yield from _places(matches, higher, equal, relevant[rows])


def score_widths(queries: VectorSet, gallery: VectorSet) -> Widths:
    """Tie width and rounding margin of scores, which are at most of the size of 1 (Hamming scores are exact integers).

    Ties are a few times as wide as the statistical bound sqrt(E) u of an inner product's rounding error (Higham and
    Mary, 2019), u the unit roundoff of float64. The margin is twice that bound with the u of float32, or four times the
    largest error of a sample of products if that is wider: the device may round more coarsely than float32 should.
    """
    if queries.exact:
        return Widths(0.5, 0.5)
    some, other = (torch.arange(min(256, len(v.norm)), device=v.norm.device) for v in (queries, gallery))
    coarse = queries.left(some, torch.float32) @ gallery.right(other, torch.float32).T
    error = float((coarse.double() - queries.left(some) @ gallery.right(other).T).abs().max())
    spread = queries.width**0.5
    return Widths(tie=8 * spread * 2.0**-53, margin=max(2 * spread * 2.0**-24, 4 * error))


def _places(matches: Matches, higher: Tensor, equal: Tensor, relevant: Tensor) -> Iterator[tuple[Tensor, MatchPlaces]]:
    """Reshape the counts of queries with equally many listed matches to (queries, matches)."""
    sizes, runs = torch.unique_consecutive(matches.counts, return_counts=True)
    row = entry = 0
    for size, run in zip(sizes.tolist(), runs.tolist(), strict=True):
        span, part = slice(row, row + run), slice(entry, entry + size * run)
        over, same, above, tied = (
            counted[part].view(run, size).double() for counted in (higher, equal, matches.above, matches.tied)
        )
        yield matches.rows[span], MatchPlaces(over + above, above, same + tied, tied, relevant[span].double())
        row, entry = row + run, entry + size * run


def count_by_tiles(task: RankingTask, matches: Matches, relevant: Tensor, widths: Widths) -> tuple[Tensor, Tensor]:
    """For every match, the number of irrelevant items that score higher, and that tie; (M,) int64 each."""
    device = matches.rows.device
    one_set = task.one_set and 2 * len(matches.rows) > len(task.labels)  # each tile serves two sides: half the products
    query = torch.repeat_interleave(torch.arange(len(matches.rows), device=device), matches.counts)  # (M,)
    leader = (matches.counts.cumsum(0) - matches.counts)[query] + matches.above  # tied matches are counted once
    share, far = _sample(task, matches, query, relevant, widths.margin)
    counted = torch.unique_consecutive(leader)
    counted = counted[~far[counted]]
    counter = Counter(task, widths, len(matches.score))
    deep = _deep(matches, share, far)
    side = query_side(task, matches, query, counted, deep[counted], widths, one_set)
    with workers(device) as pool:
        _stream(task, side, counter, one_set, pool)
    counter.higher[far] = len(task.gallery_labels)
    return counter.higher[leader], counter.equal[leader]


def _sample(
    task: RankingTask, matches: Matches, query: Tensor, relevant: Tensor, margin: float
) -> tuple[Tensor, Tensor]:
    """On a sample of the gallery: share of items that may score above each match; whether its rank cannot matter."""
    total = len(task.gallery_labels)
    wish = (
        min(1024, max(256, total // 12))
        if task.rest_exact
        else max(1024, int(2 * (float(relevant.double().mean()) * total) ** 0.5))
    )
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(total, generator=generator)[: min(wish, total)].to(query.device)
    right = task.gallery.right(some, torch.float32)  # (m, E)
    share = torch.empty(len(query), device=query.device)
    far = torch.zeros(len(query), dtype=torch.bool, device=query.device)
    ends = matches.counts.cumsum(0)
    step = max(1, task.memory // (64 * max(len(some), task.queries.width)))
    for start in range(0, len(matches.rows), step):
        rows = matches.rows[start : start + step]
        last = int(ends[start + len(rows) - 1])
        part = slice(int(ends[start]) - int(matches.counts[start]), last)
        product = task.queries.left(rows, torch.float32) @ right.T  # (r, m)
        if task.self_index is not None:
            product.masked_fill_(task.self_index[rows, None] == some, HIDDEN)
        product = sort_ascending(product)
        row, score, best = query[part] - start, matches.score[part], matches.above[part] == 0
        share[part] = 1 - _row_search(product, row, score - margin) / len(some)
        far[part] = _too_far(task, product, row, score, best, relevant[start : start + step], margin)
    return share, far


def _deep(matches: Matches, share: Tensor, far: Tensor) -> Tensor:
    """Which matches to count by comparing whole rows, (M,): the worst of each query, split where it costs least."""
    deep = torch.empty_like(far)
    sizes, runs = torch.unique_consecutive(matches.counts, return_counts=True)
    entry = 0
    for size, run in zip(sizes.tolist(), runs.tolist(), strict=True):
        part = slice(entry, entry + size * run)
        shares = torch.nn.functional.pad(share[part].view(run, size), (1, 0))  # (run, size + 1): none to all shallow
        left = (~far[part]).view(run, size).sum(1, keepdim=True) - torch.arange(size + 1, device=share.device)
        cost = SELECT * shares + (COMPARE * left.clamp(min=0)).clamp(max=SORT)
        shallow = cost.argmin(1, keepdim=True)
        deep[part] = (torch.arange(size, device=share.device) >= shallow).flatten()
        entry += size * run
    return deep


def _row_search(table: Tensor, row: Tensor, score: Tensor) -> Tensor:
    """Number of entries of table[row] <= each score, (M,); `row` ascends and later rows have no fewer scores."""
    found = torch.empty(len(row), dtype=torch.int64, device=row.device)
    counts = torch.bincount(row, minlength=len(table))
    sizes, runs = torch.unique_consecutive(counts, return_counts=True)
    first = entry = 0
    for size, run in zip(sizes.tolist(), runs.tolist(), strict=True):
        part = slice(entry, entry + size * run)
        needles = score[part].view(run, size).float()
        found[part] = torch.searchsorted(table[first : first + run], needles, right=True).flatten()
        first, entry = first + run, entry + size * run
    return found


def _too_far(
    task: RankingTask, table: Tensor, row: Tensor, score: Tensor, best: Tensor, relevant: Tensor, margin: float
) -> Tensor:
    """Whether so many of the sampled items, sorted in `table` (r, m), are above a match that its rank cannot matter."""
    far = torch.zeros_like(best)
    if not task.rest_exact:
        far |= ~best & (score < _nth_best(table, relevant.clamp(min=task.rest_depth))[row] - margin)
    if task.best_depth is not None:
        places = relevant.clamp(min=task.best_depth)
        far |= best & (score < _nth_best(table, places)[row] - margin)
    return far


def _nth_best(table: Tensor, n: Tensor) -> Tensor:
    """The n-th highest entry of each ascending row, (r,) float64; -inf where a row has fewer."""
    place = table.shape[1] - n  # (r,)
    return torch.where(place >= 0, table.gather(1, place.clamp(min=0)[:, None])[:, 0].double(), -torch.inf)


def _stream(task: RankingTask, side: Side, counter: Counter, one_set: bool, pool: ThreadMap) -> None:
    """Count over all tiles; if the queries are the gallery, over those on and above the diagonal."""
    columns = side if one_set else gallery_side(task)
    size = _block_size(task, len(columns.items))
    for top in range(0, len(side.items), size):
        rows = side.block(top, top + size)
        left = task.queries.left(rows.items, torch.float32)  # (n, E)
        for start in range(top if one_set else 0, len(columns.items), size):
            cols = columns.block(start, start + size)
            right = task.gallery.right(cols.items, torch.float32)  # (w, E)
            _count_block(task, rows, cols, left, right, counter, one_set and start > top, pool)


def _block_size(task: RankingTask, items: int) -> int:
    """Items along a side of a block; all blocks are about equally large."""
    largest = min(1 << COLUMN_BITS, max(256, task.memory // (128 * task.queries.width)))
    return -(-items // -(-items // largest))


def _count_block(
    task: RankingTask,
    rows: Side,
    cols: Side,
    left: Tensor,
    right: Tensor,
    counter: Counter,
    both: bool,
    pool: ThreadMap,
) -> None:
    """Count the tiles of one block for the queries of its rows and, when `both`, of its columns."""
    order = torch.argsort(cols.labels)
    step = min(len(left), max(1, task.memory // (128 * len(right))), TILE_ENTRIES // len(right))
    buffer = left.new_empty(step * len(right))
    margin = counter.widths.margin
    many_cols = both and len(cols.deep) > MANY
    col_cuts = cols.cuts(margin) if both and not many_cols else right.new_empty(0, 2, len(right))
    col_counts = torch.zeros(col_cuts.shape, dtype=torch.int64, device=right.device)
    pending: list[tuple[Tensor, Tensor, Tensor]] = []
    for first in range(0, len(left), step):
        part = rows.block(first, first + step)
        piece = left[first : first + step]
        tile = torch.mm(piece, right.T, out=buffer[: len(piece) * len(right)].view(len(piece), len(right)))  # (r, w)
        _hide_matches(tile, part.labels, cols.labels, order)
        many = len(part.deep) > MANY
        row_cuts = left.new_empty(0, 2, len(tile)) if many else part.cuts(margin)
        lowest = min(part.threshold.min(), cols.threshold.min()) if both else part.threshold.min()
        found = scan(tile, float(lowest), row_cuts, col_cuts, task.queries.exact, pool)
        if many:
            counter.add_sorted(part, cols, tile)
        elif found.rows.crowded:
            counter.add_exact(part, cols)
        elif len(row_cuts):
            counter.add_deep(part, found.rows.counts)
            counter.add_near(part, cols, found.rows.between)
        if many_cols:
            counter.add_sorted(cols, part, tile.T.contiguous())
        elif found.cols.crowded:
            counter.add_exact(cols, part)
        elif len(col_cuts):
            col_counts += found.cols.counts
            counter.add_near(cols, part, found.cols.between)
        for flat, value in zip(found.flat.split(counter.room), found.value.split(counter.room), strict=True):
            pending.append((flat // len(right) + first, flat % len(right), value))
            if sum(len(value) for _, _, value in pending) >= counter.room:
                _flush(rows, cols, pending, counter, both)
    if len(col_cuts):
        counter.add_deep(cols, col_counts)
    _flush(rows, cols, pending, counter, both)


def _flush(rows: Side, cols: Side, pending: list[tuple[Tensor, Tensor, Tensor]], counter: Counter, both: bool) -> None:
    if not pending:
        return
    r, c, value = (torch.cat(parts) for parts in zip(*pending, strict=True))
    pending.clear()
    counter.add_pairs(rows, cols, r, c, value)
    if both:
        counter.add_pairs(cols, rows, c, r, value)


def _hide_matches(tile: Tensor, rows: Tensor, cols: Tensor, order: Tensor) -> None:
    """Give pairs of equal labels (matches, or a query with itself) the lowest score; `order` sorts `cols`."""
    ranked = cols[order]
    start = torch.searchsorted(ranked, rows)
    count = torch.searchsorted(ranked, rows, right=True) - start  # (r,)
    if int(count.sum()) * 16 > tile.numel():
        tile.masked_fill_(rows[:, None] == cols, HIDDEN)
        return
    r = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), count)
    within = torch.arange(len(r), device=rows.device) - (count.cumsum(0) - count)[r]
    tile[r, order[start[r] + within]] = HIDDEN
