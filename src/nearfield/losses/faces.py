"""Losses of face recognition after ArcFace: one threshold for all classes, and margins that follow the norm.

The norm of an embedding before it is normalised is its quality: `Block.norms`.
Axes: B queries of a block, C classes, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.parameters import Classes, Dim, Number, Params, Scale, Weight
from nearfield.losses.proxy_loss import ProxyLoss, ProxyOptions, cross_entropy
from nearfield.losses.registry import Real, register
from nearfield.pairs import Block, Weighted, is_real, log_mask

MAX_COSINE = 1 - 1e-7  # the slope of cos(theta + margin) is singular at theta = 0
CLIPPED = 1 - 1e-3  # AdaFace's own bound of every cosine
ANGLE = 1e-3  # and of the target's angle
NORMS = (1e-3, 100.0)  # and of the norms
FACES = OptimizerConfig(name="sgd", lr=0.1, loss_lr=0.1, weight_decay=5e-4, loss_weight_decay=5e-4)
Portion = Annotated[float, Field(ge=0, le=1)]


@register(
    "uce",
    "Zhou et al., UniFace: Unified Cross-Entropy Loss for Deep Face Recognition, ICCV 2023",
    year=2023,
    space={"scale": Real(8.0, 128.0, log=True), "margin": Real(0.0, 0.7), "lam": Real(0.1, 10.0, log=True)},
    plain={"method.params.scale": 1.0},
    sampler="shuffle",
    recipe=FACES,
    compared=(
        (
            "CVI-SZU/UniFace",
            (
                "within its clamp: value 7e-12, gradient 7e-16, that of the proxies and of b too; beyond it, where "
                "ours has a gradient, gradients are up to 58 % apart"
            ),
            "f866887",
        ),
    ),
)
class UCE(ProxyLoss):
    """Unified cross-entropy: one learned threshold tells the class of an embedding from all others.

        L = 1/M sum_i { softplus(b - scale (cos_y - margin)) + lam sum_{c != y} softplus(scale cos_c - b) }

    W = -scale sigmoid(b - scale (cos_y - margin)) / M at y, lam scale sigmoid(scale cos_c - b) / M elsewhere. The
    threshold b / scale, learned from b = log(10 C), is the same for all embeddings: it can accept or reject a pair of
    unseen classes. The released code clamps both arguments to +-scale, so that a positive below it has no gradient
    at all; here it has.
    """

    needs = "positive"

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 64.0,
        margin: Number = 0.4,
        lam: Weight = 1.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.scale, self.margin, self.lam = scale, margin, lam
        self.bias = nn.Parameter(torch.full((1,), math.log(10 * num_classes)))

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return ProxyLoss.learned_numbers(params) + 1

    def pair_parameters(self) -> tuple[nn.Parameter, ...]:
        return (self.bias,)

    def weigh(self, block: Block) -> Weighted:
        s, b = self.scale, self.bias.to(block.neg.dtype)
        pull, push = b - s * (block.pos - self.margin), (s * block.neg).sub_(b)
        value = F.softplus(pull).sum(1) + self.lam * F.softplus(push).sum(1)
        pull, push = pull.sigmoid_(), push.sigmoid_().mul_(self.lam)
        by_bias = (pull.sum() - push.sum()).view(1)
        return Weighted(value, -s * pull, push.mul_(s), params=(by_bias,))


@register(
    "adaface",
    "Kim et al., AdaFace: Quality Adaptive Margin for Face Recognition, CVPR 2022",
    year=2022,
    space={"scale": Real(8.0, 128.0, log=True), "margin": Real(0.0, 0.7), "h": Real(0.0, 1.0)},
    presets={"released": {"t_alpha": 0.01}, "command_line": {"margin": 0.5, "h": 0.0, "t_alpha": 0.01}},
    plain={"method.params.h": 0.0},
    sampler="shuffle",
    recipe=FACES,
    compared=(
        (
            "mk-minchul/AdaFace",
            "t_alpha 1 and 0.01, three steps each: value 5e-16, gradient 6e-15, that of the proxies too",
            "9cb9816",
        ),
    ),
)
class AdaFace(ProxyLoss):
    """Normalised softmax whose margin follows the quality of the image, for which its norm stands.

        n_i = clip(|z_i|, 0.001, 100),   q_i = clip(h (n_i - mean) / (std + 0.001), -1, 1),   both without gradient
        L = 1/M sum_i -log softmax at y_i of   scale (cos(theta_y - margin q) - (margin + margin q)),   scale cos_c

    q = 0 is CosFace, q = -1 ArcFace, and at q = 1 (good images) the hard ones count most. `mean` and `std` follow the
    norms of the training batches, mean <- t_alpha batch + (1 - t_alpha) mean; 1 takes those of the batch alone (the
    authors' class), 0.01 starts from 20 and 100 and has q = 0 for some hundred steps (their scripts, preset "released";
    their command line's own defaults turn q off). Cosines are clipped to +-(1 - 0.001) and the target's angle to
    [0.001, pi - 0.001], without gradient beyond. A batch of one leaves mean and std as they are. If all norms are
    equal, as after a layer norm, this is CosFace. W as in ArcFace, with sin(theta - margin q) / sin(theta) at y.
    """

    row_norms = True
    combines_columns = True
    constant_weights = True  # the norm has no gradient
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        margin: Number = 0.4,
        h: Number = 0.333,
        scale: Scale = 64.0,
        t_alpha: Portion = 1.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.margin, self.h, self.scale, self.t_alpha = margin, h, scale, t_alpha
        self.register_buffer("mean", torch.tensor(20.0))
        self.register_buffer("std", torch.tensor(100.0))

    def observe(self, norms: Tensor) -> None:
        if len(norms) > 1:
            std, mean = torch.std_mean(norms.clamp(*NORMS))
            for known, found in ((self.mean, mean), (self.std, std)):
                moved = known.lerp(found.to(known.dtype), self.t_alpha)
                known.copy_(torch.where(moved.isfinite(), moved, known))

    def weigh(self, block: Block) -> Weighted:
        s = self.scale
        quality = (self.h * (block.norms.clamp(*NORMS) - self.mean) / (self.std + 1e-3)).clamp(-1, 1)[:, None]
        cosine = block.pos.clamp(-CLIPPED, CLIPPED)
        turned = cosine.acos() - self.margin * quality
        angle = turned.clamp(ANGLE, math.pi - ANGLE)
        slope = (angle.sin() / (1 - cosine.square()).sqrt()).mul_((angle == turned) & (cosine == block.pos))
        others = block.neg.clamp(-CLIPPED, CLIPPED)
        inside = others == block.neg
        value, pos, neg = cross_entropy(
            s * (angle.cos() - self.margin - self.margin * quality),
            s * others.add_(log_mask(is_real(block.neg))),
            columns=block.columns,
        )
        return Weighted(value, s * slope * pos, neg.mul_(s).mul_(inside))


@register(
    "magface",
    "Meng et al., MagFace: A Universal Representation for Face Recognition and Quality Assessment, CVPR 2021",
    year=2021,
    space={"scale": Real(8.0, 128.0, log=True), "u_m": Real(0.5, 1.3), "lam": Real(1.0, 50.0, log=True)},
    presets={
        "command_line": {"lam": 20.0},
        "small_norms": {"l_a": 1.0, "u_a": 51.0, "l_m": 0.45, "u_m": 1.0, "lam": 5.0},
        "auto": {"auto": True},
    },
    plain={"method.params.lam": 0.0},
    sampler="shuffle",
    recipe=FACES,
    compared=(
        (
            "IrvingMeng/MagFace",
            "norms within and beyond its bounds: value 2e-16, gradient 9e-16, that of the proxies too",
            "719001a",
        ),
    ),
)
class MagFace(ProxyLoss):
    """ArcFace with a margin that grows with the norm, and a term that lets the norm of good images grow.

        a_i = clip(|z_i|, l_a, u_a),   m_i = l_m + (u_m - l_m)(a_i - l_a) / (u_a - l_a)
        L = 1/M sum_i { -log softmax at y_i of (scale cos(theta_y + m_i), scale cos_c) + lam (a_i / u_a^2 + 1 / a_i) }

    Where cos theta_y <= 0 the target is scale cos theta_y ("easy margin"). The norm has the gradient
    (1 - p_y) scale sin(theta_y + m) m' + lam (1 / u_a^2 - 1 / a^2), over M, none where it is clipped. The norm of a
    trained embedding is a score of quality. The authors ask for lam >= scale k u_a^2 l_a^2 / (u_a^2 - l_a^2), k = m',
    which is 22.6 here: their script's 35 meets it, their command line's default of 20 does not.
    Outside [l_a, u_a] nothing moves the norm, so that a head with norms around 1 never learns it: `auto` sets the two
    from the first batch, half the 10th percentile and twice the 90th.
    """

    needs = "positive"
    row_norms = True
    combines_columns = True
    norm_bounds: Tensor
    settled: Tensor

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 64.0,
        l_a: Scale = 10.0,
        u_a: Scale = 110.0,
        l_m: Annotated[float, Field(ge=0, le=math.pi / 2)] = 0.45,
        u_m: Annotated[float, Field(ge=0, le=math.pi / 2)] = 0.8,
        lam: Weight = 35.0,
        auto: bool = False,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.scale, self.l_m, self.u_m, self.lam = scale, l_m, u_m, lam
        self.register_buffer("norm_bounds", torch.tensor([l_a, u_a]))
        self.register_buffer("settled", torch.tensor(not auto))

    @staticmethod
    def check_together(params: Params) -> None:
        ProxyLoss.check_together(params)
        if params["l_a"] >= params["u_a"]:
            raise InputError(f"l_a must be below u_a; got {params['l_a']} and {params['u_a']}.")

    def observe(self, norms: Tensor) -> None:
        wide = norms.double()
        ends = torch.quantile(wide, torch.linspace(0.1, 0.9, 2, dtype=wide.dtype, device=wide.device))
        found = (
            (ends * torch.linspace(0.5, 2.0, 2, dtype=wide.dtype, device=wide.device))
            .clamp(min=1e-6)
            .to(self.norm_bounds.dtype)
        )
        usable = found[0] < found[1]  # not if a norm is not finite
        self.norm_bounds.copy_(torch.where(usable & ~self.settled, found, self.norm_bounds))
        self.settled.copy_(self.settled | usable)

    def weigh(self, block: Block) -> Weighted:
        s, (low, high) = self.scale, self.norm_bounds.to(block.norms.dtype)
        a = block.norms.clamp(low, high)[:, None]  # (B, 1)
        inside = a == block.norms[:, None]
        rate = (self.u_m - self.l_m) / (high - low)
        margin = self.l_m + rate * (a - low)
        cosine = block.pos.clamp(-MAX_COSINE, MAX_COSINE)
        sine = (1 - cosine.square()).sqrt()
        hard = cosine > 0
        target = torch.where(hard, cosine * margin.cos() - sine * margin.sin(), cosine)
        slope = torch.where(hard, margin.cos() + cosine * margin.sin() / sine, 1.0).mul_(cosine == block.pos)
        value, pos, neg = cross_entropy(s * target, s * block.neg, columns=block.columns)
        turn = sine * margin.cos() + cosine * margin.sin()  # sin(theta + m)
        by_norm = -s * pos * turn * rate * hard + self.lam * (1 / high.square() - 1 / a.square())
        value = value + self.lam * (a / high.square() + 1 / a)[:, 0]
        return Weighted(value, s * slope * pos, neg.mul_(s), norms=(by_norm * inside)[:, 0])
