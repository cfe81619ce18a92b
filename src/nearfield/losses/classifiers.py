"""Classification losses with a margin, and with several centers for each class.

Axes: B queries of a block, C classes, K centers of a class, D dims. See `nearfield.pairs` for what a block is, and
`nearfield.losses.proxy_loss` for the proxies.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.parameters import Classes, Count, Dim, Number, Params, Scale, Weight
from nearfield.losses.proxy_loss import ProxyLoss, ProxyOptions, cross_entropy
from nearfield.losses.registry import Real, Whole, register
from nearfield.pairs import Block, Weighted

MAX_COSINE = 1 - 1e-7  # the slope of cos(theta + margin) is singular at theta = 0
FAR = -1e6  # a similarity so low that its share of any softmax is 0, yet finite
Radians = Annotated[float, Field(ge=0, le=math.pi / 2, description="Angles are in radians: use math.radians.")]


@register(
    "cosface",
    "Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018",
    year=2018,
    space={"scale": Real(4.0, 400.0, log=True), "margin": Real(0.0, 0.7)},
    presets={
        "reality_check_cub": {"margin": 0.6182, "scale": 100.0},
        "reality_check_cars": {"margin": 0.4324, "scale": 161.5},
        "reality_check_sop": {"margin": 0.3364, "scale": 100.0},
    },
    plain={"method.params.scale": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="rmsprop", lr=1e-6, loss_lr=2.53e-3, weight_decay=1e-4),
    compared=(
        (
            "deepinsight/insightface, arcface_torch",
            "value 2e-16, gradient 6e-16, that of the proxies too",
            "2e2e8c9",
        ),
        (
            "zbr17/GeDML",
            "value 4e-16, gradient 6e-16, that of the proxies too",
            "0.2.2",
        ),
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 3e-15, that of the proxies too",
            "2.9.0",
        ),
    ),
)
class CosFace(ProxyLoss):
    """Normalised softmax in which the true class must win by a margin in the cosine.

        L = 1/M sum_i -log softmax at y_i of   scale (cos_y - margin),   scale cos_c  (c != y)

    W = scale (softmax - 1[c = y]) / M.
    """

    combines_columns = True

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 64.0,
        margin: Number = 0.35,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.scale, self.margin = scale, margin

    def weigh(self, block: Block) -> Weighted:
        s = self.scale
        value, pos, neg = cross_entropy(s * (block.pos - self.margin), s * block.neg, columns=block.columns)
        return Weighted(value, s * pos, neg.mul_(s))


@register(
    "arcface",
    "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019",
    year=2019,
    space={"scale": Real(4.0, 400.0, log=True), "margin": Real(0.0, 0.7)},
    presets={
        "reality_check_cub": {"margin": math.radians(23.22), "scale": 100.0},
        "reality_check_cars": {"margin": math.radians(20.52), "scale": 49.5},
        "reality_check_sop": {"margin": math.radians(18.63), "scale": 220.3},
    },
    plain={"method.params.scale": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="rmsprop", lr=1e-6, loss_lr=5.13e-3, weight_decay=1e-4),
    compared=(
        (
            "deepinsight/insightface, arcface_torch",
            "angles beyond pi - margin too: value 5e-16, gradient 2e-15, that of the proxies too",
            "2e2e8c9",
        ),
        (
            "zbr17/GeDML",
            "value 4e-16, gradient 9e-16, that of the proxies too",
            "0.2.2",
        ),
        (
            "pytorch-metric-learning",
            "value 2e-16, gradient 3e-15, that of the proxies too",
            "2.9.0",
        ),
    ),
)
class ArcFace(ProxyLoss):
    """Normalised softmax in which the true class must win by a margin in the angle, in radians.

        L = 1/M sum_i -log softmax at y_i of   scale cos(theta_y + margin),   scale cos_c  (c != y)

    For theta_y > pi - margin, where cos(theta + margin) would rise again, the target is cos theta - margin sin margin,
    which keeps it monotone (some ports lack this). W = scale (softmax - 1[c = y]) / M, times
    sin(theta + margin) / sin(theta) at y; a cosine above 1 - 1e-7 has no gradient.
    """

    combines_columns = True

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 64.0,
        margin: Radians = 0.5,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.scale, self.margin = scale, margin

    def weigh(self, block: Block) -> Weighted:
        s = self.scale
        target, slope = add_angle(block.pos, self.margin)
        value, pos, neg = cross_entropy(s * target, s * block.neg, columns=block.columns)
        return Weighted(value, s * slope * pos, neg.mul_(s))


@register(
    "sub_center_arcface",
    "Deng et al., Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy Web Faces, ECCV 2020",
    year=2020,
    space={"scale": Real(4.0, 400.0, log=True), "margin": Real(0.0, 0.7), "centers": Whole(2, 6)},
    plain={"method.params.scale": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="sgd", lr=1e-2, loss_lr=1e-2, weight_decay=5e-4),
    compared=(
        (
            "pytorch-metric-learning",
            (
                "value 3e-16, gradient 3e-15, that of the proxies too; the MXNet code of deepinsight/insightface was "
                "not run"
            ),
            "2.9.0",
        ),
    ),
)
class SubCenterArcFace(ProxyLoss):
    """ArcFace with several centers for each class: an embedding is compared with the nearest center of a class.

        cos_c = max_k x_i . w_ck,   then as ArcFace

    Outliers of a class gather around centers of their own. Of equally near centers the first is used.
    """

    combines_columns = True

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 64.0,
        margin: Radians = 0.5,
        centers: Count = 3,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, centers, **options)
        self.scale, self.margin = scale, margin

    def weigh(self, block: Block) -> Weighted:
        s = self.scale
        (pos, at_pos), (neg, at_neg) = (self._nearest(x) for x in (block.pos, block.neg[:, :-1]))
        target, slope = add_angle(pos, self.margin)
        value, pos, neg = cross_entropy(s * target, s * neg, columns=block.columns)
        return to_centers(value, at_pos * (s * slope * pos)[:, None], at_neg.mul_(neg.mul_(s)[:, None]))

    def _nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of each class's K similarities, (B, C), and its one-hot position, (B, K, C)."""
        x = by_center(x, self.centers)
        best = x.amax(1, keepdim=True)
        here = x.ge_(best)
        free = 1 - here[:, 0]
        for k in range(1, self.centers):  # only the first of equally near centers
            here[:, k].mul_(free)
            free.sub_(here[:, k])
        return best[:, 0], here


