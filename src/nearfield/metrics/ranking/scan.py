"""One pass over a tile of scores: select the pairs above a threshold, count entries of rows and columns above cuts.

Axes: r rows and w columns of the tile, K pairs of cuts per row or per column, k selected pairs.

The CPU version is numpy on slabs of rows that stay in cache: its comparisons and searches are vectorised and release
the interpreter lock, where torch's comparison and `nonzero` are several times slower. Each thread takes some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SLAB = 1 << 17  # entries of a slab of rows, which stays in cache
TALL = 240  # rows of a slab at most: a count of a column of flags fits in a byte
CROWD = 16  # if more than one entry in 16 lies between a pair of cuts, they are not listed
INNER, OUTER = 32_000, 32_767  # levels of scores on either side of 0: from the lowest to the highest cut, and beyond
GROUP = 128  # words of eight flags summed at once, so that each of the eight byte sums fits in a byte

ThreadMap = tuple[
    Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]], int
]  # a `map`, and over how many threads
_Floats = NDArray[np.float32]
_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Above:
    """Entries of a tile above the higher and above the lower cut of each pair of cuts, and those between the two."""

    counts: Tensor  # (K, 2, n) int64
    between: Tensor  # (3, u) int64: level, place along the cuts, place along the other side; unless crowded
    crowded: bool  # too many lie between to be listed


@dataclass(frozen=True)
class TileScan:
    """What a tile holds: flat indices and scores of the selected entries, and those above the cuts of its two sides."""

    flat: Tensor  # (k,) int64
    value: Tensor  # (k,) float32
    rows: Above
    cols: Above


def scan(
    tile: Tensor, threshold: float, row_cuts: Tensor, col_cuts: Tensor, exact: bool = False, pool: ThreadMap = (map, 1)
) -> TileScan:
    """Select the entries of `tile` (r, w) above `threshold`; find those above row_cuts (K, 2, r), col_cuts (K', 2, w).

    Infinite cuts, which nothing exceeds, must come last along each row of cuts. `exact` leaves out the entries between.
    """
    if tile.device.type != "cpu":
        flat = where(tile > threshold)
        return TileScan(flat, tile.flatten()[flat], _above(tile, row_cuts, exact), _above(tile.T, col_cuts, exact))
    run, threads = pool
    share = -(-len(tile) // threads)  # rows of a thread
    starts = range(0, len(tile), share)

    def scan_rows(start: int) -> _Part:
        part = _Part(tile[start : start + share].numpy(), start, exact)
        part.run(threshold, row_cuts[:, :, start : start + share].numpy(), col_cuts.numpy())
        return part

    parts = list(run(scan_rows, starts))
    flat = torch.from_numpy(np.concatenate([flat for part in parts for flat in part.flats]))
    return TileScan(
        flat,
        tile.view(-1)[flat],
        _joined(np.concatenate([part.row_counts for part in parts], axis=2), [part.near_rows for part in parts]),
        _joined(np.sum([part.col_counts for part in parts], axis=0), [part.near_cols for part in parts]),
    )


class _Part:
    """One thread's share of the rows of a tile, slab by slab: each slab is compared with all cuts while in cache."""

    def __init__(self, table: _Floats, start: int, exact: bool) -> None:
        self.table, self.start, self.exact = table, start, exact
        self.flats: list[_Ints] = [np.empty(0, dtype=np.int64)]
        self.near_rows, self.near_cols = _Near(table.size // CROWD), _Near(table.size // CROWD)

    def run(self, threshold: float, row_cuts: _Floats, col_cuts: _Floats) -> None:
        height, width = self.table.shape
        step = min(max(1, SLAB // width), TALL, height)
        padded = -(-width // (8 * GROUP)) * 8 * GROUP
        scratch = np.zeros((2, step, padded), dtype=bool)
        self.row_counts = np.zeros(row_cuts.shape, dtype=np.int64)
        self.col_counts = np.zeros(col_cuts.shape, dtype=np.int64)
        widths = [_finite(pair) for pair in col_cuts]
        with _small_buffer():
            for first in range(0, height, step):
                span = slice(first, first + step)
                slab, flags = self.table[span], scratch[:, : min(step, height - first)]
                if threshold < np.inf:
                    self._select(slab, threshold, flags[0], self.start + first)
                for level, pair in enumerate(row_cuts[:, :, span]):
                    self._count_rows(slab, level, pair, flags, first)
                for level, (pair, finite) in enumerate(zip(col_cuts, widths, strict=True)):
                    self._count_cols(slab, level, pair[:, :finite], flags, first)

    def _select(self, slab: _Floats, threshold: float, flags: _Flags, first: int) -> None:
        width, padded = slab.shape[1], flags.shape[1]
        np.greater(slab, np.float32(threshold), out=flags[:, :width])
        flat = _true_places(flags)
        self.flats.append(flat + first * width if padded == width else (flat // padded + first) * width + flat % padded)

    def _count_rows(self, slab: _Floats, level: int, pair: _Floats, flags: _Flags, first: int) -> None:
        finite, width = _finite(pair), slab.shape[1]
        if not finite:
            return
        flags = flags[:, :finite]
        np.greater(slab[:finite], pair[:, :finite, None], out=flags[:, :, :width])
        sums = flags.view(np.uint64).reshape(2, finite, -1, GROUP).sum(-1)  # eight sums of a byte in each word
        counts = sums.view(np.uint8).sum(-1, dtype=np.int64)
        self.row_counts[level, :, first : first + finite] = counts
        if not self.exact and self.near_rows.open:
            rows = np.flatnonzero(counts[1] > counts[0])
            if len(rows):
                which, cols = _both(flags[1, rows, :width], ~flags[0, rows, :width])
                self.near_rows.add(level, self.start + first + rows[which], cols)

    def _count_cols(self, slab: _Floats, level: int, pair: _Floats, flags: _Flags, first: int) -> None:
        finite = pair.shape[1]
        if not finite:
            return
        flags = flags[:, :, :finite]
        np.greater(slab[:, :finite], pair[:, None], out=flags)
        counts = np.add.reduce(flags.view(np.uint8), axis=1, dtype=np.uint8)
        self.col_counts[level, :, :finite] += counts
        if not self.exact and self.near_cols.open:
            cols = np.flatnonzero(counts[1] > counts[0])
            if len(cols):
                rows, which = _both(flags[1][:, cols], ~flags[0][:, cols])
                self.near_cols.add(level, cols[which], self.start + first + rows)


def _both(one: _Flags, other: _Flags) -> tuple[_Ints, _Ints]:
    """Row and column of the entries true in both."""
    flat = np.flatnonzero(one & other)
    return flat // one.shape[1], flat % one.shape[1]


class _Near:
    """Entries between the cuts of a pair; no longer collected (not `open`) once there are too many."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0
        self.found: list[_Ints] = []

    @property
    def open(self) -> bool:
        return self.count <= self.limit

    def add(self, level: int, place: _Ints, other: _Ints) -> None:
        self.count += len(place)
        self.found.append(np.stack([np.full_like(place, level), place, other]))


def _joined(counts: _Ints, near: list[_Near]) -> Above:
    found = [part for one in near for part in one.found] or [np.empty((3, 0), dtype=np.int64)]
    crowded = not all(one.open for one in near)
    return Above(torch.from_numpy(counts), torch.from_numpy(np.concatenate(found, axis=1)), crowded)


def _above(tile: Tensor, cuts: Tensor, exact: bool) -> Above:
    """The same on devices other than the CPU, for cuts along the rows of `tile`."""
    counts = torch.zeros(cuts.shape, dtype=torch.int64, device=tile.device)
    near = []
    for level, (high, low) in enumerate(cuts):
        over, reach = tile > high[:, None], tile > low[:, None]
        counts[level] = torch.stack([over.sum(1), reach.sum(1)])
        if not exact:
            found = (reach & ~over).nonzero().T
            near.append(torch.cat([torch.full_like(found[:1], level), found]))
    return Above(counts, torch.cat(near, 1) if near else counts.new_empty(3, 0), False)


def _finite(pair: _Floats) -> int:
    return int(np.count_nonzero(pair[0] < np.inf))


def _true_places(flags: _Flags) -> _Ints:
    """Flat indices of the true entries, looking first for words of eight flags that are not all false."""
    words = flags.view(np.uint64).reshape(-1)
    full = (words != 0).nonzero()[0]
    inside = words[full].view(bool).nonzero()[0]
    found: _Ints = (full[inside >> 3] << 3) + (inside & 7)
    return found


@contextmanager
def _small_buffer() -> Iterator[None]:
    """Let numpy compare rows in place: it copies rows shorter than its buffer when an operand is broadcast."""
    previous = np.setbufsize(1024)
    try:
        yield
    finally:
        np.setbufsize(previous)


def where(mask: Tensor) -> Tensor:
    """Flat indices of the true entries."""
    if mask.device.type != "cpu":
        return mask.flatten().nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def sort_ascending(values: Tensor) -> Tensor:
    """`values` sorted along the last axis, in place on the CPU."""
    if values.device.type != "cpu":
        return values.sort(dim=-1).values
    values.numpy().sort(axis=-1)
    return values


def highest(tile: Tensor, places: int, pool: ThreadMap) -> Tensor:
    """The highest `places` entries of each row of `tile` (r, w), ascending."""
    if tile.device.type != "cpu":
        return tile.topk(places, dim=1).values.flip(1)
    run, threads = pool
    source = tile.numpy()
    height, width = source.shape
    table = np.empty((height, places), dtype=source.dtype)
    share, step = -(-height // threads), max(1, SLAB // width)  # rows of a thread, and of what it works on at once

    def select(start: int) -> None:
        stop = min(start + share, height)
        for first in range(start, stop, step):
            part = slice(first, min(first + step, stop))
            rows = source[part].copy()
            if places < width:
                rows.partition(width - places, axis=1)
            table[part] = rows[:, width - places :]
            table[part].sort(axis=1)

    list(run(select, range(0, height, share)))
    return torch.from_numpy(table)


def between(tile: Tensor, row: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Entries from low to high (d,), inclusive, of some rows (d,) of `tile` (r, w): which row, and its column; (k,)."""
    if tile.device.type != "cpu":
        line = tile[row]
        which, column = ((line >= low[:, None]) & (line <= high[:, None])).nonzero(as_tuple=True)
        return which, column
    source, rows, lows, highs = tile.numpy(), row.numpy(), low.numpy()[:, None], high.numpy()[:, None]
    width = source.shape[1]
    step, bits = max(1, SLAB // width), max(3, (width - 1).bit_length())
    flags = np.zeros((2, step, 1 << bits), dtype=bool)
    found = [np.empty(0, dtype=np.int64)]
    with _small_buffer():
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            line = source[rows[part]]
            over, under = flags[:, : len(line)]
            np.greater_equal(line, lows[part], out=over[:, :width])
            np.less_equal(line, highs[part], out=under[:, :width])
            over &= under
            found.append(_true_places(over) + (first << bits))
    flat = np.concatenate(found)
    return torch.from_numpy(flat >> bits), torch.from_numpy(flat & ((1 << bits) - 1))


def order_rows(tile: Tensor, low: Tensor, high: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What sorts the rows of `tile` (r, w), and where cuts low <= high (r, K) fall: columns (r, w), (r, K), (r, K).

    Entries before the first place are below the low cut, those from the second place on above the high one. Between
    them may be others that are near, unless they are `exact`: whole numbers, with cuts half-way between.
    On the CPU scores are rounded to 16 bits between the lowest and the highest cut, which are sorted by counting.
    """
    low, high = low.float(), high.float()
    finite = high[high < torch.inf]
    first, last = (float(low.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    scale = 2 * INNER / max(last - first, 1e-30)
    if tile.device.type != "cpu" or not np.isfinite(scale) or (exact and scale < 4):
        key, order = tile.sort(dim=1)
    else:
        key, low, high = (_levels(values.numpy(), first, scale) for values in (tile, low, high))
        order = torch.from_numpy(np.argsort(key.numpy(), axis=-1, kind="stable"))
        key = key.gather(1, order)
    return order, torch.searchsorted(key, low), torch.searchsorted(key, high, right=True)


def _levels(values: _Floats, first: float, scale: float) -> Tensor:
    """Float32 values as int16, in the same order as far as that can tell: `first` is -INNER, what is below it less."""
    found = np.empty(values.shape, dtype=np.int16)
    step = max(1, SLAB // max(1, values.shape[1]))
    with np.errstate(over="ignore"):  # hidden entries
        for start in range(0, len(values), step):
            slab = (values[start : start + step] - np.float32(first)) * np.float32(scale) - np.float32(INNER)
            found[start : start + step] = np.floor(slab.clip(-OUTER, OUTER, out=slab), out=slab)
    return torch.from_numpy(found)


@contextmanager
def workers(device: torch.device) -> Iterator[ThreadMap]:
    """A `map` over as many threads as torch uses, and their number; the plain one where threads would not help."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    if threads == 1:
        yield map, 1
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map, threads
