"""Losses over a batch of (anchor, positive) pairs: the positives of the other pairs are the negatives.

Pairs are formed within each class in row order: the first item is an anchor and the second its positive, the third an
anchor and the fourth its positive; the last item of an odd number is not used.
Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Number, Weight
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, Pairing, PairLoss, Weighted, integers, log_sum_exp, pick_both

Degrees = Annotated[float, Field(gt=0, lt=90, description="Angles are in degrees.")]


def pair_up(labels: Tensor) -> Pairing:
    """Rows of the anchors and rows of their positives, each (K,)."""
    given = integers(labels)
    rows = given.argsort(kind="stable")
    ordered = given[rows]
    rank = np.arange(len(rows)) - ordered.searchsorted(ordered)
    at = np.flatnonzero((rank % 2 == 0)[:-1] & (ordered[1:] == ordered[:-1]))
    return Pairing(torch.from_numpy(rows[at]), torch.from_numpy(rows[at + 1]))


@register(
    "npairs",
    "Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NeurIPS 2016",
    year=2016,
    claims=(Claim("cars196", "GoogLeNet", 71.1, "quoted in Unbiased Evaluation"),),
    space={"l2": Real(1e-5, 0.1, log=True)},
    presets={"proxy_anchor_authors": {"l2": 0.02}, "symmetric": {"symmetric": True}},
    plain={"method.params.l2": 0.0},
    similarities="N",
    disagreement="the softmax runs over the positive too, so a nearer positive takes weight from the negatives (P)",
    sampler="npairs",
    recipe=OptimizerConfig(name="adam", lr=1e-4, eps=1e-7, weight_decay=1e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            "symmetric form too, one and two pairs a class: value 1e-14, gradient 3e-14",
            "c55749b",
        ),
        (
            "pytorch-metric-learning",
            "one pair a class: value 3e-16, gradient 5e-16",
            "2.9.0",
        ),
    ),
)
class NPairs(PairLoss):
    """N-pairs: each anchor must pick its positive among the positives of all pairs.

        L = 1/K sum_i log(1 + sum_{j != i} exp(a_i . p_j - a_i . p_i)) + l2 (mean |a|^2 + mean |p|^2)

    which is cross-entropy on A P^T; references with the anchor's label share the target evenly. Embeddings are not
    normalised in training, hence the penalty on their norms (5e-4 = 0.25 * 0.002 in TensorFlow and DMLPlayground).
    With `symmetric`, anchors and positives also swap roles, and the loss is the mean of both (Unbiased Evaluation,
    section 2.4); against references other than the batch there is nothing to swap.
    "Unbiased Evaluation" Eq. 3 prints a distance where the code has this inner product.
    """

    normalized = False
    reduction = "usable"

    def __init__(self, l2: Weight = 5e-4, symmetric: bool = False, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.l2, self.symmetric = l2, symmetric

    def pairing(self, labels: Tensor) -> Pairing | None:
        return pair_up(labels)

    def weigh(self, block: Block) -> Weighted:
        if block.pos.shape[1] == 1:  # one pair of a class, as in the equation
            value, share = log_sum_exp(block.neg - block.pos, one=True)
            return Weighted(value, -share.sum(1, keepdim=True), share)
        real, each = block.pos_mask, 1 / block.num_pos.clamp(min=1)
        whole, up_share, down_share = log_sum_exp(block.pos.masked_fill(~real, -math.inf), block.neg)
        target = torch.where(real, block.pos, 0.0).sum(1) * each
        return Weighted(whole - target, up_share - real * each[:, None], down_share)

    def penalty(self, queries: Tensor, references: Tensor) -> Tensor | None:
        return norm_penalty(self.l2, queries, references)


@register(
    "angular",
    "Wang et al., Deep Metric Learning with Angular Loss, ICCV 2017; Unbiased Evaluation Eqs. 4-5",
    year=2017,
    claims=(Claim("cars196", "", 71.3, "quoted in Unbiased Evaluation"),),
    space={"angle": Real(30.0, 60.0)},
    presets={
        "unbiased_evaluation": {"normalize": False, "l2": 5e-4},
        "symmetric": {"normalize": False, "l2": 5e-4, "symmetric": True},
    },
    sampler="npairs",
    recipe=OptimizerConfig(name="adam", lr=1e-4, eps=1e-7, weight_decay=1e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            "its two forms, the symmetric one too, one pair a class: value 2e-14, gradient 9e-15",
            "c55749b",
        ),
    ),
)
class Angular(PairLoss):
    """Angular: bound the angle at the negative in the triangle (anchor, positive, negative), at any scale.

        f_apn = 4 tan^2(angle) (x_a + x_p) . x_n - 2 (1 + tan^2(angle)) x_a . x_p
        L = 1/K sum_a log(1 + sum_n exp f_apn) + l2 (mean |z_a|^2 + mean |z_p|^2)

    The negatives are the positives of the other pairs; with `symmetric`, anchors and positives also swap roles, and the
    loss is the mean of both. f is itself one dot product, of the query
    (4 t^2 (x_a + x_p), -2 (1 + t^2) x_a . x_p) and the reference (x_n, 1), which is what the engine computes.
    The published hinge variants mask f by multiplication and get the "1 +" only because exp(0) = 1.
    """

    own_batch = True
    reduction = "usable"

    def __init__(
        self, angle: Degrees = 45.0, l2: Weight = 0.0, symmetric: bool = False, **engine: Unpack[EngineOptions]
    ) -> None:
        super().__init__(**engine)
        self.tan2, self.l2, self.symmetric = math.tan(math.radians(angle)) ** 2, l2, symmetric

    def pairing(self, labels: Tensor) -> Pairing | None:
        return pair_up(labels)

    def combine(self, x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
        a, p = pick_both(x, pairing.rows, pairing.columns)
        offset = -2 * (1 + self.tan2) * (a * p).sum(1, keepdim=True)
        return torch.cat([4 * self.tan2 * (a + p), offset], 1), torch.cat([p, torch.ones_like(offset)], 1)

    def unfold(self, weights: Tensor, pairing: Pairing, full: Tensor) -> Tensor:
        rows, columns, *_ = pairing
        full[rows[:, None], columns] = 4 * self.tan2 * weights
        full[columns[:, None], columns] = 4 * self.tan2 * weights
        full[rows, columns] -= 2 * (1 + self.tan2) * weights.sum(1)
        return full

    def weigh(self, block: Block) -> Weighted:
        value, share = log_sum_exp(block.neg, one=True)
        return Weighted(value, torch.zeros_like(block.pos), share)

    def penalty(self, queries: Tensor, references: Tensor) -> Tensor | None:
        return norm_penalty(self.l2, queries, references)


@register(
    "npairs_angular",
    "Wang et al., Deep Metric Learning with Angular Loss, ICCV 2017, Eq. 8",
    year=2017,
    space={"angle": Real(30.0, 60.0), "lam": Real(0.1, 10.0, log=True)},
    plain={"method.params.l2": 0.0},
    sampler="npairs",
    recipe=OptimizerConfig(name="adam", lr=1e-4, eps=1e-7, weight_decay=1e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            (
                "AngluarLossHinge, which normalises for neither term: value 4e-16 on unit vectors; on raw ones the "
                "sum of our two losses, both raw: value 8e-15, gradient 9e-15"
            ),
            "c55749b",
        ),
    ),
)
class NPairsAngular(nn.Module):
    """N-pairs on the raw embeddings plus `lam` times Angular on the normalised ones."""

    def __init__(
        self,
        angle: Degrees = 45.0,
        lam: Number = 2.0,
        l2: Weight = 5e-4,
        symmetric: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        self.npairs = NPairs(l2, symmetric, **engine)
        self.angular, self.lam = Angular(angle, symmetric=symmetric, **engine), lam

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch of pairs; a 0-dim tensor."""
        total: Tensor = self.npairs(embeddings, labels) + self.lam * self.angular(embeddings, labels)
        return total

    @property
    def last(self) -> dict[str, int]:
        """How many anchors the last call had, and how many it could not use."""
        return self.npairs.last


def norm_penalty(l2: float, queries: Tensor, references: Tensor) -> Tensor | None:
    """l2 (mean |q|^2 + mean |r|^2), or None without queries or with l2 = 0."""
    if not l2 or not len(queries):
        return None
    wide = torch.promote_types(queries.dtype, torch.float32)  # squares overflow in float16
    a, b = queries.to(wide), references.to(wide)
    return a.square().sum() * (l2 / len(a)) + b.square().sum() * (l2 / len(b))
