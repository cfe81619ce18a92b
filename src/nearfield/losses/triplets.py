"""Losses over triplets (query, positive, negative), computed without enumerating the triplets.

Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Number, Seed
from nearfield.losses.protocols import Idle
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, finite, log_mask
from nearfield.pairs.mining import uniforms

FEW = 8  # with at most so many positives, a loop over them is faster than bisection

Distance = Literal["euclidean", "cosine", "sqeuclidean", "snr"]
Mining = Literal["all", "hard", "semihard", "facenet", "pml", "semihard_random", "semihard_drop"]


@register(
    "triplet",
    "Weinberger and Saul 2009; Schroff et al., FaceNet, CVPR 2015; Hermans et al. 2017",
    year=2015,
    claims=(Claim("cars196", "", 51.5, "quoted in Unbiased Evaluation"),),
    space={"margin": Real(0.01, 2.0, log=True)},
    presets={
        "unbiased_evaluation": {"mining": "semihard", "distance": "sqeuclidean", "margin": 1.0, "normalize": False},
        "gpw": {"distance": "cosine", "reduction": "all"},
        "snr": {"distance": "snr", "margin": 0.2},
        "reality_check_cub": {"margin": 0.0961},
        "reality_check_cars": {"margin": 0.1190},
        "reality_check_sop": {"margin": 0.0451},
    },
    similarities="P",
    table_params={"distance": "cosine", "reduction": "all"},  # a count of active triplets would couple all weights
    recipe=OptimizerConfig(name="adam", lr=1e-4, eps=1e-7, weight_decay=1e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            'mining "semihard": value 9e-16, gradient 5e-16',
            "c55749b",
        ),
        (
            "pytorch-metric-learning",
            'mining "all", "hard" and "pml", distance "cosine" too: value 2e-15, gradient 9e-16',
            "2.9.0",
        ),
    ),
)
class Triplet(PairLoss):
    """Triplet: a negative must be farther than a positive by a margin.

        L = mean over triplets of [D_ap - D_an + margin]_+     D: d, d^2, -S or the SNR distance (of raw embeddings)

    `mining` selects the triplets: "all"; "hard" (farthest positive, nearest negative); and five rules that have all
    been published as semi-hard: "semihard" (TensorFlow, DMLPlayground: for each positive pair the nearest negative that
    is farther than the positive, otherwise the farthest negative; mean over positive pairs), "facenet" (all with
    D_ap < D_an < D_ap + margin), "pml" (all with 0 < D_an - D_ap <= margin), "semihard_random" (one random positive and
    one random negative in FaceNet's band, otherwise any negative) and "semihard_drop" (the same, otherwise no triplet).
    The mean is over triplets with a positive loss (`reduction="active"`) or over all that the rule selects ("all").
    Batch-all is exact in O(N log P) per query: the weight of a positive is the number of negatives that violate it, the
    weight of a negative the number of positives that it violates, and both are counts in sorted order.
    """

    reduction = "terms"

    def __init__(
        self,
        margin: Number = 0.1,
        mining: Mining = "all",
        distance: Distance = "euclidean",
        reduction: Literal["active", "all"] = "active",
        seed: Seed = 0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        if distance == "snr":
            engine.setdefault("normalize", False)
        super().__init__(**engine)
        self.margin, self.mining, self.over, self.seed = margin, mining, reduction, seed
        self.measure = "dot" if distance == "cosine" else distance

    def idle(self, labels: Tensor) -> Idle:
        return Idle("margin", self.margin)

    def weigh(self, block: Block) -> Weighted:
        sign = 1.0 if block.far > 0 else -1.0  # D = -S for similarities
        d_pos, d_neg = sign * block.pos, sign * block.neg
        if self.mining in ("all", "facenet", "pml"):
            found = self._band(block, d_pos, d_neg)
        else:
            found = self._chosen(d_pos, d_neg, *self._choose(block, d_pos, d_neg))
        if self.mining == "semihard":
            found = found._replace(active=found.candidates)
        terms = found.active if self.over == "active" else found.candidates
        return Weighted(found.value, sign * found.pos, found.neg.mul_(-sign), terms)

    def _band(self, block: Block, d_pos: Tensor, d_neg: Tensor) -> Triplets:
        """Every triplet with an active hinge and, except for "all", a negative farther than the positive."""
        stop = d_pos + self.margin
        found = count_below(stop, d_neg)
        if self.mining == "all":
            return found._replace(candidates=block.num_pos * block.num_neg)
        inside = count_below(d_pos, d_neg, closed=True, start=stop)
        value, pos, neg = found.value - inside.value, found.pos - inside.pos, found.neg - inside.neg
        edge = count_below(stop, d_neg, closed=True).active if self.mining == "pml" else found.active
        return Triplets(value, pos, neg, found.active - inside.active, edge - inside.active)

    def _choose(self, block: Block, d_pos: Tensor, d_neg: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns of the chosen positives and negatives, and whether each choice is valid, (B, T) each."""
        if self.mining == "semihard":
            every = torch.arange(d_pos.shape[1], device=d_pos.device).expand_as(d_pos)
            return every, _nearest_beyond(d_pos, d_neg, block.num_neg), block.pos_mask
        if not d_pos.shape[1]:
            none = torch.zeros(len(d_pos), 0, dtype=torch.long, device=d_pos.device)
            return none, none, none.bool()
        if self.mining == "hard":
            pair = d_pos.argmax(1, keepdim=True), d_neg.argmin(1, keepdim=True)
            return *pair, (block.num_pos > 0)[:, None]
        u = uniforms(self.seed, block.turn, block.rows, 2)
        p = (u[:, :1] * block.num_pos[:, None]).long().clamp(max=d_pos.shape[1] - 1)
        d = d_pos.gather(1, p)
        band = (d_neg > d) & (d_neg < d + self.margin)
        some = band.any(1, keepdim=True)
        pool = torch.where(some, band, block.neg_mask) if self.mining == "semihard_random" else band
        rank = (u[:, 1:] * pool.sum(1, keepdim=True)).long()
        n = torch.searchsorted(pool.long().cumsum(1), rank, right=True).clamp(max=d_neg.shape[1] - 1)
        valid = some if self.mining == "semihard_drop" else torch.ones_like(some)
        return p, n, valid & (block.num_pos > 0)[:, None]

    def _chosen(self, d_pos: Tensor, d_neg: Tensor, p: Tensor, n: Tensor, valid: Tensor) -> Triplets:
        hinge = (d_pos.gather(1, p) - d_neg.gather(1, n) + self.margin).clamp(min=0).masked_fill(~valid, 0.0)
        on = (hinge > 0).to(hinge.dtype)
        pos, neg = torch.zeros_like(d_pos).scatter_add_(1, p, on), torch.zeros_like(d_neg).scatter_add_(1, n, on)
        return Triplets(hinge.sum(1), pos, neg, on.sum(1), valid.sum(1).to(hinge.dtype))


class Triplets(NamedTuple):
    """Sum of hinges, and the number of active triplets that each positive and each negative is part of."""

    value: Tensor  # (B,)
    pos: Tensor  # (B, P)
    neg: Tensor  # (B, N + 1)
    active: Tensor  # (B,)
    candidates: Tensor  # (B,)


def count_below(stop: Tensor, x: Tensor, closed: bool = False, start: Tensor | None = None) -> Triplets:
    """Over all pairs (p, n) of a row with x_n < stop_p (<= if `closed`): sum of start_p - x_n, and counts.

    `start` defaults to `stop`, and must be in the same order. -inf in `stop` and +inf in `x` are in no pair.
    """
    start = stop if start is None else start
    value, neg, pos = torch.zeros_like(x[:, 0]), torch.zeros_like(x), torch.zeros_like(stop)
    if stop.shape[1] <= FEW:
        compare, below = (torch.le if closed else torch.lt), torch.empty_like(x)
        for p in range(stop.shape[1]):
            compare(x, stop[:, p : p + 1], out=below)
            neg += below
            pos[:, p] = below.sum(1)
    else:
        edges, order = stop.sort(1)
        place = torch.searchsorted(edges, x, right=not closed)  # number of edges below x, which do not count
        neg = (stop.shape[1] - place).to(x.dtype)
        hits = torch.zeros(len(x), stop.shape[1] + 1, dtype=x.dtype, device=x.device)
        hits.scatter_add_(1, place, torch.ones_like(x))
        pos.scatter_(1, order, hits.cumsum(1)[:, :-1])
    value = (finite(start) * pos).sum(1) - finite(x).mul_(neg).sum(1)
    active = pos.sum(1)
    return Triplets(value, pos, neg, active, active)


def _nearest_beyond(d_pos: Tensor, d_neg: Tensor, num_neg: Tensor) -> Tensor:
    """For each positive the column of the nearest negative farther than it, else of the farthest negative, (B, P)."""
    if d_pos.shape[1] <= FEW:
        columns, beyond = torch.zeros_like(d_pos, dtype=torch.long), torch.empty_like(d_neg)
        farthest = d_neg.masked_fill(d_neg == math.inf, -math.inf).argmax(1)
        for p in range(d_pos.shape[1]):
            torch.gt(d_neg, d_pos[:, p : p + 1], out=beyond)
            value, column = (d_neg - log_mask(beyond)).min(1)
            columns[:, p] = torch.where(value == math.inf, farthest, column)  # without a negative farther than it
        return columns
    ordered, column = d_neg.sort(dim=1, stable=True)
    place = torch.searchsorted(ordered, d_pos.contiguous(), right=True)
    last = (num_neg.long() - 1).clamp(min=0)[:, None]
    farthest = torch.searchsorted(ordered, ordered.gather(1, last))  # the first of ties
    return column.gather(1, torch.where(place > last, farthest, place))
