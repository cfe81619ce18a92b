"""Losses in which proxies act as the mean of their class: fields of potential, and of spins.

Axes: B queries of a block, C classes, K proxies of a class, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import LARGE, Classes, Count, Dim, Number, Params, Weight
from nearfield.losses.proxy_loss import ProxyLoss, ProxyOptions
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, Held, PairLoss, Weighted, is_real

POLE = 1e-2  # the repulsion is infinite at distance 0: it is constant below this share of delta


@register(
    "potential_field",
    "Bhatnagar and Ahuja, Potential Field Based Deep Metric Learning, CVPR 2025; as understood: no code was released",
    year=2025,
    claims=(
        Claim("cub", "R50-512", 73.4),
        Claim("cars196", "R50-512", 92.7),
        Claim("sop", "R50-512", 82.9),
        Claim("cub", "BN-Inception-512", 71.5),
        Claim("cars196", "BN-Inception-512", 90.1),
        Claim("sop", "BN-Inception-512", 80.6),
        Claim("cub", "DINO-S", 83.1),
        Claim("cars196", "DINO-S", 94.7),
        Claim("sop", "DINO-S", 86.5),
        Claim("cub", "ViT-S", 87.8),
        Claim("cars196", "ViT-S", 91.5),
        Claim("sop", "ViT-S", 88.2),
    ),
    space={"alpha": Real(1.0, 6.0), "delta": Real(0.05, 0.8, log=True)},
    presets={"sop": {"proxies_per_class": 2}},
    sampler="shuffle",
    recipe=OptimizerConfig(name="adam", lr=1e-4, loss_lr=1e-2, weight_decay=1e-4),
    uncompared="its authors released none",
)
class PotentialField(ProxyLoss):
    """Embeddings and proxies are charges: those of a class attract each other, the near ones most; others repel.

        Psi_c(r) = sum over charges of class c of -1 / max(d, delta)^alpha
                 + sum over all others of          1 / min(d, delta)^alpha
        L = 1/n { sum_i Psi_{y_i}(x_i) + sum_{c,k} Psi_c(p_ck) },   n charges, none acts on itself

    over the M embeddings and C K proxies, of unit length, d Euclidean: both are rows and columns of one matrix. dL/dd
    is alpha d^(-alpha - 1) of each positive beyond delta and minus that of each negative within it, over n: the
    opposite of every hinge, far positives hardly pull, and nothing repels until it is within delta. As understood: no
    code was released, and the formula is from the authors' page and secondary sources. Ours are the divisor n, which is
    not stated, and that repulsion is constant below 0.01 delta, as it has a pole at 0.
    """

    needs = "nothing"
    measure = "euclidean"
    splits = False

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        alpha: Annotated[float, Field(ge=0, le=8)] = 4.0,
        delta: Annotated[float, Field(ge=0.05, le=LARGE)] = 0.3,
        proxies_per_class: Count = 15,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, proxies_per_class, **options)
        self.alpha, self.delta = alpha, delta

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return int(params["num_classes"] * params["proxies_per_class"] * params["dim"])

    def held(self, labels: Tensor) -> Held:
        return super().held(labels)._replace(joined=True)

    def weigh(self, block: Block) -> Weighted:
        power, least = -self.alpha, POLE * self.delta
        pos, neg = block.pos.clamp(min=self.delta), block.neg.clamp(least, self.delta)
        pull, push = pos.pow(power).mul_(is_real(block.pos)), neg.pow(power).mul_(is_real(block.neg))
        value = push.sum(1) - pull.sum(1)
        beyond = (block.pos == pos).to(pos.dtype)
        within = (block.neg == neg).logical_and_(block.neg < self.delta).to(neg.dtype)
        return Weighted(value, pull.div_(pos).mul_(beyond).mul_(-power), push.div_(neg).mul_(within).mul_(power))


@register(
    "mean_field_contrastive",
    "Furusawa, Mean Field Theory in Deep Metric Learning, ICLR 2024",
    year=2024,
    space={"pos_margin": Real(0.0, 0.3), "neg_margin": Real(0.1, 1.0), "lam": Real(0.0, 1.0)},
    sampler="shuffle",
    recipe=OptimizerConfig(name="adamw", lr=1e-4, loss_lr=1e-2, weight_decay=1e-4),
    compared=(
        (
            "st-tech/mft-in-dml",
            "lam 0 and 0.5: value 4e-16, gradient 6e-16, that of the proxies too",
            "7a6aab1",
        ),
    ),
)
class MeanFieldContrastive(ProxyLoss):
    """Contrastive loss in which the other items of a class are replaced by their mean field, a learned vector.

        L = 1/M sum_i { [d_iy - pos_margin]_+ + sum_{c != y} [neg_margin - d_ic]_+ }
          + lam/C sum_c sum_{c' != c} [neg_margin - d_cc']_+^power,   d = 1 - cos

    W = -1/M at y and 1/M at the other classes, where the bracket is positive. The last term keeps the fields apart, and
    is streamed like the first. Margins and power are the released script's; it has no default for lam.
    """

    needs = "positive"
    splits = False  # the regulariser compares all proxies

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        pos_margin: Number = 0.02,
        neg_margin: Number = 0.3,
        lam: Weight = 0.0,
        power: Annotated[float, Field(ge=1, le=4)] = 2.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.pos_margin, self.neg_margin, self.lam = pos_margin, neg_margin, lam
        engine: EngineOptions = {"normalize": self.normalize, "block_rows": self.block_rows, "compile": self.compiled}
        self.spread = Spread(neg_margin, power, **engine)

    def weigh(self, block: Block) -> Weighted:
        pull = (1 - self.pos_margin - block.pos).clamp_(min=0)
        push = (block.neg + (self.neg_margin - 1)).clamp_(min=0)
        value = pull.sum(1) + push.sum(1)
        return Weighted(value, pull.gt_(0).neg_(), push.gt_(0))

    def penalty(self, queries: Tensor, references: Tensor) -> Tensor | None:
        if not self.lam or len(references) < 2:
            return None
        labels = torch.arange(len(references))
        value: Tensor = self.lam * self.spread(references, labels)
        return value


class Spread(PairLoss):
    """1/C sum_c sum_{c' != c} [margin - 1 + cos(c, c')]_+^power, of vectors that are classes of their own."""

    needs = "nothing"

    def __init__(self, margin: float, power: float, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.margin, self.power = margin, power

    def weigh(self, block: Block) -> Weighted:
        gap = (block.neg + (self.margin - 1)).clamp_(min=0)
        steep = self.power * gap.pow(self.power - 1) if self.power > 1 else gap.gt(0).to(gap.dtype)
        return Weighted(gap.pow(self.power).sum(1), torch.zeros_like(block.pos), steep)
