"""Losses that weigh a pair relative to the other pairs of its query: log-sum-exp over a row.

Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
GPW: "Multi-Similarity Loss with General Pair Weighting" (Wang et al., CVPR 2019), and its supplement.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.errors import InputError
from nearfield.losses.parameters import Number, Params, Scale
from nearfield.losses.protocols import Idle, class_size
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, exp_, finite, log_sum_exp
from nearfield.pairs.mining import MultiSimilarityMiner


@register(
    "lifted",
    "Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016; Unbiased Evaluation Eq. 2",
    year=2016,
    claims=(Claim("cars196", "GoogLeNet", 49.2, "quoted in Unbiased Evaluation"),),
    space={"margin": Real(0.2, 2.0)},
    recipe=OptimizerConfig(name="sgd", lr=1e-4, head=10.0, weight_decay=2e-4),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            "value 4e-16, gradient 1e-15",
            "c55749b",
        ),
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 2e-15",
            "2.9.0",
        ),
    ),
)
class Lifted(PairLoss):
    """Lifted structure: each positive pair against all negatives of both of its ends.

        J_ij = log( sum_{k in N_i} exp(m - d_ik) + sum_{l in N_j} exp(m - d_jl) ) + d_ij
        L = 1/(2|P|) sum over unordered positive pairs of [J_ij]_+^2

    Embeddings are not normalised. With r_i = sum_{N_i} exp(m - d): dL/dd_ij = [J_ij]_+ / |P|, and for a negative
    dL/dd_ik = -exp(m - d_ik) 1/|P| sum_j [J_ij]_+ / (r_i + r_j); a first sweep collects log r. Half of dL/dd_ij belongs
    to S_ij and half to S_ji.
    """

    normalized = False
    own_batch = True
    measure = "euclidean"
    surveys = True
    reduction = "terms"

    def __init__(self, margin: Number = 1.0, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.margin = margin

    @staticmethod
    def check_together(params: Params) -> None:
        if params.get("miner") is not None:
            raise InputError("lifted counts a pair from both of its ends, of which a miner may keep one; remove miner.")

    def survey(self, block: Block) -> Tensor:
        return torch.logsumexp(-block.neg, 1) + self.margin  # log r, (B,)

    def weigh(self, block: Block) -> Weighted:
        log_r = block.survey[block.order]  # (B,)
        both = torch.logaddexp(log_r[:, None], block.survey[block.pos_index])  # (B, P)
        j = (both + block.pos).clamp(min=0)  # padding is -inf and becomes 0
        pull = (j * (log_r[:, None] - both).exp()).sum(1)
        share = exp_(self.margin - block.neg - log_r[:, None])
        return Weighted(j.square().sum(1) / 2, j, -2 * pull[:, None] * share, block.num_pos)


@register(
    "lifted_generalized",
    "GPW Eq. 6, after Song et al. 2016 and Hermans et al. 2017",
    year=2017,
    no_recipe="none is named here: GPW's Eq. 6 is a form of two older losses, trained by nobody as it is",
    space={"lam": Real(0.0, 2.0)},
    similarities="N",
    compared=(
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 6e-16, M times theirs",
            "2.9.0",
        ),
    ),
)
class LiftedGeneralized(PairLoss):
    """Lifted structure as the Multi-Similarity paper writes it: the whole positive set against the whole negative set.

        L = sum_i [ log sum_{k in P_i} exp(lam - S_ik) + log sum_{k in N_i} exp(S_ik) ]_+

    In an active row W+ = -softmax over P_i of -S and W- = softmax over N_i of S: the absolute weights of each side sum
    to 1. The paper's sum over y_k = y_i includes k = i; it is excluded here. The paper does not state lam; 1 is used.
    """

    reduction = "sum"

    def __init__(self, lam: Number = 1.0, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.lam = lam

    def weigh(self, block: Block) -> Weighted:
        pull, pull_share = log_sum_exp(self.lam - block.pos)
        push, push_share = log_sum_exp(block.neg)
        value = (pull + push).clamp(min=0)
        active = (value > 0).to(value.dtype)[:, None]
        return Weighted(value, -pull_share * active, push_share * active)


@register(
    "lifted_star",
    "GPW Eq. 16 (the ablation's LiftedStruct*)",
    year=2019,
    claims=(Claim("cars196", "BN-Inception-64", 69.7, "the Multi-Similarity paper, Table 2"),),
    space={"alpha": Real(0.5, 20.0, log=True), "beta": Real(10.0, 100.0, log=True)},
    presets={"code": {"beta": 40.0}},
    recipe=OptimizerConfig(name="adam", lr=1e-5, weight_decay=5e-4),
    compared=(
        (
            "bnu-wangxun/Deep_Metric",
            "with mining too: value 3e-15, gradient 2e-15, half of theirs",
            "4b8bb64",
        ),
    ),
)
class LiftedStar(PairLoss):
    """Lifted structure with two temperatures and no hinge.

        L = 1/M sum_i { 1/alpha log sum_{P_i} exp(-alpha S) + 1/beta log sum_{N_i} exp(beta S) }

    W+ = -softmax over P_i of -alpha S, W- = softmax over N_i of beta S, both over M.
    The authors' ablation code uses prefactors 2/alpha and 2/beta, and beta = 40 (preset "code" for the latter).
    """

    def __init__(self, alpha: Scale = 2.0, beta: Scale = 50.0, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.alpha, self.beta = alpha, beta

    def weigh(self, block: Block) -> Weighted:
        pull, pull_share = log_sum_exp(-self.alpha * block.pos)
        push, push_share = log_sum_exp(self.beta * block.neg)
        return Weighted(pull / self.alpha + push / self.beta, -pull_share, push_share)


@register(
    "bin_lifted",
    "GPW supplement Eq. 10 (the ablation's BinLifted)",
    year=2019,
    claims=(Claim("cars196", "BN-Inception-64", 70.4, "the Multi-Similarity paper, Table 2"),),
    space={"alpha": Real(0.5, 20.0, log=True), "beta": Real(10.0, 100.0, log=True), "lam": Real(0.0, 1.0)},
    similarities="SN",
    recipe=OptimizerConfig(name="adam", lr=1e-5, weight_decay=5e-4),
    uncompared="the authors' ablation code, bnu-wangxun/Deep_Metric (4b8bb64), does not have it",
)
class BinLifted(PairLoss):
    """The mean of binomial and lifted weights: half from the pair's own similarity, half from the other pairs'.

        W- = 1/2M (sigmoid(beta (S - lam)) + softmax over N_i of beta S),  W+ likewise with -alpha (S - lam)

    The value here is the integral of exactly these weights. Eq. 10 has no 1/|N_i| on the binomial part, unlike Eq. 10
    of the main paper: `binomial_norm="mean"` adds it. A side without pairs contributes nothing.
    """

    needs = "nothing"

    def __init__(
        self,
        alpha: Scale = 2.0,
        beta: Scale = 50.0,
        lam: Number = 0.5,
        binomial_norm: Literal["sum", "mean"] = "sum",
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.alpha, self.beta, self.lam, self.binomial_norm = alpha, beta, lam, binomial_norm

    def weigh(self, block: Block) -> Weighted:
        up, down = -self.alpha * (block.pos - self.lam), self.beta * (block.neg - self.lam)
        pull, pull_share = log_sum_exp(-self.alpha * block.pos)
        push, push_share = log_sum_exp(self.beta * block.neg)
        each_pos, each_neg = torch.ones_like(pull), torch.ones_like(push)
        if self.binomial_norm == "mean":
            each_pos, each_neg = 1 / block.num_pos.clamp(min=1), 1 / block.num_neg.clamp(min=1)
        value = (F.softplus(up).sum(1) * each_pos + pull) / self.alpha
        value = value + (F.softplus(down).sum(1) * each_neg + push) / self.beta
        pos = -(torch.sigmoid(up) * each_pos[:, None] + pull_share)
        neg = torch.sigmoid(down) * each_neg[:, None] + push_share
        return Weighted(value / 2, pos / 2, neg / 2)


@register(
    "multi_similarity",
    "Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019, Eqs. 11-15",
    year=2019,
    claims=(
        Claim("cub", "BN-Inception-64", 57.4),
        Claim("cars196", "BN-Inception-64", 77.3),
        Claim("sop", "BN-Inception-64", 74.1),
        Claim("cub", "BN-Inception-512", 65.7),
        Claim("cars196", "BN-Inception-512", 84.1),
        Claim("sop", "BN-Inception-512", 78.2),
        Claim("inshop", "BN-Inception-512", 89.7),
    ),
    space={
        "alpha": Real(0.5, 20.0, log=True),
        "beta": Real(10.0, 100.0, log=True),
        "lam": Real(0.0, 1.2),
        "eps": Real(0.0, 0.5),
    },
    presets={"paper": {"beta": 50.0, "lam": 1.0}, "code": {"beta": 40.0, "lam": 0.5}},
    plain={"method.params.mine": False},
    similarities="SPN",
    recipe=OptimizerConfig(name="adam", lr=3e-5, weight_decay=5e-4),
    compared=(
        (
            "msight-tech/research-ms-loss (MalongTech's)",
            "value 3e-16, gradient 1e-15",
            "8290973",
        ),
        (
            "bnu-wangxun/Deep_Metric, HardMining.py",
            "`weight=False`: value 4e-16, gradient 6e-16",
            "4b8bb64",
        ),
        (
            "pytorch-metric-learning",
            "with its miner and without: value 3e-16, gradient 2e-15",
            "2.9.0",
        ),
    ),
)
class MultiSimilarity(PairLoss):
    """Multi-Similarity: mine by relative similarity (P), then weigh by self-similarity (S) and other negatives' (N).

        mining  keep negative j iff S_ij > min_{P_i} S - eps, positive j iff S_ij < max_{N_i} S + eps   (Eqs. 11, 12)
        L = 1/M sum_i { 1/alpha log(1 + sum_{P*} exp(-alpha (S - lam))) + 1/beta log(1 + sum_{N*} exp(beta (S - lam))) }

    W- = exp(beta (S - lam)) / (1 + sum_{N*} ...) / M, W+ the mirror image (Eqs. 13, 14). `mine=False` leaves only the
    weighting, `weight=False` only the mining (mean of 1 - S over P* plus mean of S over N*). Queries without a positive
    or a negative, or with nothing mined, contribute 0; the divisor stays M.
    The paper states lam = 1, beta = 50, with which negatives have almost no weight; the released code uses lam = 0.5,
    beta = 40 (presets "paper", "code"); lam = 0.5, beta = 50, the default here, is what later libraries use.
    The released code removes self pairs by S < 1 - 1e-5, and duplicates with them; here they are removed by index.
    """

    def __init__(
        self,
        alpha: Scale = 2.0,
        beta: Scale = 50.0,
        lam: Number = 0.5,
        eps: Number = 0.1,
        mine: bool = True,
        weight: bool = True,
        **engine: Unpack[EngineOptions],
    ) -> None:
        if mine and engine.get("miner") is None:
            engine["miner"] = MultiSimilarityMiner(eps)
        super().__init__(**engine)
        self.alpha, self.beta, self.lam, self.weight = alpha, beta, lam, weight

    def weigh(self, block: Block) -> Weighted:
        if not self.weight:
            return self._mean(block)
        pull, pull_share = log_sum_exp(-self.alpha * (block.pos - self.lam), one=True)
        push, push_share = log_sum_exp(self.beta * (block.neg - self.lam), one=True)
        return Weighted(pull / self.alpha + push / self.beta, -pull_share, push_share)

    @staticmethod
    def _mean(block: Block) -> Weighted:
        pos, neg = block.pos_mask.to(block.pos.dtype), block.neg_mask.to(block.neg.dtype)
        pos, neg = pos / block.num_pos.clamp(min=1)[:, None], neg / block.num_neg.clamp(min=1)[:, None]
        pulled = torch.where(block.pos_mask, 1 - block.pos, 0.0)
        pushed = torch.where(block.neg_mask, block.neg, 0.0)
        return Weighted((pulled * pos).sum(1) + (pushed * neg).sum(1), -pos, neg)


@register(
    "circle",
    "Sun et al., Circle Loss, CVPR 2020",
    year=2020,
    no_recipe="none is named here: what was at hand of the publication gives scale, margin and batches only",
    space={"scale": Real(8.0, 512.0, log=True), "margin": Real(0.0, 0.5)},
    presets={"paper": {"scale": 256.0, "margin": 0.25}},
    compared=(
        (
            "pytorch-metric-learning",
            "value 3e-16, gradient 6e-10, as the gradient of torch's softplus is 1 above 20",
            "2.9.0",
        ),
    ),
)
class Circle(PairLoss):
    """Circle: every similarity is pulled towards its optimum, the more strongly the farther it is from it.

        L = mean_i softplus( log sum_{N_i} exp(s a_n (S - m)) + log sum_{P_i} exp(-s a_p (S - 1 + m)) )
        a_p = [1 + m - S]_+,  a_n = [S + m]_+   (weights, not differentiated)

    The paper uses s = 256, m = 0.25 for faces (preset "paper"); s = 80, m = 0.4 is its setting for retrieval.
    """

    constant_weights = True
    reduction = "usable"

    def __init__(self, scale: Scale = 80.0, margin: Number = 0.4, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.scale, self.margin = scale, margin

    def weigh(self, block: Block) -> Weighted:
        m = self.margin
        slope_p = self.scale * (1 + m - block.pos.clamp(max=1 + m))
        slope_n = (block.neg.clamp(min=-m) + m).mul_(self.scale)
        up = torch.where(block.pos_mask, -slope_p * (block.pos - (1 - m)), -torch.inf)
        near = finite(block.neg)
        down = (near - m).mul_(slope_n).add_(block.neg - near)  # non-negatives stay infinitely far: their slope is 0
        pull, pull_share = log_sum_exp(up)
        push, push_share = log_sum_exp(down)
        z = pull + push
        on = torch.sigmoid(z)[:, None]
        return Weighted(F.softplus(z), -on * slope_p * pull_share, slope_n.mul_(push_share).mul_(on))


@register(
    "nca",
    "Goldberger et al., Neighbourhood Components Analysis, 2004; GPW supplement Eq. 1",
    year=2004,
    no_recipe="published in 2004 for a linear map and full gradients, before networks were trained by it",
    space={"scale": Real(0.5, 64.0, log=True)},
    similarities="PN",
    compared=(
        (
            "pytorch-metric-learning",
            (
                "value 3e-16, gradient 7e-16; NCA.py of bnu-wangxun/Deep_Metric (4b8bb64) was not compared: it takes "
                "the least similar items for neighbours, and raises an error in current torch"
            ),
            "2.9.0",
        ),
    ),
)
class NCA(PairLoss):
    """Neighbourhood components: the probability that a soft nearest neighbour has the query's label.

        L = -sum_i log( sum_{k in P_i} exp(s S_ik) / sum_{k != i} exp(s S_ik) )

    W = s (softmax over all - softmax over P_i): the row sums to 0. The supplement of GPW omits the minus sign and the
    exclusion of k = i. Queries without a positive contribute nothing.
    """

    needs = "positive"

    def __init__(
        self, scale: Scale = 1.0, reduction: Literal["sum", "mean"] = "sum", **engine: Unpack[EngineOptions]
    ) -> None:
        super().__init__(**engine)
        self.scale = scale
        self.reduction = "sum" if reduction == "sum" else "usable"

    def weigh(self, block: Block) -> Weighted:
        up, down = self.scale * _hidden(block), self.scale * block.neg
        near, near_share = log_sum_exp(up)
        whole, up_share, down_share = log_sum_exp(up, down)
        return Weighted(whole - near, self.scale * (up_share - near_share), self.scale * down_share)


@register(
    "supcon",
    "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020 (L_out)",
    year=2020,
    space={"temperature": Real(0.02, 0.5, log=True)},
    plain={"method.params.temperature": 1.0},
    recipe=OptimizerConfig(name="sgd", lr=0.05, weight_decay=1e-4),
    compared=(
        (
            "HobbitLong/SupContrast",
            "value 5e-16, gradient 2e-15, theirs T / 0.07 times ours",
            "2728c67",
        ),
        (
            "pytorch-metric-learning",
            "value 5e-16, gradient 8e-16",
            "2.9.0",
        ),
    ),
)
class SupCon(PairLoss):
    """Supervised contrastive: each positive is classified against all other items.

    L = mean_i -1/|P_i| sum_{p in P_i} log( exp(S_ip / T) / sum_{k != i} exp(S_ik / T) )
    """

    needs = "positive"
    reduction = "usable"

    def __init__(self, temperature: Scale = 0.1, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.temperature = temperature

    def idle(self, labels: Tensor) -> Idle:
        return Idle("log_n", math.log(max(1.0, len(labels) - 1)))

    def weigh(self, block: Block) -> Weighted:
        t, each = self.temperature, 1 / block.num_pos.clamp(min=1)
        whole, up_share, down_share = log_sum_exp(_hidden(block) / t, block.neg / t)
        mean = torch.where(block.pos_mask, block.pos, 0.0).sum(1) * each
        target = block.pos_mask * each[:, None]
        return Weighted(whole - mean / t, (up_share - target) / t, down_share / t)


@register(
    "nt_xent",
    "Sohn 2016; Chen et al., SimCLR, ICML 2020, for labelled pairs",
    year=2020,
    no_recipe="published for contrastive training from scratch without labels (SimCLR: LARS), another task",
    space={"temperature": Real(0.02, 0.5, log=True)},
    plain={"method.params.temperature": 1.0},
    compared=(
        (
            "pytorch-metric-learning",
            "value 4e-16, gradient 7e-16",
            "2.9.0",
        ),
    ),
)
class NTXent(PairLoss):
    """Normalised temperature-scaled cross-entropy: each positive is classified against the negatives alone.

    L = mean over (i, p) of -log( exp(S_ip / T) / (exp(S_ip / T) + sum_{n in N_i} exp(S_in / T)) )
    """

    reduction = "terms"

    def __init__(self, temperature: Scale = 0.1, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.temperature = temperature

    def idle(self, labels: Tensor) -> Idle:
        return Idle("log_n", math.log(max(1.0, len(labels) - class_size(labels) + 1)))

    def weigh(self, block: Block) -> Weighted:
        t = self.temperature
        push, push_share = log_sum_exp(block.neg / t)
        gap = push[:, None] - block.pos / t  # (B, P); padding is -inf
        lost = torch.sigmoid(gap)
        return Weighted(F.softplus(gap).sum(1), -lost / t, push_share * (lost.sum(1, keepdim=True) / t), block.num_pos)


@register(
    "sincere",
    "Feeney and Hughes, SINCERE: Supervised Information Noise-Contrastive Estimation REvisited, 2023",
    year=2023,
    no_recipe="published for training from scratch on small images, another task",
    alias_of="nt_xent",
    similarities="PN",
    space={"temperature": Real(0.02, 0.5, log=True)},
    plain={"method.params.temperature": 1.0},
    compared=(
        (
            "tufts-ml/SupContrast, SINCERELoss",
            "classes of one size: value 3e-12, gradient 1e-15; with others theirs is a mean of means over queries",
            "0288eb2",
        ),
        (
            "pytorch-metric-learning",
            "NTXentLoss, classes of one size: value 3e-12, gradient 7e-16",
            "2.9.0",
        ),
    ),
)
class SINCERE(NTXent):
    """SINCERE: supervised InfoNCE whose denominator holds one positive and the negatives. The same as `nt_xent`.

    L = mean over (i, p) of -log( exp(S_ip / T) / (exp(S_ip / T) + sum_{n in N_i} exp(S_in / T)) )
    """


def _hidden(block: Block) -> Tensor:
    """Positives with padding at -inf, so that it adds 0 to a sum of exponentials, (B, P)."""
    return block.pos.masked_fill(~block.pos_mask, -torch.inf)
