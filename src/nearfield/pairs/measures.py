"""Measures: from the dot product to what a loss compares, and the derivative back to the dot product.

Axes: B queries of a block, N references, D dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_ENTRIES = 1 << 20  # entries of a block: the few arrays of this size that a loss needs stay in the cache
MIN_VARIANCE = 1e-8  # of a query's components, in the signal-to-noise distance
MIN_DISTANCE = 1e-4  # 1/d is singular at 0: d is clamped to this in the division, and d = 0 has no gradient
CLOSE = 2e-3  # squared distances below this share of the squared norm are recomputed without cancellation


class Measure(NamedTuple):
    """A function x(u) of u = s, the dot product, or of u = |q|^2 + |r|^2 - 2 s; a is |q|^2, (B, 1), and b is |r|^2.

    `b` is (N + 1,), or (B, P) for the positives. A measure that depends on b beyond u has a `stretch`.
    """

    squared: bool  # whether u is the squared distance
    far: float
    forward: Callable[[Tensor, Tensor, Tensor], Tensor]  # (u, a, b) -> x
    to_dot: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (dL/dx, x, a, b) -> dL/ds
    to_norm: Callable[[Tensor, Tensor, Tensor], Tensor]  # (dL/ds, x, a is clamped) -> 2 dL/da over a row, (B, 1)
    # (x, a, b) -> f, g: 2 dL/da = -sum over a row of f dL/ds and 2 dL/db = -sum over a column of g dL/ds
    stretch: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None


def over_distance(grad: Tensor, d: Tensor) -> Tensor:
    """Through d = sqrt(d^2): grad / d, bounded near d = 0 and exactly 0 at it."""
    return (grad / d.clamp(min=MIN_DISTANCE)).mul_(d.sign())


def finite(x: Tensor) -> Tensor:
    """x with infinities replaced by large numbers, so that 0 times them is 0."""
    largest = torch.finfo(x.dtype).max / 4
    return x.clamp(-largest, largest)


def _row_sum(w: Tensor, x: Tensor, clamped: Tensor) -> Tensor:
    return -w.sum(1, keepdim=True)


def _snr_row_sum(w: Tensor, x: Tensor, clamped: Tensor) -> Tensor:
    return (finite(x).mul_(~clamped).sub_(1).mul_(w)).sum(1, keepdim=True)


def _poincare(u: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """arcosh(1 + t), t = 2 u / ((1 - a)(1 - b)), without cancellation near t = 0."""
    t = (2 * u / (1 - a)).div_(1 - b)
    return (t + (t * (t + 2)).sqrt_()).log1p_()


def _poincare_stretch(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Through 1 / ((1 - a)(1 - b)): u / (1 - a) = (1 - b)(cosh x - 1) / 2."""
    half = (x.cosh() - 1) / 2
    return 1 + half * (1 - b), 1 + half * (1 - a)


MEASURES: dict[str, Measure] = {
    "dot": Measure(False, -math.inf, lambda u, a, b: u, lambda g, x, a, b: g, _row_sum),
    "sqeuclidean": Measure(True, math.inf, lambda u, a, b: u, lambda g, x, a, b: -2 * g, _row_sum),
    "euclidean": Measure(
        True, math.inf, lambda u, a, b: u.sqrt(), lambda g, x, a, b: over_distance(g, x).neg_(), _row_sum
    ),
    # var(r - q) / var(q): on centred vectors |q - r|^2 / |q|^2, so the query's norm also moves through 1/a
    "snr": Measure(True, math.inf, lambda u, a, b: u / a, lambda g, x, a, b: -2 * g / a, _snr_row_sum),
    # the distance in the Poincare ball of radius 1, to which points of a ball of curvature -c are scaled by sqrt(c)
    "hyperbolic": Measure(
        True,
        math.inf,
        _poincare,
        lambda g, x, a, b: over_distance(g, x.sinh()).mul_(-4).div_(1 - a).div_(1 - b),
        _row_sum,
        _poincare_stretch,
    ),
}


def squared_distances(q: Tensor, r: Tensor, row_sq: Tensor, column_sq: Tensor, own: slice | None) -> Tensor:
    """|q - r|^2 by the expanded square, (B, N + 1); the few close pairs, where that cancels, directly.

    `own` are the columns of the queries themselves, if they are among the references. On an accelerator all pairs are
    computed directly: to find the close ones would mean to wait for it.
    """
    if q.device.type != "cpu":
        return torch.cdist(q, r, compute_mode="donot_use_mm_for_euclid_dist").square_()
    u = torch.addmm(column_sq, q, r.T, alpha=-2).add_(row_sq)
    if own is not None:
        u.diagonal(own.start).fill_(torch.inf)  # a query and itself: never used, so not to be recomputed
    (crowded,) = (u.amin(1) < CLOSE * row_sq[:, 0]).nonzero(as_tuple=True)
    if not len(crowded):
        return u.clamp_(min=0)
    i, j = (u[crowded] < CLOSE * row_sq[crowded]).nonzero(as_tuple=True)
    step = max(1, BLOCK_ENTRIES // q.shape[1])
    for near, far in zip(crowded[i].split(step), j.split(step), strict=True):
        u[near, far] = (q[near] - r[far]).square().sum(1)
    return u.clamp_(min=0)
