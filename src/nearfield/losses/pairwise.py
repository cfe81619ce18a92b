"""Losses that weigh every pair by its own similarity or distance; pairs share a normaliser at most.

Axes: B queries of a block, P positives, N references, R histogram nodes. See `nearfield.pairs` for what a block is.
GPW: "Multi-Similarity Loss with General Pair Weighting" (Wang et al., CVPR 2019), and its supplement.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Classes, Number, Params, Scale, Seed, Weight
from nearfield.losses.protocols import Idle, class_size
from nearfield.losses.registry import Claim, Real, Whole, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, check_classes, is_real, over_distance
from nearfield.pairs.mining import DistanceWeightedMiner, draw_by_distance


@register(
    "contrastive",
    "Hadsell et al., CVPR 2006; GPW Eq. 4; the hinge form as in Musgrave et al., A Metric Learning Reality Check, 2020",
    year=2006,
    space={"lam": Real(0.0, 1.0)},
    presets={
        "hadsell": {"form": "hadsell"},
        "reality_check": {"form": "hinge"},
        "reality_check_cub": {"form": "hinge", "pos_margin": 0.0, "neg_margin": 0.3841},
        "reality_check_cars": {"form": "hinge", "pos_margin": 0.2652, "neg_margin": 0.5409},
        "reality_check_sop": {"form": "hinge", "pos_margin": 0.2850, "neg_margin": 0.5130},
    },
    similarities="S",
    recipe=OptimizerConfig(name="adam", lr=1e-5, weight_decay=5e-4),
    compared=(
        (
            "bnu-wangxun/Deep_Metric",
            '"cosine": gradient 6e-16; its value has 1 more for each positive and lam more for each active negative',
            "4b8bb64",
        ),
        (
            "pytorch-metric-learning",
            '"hinge": value 4e-16, gradient 7e-16',
            "2.9.0",
        ),
    ),
)
class Contrastive(PairLoss):
    """Contrastive: pull every positive, push negatives that are nearer than a margin.

        "cosine"   1/M sum_i { sum_{N_i} [S - lam]_+ - sum_{P_i} S }                              (GPW Eq. 4)
        "hadsell"  1/M sum_i { sum_{P_i} d^2 + sum_{N_i} [neg_margin - d]_+^2 }
        "hinge"    mean over active positives of [d - pos_margin]_+ + mean over active negatives of [neg_margin - d]_+

    Eq. 4 is a plain sum; the authors' code divides by the batch size, and so does this. In the cosine form positives
    never stop pulling.
    """

    needs = "nothing"

    def __init__(
        self,
        lam: Number = 0.5,
        form: Literal["cosine", "hadsell", "hinge"] = "cosine",
        pos_margin: Number = 0.0,
        neg_margin: Number = 1.0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.lam, self.pos_margin, self.neg_margin = lam, pos_margin, neg_margin
        self.form = form
        self.measure = {"cosine": "dot", "hadsell": "sqeuclidean", "hinge": "euclidean"}[form]  # type: ignore[assignment]
        if form == "hinge":
            self.surveys, self.reduction = True, "sum"

    def idle(self, labels: Tensor) -> Idle:
        if self.form == "hinge":
            return Idle("margin", self.neg_margin)
        same = class_size(labels)
        push = self.neg_margin**2 if self.form == "hadsell" else max(0.0, 1 - self.lam)
        return Idle("margin", (len(labels) - same) * push - (same - 1) * (self.form == "cosine"))

    def survey(self, block: Block) -> Tensor:
        return count_active(block, self.pos_margin, self.neg_margin)

    def weigh(self, block: Block) -> Weighted:
        if self.form == "hinge":
            return mean_of_hinges(block, self.pos_margin, self.neg_margin)
        if self.form == "hadsell":
            d = block.neg.sqrt()
            gap = (self.neg_margin - d).clamp_(min=0)
            pulled = torch.where(block.pos_mask, block.pos, 0.0).sum(1)
            return Weighted(pulled + gap.square().sum(1), block.pos_mask.to(d.dtype), -over_distance(gap, d))
        gap = (block.neg - self.lam).clamp_(min=0)
        pulled = torch.where(block.pos_mask, block.pos, 0.0).sum(1)
        return Weighted(gap.sum(1) - pulled, -block.pos_mask.to(gap.dtype), gap.gt_(0))


@register(
    "snr",
    "Yuan et al., Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning, CVPR 2019",
    year=2019,
    space={"pos_margin": Real(0.0, 0.5), "neg_margin": Real(0.5, 1.5), "reg": Real(0.0, 0.5)},
    presets={
        "reality_check_cub": {"pos_margin": 0.3264, "neg_margin": 0.8446, "reg": 0.1382, "normalize": True},
        "reality_check_cars": {"pos_margin": 0.1670, "neg_margin": 0.9337, "normalize": True},
        "reality_check_sop": {"pos_margin": 0.3759, "neg_margin": 1.0831, "normalize": True},
    },
    recipe=OptimizerConfig(name="rmsprop", lr=1e-6, weight_decay=1e-4),
    compared=(
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 2e-15; the authors' code is not public",
            "2.9.0",
        ),
    ),
)
class SNR(PairLoss):
    """Contrastive hinge on the signal-to-noise distance of raw embeddings, or of unit vectors (`normalize`).

        d(i, j) = var(z_j - z_i) / var(z_i)   over the components; the query is the signal, so d is not symmetric
        L = mean over active positives of [d - pos_margin]_+ + mean over active negatives of [neg_margin - d]_+
            + reg mean_i |sum_d z_id|

    With centred vectors c this is |c_j - c_i|^2 / |c_i|^2, which needs only dot products; for centred unit vectors it
    is the squared Euclidean distance. The reality check normalised embeddings first, before distance and regulariser
    (presets). For triplets on this distance: `triplet(distance="snr", margin=0.2)`.
    """

    normalized = False
    needs = "nothing"
    measure = "snr"
    surveys = True
    reduction = "sum"

    def __init__(
        self,
        pos_margin: Number = 0.0,
        neg_margin: Number = 1.0,
        reg: Weight = 0.0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.pos_margin, self.neg_margin, self.reg = pos_margin, neg_margin, reg

    def idle(self, labels: Tensor) -> Idle:
        return Idle("margin", self.neg_margin)

    def survey(self, block: Block) -> Tensor:
        return count_active(block, self.pos_margin, self.neg_margin)

    def weigh(self, block: Block) -> Weighted:
        return mean_of_hinges(block, self.pos_margin, self.neg_margin)

    def penalty(self, queries: Tensor, references: Tensor) -> Tensor | None:
        if not self.reg:
            return None
        z = queries.to(torch.promote_types(queries.dtype, torch.float32))  # sums overflow in float16
        return self.reg * (F.normalize(z, dim=1) if self.normalize else z).sum(1).abs().mean()


def count_active(block: Block, pos_margin: float, neg_margin: float) -> Tensor:
    """How many positives are beyond, and negatives within, their margin, (B, 2)."""
    return torch.stack([(block.pos - pos_margin).gt_(0).sum(1), (neg_margin - block.neg).gt_(0).sum(1)], 1)


def mean_of_hinges(block: Block, pos_margin: float, neg_margin: float) -> Weighted:
    """Hinges on a distance, positives and negatives divided by the number of active ones of all blocks."""
    far, near = (block.pos - pos_margin).clamp_(min=0), (neg_margin - block.neg).clamp_(min=0)
    each_pos, each_neg = 1 / block.survey.sum(0).clamp(min=1)
    value = far.sum(1) * each_pos + near.sum(1) * each_neg
    return Weighted(value, far.gt_(0).mul_(each_pos), near.gt_(0).mul_(-each_neg))


@register(
    "margin",
    "Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017",
    year=2017,
    claims=(Claim("cars196", "R50-128", 79.6, "quoted in Unbiased Evaluation"),),
    space={"alpha": Real(0.02, 0.5, log=True), "beta": Real(0.5, 1.5)},
    presets={
        "reality_check_cub": {"alpha": 0.0878, "beta": 0.7838, "per_class": False},
        "reality_check_cars": {"alpha": 0.0781, "beta": 1.3164, "per_class": False},
        "reality_check_sop": {"alpha": 0.0915, "beta": 1.1072, "per_class": False},
        "reality_check_cub_per_class": {"alpha": 0.0779, "beta": 0.9796},
        "reality_check_cars_per_class": {"alpha": 0.0776, "beta": 0.9598},
        "reality_check_sop_per_class": {"alpha": 0.0518, "beta": 0.8424},
    },
    recipe=OptimizerConfig(name="adam", lr=1e-6, head=100.0, loss_lr=0.1, weight_decay=1e-4),
    compared=(
        (
            "apache/mxnet, example/gluon/embedding_learning",
            (
                "on its own draws: value 3e-8, gradient 7e-9, as it adds 1e-8 to squared distances, that of beta "
                "2e-16; how often ours draws each negative is within 3.5 standard errors of its weights, in 590 cells"
            ),
            "4957c7c",
        ),
        (
            "pytorch-metric-learning",
            "on the triplets that were drawn: value 4e-16, gradient 6e-16, that of beta too",
            "2.9.0",
        ),
    ),
)
class Margin(PairLoss):
    """Margin loss with distance-weighted sampling: a learned boundary beta between near and far.

        L = sum ( positives [d - beta + alpha]_+ , sampled negatives [beta - d + alpha]_+ ) / number of active pairs

    beta is learned, and belongs to the class of the query or is one for all (`per_class=False`, or no `num_classes`):
    dL/dbeta is -1 for each active positive and +1 for each active negative. Every positive is used; for each, one
    negative is drawn with probability inverse to the density of its distance
    (`nearfield.pairs.mining.draw_by_distance`). A query without a negative nearer than `upper` draws none, or uses its
    nearest with `fallback="nearest"`.
    DMLPlayground indexes beta by the position in the batch and other ports never train it; the MXNet original indexes
    it by label, as here, and draws at random among all items for a query without such a negative. Ports that omit the
    upper cut-off mostly draw far negatives, which have no gradient.
    """

    measure = "euclidean"
    needs = "nothing"
    reduction = "terms"

    def __init__(
        self,
        num_classes: Classes | None = None,
        alpha: Number = 0.2,
        beta: Number = 1.2,
        per_class: bool = True,
        cutoff: Annotated[float, Field(ge=1e-6, le=2)] = 0.5,
        upper: Weight = 1.4,
        fallback: Literal["drop", "nearest"] = "drop",
        seed: Seed = 0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.alpha, self.cutoff, self.upper, self.fallback, self.seed = alpha, cutoff, upper, fallback, seed
        betas = self.learned_numbers({"num_classes": num_classes, "per_class": per_class})
        self.beta = nn.Parameter(torch.full((betas,), beta))

    @staticmethod
    def learned_numbers(params: Params) -> int:
        return params["num_classes"] or 1 if params["per_class"] else 1

    def pair_parameters(self) -> tuple[nn.Parameter, ...]:
        return (self.beta,)

    def held(self, labels: Tensor) -> None:
        if len(self.beta) > 1:
            check_classes(labels, len(self.beta))

    def weigh(self, block: Block) -> Weighted:
        beta_of = block.labels if len(self.beta) > 1 else torch.zeros_like(block.labels)
        beta = self.beta.detach().to(block.pos.dtype)[beta_of, None]  # (B, 1)
        drawn, real = draw_by_distance(block.neg, block, DistanceWeightedMiner(self.cutoff, self.upper, self.seed))
        if self.fallback == "nearest":
            drawn = torch.where(real, drawn, block.neg.argmin(1, keepdim=True))
            real = block.pos_mask & (block.num_neg > 0)[:, None]
        far = (block.pos - beta + self.alpha).clamp_(min=0)
        near = (beta - block.neg.gather(1, drawn) + self.alpha).clamp_(min=0) * real
        on_pos, on_neg = (far > 0).to(far.dtype), (near > 0).to(far.dtype)
        terms = on_pos.sum(1) + on_neg.sum(1)
        tilt = torch.zeros_like(self.beta).index_add_(0, beta_of, (on_neg.sum(1) - on_pos.sum(1)).to(self.beta.dtype))
        neg = torch.zeros_like(block.neg).scatter_add_(1, drawn, -on_neg)
        return Weighted(far.sum(1) + near.sum(1), on_pos, neg, terms, (tilt,))


@register(
    "binomial",
    "Yi et al., Deep Metric Learning for Practical Person Re-Identification, 2014; GPW Eq. 9",
    year=2014,
    claims=(Claim("cars196", "BN-Inception-64", 71.9, "the Multi-Similarity paper, Table 2"),),
    space={"alpha": Real(0.5, 20.0, log=True), "beta": Real(10.0, 100.0, log=True), "lam": Real(0.0, 1.0)},
    presets={"code": {"beta": 40.0, "reduction": "mean"}},
    similarities="S",
    recipe=OptimizerConfig(name="adam", lr=1e-5, weight_decay=5e-4),
    compared=(
        (
            "bnu-wangxun/Deep_Metric",
            (
                'preset "code": value 5e-16, gradient 3e-15; with mining, where its factors 2/alpha and 2/beta are 1, '
                "5e-16 and 7e-16; it drops self pairs by S < 1, so lengths were rounded up to 1"
            ),
            "4b8bb64",
        ),
    ),
)
class Binomial(PairLoss):
    """Binomial deviance: a soft hinge on every pair, mean over the positives and over the negatives of a query.

        L = sum_i { 1/|P_i| sum_{P_i} log(1 + exp(alpha (lam - S))) + 1/|N_i| sum_{N_i} log(1 + exp(beta (S - lam))) }

    W+ = -alpha/|P_i| sigmoid(alpha (lam - S)), W- = beta/|N_i| sigmoid(beta (S - lam)). The paper sums over i; the
    authors' code divides by the batch size and uses beta = 40 (preset "code").
    """

    needs = "nothing"

    def __init__(
        self,
        alpha: Scale = 2.0,
        beta: Scale = 50.0,
        lam: Number = 0.5,
        reduction: Literal["sum", "mean"] = "sum",
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.alpha, self.beta, self.lam = alpha, beta, lam
        self.reduction = "sum" if reduction == "sum" else "batch"

    def weigh(self, block: Block) -> Weighted:
        up, down = self.alpha * (self.lam - block.pos), self.beta * (block.neg - self.lam)
        each_pos, each_neg = 1 / block.num_pos.clamp(min=1), 1 / block.num_neg.clamp(min=1)
        value = F.softplus(up).sum(1) * each_pos + F.softplus(down).sum(1) * each_neg
        pos = torch.sigmoid(up) * (-self.alpha * each_pos[:, None])
        return Weighted(value, pos, torch.sigmoid(down) * (self.beta * each_neg[:, None]))


@register(
    "histogram",
    "Ustinova and Lempitsky, Learning Deep Embeddings with Histogram Loss, NeurIPS 2016; GPW supplement Eq. 9",
    year=2016,
    no_recipe="none is named here: GPW's supplement, whose form this is, compares it in its own setting",
    space={"nodes": Whole(11, 401, log=True)},
    presets={"revisiting": {"nodes": 65}, "paper": {"nodes": 201}},
    similarities="P",
    compared=(
        (
            "valerystrizh/pytorch-histogram-loss",
            "65, 101, 151 and 201 nodes: value 3e-14, gradient 3e-14",
            "0318337",
        ),
        (
            "pytorch-metric-learning",
            "value 8e-15, gradient 2e-14; in float32 bins, its default, the value 1e-5",
            "2.9.0",
        ),
    ),
)
class Histogram(PairLoss):
    """Histogram: the probability that a random negative pair is more similar than a random positive pair.

        L = sum_r h-_r sum_{q <= r} h+_q,   h: soft histograms of S over R nodes on [-1, 1], each summing to 1

    For S between nodes t_p and t_{p+1}: W+ = -h-_p / (delta |S+|), W- = h+_{p+1} / (delta |S-|). The histograms are
    those of the whole batch, so a first sweep collects them. The supplement of GPW is off by one: it numbers the nodes
    from 1.
    """

    needs = "nothing"
    surveys = True
    reduction = "sum"

    def __init__(self, nodes: Annotated[int, Field(ge=2, le=10**6)] = 101, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.nodes = nodes

    def survey(self, block: Block) -> Tensor:
        pos = self._counts(block.pos, block.num_pos, self.nodes - 1)  # padding falls on the last node
        neg = self._counts(block.neg, block.num_neg, 0)  # non-negatives fall on the first
        return torch.stack([pos, neg])

    def gather_survey(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).sum(0)  # (2, R)

    def weigh(self, block: Block) -> Weighted:
        totals = block.survey.sum(1, keepdim=True)  # (2, 1) number of positive and of negative pairs
        totals = totals + (totals == 0)  # without any of either, all below is 0
        h_pos, h_neg = block.survey / totals  # (R,)
        delta = 2 / (self.nodes - 1)
        pull, push = -h_neg[:-1] / (delta * totals[0]), h_pos[1:] / (delta * totals[1])  # (R - 1,) for each interval
        value = torch.dot(h_neg, h_pos.cumsum(0)) * (block.order == 0)  # one value for the batch, in its first row
        return Weighted(value, self._look_up(pull, block.pos), self._look_up(push, block.neg))

    def _place(self, s: Tensor) -> Tensor:
        """Position of a similarity among the nodes, 0 ... R - 1."""
        return (s + 1).mul_((self.nodes - 1) / 2).clamp_(0, self.nodes - 1)

    def _look_up(self, table: Tensor, s: Tensor) -> Tensor:
        """The entry of `table` for the interval of each similarity; 0 for entries that are not pairs."""
        place = self._place(s).clamp_(max=self.nodes - 2).nan_to_num_().long()
        return table.expand(len(s), -1).gather(1, place).mul_(is_real(s))

    def _counts(self, s: Tensor, real: Tensor, others: int) -> Tensor:
        """Soft counts at each node, (R,): two nodes share an entry. Entries that are no pairs fell on `others`."""
        place = self._place(s).flatten()
        left = (
            place.nan_to_num().long().clamp_(max=self.nodes - 2)
        )  # a valid index even for NaN, which stays in the share
        right_share = place - left
        on_right = right_share.new_zeros(self.nodes).scatter_add_(0, left, right_share)
        counts = s.new_zeros(self.nodes).scatter_add_(0, left, torch.ones_like(place)) - on_right + on_right.roll(1)
        counts[others] -= s.numel() - real.sum()
        return counts.clamp(min=0)
