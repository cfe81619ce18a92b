"""Embeddings as rows whose inner products are the scores that rank them; a higher score is nearer.

Axes: N items, n items of a block, D dimensions, E = D or D + 2 coordinates.

cosine      left = right = x / |x|                        score = cosine; a zero vector scores 0 with everything
euclidean   left = (x, h, 1), right = (x, -1, -h)          score = -|x - y|^2 / 2, with h = |x|^2 / 2
hamming     left = right = bits as -1 and +1               score = D - 2 * (bits that differ), an exact integer

Nothing of size N x E is kept: blocks of coordinates are made from the caller's tensor when they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 2.0**-24  # half the gap between 1 and the next float32


@dataclass(frozen=True)
class Vectors:
    """Raw embeddings with what their distance needs to turn blocks of them into coordinates."""

    data: Tensor  # (N, D) floating point; uint8 packed bits or bool for Hamming
    distance: str
    norm: Tensor  # (N,) float64 Euclidean norms; ones for Hamming

    @property
    def exact(self) -> bool:
        """Whether float32 products of coordinates are exact."""
        return self.distance == "hamming"

    @property
    def width(self) -> int:
        """Number of coordinates."""
        dimensions = self.data.shape[1]
        if self.distance == "hamming":
            return dimensions * 8 if self.data.dtype == torch.uint8 else dimensions
        return dimensions + 2 if self.distance == "euclidean" else dimensions

    def left(self, index: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Coordinates of the items of `index` as queries, (n, E)."""
        return self._coordinates(index, dtype, 1)

    def right(self, index: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Coordinates of the items of `index` as gallery, (n, E)."""
        return self._coordinates(index, dtype, -1)

    def _coordinates(self, index: Tensor, dtype: torch.dtype, side: int) -> Tensor:
        rows = self.data[index]  # (n, D)
        if self.distance == "hamming":
            return signs(rows, dtype)
        rows = rows.double()
        norm = self.norm[index, None]  # (n, 1)
        if self.distance == "cosine":
            return (rows / norm.clamp(min=torch.finfo(torch.float64).tiny)).to(dtype)
        half, one = norm.square() / 2, torch.ones_like(norm)
        tail = [half, one] if side == 1 else [-one, -half]
        return torch.cat([rows, *tail], dim=1).to(dtype)


def vectors(data: Tensor, distance: str) -> Vectors:
    """Measure the norms of `data`, block by block, in float64."""
    if distance == "hamming":
        return Vectors(data, distance, torch.ones(data.shape[0], dtype=torch.float64, device=data.device))
    blocks = data.split(max(1, 2**21 // data.shape[1]))
    return Vectors(data, distance, torch.cat([block.double().norm(dim=1) for block in blocks]))


def signs(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits as -1 and +1: packed bytes are unpacked, most significant bit first; anything else is 1 where it is > 0."""
    if codes.dtype == torch.uint8:
        shifts = torch.arange(7, -1, -1, device=codes.device, dtype=torch.uint8)
        codes = codes[:, :, None].bitwise_right_shift(shifts).bitwise_and(1).flatten(1)  # (n, 8 bytes)
    return (codes > 0).to(dtype).mul_(2).sub_(1)


def scale(queries: Vectors, gallery: Vectors) -> float:
    """The largest magnitude that a term of a score reaches: the unit of rounding errors and tie tolerances."""
    if queries.distance == "cosine":
        return 1.0
    if queries.exact:
        return float(queries.width)
    return max(float(queries.norm.max()), float(gallery.norm.max())) ** 2
