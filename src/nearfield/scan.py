"""One look at a tile of scores: select the pairs above a floor, count the entries of each row and column above cuts.

Axes: r rows and w columns of the tile, K cuts per row or per column, k selected pairs.

The CPU version is numpy on slabs of rows that stay in cache, one thread per slab: its comparisons and searches are
vectorised and release the interpreter lock, where torch's comparison and `nonzero` are several times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SLAB = 128  # rows of a slab; counts of a column in it fit in a byte
GROUP = 128  # words of eight flags added at once; each of the eight byte sums fits in a byte

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Found:
    """What a tile holds: flat indices and scores of the selected pairs, and how many entries lie above each cut."""

    flat: Tensor  # (k,) int64
    value: Tensor  # (k,) float32
    rows: Tensor  # (K, r) int64
    cols: Tensor  # (K, w) int64


def scan(tile: Tensor, floor: float, row_cuts: Tensor, col_cuts: Tensor, run: Map = map) -> Found:
    """Select entries of `tile` (r, w) above `floor`; count those above row_cuts (K, r) and col_cuts (K', w)."""
    if tile.device.type != "cpu":
        flat = (tile > floor).flatten().nonzero()[:, 0]
        rows = [(tile > cut[:, None]).sum(1) for cut in row_cuts]
        cols = [(tile > cut).sum(0) for cut in col_cuts]
        none = flat.new_empty
        return Found(
            flat, tile.flatten()[flat],
            torch.stack(rows) if rows else none(0, tile.shape[0]),
            torch.stack(cols) if cols else none(0, tile.shape[1]),
        )  # fmt: skip
    table, per_row, per_col = tile.numpy(), row_cuts.numpy(), col_cuts.numpy()
    starts = range(0, tile.shape[0], SLAB)
    parts = list(run(lambda s: _scan_slab(table[s : s + SLAB], floor, per_row[:, s : s + SLAB], per_col), starts))
    flats = [part[0] + start * tile.shape[1] for part, start in zip(parts, starts, strict=True)]
    return Found(
        torch.from_numpy(np.concatenate(flats)),
        torch.from_numpy(np.concatenate([part[1] for part in parts])),
        torch.from_numpy(np.concatenate([part[2] for part in parts], axis=1)),
        torch.from_numpy(np.sum([part[3] for part in parts], axis=0, dtype=np.int64)),
    )


def _scan_slab(
    slab: NDArray[np.float32], floor: float, row_cuts: NDArray[np.float32], col_cuts: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], NDArray[np.uint8]]:
    height, width = slab.shape
    flags = np.zeros((height, -(-width // (8 * GROUP)) * 8 * GROUP), dtype=bool)
    above = flags[:, :width]
    if floor < np.inf:
        np.greater(slab, np.float32(floor), out=above)
        flat = np.flatnonzero(above)
    else:
        flat = np.empty(0, dtype=np.int64)
    rows = np.empty((len(row_cuts), height), dtype=np.int64)
    for cut, out in zip(row_cuts, rows, strict=True):
        np.greater(slab, cut[:, None], out=above)
        sums = flags.view(np.uint64).reshape(height, -1, GROUP).sum(-1)  # eight byte-wide sums per word
        sums.view(np.uint8).sum(-1, out=out)
    cols = np.empty((len(col_cuts), width), dtype=np.uint8)
    for cut, total in zip(col_cuts, cols, strict=True):
        np.greater(slab, cut, out=above)
        np.add.reduce(above.view(np.uint8), axis=0, dtype=np.uint8, out=total)
    return flat, slab.reshape(-1)[flat], rows, cols


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


def workers(device: torch.device) -> ThreadPoolExecutor | None:
    """A pool with as many threads as torch uses, or None where they would not help."""
    threads = torch.get_num_threads()
    return ThreadPoolExecutor(threads) if device.type == "cpu" and threads > 1 else None


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
