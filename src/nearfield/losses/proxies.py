"""Losses against learned proxies, one or more vectors for each class.

The proxies are the references, except in Proxy-Anchor, where they are the queries and the batch the references. The
matrix between batch and proxies is streamed by blocks and never exists in full.

Axes: B queries of a block, C classes, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Classes, Dim, Number, Scale, Share
from nearfield.losses.protocols import Idle
from nearfield.losses.proxy_loss import ProxyLoss, ProxyOptions, Smoothed, cross_entropy
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, Held, Weighted, log_sum_exp


@register(
    "proxy_triplet",
    "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017; DMLPlayground",
    year=2017,
    claims=(Claim("cars196", "", 55.9, "quoted in Unbiased Evaluation"),),
    space={"margin": Real(0.05, 2.0, log=True)},
    sampler="shuffle",
    recipe=OptimizerConfig(lr=1e-3, head=0.01, loss_lr=1e-3, weight_decay=5e-4, loss_eps=0.01),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            "value 2e-12, gradient 1e-11, that of the proxies 2e-11: MXNet adds 1e-10 to squared norms",
            "c55749b",
        ),
    ),
)
class ProxyTriplet(ProxyLoss):
    """Triplets of an embedding, the proxy of its class and every other proxy.

        L = 1/M sum_i sum_{c != y_i} [ |x_i - p_y|^2 - |x_i - p_c|^2 + margin ]_+

    With unit vectors the bracket is 2 x.p_c - 2 x.p_y + margin: W = 2 for each active proxy, and minus the sum of these
    for the proxy of the own class. The sum over classes is not divided by their number, so the gradient grows with it,
    as in the released code.
    """

    combines_columns = True

    def __init__(self, num_classes: Classes, dim: Dim, margin: Number = 1.0, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, dim, **options)
        self.margin = margin

    def weigh(self, block: Block) -> Weighted:
        gap = (2 * block.neg).sub_(2 * block.pos - self.margin).clamp_(min=0)
        value = block.columns.total(gap.sum(1))
        active = gap.gt_(0).mul_(2)
        return Weighted(value, -block.columns.total(active.sum(1, keepdim=True)), active)


@register(
    "proxy_nca",
    "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017; Unbiased Evaluation Eq. 14",
    year=2017,
    claims=(
        Claim("cars196", "BN-Inception-64", 73.2, "quoted in Unbiased Evaluation"),
        Claim("cub", "BN-Inception-64", 52.6, "README of dichotomies/proxy-nca"),
        Claim("cars196", "BN-Inception-64", 72.2, "README of dichotomies/proxy-nca"),
        Claim("sop", "BN-Inception-64", 74.1, "README of dichotomies/proxy-nca"),
    ),
    space={"scale": Real(0.5, 16.0, log=True)},
    presets={
        "probabilistic": {"form": "probabilistic"},
        "dichotomies": {"form": "probabilistic", "label_smoothing": 0.1, "smooth_over": "others"},
        "dichotomies_sop": {
            "form": "probabilistic",
            "label_smoothing": 0.1,
            "smooth_over": "others",
            "scale": 1.0,
            "proxy_scale": 8.0,
        },
        "proxynca_pp": {"form": "probabilistic"},
    },
    plain={"method.params.scale": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(lr=4e-3, loss_lr=4e2, eps=1.0, loss_eps=1.0, weight_decay=0.0),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            (
                "strict form, and its form on +D with negated proxies, with label smoothing too: value 3e-16, "
                "gradient 2e-15, that of the proxies too"
            ),
            "c55749b",
        ),
        (
            "dichotomies/proxy-nca",
            (
                'presets "dichotomies" and "dichotomies_sop": value 2e-15, gradient 2e-14, that of the proxies too; '
                "3e-8 with its targets in float32"
            ),
            "dea464b",
        ),
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 2e-15, that of the proxies too",
            "2.9.0",
        ),
    ),
)
class ProxyNCA(ProxyLoss):
    """Neighbourhood components analysis against proxies; it needs the scale to train at all.

        D_c = |scale x_i - proxy_scale p_c|^2   (unit x and p; proxy_scale is the scale unless given)
        "strict"         L = 1/M sum_i { D_y + log sum_{c != y} exp(-D_c) }                   (Eq. 14; can be negative)
        "probabilistic"  L = 1/M sum_i -log softmax_c(-D_c) at c = y_i                        (ProxyNCA++, most ports)

    D_c = const - 2 scale proxy_scale cos: a softmax over cosines with temperature 1/(2 scale proxy_scale), 0.056 here.
    Unscaled it is 0.5, at which training stalls; the paper does not mention a scale. "probabilistic" equals
    `proxy_softmax` with that temperature. DMLPlayground applies log-softmax to +D, so that its proxies point away from
    their class. `label_smoothing` is as in `proxy_softmax`; dichotomies/proxy-nca spreads it over the other classes.
    """

    combines_columns = True

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        scale: Scale = 3.0,
        proxy_scale: Scale | None = None,
        form: Literal["strict", "probabilistic"] = "strict",
        label_smoothing: Share = 0.0,
        smooth_over: Smoothed = "all",
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.scale, self.proxy_scale = scale, scale if proxy_scale is None else proxy_scale
        self.form, self.label_smoothing, self.smooth_over = form, label_smoothing, smooth_over

    def idle(self, labels: Tensor) -> Idle:
        return Idle("log_n", math.log(max(1, self.choices(labels) - (self.form == "strict"))))

    def weigh(self, block: Block) -> Weighted:
        s = 2 * self.scale * self.proxy_scale
        smoothing = self.label_smoothing, self.form != "strict", self.smooth_over
        value, pos, neg = cross_entropy(s * block.pos, s * block.neg, *smoothing, columns=block.columns)
        return Weighted(value, s * pos, neg.mul_(s))


@register(
    "proxy_softmax",
    "Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019",
    year=2019,
    claims=(
        Claim("cars196", "", 81.7, "quoted in Unbiased Evaluation"),
        Claim("cub", "R50-2048", 65.4, "README of the release"),
        Claim("cars196", "R50-2048", 89.5, "README of the release"),
        Claim("sop", "R50-2048", 79.6, "README of the release"),
        Claim("inshop", "R50-2048", 89.4, "README of the release"),
    ),
    space={"temperature": Real(0.01, 0.5, log=True)},
    presets={
        "reality_check_cub": {"temperature": 0.1087},
        "reality_check_cars": {"temperature": 0.0886},
        "reality_check_sop": {"temperature": 0.0630},
        "unbiased_evaluation": {"label_smoothing": 0.1, "smooth_over": "others"},
    },
    plain={"method.params.temperature": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(name="sgd", lr=1e-2, loss_lr=1e-2, weight_decay=1e-4),
    compared=(
        (
            "azgo14/classification_metric_learning",
            "value 3e-16, gradient 6e-16, that of the proxies too",
            "47ec269",
        ),
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            "negated proxies, with label smoothing too: value 3e-16, gradient 2e-15, that of the proxies too",
            "c55749b",
        ),
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 2e-15, that of the proxies too",
            "2.9.0",
        ),
    ),
)
class ProxySoftmax(ProxyLoss):
    """Normalised softmax: classify by cosine to a learned proxy, with a temperature.

        L = 1/M sum_i -log softmax_c(x_i . p_c / temperature) at c = y_i

    W = (softmax - target) / (temperature M); with `label_smoothing` e the target is 1 - e + e/C at y and e/C elsewhere,
    or, with `smooth_over="others"` as in DMLPlayground, 1 - e and e/(C - 1).
    Without the temperature the softmax of cosines is nearly uniform and training fails. The paper's network ends in a
    layer norm without learned scale (`model.norm = "layer"`) and, with 2048 dims, has no embedding layer; its binary
    variant keeps the sign of each dim and ranks by Hamming distance (`distance = "hamming"`), which has many ties:
    scores are expected values over random orders of tied items. DMLPlayground applies log-softmax to 1 - cosine, so
    that its proxies point away from their class.
    """

    combines_columns = True

    def __init__(
        self,
        num_classes: Classes,
        dim: Dim,
        temperature: Scale = 0.05,
        label_smoothing: Share = 0.0,
        smooth_over: Smoothed = "all",
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.temperature, self.label_smoothing, self.smooth_over = temperature, label_smoothing, smooth_over

    def idle(self, labels: Tensor) -> Idle:
        return Idle("log_n", math.log(self.choices(labels)))

    def weigh(self, block: Block) -> Weighted:
        s = 1 / self.temperature
        value, pos, neg = cross_entropy(
            s * block.pos, s * block.neg, self.label_smoothing, over=self.smooth_over, columns=block.columns
        )
        return Weighted(value, s * pos, neg.mul_(s))


@register(
    "proxy_anchor",
    "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020",
    year=2020,
    claims=(
        Claim("cub", "BN-Inception-512", 69.1, "README of the release"),
        Claim("cars196", "BN-Inception-512", 86.4, "README of the release"),
        Claim("sop", "BN-Inception-512", 79.2, "README of the release"),
        Claim("inshop", "BN-Inception-512", 91.9, "README of the release"),
    ),
    space={"alpha": Real(4.0, 256.0, log=True), "delta": Real(0.0, 0.3)},
    presets={"drml": {"alpha": 64.0, "delta": 0.2}},
    plain={"method.params.alpha": 1.0},
    sampler="shuffle",
    recipe=OptimizerConfig(lr=1e-4, loss_lr=1e-2, weight_decay=1e-4),
    compared=(
        (
            "tjddus9597/Proxy-Anchor-CVPR2020",
            "value 6e-14, gradient 5e-13, that of the proxies too: it adds 1e-12 to squared norms",
            "952c5af",
        ),
        (
            "zbr17/GeDML",
            "value 3e-16, gradient 2e-15, that of the proxies too",
            "0.2.2",
        ),
        (
            "pytorch-metric-learning",
            "value 3e-16, gradient 3e-15, that of the proxies too",
            "2.9.0",
        ),
    ),
)
class ProxyAnchor(ProxyLoss):
    """Each proxy is an anchor: it pulls its class and pushes the others, the hardest most.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x in X_p} exp(-alpha (s - delta)))
          + 1/|P|  sum_{p}       log(1 + sum_{x not in X_p} exp(alpha (s + delta))),   s = cos(x, p)

    P+ are the proxies of classes in the batch. W = -alpha e^{-alpha(s-delta)} / ((1 + sum) |P+|) for the positives of a
    proxy and alpha e^{alpha(s+delta)} / ((1 + sum) |P|) for the others. The DRML paper trains its own variant with
    alpha = 64 and delta = 0.2 (preset "drml"), but its baseline with 32 and 0.1.
    """

    needs = "nothing"
    reduction = "sum"

    def __init__(
        self, num_classes: Classes, dim: Dim, alpha: Scale = 32.0, delta: Number = 0.1, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__(num_classes, dim, **options)
        self.alpha, self.delta = alpha, delta

    def held(self, labels: Tensor) -> Held:
        return super().held(labels)._replace(as_rows=True)

    def weigh(self, block: Block) -> Weighted:
        pull, pos = log_sum_exp(self.alpha * (self.delta - block.pos), one=True)
        push, neg = log_sum_exp((block.neg + self.delta).mul_(self.alpha), one=True)
        sampled = self.training and self.sample is not None
        proxies = block.present.clamp(min=float(self.sample or 0)) if sampled else self.num_classes
        value = pull / block.present + push / proxies
        return Weighted(value, pos.mul_(-self.alpha / block.present), neg.mul_(self.alpha / proxies))
