"""Embeddings as rows whose inner products are the scores that rank them; a higher score is nearer.

Axes: N items, n items of a block, D dimensions, E = D or D + 2 coordinates.

cosine      left = right = x / |x|                score = cosine; a zero vector scores 0 with everything
euclidean   left = (x, h, 1), right = (x, -1, -h)  score = -|x - y|^2 / 2, h = |x|^2 / 2; x relative to the mean of
                                                   the queries and scaled into the unit ball: the same ranking
hamming     left = right = bits as -1 and +1       score = D - 2 * (bits that differ), an exact integer
hyperbolic  as euclidean of the points p in the ball, not moved, each times k / (1 - |p|^2), k the least of the
            denominators: score = -k^2 |p - q|^2 / (2 (1 - |p|^2)(1 - |q|^2)), which ranks as the distance does

Nothing of size N x E is kept: blocks of coordinates are made from the caller's tensor when they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfield.metrics.ball import Ball, ball_of

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Frame:
    """Origin and unit of length of Euclidean coordinates; of hyperbolic ones, 0 and the k above."""

    centre: Tensor  # (D,) float64
    reach: float


@dataclass(frozen=True)
class VectorSet:
    """Raw embeddings with what their distance needs to turn blocks of them into coordinates."""

    data: Tensor  # (N, D) floating point; uint8 packed bits or bool for Hamming
    distance: str
    norm: Tensor  # (N,) float64: |x| for cosine, |x| in the frame for Euclidean; ones for Hamming
    frame: Frame | None = None  # Euclidean and hyperbolic only
    ball: Ball | None = None  # hyperbolic only, where `norm` is that of the points in it
    weight: Tensor | None = None  # (N,) float64, of the coordinates of an item; hyperbolic only

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
        return dimensions if self.frame is None else dimensions + 2

    def part(self, index: Tensor) -> VectorSet:
        """Only the items of `index`."""
        weight = None if self.weight is None else self.weight[index]
        return VectorSet(self.data[index], self.distance, self.norm[index], self.frame, self.ball, weight)

    def left(self, index: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Coordinates of the items of `index` as queries, (n, E)."""
        return self._coordinates(index, dtype, 1)

    def right(self, index: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Coordinates of the items of `index` as gallery, (n, E)."""
        return self._coordinates(index, dtype, -1)

    def plain(self, index: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The vectors that are compared, (n, D): unit length for cosine, centred for Euclidean, -1 and +1 for bits.

        Points in the ball for hyperbolic.
        """
        return self._coordinates(index, dtype, 1) if self.frame is None else self._moved(index, self.frame).to(dtype)

    def uncentred(self, index: Tensor) -> Tensor:
        """The same in float64 without moving Euclidean vectors, for statistics that depend on the origin, (n, D)."""
        return self.data[index].double() if self.distance == "euclidean" else self.plain(index)

    def _coordinates(self, index: Tensor, dtype: torch.dtype, side: int) -> Tensor:
        rows = self.data[index]  # (n, D)
        if self.distance == "hamming":
            return signs(rows, dtype)
        if self.frame is None:
            wide = torch.promote_types(rows.dtype, dtype)
            norm = self.norm[index, None].clamp(min=torch.finfo(wide).tiny).to(wide)  # (n, 1)
            return (rows.to(wide) / norm).to(dtype)
        half = self.norm[index, None].square() / 2
        tail = [half, torch.ones_like(half)] if side == 1 else [-torch.ones_like(half), -half]
        found = torch.cat([self._moved(index, self.frame), *tail], dim=1)
        return (found if self.weight is None else found * self.weight[index, None]).to(dtype)

    def _moved(self, index: Tensor, frame: Frame) -> Tensor:
        """Vectors relative to the origin, or points in the ball, (n, D)."""
        rows = self.data[index]
        return (rows - frame.centre) / frame.reach if self.ball is None else self.ball.points(rows.double())


def pair_scores(left: VectorSet, right: VectorSet, rows: Tensor, cols: Tensor) -> Tensor:
    """Float64 score of each pair (rows[k], cols[k]), (k,)."""
    step = max(1, 2**20 // left.width)
    return torch.cat([_pair_scores(left, right, a, b) for a, b in zip(rows.split(step), cols.split(step), strict=True)])


def _pair_scores(left: VectorSet, right: VectorSet, rows: Tensor, cols: Tensor) -> Tensor:
    if left.distance != "cosine":
        return (left.left(rows) * right.right(cols)).sum(1)
    norms = left.norm[rows] * right.norm[cols]
    products = left.data[rows].double().mul_(right.data[cols])
    return products.sum(1) / norms.clamp(min=TINY)


def vector_sets(queries: Tensor, gallery: Tensor | None, distance: str) -> tuple[VectorSet, VectorSet]:
    """Queries and gallery, ready to be compared; the same object when the queries are their own gallery."""
    ball = ball_of(distance)
    if ball is not None:
        return _in_ball(queries, gallery, distance, ball)
    frame = _frame(queries, gallery) if distance == "euclidean" else None
    first = _vectors(queries, distance, frame)
    return first, first if gallery is None else _vectors(gallery, distance, frame)


def _vectors(data: Tensor, distance: str, frame: Frame | None) -> VectorSet:
    if distance == "hamming":
        return VectorSet(data, distance, torch.ones(len(data), dtype=torch.float64, device=data.device))
    if frame is None:
        return VectorSet(data, distance, torch.cat([block.double().norm(dim=1) for block in _blocks(data)]))
    return VectorSet(data, distance, _distances(data, frame.centre) / frame.reach, frame)


def _in_ball(queries: Tensor, gallery: Tensor | None, distance: str, ball: Ball) -> tuple[VectorSet, VectorSet]:
    given = [queries] if gallery is None else [queries, gallery]
    norms = [torch.cat([ball.points(block.double()).norm(dim=1) for block in _blocks(data)]) for data in given]
    least = min(float((1 - norm.square()).min()) for norm in norms)
    frame = Frame(queries.new_zeros(queries.shape[1], dtype=torch.float64), least)
    found = [
        VectorSet(data, distance, norm, frame, ball, least / (1 - norm.square()))
        for data, norm in zip(given, norms, strict=True)
    ]
    return found[0], found[-1]


def _frame(queries: Tensor, gallery: Tensor | None) -> Frame:
    centre = torch.stack([block.double().sum(0) for block in _blocks(queries)]).sum(0) / len(queries)
    reach = max(float(_distances(data, centre).max()) for data in (queries, gallery) if data is not None)
    return Frame(centre, reach or 1.0)


def _distances(data: Tensor, point: Tensor) -> Tensor:
    return torch.cat([(block - point).norm(dim=1) for block in _blocks(data)])


def _blocks(data: Tensor) -> list[Tensor]:
    return list(data.split(max(1, 2**21 // data.shape[1])))


def signs(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits as -1 and +1: packed bytes are unpacked, most significant bit first; anything else is 1 where it is > 0."""
    if codes.dtype == torch.uint8:
        shifts = torch.arange(7, -1, -1, device=codes.device, dtype=torch.uint8)
        codes = codes[:, :, None].bitwise_right_shift(shifts).bitwise_and(1).flatten(1)  # (n, 8 bytes)
    return (codes > 0).to(dtype).mul_(2).sub_(1)
