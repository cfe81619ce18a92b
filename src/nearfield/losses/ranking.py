"""Losses on the ranking that a query induces: average precision and its relatives.

Axes: B queries of a block, P positives, N references, L bins. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Number, Scale, Weight
from nearfield.losses.registry import Claim, Real, Whole, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, is_real, log_mask, log_sum_exp


@register(
    "fastap",
    "Cakir et al., Deep Metric Learning to Rank, CVPR 2019, Eqs. 9-16, corrected by the supplement's Eqs. 21-25",
    year=2019,
    claims=(
        Claim("sop", "R18-512", 73.2),
        Claim("sop", "R50-512", 76.4),
        Claim("sop", "GoogLeNet-512", 72.7),
        Claim("inshop", "R18-512", 89.0),
        Claim("inshop", "R50-512", 90.9),
        Claim("inshop", "GoogLeNet-512", 88.9),
    ),
    space={"bins": Whole(5, 40, log=True)},
    presets={
        "reality_check_cub": {"bins": 17},
        "reality_check_cars": {"bins": 27},
        "reality_check_sop": {"bins": 16},
    },
    plain={"sampler.name": "m_per_class"},
    sampler="fastap",
    recipe=OptimizerConfig(name="adam", lr=1e-5, head=10.0, weight_decay=0.0),
    compared=(
        (
            "kunhe/FastAP-metric-learning, PyTorch",
            (
                "5, 10 and 20 bins: value 7e-15, gradient 9e-15, theirs M/2 times ours; in float32, as it is written, "
                "3e-6 and 2e-6; its MATLAB code (f93c4d7) cannot run as released: FastAP.m sums over N_neg, which it "
                "never sets"
            ),
            "ee55b45",
        ),
        (
            "pytorch-metric-learning",
            "value 7e-16, gradient 1e-14",
            "2.9.0",
        ),
    ),
)
class FastAP(PairLoss):
    """FastAP: average precision of each query's ranking, from soft histograms of its squared distances z = 2 - 2 S.

        nodes c_l = l delta, l = 0..L, delta = 4/L;  h_l = sum_j max(0, 1 - |z_j - c_l| / delta);  H cumulative
        FastAP_i = 1/|P_i| sum_l H+_l h+_l / H_l,    L = 1 - mean over queries with a positive of FastAP_i

    For z between c_l and c_{l+1} all negatives of the interval have one derivative and all its positives another, so W
    is a table look-up (the supplement's form needs L matrix products):
        negatives  dFastAP/dz = H+_l h+_l / (delta |P| H_l^2)
        positives  dFastAP/dz = [H+_{l+1}/H_{l+1} - H+_l/H_l - h+_l H-_l / H_l^2] / (delta |P|)
    The latter can be positive: moving a positive away into a bin with fewer negatives may raise FastAP. Eq. 16 of the
    paper differs from the correct derivative; the released PyTorch backward ignores grad_output and is M/2 times too
    large.
    """

    needs = "positive"
    reduction = "usable"

    def __init__(self, bins: Annotated[int, Field(ge=1, le=10**4)] = 10, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.bins = bins

    def weigh(self, block: Block) -> Weighted:
        each = 1 / block.num_pos.clamp(min=1)[:, None]  # (B, 1)
        absent = block.pos.masked_fill(~block.pos_mask, -torch.inf)  # padding is treated like removed negatives
        x_pos, x_neg = self._in_bins(absent), self._in_bins(block.neg)
        pos_upto = self._cumulative(x_pos, block.num_pos)  # H+, (B, L + 1)
        neg_upto = self._cumulative(x_neg, block.num_neg)  # H-
        pos_at = pos_upto.diff(dim=1, prepend=torch.zeros_like(each))  # h+
        whole = (pos_upto + neg_upto).clamp(
            min=torch.finfo(each.dtype).tiny
        )  # H; 0/H is 0 in bins before the first item
        precision = pos_upto / whole
        value = 1 - (precision * pos_at).sum(1) * each[:, 0]
        slope = each * (self.bins / 4)
        push = precision * pos_at / whole * slope
        squared = whole.square().clamp(min=torch.finfo(each.dtype).tiny)  # 0/H^2 is 0 there too
        pull = (precision.diff(dim=1, append=each * 0) - pos_at * neg_upto / squared) * slope
        return Weighted(value, _look_up(2 * pull[:, :-1], x_pos), _look_up(2 * push[:, :-1], x_neg))

    def _in_bins(self, s: Tensor) -> Tensor:
        """Squared distance in units of a bin, 0 ... L; L + 1 for entries that are not pairs."""
        x = (1 - s).mul_(self.bins / 2).clamp_(0, self.bins)
        return x.add_(1 - is_real(s))

    def _cumulative(self, x: Tensor, number: Tensor) -> Tensor:
        """H_l = sum_j min(1, max(0, l + 1 - x_j)) for l = 0..L: the soft number of items up to bin l, (B, L + 1)."""
        upto = [(edge - x).clamp_(0, 1).sum(1) for edge in range(1, self.bins + 1)]
        return torch.stack([*upto, number], 1)


def _look_up(table: Tensor, x: Tensor) -> Tensor:
    """table[row, floor(x)] for 0 <= x <= L (the last interval is closed), 0 at L + 1, (B, N); overwrites NaN in x."""
    padded = torch.cat([table, table[:, -1:], torch.zeros_like(table[:, :1])], 1)
    return padded.gather(1, x.nan_to_num_().long())


@register(
    "smooth_ap",
    "Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020",
    year=2020,
    space={"temperature": Real(0.002, 0.1, log=True)},
    presets={"released": {"count_query": True}},
    recipe=OptimizerConfig(name="adam", lr=1e-5, head=5.0, weight_decay=4e-4),
    compared=(
        (
            "Andrew-Brown1/Smooth_AP",
            'preset "released": value 9e-16, gradient 2e-15',
            "96f3625",
        ),
        (
            "youngjaean/ROADMAP (a fork of elias-ramzi's)",
            "SmoothAP with the query left out of its matrix: value 2e-15, gradient 7e-15",
            "5b6f46f",
        ),
    ),
)
class SmoothAP(PairLoss):
    """Smooth-AP: average precision with the step in each rank replaced by a sigmoid.

        AP_i = 1/|P_i| sum_p (1 + sum_{k in P_i, k != p} g_kp) / (1 + sum_{k in P_i or N_i, k != p} g_kp)
        g_kp = sigmoid((S_ik - S_ip) / T),     L = 1 - mean over queries with a positive of AP_i

    The cost grows with the number of positives: one pass over the row for each. The paper ranks the rest of the batch;
    the released code keeps the query among its own positives, ranked first (`count_query`).
    """

    needs = "positive"
    reduction = "usable"

    def __init__(self, temperature: Scale = 0.01, count_query: bool = False, **engine: Unpack[EngineOptions]) -> None:
        super().__init__(**engine)
        self.temperature, self.shows_self = temperature, count_query

    def weigh(self, block: Block) -> Weighted:
        t, real = self.temperature, block.pos_mask
        s = torch.where(real, block.pos, 0.0)
        each = 1 / real.sum(1).clamp(min=1).to(s.dtype)  # (B,)
        ap, pos, neg = torch.zeros_like(each), torch.zeros_like(s), torch.zeros_like(block.neg)
        z_neg = block.neg / t
        for p in range(s.shape[1]):
            others = real.clone()
            others[:, p] = False
            own = s[:, p : p + 1]
            g_pos = torch.sigmoid((s - own) / t) * others  # (B, P)
            g_neg = (z_neg - own / t).sigmoid_()  # (B, N + 1); 0 where infinitely far
            above, among = g_neg.sum(1), 1 + g_pos.sum(1)
            rank = among + above
            share = each * real[:, p]
            ap = ap + share * among / rank
            slope_pos = g_pos * (1 - g_pos) * (share * above / (rank.square() * t))[:, None]
            slope_neg = torch.addcmul(g_neg, g_neg, g_neg, value=-1)  # g (1 - g)
            scale_neg = share * among / (rank.square() * t)
            pos -= slope_pos
            pos[:, p] += slope_pos.sum(1) - slope_neg.sum(1) * scale_neg
            neg.addcmul_(slope_neg, scale_neg[:, None])
        return Weighted(1 - ap, pos, neg)


@register(
    "ranked_list",
    "Wang et al., Ranked List Loss for Deep Metric Learning, CVPR 2019; Unbiased Evaluation Eqs. 6-9",
    year=2019,
    claims=(
        Claim("cars196", "GoogLeNet v2", 74.0, "quoted in Unbiased Evaluation"),
        Claim("sop", "GoogLeNet v2", 74.8, "README of the release"),
    ),
    space={"alpha": Real(0.8, 1.4), "margin": Real(0.1, 0.6), "temperature": Real(1.0, 20.0, log=True)},
    presets={"simplified": {"alpha": 1.2, "margin": 0.4, "temperature": 10.0}},
    plain={"method.params.temperature": 0.0},
    recipe=OptimizerConfig(name="sgd", lr=0.01, weight_decay=2e-5),
    compared=(
        (
            "Andrewymd/DMLPlayground (a fork of ifeherva's)",
            (
                "it differentiates the weights, so that gradients are up to 38 % apart, and divides by the number of "
                "queries with a loss, values up to 19 %; with neither: value 9e-16, gradient 9e-16"
            ),
            "c55749b",
        ),
    ),
)
class RankedList(PairLoss):
    """Ranked list: positives nearer than alpha - margin, negatives farther than alpha, near negatives weigh more.

        L_P = mean over positives with d > alpha - m of (d - (alpha - m))
        L_N = sum over negatives with d < alpha of w (alpha - d),  w ~ exp(T (alpha - d)), summing to 1
        L = mean over queries of L_P + lam L_N

    w is not differentiated: its derivative would pull about 40 % of the negatives nearer. DMLPlayground and
    pytorch-metric-learning do differentiate it.
    """

    constant_weights = True
    measure = "euclidean"
    reduction = "usable"

    def __init__(
        self,
        alpha: Number = 1.2,
        margin: Number = 0.4,
        temperature: Weight = 10.0,
        lam: Weight = 1.0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.alpha, self.margin, self.temperature, self.lam = alpha, margin, temperature, lam

    def weigh(self, block: Block) -> Weighted:
        far = (block.pos - (self.alpha - self.margin)).clamp_(min=0)
        near = (self.alpha - block.neg).clamp_(min=0)
        on = (far > 0).to(far.dtype)
        each = on / on.sum(1, keepdim=True).clamp(min=1)
        _, share = log_sum_exp(log_mask(near.sign()).add_(near, alpha=self.temperature))  # -inf beyond alpha
        return Weighted((far * each).sum(1) + self.lam * (near * share).sum(1), each, -self.lam * share)