@register(
    "soft_triple",
    "Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019",
    year=2019,
    space={
        "scale": Real(4.0, 400.0, log=True),
        "gamma": Real(0.01, 100.0, log=True),
        "tau": Real(0.0, 0.5),
        "delta": Real(0.0, 0.5),
    },
    presets={
        "reality_check_cub": {"scale": 78.02, "gamma": 58.95, "tau": 0.3754, "delta": 0.4307},
        "reality_check_cars": {"scale": 17.69, "gamma": 19.18, "tau": 0.0669, "delta": 0.3588},
        "reality_check_sop": {"scale": 100.0, "gamma": 47.9, "tau": 0.0, "delta": 0.3145},
        "released": {"start": "uniform"},
    },
    plain={"method.params.scale": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="adam", lr=1e-4, loss_lr=1e-2, weight_decay=1e-4, eps=0.01, loss_eps=0.01),
    compared=(
        (
            "idstcv/SoftTriple",
            "value 4e-16, gradient 3e-15, that of the centers too",
            "2417374",
        ),
        (
            "pytorch-metric-learning",
            "without the regulariser: value 4e-16, gradient 4e-15, that of the centers too",
            "2.9.0",
        ),
    ),
)
class SoftTriple(ProxyLoss):
    """Normalised softmax with several centers for each class, weighted softly, and a regulariser that merges them.

        S_c = sum_k softmax_k(x_i . w_ck / gamma) x_i . w_ck
        L = 1/M sum_i -log softmax at y_i of scale (S_c - delta 1[c = y])
          + tau / (C K (K - 1)) sum_c sum_{s < t} sqrt(2 + 1e-5 - 2 w_cs . w_ct)

    Through the inner softmax, dS_c/ds_k = p_k (1 + (s_k - S_c) / gamma), which is negative for distant centers. The
    regulariser counts each pair once and divides by K (K - 1), half the mean, as in the authors' code. Ports differ:
    one multiplies by gamma instead of dividing, another takes the inner softmax over classes. The reality check found
    gammas from 19 to 59 (its library divides by gamma too): the centers of a class then count nearly alike.
    Centers start normal, as all proxies here, or, as in the authors' code, "uniform" within 1/sqrt(C K) of 0, which is
    shorter by sqrt 6: a step of the optimiser turns them more.
    """

    combines_columns = True

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 20.0,
        gamma: Scale = 0.1,
        tau: Weight = 0.2,
        delta: Number = 0.01,
        centers: Count = 10,
        start: Literal["normal", "uniform"] = "normal",
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, centers, **options)
        self.scale, self.gamma, self.tau, self.delta = scale, gamma, tau, delta
        if start == "uniform":
            bound = 1 / math.sqrt(num_classes * centers)
            nn.init.uniform_(self.proxies, -bound, bound)

    @staticmethod
    def check_together(params: Params) -> None:
        if params["start"] != "normal" and params.get("shard"):
            raise InputError(f"start must be 'normal' with shard, which splits the centers; got {params['start']!r}.")
        ProxyLoss.check_together(params)

    def weigh(self, block: Block) -> Weighted:
        s = self.scale
        (pos, of_pos), (neg, of_neg) = (self._soft(x) for x in (block.pos, block.neg[:, :-1]))
        value, pos, neg = cross_entropy(s * (pos - self.delta), s * neg, columns=block.columns)
        return to_centers(value, of_pos * (s * pos)[:, None], of_neg.mul_(neg.mul_(s)[:, None]))

    def _soft(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Similarity to each class, (B, C), and its derivative with respect to each of its K centers, (B, K, C)."""
        x = by_center(x, self.centers).clamp_(min=FAR)
        share = torch.softmax(x / self.gamma, 1)
        whole = (share * x).sum(1, keepdim=True)
        return whole[:, 0], share.mul_(x.sub_(whole).div_(self.gamma).add_(1))

    def penalty(self, queries: Tensor, references: Tensor) -> Tensor | None:
        if self.centers == 1 or not self.tau:
            return None
        with torch.autocast(self.proxies.device.type, enabled=False):
            w = F.normalize(self.proxies, dim=1, eps=1e-12).unflatten(0, (len(self.classes), self.centers))  # (C, K, D)
            s, t = torch.triu_indices(self.centers, self.centers, 1, device=w.device)
            gaps = (2 + 1e-5 - 2 * (w @ w.mT)[:, s, t]).sqrt()  # (C, K (K - 1) / 2)
        return self.tau * self.over_processes(gaps.sum()) / (self.num_classes * self.centers * (self.centers - 1))


def by_center(x: Tensor, centers: int) -> Tensor:
    """A copy of similarities (B, C K) as (B, K, C): softmax over a short last axis is slow."""
    return x.reshape(len(x), -1, centers).transpose(1, 2).contiguous()


def to_centers(value: Tensor, pos: Tensor, neg: Tensor) -> Weighted:
    """What `weigh` returns, from derivatives by center and class, (B, K, C); adds the padding column again."""
    whole = neg.new_zeros(len(neg), neg[0].numel() + 1)
    whole[:, :-1].unflatten(1, (-1, neg.shape[1])).copy_(neg.transpose(1, 2))
    return Weighted(value, pos.transpose(1, 2).flatten(1), whole)


def add_angle(cosine: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """cos(theta + margin), continued linearly where it would rise again, and its slope with respect to cos(theta)."""
    c = cosine.clamp(-MAX_COSINE, MAX_COSINE)
    sine = (1 - c.square()).sqrt()
    inside = cosine.abs() <= MAX_COSINE
    turned = c < -math.cos(margin)  # theta > pi - margin
    value = torch.where(turned, c - margin * math.sin(margin), c * math.cos(margin) - sine * math.sin(margin))
    slope = torch.where(turned, 1.0, math.cos(margin) + c * math.sin(margin) / sine)
    return value, slope * inside
