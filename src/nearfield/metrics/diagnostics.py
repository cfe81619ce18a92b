"""Diagnostics of an embedding: how tight its classes are, how many directions it uses, how evenly it fills them.

Axes: N items, n items of a block, r x w entries of a tile, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from nearfield.errors import InputError
from nearfield.metrics.ranking.vectors import TINY, VectorSet

SIDE = 1024  # items along a side of a tile
EXACT = "donot_use_mm_for_euclid_dist"  # the fast formula loses small distances


def diagnostic_scores(items: VectorSet, codes: Tensor, names: Sequence[str]) -> dict[str, float]:
    """The requested diagnostics; `codes` are labels 0..C-1."""
    scores = {}
    if "distance_ratio" in names:
        scores["distance_ratio"] = distance_ratio(items, codes)
    if "effective_rank" in names:
        scores["effective_rank"] = effective_rank(items)
    if "uniformity" in names:
        scores["uniformity"] = uniformity(items)
    return scores


def distance_ratio(items: VectorSet, codes: Tensor) -> float:
    """Mean distance of two items of a class over that of two class centres (Roth et al., 2020); lower is tighter."""
    order, sizes = torch.argsort(codes, stable=True), torch.bincount(codes)
    inside, pairs, centres = 0.0, 0, []
    for members in order.split(sizes[sizes > 0].tolist()):  # some classes may be in the gallery alone
        rows = items.plain(members)  # (n, D)
        centres.append(rows.mean(0))
        inside += sum(float(torch.cdist(part, rows, compute_mode=EXACT).sum()) for part in rows.split(SIDE))
        pairs += len(rows) * (len(rows) - 1)
    between, count = _mean_distance(torch.stack(centres))
    if not pairs or not count:
        raise InputError("labels must hold a class of two items and a second class for distance_ratio.")
    if not between:
        raise InputError(
            "embeddings must have class centres that differ for distance_ratio; all are equal. Check whether the "
            "embedding collapsed, or leave distance_ratio out."
        )
    return inside / pairs / between


def _mean_distance(points: Tensor) -> tuple[float, int]:
    """Mean Euclidean distance of two different rows, and the number of ordered pairs."""
    count = len(points) * (len(points) - 1)
    total = sum(float(torch.cdist(part, points, compute_mode=EXACT).sum()) for part in points.split(SIDE))
    return total / max(count, 1), count


def effective_rank(items: VectorSet) -> float:
    """exp of the entropy of the singular values divided by their sum (Roy and Vetterli, 2007): from 1 to D."""
    parts = (items.uncentred(index) for index in _blocks(items))
    gram = reduce(torch.add, (rows.T @ rows for rows in parts))  # (D, D)
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = values / values.sum().clamp(min=TINY)
    return float(torch.special.entr(share).sum().exp())


def uniformity(items: VectorSet) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of unit vectors (Wang and Isola, 2020); 0 means collapsed.

    A vector of zeros has no direction and stays where it is, at distance 1 from every unit vector.
    """
    count = len(items.norm)
    if count < 2:
        raise InputError(f"embeddings must hold at least two rows for uniformity; got {count}.")
    blocks = _blocks(items)
    total = 0.0
    for i, first in enumerate(blocks):
        left = _unit_rows(items, first)
        for j, second in enumerate(blocks[i:], start=i):
            right = _unit_rows(items, second)
            lengths = left.square().sum(1)[:, None] + right.square().sum(1)
            near = (4 * (left @ right.T) - 2 * lengths).clamp_(max=0).exp_().double()  # (r, w)
            total += float(near.fill_diagonal_(0).sum()) if j == i else 2 * float(near.sum())
    return math.log(total / (count * (count - 1)))


def _unit_rows(items: VectorSet, index: Tensor) -> Tensor:
    """Rows of unit length, or of zeros, in float32."""
    return torch.nn.functional.normalize(items.uncentred(index), eps=TINY).float()


def _blocks(items: VectorSet) -> Sequence[Tensor]:
    index: tuple[Tensor, ...] = torch.arange(len(items.norm), device=items.norm.device).split(SIDE)
    return index
