"""Losses against learned proxies, one or more vectors for each class.

The proxies are the references, except in Proxy-Anchor, where they are the queries and the batch the references. Either
way the matrix between batch and proxies is streamed by blocks and never exists in full.

Axes: B queries of a block, C classes, D dims. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError, require_one_of, require_positive
from nearfield.losses.registry import Real, register
from nearfield.pairs import Block, EngineOptions, Held, PairLoss, Weighted, check_classes, finite, is_real, log_sum_exp
from nearfield.pairs.mining import uniforms


class ProxyOptions(EngineOptions, total=False):
    """Options that every proxy loss takes beside its own parameters."""

    sample: int | None
    sparse: bool


class ProxyLoss(PairLoss):
    """A pair loss with parameters of its own to compare with: `proxies` (C, D), a row for each class.

    For very many classes: with `sample`, a training step compares with the classes of the batch and random others, so
    many in all (Partial FC, An et al., CVPR 2022); with `sparse`, the gradient of the proxies is a sparse tensor of the
    rows compared with, and an optimiser for sparse gradients (SGD, SparseAdam) steps only those.
    """

    options: ClassVar[type] = ProxyOptions
    own_batch = True
    classes: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        centers: int = 1,
        *,
        sample: int | None = None,
        sparse: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        if num_classes < 1 or dim < 1:
            raise InputError(f"num_classes and dim must be at least 1; got {num_classes} and {dim}.")
        if centers < 1:
            raise InputError(f"centers must be at least 1 for each class; got {centers}.")
        if sample is not None and not 1 <= sample <= num_classes:
            raise InputError(f"sample must be from 1 to num_classes = {num_classes}, or None for all; got {sample}.")
        self.num_classes, self.centers, self.sample, self.sparse = num_classes, centers, sample, sparse
        self.proxies = nn.Parameter(torch.empty(num_classes * centers, dim))  # the centers of a class are neighbours
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")
        self.register_buffer("classes", torch.arange(num_classes).repeat_interleave(centers), persistent=False)

    def held(self, labels: Tensor) -> Held:
        check_classes(labels, self.num_classes)
        if self.sample is None or not self.training:
            every = torch.arange(len(self.proxies), device=labels.device)
            vectors = F.embedding(every, self.proxies, sparse=True) if self.sparse else self.proxies
            return Held(vectors, self.classes)
        chosen = self._choose(labels)  # (S,)
        rows = (chosen[:, None] * self.centers + torch.arange(self.centers, device=labels.device)).flatten()
        return Held(F.embedding(rows, self.proxies, sparse=self.sparse), self.classes[rows])

    def _choose(self, labels: Tensor) -> Tensor:
        """The classes of the batch and random others, ascending."""
        every = torch.arange(self.num_classes, device=labels.device)
        luck = uniforms(0, self.turn, every, 1)[:, 0]  # (C,)
        luck[labels] = 2.0
        count = max(self.sample or 0, int((luck == 2.0).sum()))
        return luck.topk(count).indices.sort().values


def cross_entropy(
    pos: Tensor, neg: Tensor, smoothing: float = 0.0, with_positive: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """-log softmax at the one positive of each row, (B,), and its derivatives; `pos` (B, 1) and `neg` are logits.

    With `smoothing` e the target is 1 - e + e/C at the positive and e/C elsewhere. Without `with_positive` the softmax
    is over the negatives alone.
    """
    if with_positive:
        whole, pos_share, neg_share = log_sum_exp(pos, neg)
    else:
        whole, neg_share = log_sum_exp(neg)
        pos_share = torch.zeros_like(pos)
    value, pos_share = whole - (1 - smoothing) * pos[:, 0], pos_share - (1 - smoothing)
    if smoothing:
        real = is_real(neg)
        aside = smoothing / (1 + real.sum(1, keepdim=True))  # (B, 1)
        everyone = pos[:, 0] + (finite(neg) * real).sum(1)
        value = value - aside[:, 0] * everyone
        pos_share, neg_share = pos_share - aside, neg_share - aside * real
    return value, pos_share, neg_share


@register(
    "proxy_triplet",
    "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017; DMLPlayground",
    space={"margin": Real(0.05, 2.0, log=True)},
    sampler="shuffle",
    recipe=OptimizerConfig(lr=1e-3, head=0.01, loss_lr=1e-3, weight_decay=5e-4, loss_eps=0.01),
)
class ProxyTriplet(ProxyLoss):
    """Triplets of an embedding, the proxy of its class and every other proxy.

        L = 1/M sum_i sum_{c != y_i} [ |x_i - p_y|^2 - |x_i - p_c|^2 + margin ]_+

    With unit vectors the bracket is 2 x.p_c - 2 x.p_y + margin: W = 2 for each active proxy, minus their sum for the
    own. The sum over classes is not divided by their number, so the gradient grows with it, as in the released code.
    """

    def __init__(self, num_classes: int, dim: int, margin: float = 1.0, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, dim, **options)
        self.margin = margin

    def weigh(self, block: Block) -> Weighted:
        gap = (2 * block.neg).sub_(2 * block.pos - self.margin).clamp_(min=0)
        value = gap.sum(1)
        active = gap.gt_(0).mul_(2)
        return Weighted(value, -active.sum(1, keepdim=True), active)


@register(
    "proxy_nca",
    "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017; Unbiased Evaluation Eq. 14",
    space={"scale": Real(1.0, 8.0, log=True)},
    presets={
        "probabilistic": {"form": "probabilistic"},
        "dichotomies": {"form": "probabilistic", "label_smoothing": 0.1},
        "dichotomies_sop": {"form": "probabilistic", "label_smoothing": 0.1, "scale": 1.0, "proxy_scale": 8.0},
        "proxynca_pp": {"form": "probabilistic"},
    },
    sampler="shuffle",
    recipe=OptimizerConfig(lr=4e-3, loss_lr=4e2, eps=1.0, loss_eps=1.0, weight_decay=0.0),
)
class ProxyNCA(ProxyLoss):
    """Neighbourhood components against proxies; without the scale it fails.

        D_c = |scale x_i - proxy_scale p_c|^2   (unit x and p; proxy_scale is the scale unless given)
        "strict"         L = 1/M sum_i { D_y + log sum_{c != y} exp(-D_c) }                   (Eq. 14; can be negative)
        "probabilistic"  L = 1/M sum_i -log softmax_c(-D_c) at c = y_i                        (ProxyNCA++, most ports)

    D_c = const - 2 scale proxy_scale cos: a softmax over cosines with temperature 1/(2 scale proxy_scale), 0.056 here
    and 0.5 unscaled, at which training stalls; the paper does not say so. "probabilistic" equals `proxy_softmax` with
    that temperature. DMLPlayground applies log-softmax to +D, so that its proxies point away from their class.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        scale: float = 3.0,
        proxy_scale: float | None = None,
        form: str = "strict",
        label_smoothing: float = 0.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        (self.scale,) = require_positive(scale=scale)
        (self.proxy_scale,) = require_positive(proxy_scale=scale if proxy_scale is None else proxy_scale)
        self.form = require_one_of("form", form, ("strict", "probabilistic"))
        self.label_smoothing = check_smoothing(label_smoothing)

    def weigh(self, block: Block) -> Weighted:
        s = 2 * self.scale * self.proxy_scale
        strict = self.form == "strict"
        value, pos, neg = cross_entropy(s * block.pos, s * block.neg, self.label_smoothing, with_positive=not strict)
        return Weighted(value, s * pos, neg.mul_(s))


