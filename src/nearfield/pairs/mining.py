"""Mining: which pairs of a block a loss gets to see. A miner moves the others infinitely far or near.

A miner is any function from `Block` to `Block`; every pair loss takes one as `miner=`, those of `MINERS` also by name.
Axes: B queries of a block, P positives, N references, K draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nearfield.errors import InputError, nearest
from nearfield.pairs.contract import Block, Miner, barrier, exp_, is_real, log_mask


def keep(block: Block, pos: Tensor | None = None, neg: Tensor | None = None) -> Block:
    """The block with only the pairs where `pos` (B, P) and `neg` (B, N + 1) are True, or 1, and their counts."""
    real_pos = None if pos is None else is_real(block.pos).mul_(pos)
    return _keep(block, real_pos, None if neg is None else is_real(block.neg).mul_(neg))


def _keep(block: Block, pos: Tensor | None, neg: Tensor | None) -> Block:
    """The same for masks of ones and zeros, which are 0 where there is no pair; adding a barrier moves a pair away."""
    away = math.copysign(1.0, block.far)
    kept: dict[str, Any] = {}
    if pos is not None:
        kept |= {"pos": torch.sub(block.pos, barrier(pos), alpha=away), "num_pos": pos.sum(1)}
    if neg is not None:
        kept |= {"neg": torch.add(block.neg, barrier(neg), alpha=away), "num_neg": neg.sum(1)}
    return replace(block, **kept)


@dataclass(frozen=True)
class MultiSimilarityMiner:
    """Keep negatives nearer than the farthest positive and positives farther than the nearest negative, within eps.

    Multi-Similarity, Eqs. 11 and 12: S_neg > min S_pos - eps, S_pos < max S_neg + eps. Reversed for distances.
    """

    eps: float = 0.1

    def __call__(self, block: Block) -> Block:
        sign = -math.copysign(1.0, block.far)  # work on similarities
        pos, neg = sign * block.pos, sign * block.neg
        hardest_pos = pos.amin(1, keepdim=True) if pos.shape[1] else pos.new_full((len(pos), 1), math.inf)
        hardest_neg = neg.amax(1, keepdim=True)
        # no pair is infinitely near or far, beyond both bounds: neither comparison is true for it
        return _keep(block, pos.lt_(hardest_neg + self.eps), neg.gt_(hardest_pos - self.eps))


@dataclass(frozen=True)
class HardMiner:
    """Keep the farthest positive and the nearest negative of each query (the first of several equal ones)."""

    def __call__(self, block: Block) -> Block:
        nearest = block.neg.argmin(1, keepdim=True) if block.far > 0 else block.neg.argmax(1, keepdim=True)
        neg = torch.zeros_like(block.neg).scatter_(1, nearest, (block.num_neg > 0).to(block.neg.dtype)[:, None])
        if not block.pos.shape[1]:
            return keep(block, neg=neg)
        farthest = block.pos.argmax(1, keepdim=True) if block.far > 0 else block.pos.argmin(1, keepdim=True)
        pos = torch.zeros_like(block.pos).scatter_(1, farthest, (block.num_pos > 0).to(block.pos.dtype)[:, None])
        return keep(block, pos, neg)


@dataclass(frozen=True)
class SemiHardMiner:
    """Keep negatives in FaceNet's band of some positive of the query: d_pos < d_neg < d_pos + `margin`."""

    margin: float = 0.2

    def __call__(self, block: Block) -> Block:
        sign = math.copysign(1.0, block.far)  # work on distances
        pos, neg = sign * block.pos, sign * block.neg
        starts = pos.sort(1).values  # padding comes first, and is counted twice: it cancels
        begun = torch.searchsorted(starts, neg)  # (B, N + 1) how many bands begin before a negative
        ended = torch.searchsorted(starts + self.margin, neg, right=True)
        return keep(block, neg=(begun > ended).to(neg.dtype))


@dataclass(frozen=True)
class DistanceWeightedMiner:
    """Keep negatives drawn with probability inverse to the density of their distance, one draw for each positive.

    See `weights`. The draws depend on `seed` and on the number of training calls, not on the block size.
    """

    cutoff: float = 0.5
    upper: float = 1.4
    seed: int = 0

    def __call__(self, block: Block) -> Block:
        d = (2 - 2 * block.neg).clamp(min=0).sqrt() if block.far < 0 else block.neg
        d = d.sqrt() if block.measure == "sqeuclidean" else d
        drawn, found = draw_by_distance(d, block, self)
        times = torch.zeros_like(d).scatter_add_(1, drawn, found.to(d.dtype))
        return keep(block, neg=times.gt_(0))

    def weights(self, d: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """P(negative) up to a factor for distances `d` (B, N) of unit vectors, and whether a row has any, (B, 1).

        On the unit sphere in n dims distances have density q(d) ~ d^(n-2) (1 - d^2/4)^((n-3)/2). P(negative) is
        ~ 1/q(max(d, cutoff)) for d < upper, else 0. The log-weights span hundreds of nats, so each row is shifted by
        its own maximum.
        """
        near = d.clamp(min=self.cutoff, max=2.0)
        square = near.square()
        log_weight = torch.log((1 - square / 4).clamp_(min=1e-8).mul_(square)).mul_((3 - dim) / 2)  # of d / q(d)
        log_weight += log_mask((self.upper - d).gt_(0))  # 0 or -inf, also for entries that are infinitely far
        top = log_weight.amax(1, keepdim=True)
        found = top > -math.inf  # (B, 1)
        return exp_(log_weight.sub_(top.masked_fill(~found, 0.0))).div_(near), found


MINERS: dict[str, Callable[[], Miner]] = {
    "multi_similarity": MultiSimilarityMiner,
    "hard": HardMiner,
    "semihard": SemiHardMiner,
    "distance_weighted": DistanceWeightedMiner,
}


def miner(given: Miner | str) -> Miner:
    """The miner itself if `given` is a function, else the published miner of this name; InputError if unknown."""
    if callable(given):
        return given
    if given not in MINERS:
        hint = nearest(str(given), MINERS)
        raise InputError(f"unknown miner {given!r}: miner must be a name or a function of a block; {hint}")
    return MINERS[given]()


def draw_by_distance(d: Tensor, block: Block, rule: DistanceWeightedMiner) -> tuple[Tensor, Tensor]:
    """For each positive of each query draw a negative: columns (B, P), and which draws are valid (B, P).

    Queries all of whose negatives are at `upper` or beyond draw nothing.
    """
    weights, found = rule.weights(d, block.dim)
    cumulative = weights.cumsum(1)  # (B, N + 1)
    u = uniforms(rule.seed, block.turn, block.rows, block.pos.shape[1]).to(d.dtype)
    drawn = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).clamp(max=d.shape[1] - 1)
    return drawn, found & block.pos_mask


def uniforms(seed: int, turn: Tensor, rows: Tensor, draws: int) -> Tensor:
    """Random numbers in [0, 1), (B, K), a function of seed, turn, row and draw alone: not of block size or device."""
    count = rows[:, None] * (1 << 20) + torch.arange(draws, device=rows.device)
    state = count + (seed * 0x632BE5AB % (1 << 62) + turn) * 0x1E3779B97F4A7C15 % (1 << 62)
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):  # mix the bits (SplitMix64, Steele 2014)
        state = (state ^ (state >> shift & (1 << (64 - shift)) - 1)) * factor
    state = state ^ (state >> 31 & (1 << 33) - 1)
    return (state & (1 << 24) - 1).to(torch.float32) / (1 << 24)
