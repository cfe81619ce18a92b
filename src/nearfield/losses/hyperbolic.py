"""A loss in hyperbolic space: embeddings are points of a Poincare ball, and the distance is measured there.

Axes: B queries of a block, P positives, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Params, Scale
from nearfield.losses.protocols import Idle, class_size
from nearfield.losses.registry import Claim, Real, register
from nearfield.metrics.ball import to_ball
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, exp_, log_sum_exp

Curvature = Annotated[float, Field(ge=1e-6, le=100)]
Radius = Annotated[float, Field(ge=1e-3, le=1e3)]


@register(
    "hyperbolic",
    "Ermolov et al., Hyperbolic Vision Transformers: Combining Improvements in Metric Learning, CVPR 2022",
    year=2022,
    claims=(
        Claim("cub", "DINO-S-128", 80.9),
        Claim("cars196", "DINO-S-128", 89.2),
        Claim("sop", "DINO-S-128", 85.1),
        Claim("cub", "ViT-S-128", 85.6),
        Claim("cars196", "ViT-S-128", 86.5),
        Claim("sop", "ViT-S-128", 85.9),
    ),
    space={
        "c": Real(0.01, 1.0, log=True),
        "clip": Real(0.5, 5.0, log=True),
        "temperature": Real(0.05, 1.0, log=True),
    },
    presets={"released": {"negatives": "two_views"}},
    plain={"method.params.c": 1e-6},
    recipe=OptimizerConfig(name="adamw", lr=3e-5, weight_decay=1e-2, clip=3.0),
    compared=(
        (
            "htdt/hyp_metric, with pmath.py of leymir/hyperbolic-image-embeddings at 0a7bd97",
            (
                'preset "released": value 4e-5, gradient 9e-5; 4e-15 and 6e-15 without the 1e-5 that its Moebius '
                "addition adds to a denominator"
            ),
            "8dd5bef",
        ),
    ),
)
class Hyperbolic(PairLoss):
    """Pairwise cross-entropy over distances in a Poincare ball of curvature -c, in which space grows with the radius.

        p = tanh(sqrt(c) |z'|) z' / (sqrt(c) |z'|),   z' = z min(1, clip / (|z| + 1e-5))
        D(p, r) = 1/sqrt(c) arcosh(1 + 2 c |p - r|^2 / ((1 - c |p|^2)(1 - c |r|^2)))
        L = mean over (i, p) of -log( e^(-D_ip / T) / (e^(-D_ip / T) + sum_{n in N_i} e^(-D_in / T)) )

    with |p| <= 0.999 / sqrt(c). D depends on the dot product and on both norms, so that W goes with gradients to both.
    The engine measures in the ball of radius 1, with points sqrt(c) p: W = dL/dS of those. For c -> 0, D is 2 |z - z'|.
    At identical points the gradient is 0. Rank embeddings of it by the same distance, `distance = "hyperbolic"`, which
    runs of this method do. With `negatives` "two_views", as released, the k-th item of a class is its view k, the
    negatives of a pair are the items of other classes in its two views, and the sum over the pairs of a class is
    averaged over classes; to count the views is a synchronisation with an accelerator for each block. The released
    Moebius arithmetic adds 1e-5 to a denominator, which differs by 2e-5.
    """

    normalized = False
    measure = "hyperbolic"
    reduction = "terms"

    def __init__(
        self,
        c: Curvature = 0.1,
        clip: Radius = 2.3,
        temperature: Scale = 0.2,
        negatives: Literal["all", "two_views"] = "all",
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.surveys = self.own_batch = negatives == "two_views"  # views are those of a batch
        self.c, self.clip, self.temperature, self.unit = c, clip, temperature, self.normalize
        self.normalize = False  # not the points of the ball

    @staticmethod
    def ranked_by(params: Params) -> str:
        return f"hyperbolic:{params['c']:g}:{params['clip']:g}"

    def idle(self, labels: Tensor) -> Idle:
        return Idle("log_n", math.log(max(1.0, len(labels) - class_size(labels) + 1)))

    def lift(self, queries: Tensor, references: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self._points(queries), None if references is None else self._points(references)

    def _points(self, x: Tensor) -> Tensor:
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return to_ball(F.normalize(x, dim=1, eps=1e-12) if self.unit else x, self.c, self.clip)

    def survey(self, block: Block) -> Tensor:
        first = torch.cat([block.order[:, None], block.pos_index], 1).amin(1)  # of the query's class, in label order
        return (block.order - first)[:, None]

    def weigh(self, block: Block) -> Weighted:
        t = self.temperature * math.sqrt(self.c)
        if self.surveys:
            return _by_views(block, t)
        push, push_share = log_sum_exp(block.neg / -t)
        gap = push[:, None] + block.pos / t  # (B, P); padding is -inf
        lost = torch.sigmoid(gap)
        return Weighted(F.softplus(gap).sum(1), lost / t, push_share * (-lost.sum(1, keepdim=True) / t), block.num_pos)


def _by_views(block: Block, t: float) -> Weighted:
    """Each positive against the negatives in its own view and in the query's; `survey` holds the views, (N + 1, 1)."""
    views = block.survey[:, 0]
    member = F.one_hot(views).to(block.neg.dtype)  # (N + 1, V)
    top = (block.neg / -t).amax(1, keepdim=True).clamp(min=torch.finfo(block.neg.dtype).min)
    near = exp_((block.neg / -t).sub_(top))
    mass, mine, theirs = near @ member, views[block.order][:, None], views[block.pos_index]  # (B, V), (B, 1), (B, P)
    total = mass.gather(1, mine) + mass.gather(1, theirs)  # (B, P)
    gap = total.log() + top + block.pos / t
    lost = torch.sigmoid(gap)
    rate = (lost / total).masked_fill_(total == 0, 0.0)
    share = torch.zeros_like(mass).scatter_add_(1, theirs, rate).scatter_add_(1, mine, rate.sum(1, keepdim=True))
    neg = near.mul_((share @ member.T).div_(-t))
    return Weighted(F.softplus(gap).sum(1), lost / t, neg, 1 / (block.num_pos + 1))
