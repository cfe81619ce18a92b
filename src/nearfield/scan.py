"""One look at a tile of scores: select the pairs above a floor, count the entries of each row and column above cuts.

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

SLAB = 16  # rows of a slab
GROUP = 128  # words of eight flags added at once: each of the eight byte sums fits in a byte

Crew = tuple[Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]], int]  # a `map`, and over how many threads
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """What a tile holds: flat indices and scores of the selected pairs, and how many entries lie above each cut."""

    flat: Tensor  # (k,) int64
    value: Tensor  # (k,) float32
    rows: Tensor  # (K, 2, r) int64
    cols: Tensor  # (K, 2, w) int64


def scan(tile: Tensor, floor: float, row_cuts: Tensor, col_cuts: Tensor, crew: Crew = (map, 1)) -> Found:
    """Select the entries of `tile` (r, w) above `floor`; count those above row_cuts (K, 2, r) and col_cuts (K', 2, w).

    Infinite cuts, which nothing exceeds, must come last along each row of cuts.
    """
    if tile.device.type != "cpu":
        flat = where(tile > floor)
        rows, cols = torch.zeros(row_cuts.shape, dtype=torch.int64), torch.zeros(col_cuts.shape, dtype=torch.int64)
        for k, pair in enumerate(row_cuts):
            rows[k] = (tile > pair[:, :, None]).sum(2)
        for k, pair in enumerate(col_cuts):
            cols[k] = (tile > pair[:, None, :]).sum(1)
        return Found(flat, tile.flatten()[flat], rows.to(tile.device), cols.to(tile.device))
    run, threads = crew
    share = -(-len(tile) // (threads * SLAB)) * SLAB  # rows of a thread
    starts = range(0, len(tile), share)

    def look(start: int) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64], NDArray[np.int64]]:
        part = tile[start : start + share].numpy()
        return _scan_rows(part, floor, row_cuts[:, :, start : start + share].numpy(), col_cuts.numpy())

    parts = list(run(look, starts))
    flats = [part[0] + start * tile.shape[1] for part, start in zip(parts, starts, strict=True)]
    return Found(
        torch.from_numpy(np.concatenate(flats)),
        torch.from_numpy(np.concatenate([part[1] for part in parts])),
        torch.from_numpy(np.concatenate([part[2] for part in parts], axis=2)),
        torch.from_numpy(np.sum([part[3] for part in parts], axis=0)),
    )


def _scan_rows(
    table: Floats, floor: float, row_cuts: Floats, col_cuts: Floats
) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Look at rows slab by slab, each slab with all cuts while it is in cache."""
    height, width = table.shape
    padded = -(-width // (8 * GROUP)) * 8 * GROUP
    scratch = np.zeros((2, min(SLAB, height), padded), dtype=bool)
    rows, cols = np.zeros(row_cuts.shape, dtype=np.int64), np.zeros(col_cuts.shape, dtype=np.int64)
    widths = [_finite(pair) for pair in col_cuts]
    flats = [np.empty(0, dtype=np.int64)]
    with _small_buffer():
        for start in range(0, height, SLAB):
            slab = table[start : start + SLAB]
            flags = scratch[:, : len(slab)]
            if floor < np.inf:
                np.greater(slab, np.float32(floor), out=flags[0, :, :width])
                flat = _true_places(flags[0]) + start * padded
                flats.append(flat if padded == width else flat // padded * width + flat % padded)
            span = slice(start, start + SLAB)
            for pair, total in zip(row_cuts[:, :, span], rows[:, :, span], strict=True):
                _count_rows(slab, pair, flags, total)
            for pair, finite, total in zip(col_cuts, widths, cols, strict=True):
                above = flags[:, :, :finite]
                np.greater(slab[:, :finite], pair[:, None, :finite], out=above)
                total[:, :finite] += np.add.reduce(above.view(np.uint8), axis=1, dtype=np.uint8)
    found = np.concatenate(flats)
    return found, table.reshape(-1)[found], rows, cols


def _count_rows(slab: Floats, pair: Floats, flags: NDArray[np.bool_], total: NDArray[np.int64]) -> None:
    """Write the numbers of entries of each row of `slab` (r, w) above its pair of cuts (2, r) to `total` (2, r)."""
    finite = _finite(pair)
    if finite:
        flags = flags[:, :finite]
        np.greater(slab[:finite], pair[:, :finite, None], out=flags[:, :, : slab.shape[1]])
        sums = flags.view(np.uint64).reshape(2, finite, -1, GROUP).sum(-1)  # eight sums of a byte in each word
        sums.view(np.uint8).sum(-1, out=total[:, :finite])


def _finite(pair: Floats) -> int:
    return int(np.count_nonzero(pair[0] < np.inf))


def _true_places(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Flat indices of the true entries, looking first for words of eight flags that are not all false."""
    words = flags.view(np.uint64).reshape(-1)
    full = (words != 0).nonzero()[0]
    inside = words[full].view(bool).nonzero()[0]
    found: NDArray[np.int64] = (full[inside >> 3] << 3) + (inside & 7)
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


def between(rows: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of the entries of `rows` (f, w) in (low, high], row by row; the bounds are (f,)."""
    if rows.device.type != "cpu":
        flat = where((rows > low[:, None]) & (rows <= high[:, None]))
    else:
        table = rows.numpy()
        inside = np.greater(table, low.numpy()[:, None])
        inside &= np.less_equal(table, high.numpy()[:, None])
        flat = torch.from_numpy(np.flatnonzero(inside))
    return flat // rows.shape[1], flat % rows.shape[1]


@contextmanager
def workers(device: torch.device) -> Iterator[Crew]:
    """A `map` over as many threads as torch uses, and their number; the plain one where threads would not help."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    if threads == 1:
        yield map, 1
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map, threads