@register(
    "proxy_softmax",
    "Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019",
    space={"temperature": Real(0.02, 0.2, log=True)},
    presets={
        "reality_check_cub": {"temperature": 0.1087},
        "reality_check_cars": {"temperature": 0.0886},
        "reality_check_sop": {"temperature": 0.0630},
        "unbiased_evaluation": {"label_smoothing": 0.1},
    },
    sampler="shuffle",
    recipe=OptimizerConfig(name="sgd", lr=1e-2, loss_lr=1e-2, weight_decay=1e-4),
)
class ProxySoftmax(ProxyLoss):
    """Normalised softmax: classify by cosine to a learned proxy, with a temperature.

        L = 1/M sum_i -log softmax_c(x_i . p_c / temperature) at c = y_i

    W = (softmax - target) / (temperature M); with `label_smoothing` e the target is 1 - e + e/C at y and e/C elsewhere.
    Without the temperature the softmax of cosines is nearly flat and the method fails. The paper's network ends in a
    layer norm without learned scale (`model.norm = "layer"`) and, with 2048 dims, no embedding layer at all; its binary
    variant keeps the sign of each dim and ranks by Hamming distance (`distance = "hamming"`), where ties are many:
    scores are expected values over their random orders. DMLPlayground applies log-softmax to 1 - cosine, so that its
    proxies point away from their class.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        temperature: float = 0.05,
        label_smoothing: float = 0.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, dim, **options)
        (self.temperature,) = require_positive(temperature=temperature)
        self.label_smoothing = check_smoothing(label_smoothing)

    def weigh(self, block: Block) -> Weighted:
        s = 1 / self.temperature
        value, pos, neg = cross_entropy(s * block.pos, s * block.neg, self.label_smoothing)
        return Weighted(value, s * pos, neg.mul_(s))


@register(
    "proxy_anchor",
    "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020",
    space={"alpha": Real(8.0, 64.0, log=True), "delta": Real(0.0, 0.3)},
    presets={"drml": {"alpha": 64.0, "delta": 0.2}},
    sampler="shuffle",
    recipe=OptimizerConfig(lr=1e-4, loss_lr=1e-2, weight_decay=1e-4),
)
class ProxyAnchor(ProxyLoss):
    """Each proxy is an anchor: it pulls its class and pushes the others, the hardest most.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x in X_p} exp(-alpha (s - delta)))
          + 1/|P|  sum_{p}       log(1 + sum_{x not in X_p} exp(alpha (s + delta))),   s = cos(x, p)

    P+ are the proxies of classes in the batch. W = -alpha e^{-alpha(s-delta)} / ((1 + sum) |P+|) for the positives of a
    proxy and alpha e^{alpha(s+delta)} / ((1 + sum) |P|) for the others. DRML's comparison gives its own variant
    alpha = 64 and delta = 0.2 (preset "drml") but the baseline 32 and 0.1.
    """

    needs = "nothing"
    reduction = "sum"

    def __init__(
        self, num_classes: int, dim: int, alpha: float = 32.0, delta: float = 0.1, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__(num_classes, dim, **options)
        (self.alpha,) = require_positive(alpha=alpha)
        self.delta = delta

    def held(self, labels: Tensor) -> Held:
        return super().held(labels)._replace(as_rows=True)

    def weigh(self, block: Block) -> Weighted:
        pull, pos = log_sum_exp(self.alpha * (self.delta - block.pos), one=True)
        push, neg = log_sum_exp((block.neg + self.delta).mul_(self.alpha), one=True)
        sampled = self.training and self.sample is not None
        proxies = block.present.clamp(min=float(self.sample or 0)) if sampled else self.num_classes
        value = pull / block.present + push / proxies
        return Weighted(value, pos.mul_(-self.alpha / block.present), neg.mul_(self.alpha / proxies))


def check_smoothing(label_smoothing: float) -> float:
    """`label_smoothing`, or InputError unless it is a share of the target."""
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing must be at least 0 and below 1; got {label_smoothing}.")
    return label_smoothing
