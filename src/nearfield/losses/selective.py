"""Losses of the easiest positive of a query against one hard negative: two entries of a row.

Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Number, Scale, Weight
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, PairLoss, Weighted, rounding

DUPLICATE = 0.9999  # the released code takes positives that are more similar for the query itself


class Chosen(NamedTuple):
    """The easiest positive and the chosen negative of each query; of equal ones, an equal share of each."""

    s_pos: Tensor  # (B,)
    s_neg: Tensor  # (B,)
    pos: Tensor  # (B, P) the share of each positive
    neg: Tensor  # (B, N + 1)
    found: Tensor  # (B,) whether there are both


def choose(block: Block, semihard: bool, least: float | None) -> Chosen:
    """The easiest positive, and the hardest negative: with `semihard` of those not more similar than the positive.

    With `least`, as the released code chooses by value: no positives above DUPLICATE, nothing at `least` or below.
    """
    absent = block.pos.new_full((len(block.pos), 1), -torch.inf)
    hidden = ~block.pos_mask if least is None else ~block.pos_mask | (block.pos > DUPLICATE)
    pos, neg = block.pos.masked_fill(hidden, -torch.inf), block.neg
    s_pos = torch.cat([absent, pos], 1).amax(1, keepdim=True)
    if semihard:
        neg = neg.masked_fill(neg > s_pos + rounding(s_pos), -torch.inf)
    s_neg = neg.amax(1, keepdim=True)
    floor = -torch.inf if least is None else least
    found = (s_pos > floor) & (s_neg > floor)  # (B, 1)
    shares = []
    for s, best in ((pos, s_pos), (neg, s_neg)):
        equal = ((s >= best - rounding(best)) & found).to(s.dtype)
        shares.append(equal.div_(equal.sum(1, keepdim=True).clamp_(min=1)))
    s_pos, s_neg = (torch.where(found, s, 0.0)[:, 0] for s in (s_pos, s_neg))
    return Chosen(s_pos, s_neg, shares[0], shares[1], found[:, 0])


@register(
    "epshn",
    "Xuan et al., Improved Embeddings with Easy Positive Triplet Mining, WACV 2020",
    year=2020,
    claims=(Claim("cub", "R50-512", 64.9), Claim("cars196", "R50-512", 82.7), Claim("sop", "R50-512", 78.3)),
    space={"temperature": Real(0.02, 0.5, log=True)},
    presets={"released": {"released": True}, "hard": {"mining": "hard"}},
    similarities="PN",
    recipe=OptimizerConfig(name="sgd", lr=1e-3, momentum=0.0, weight_decay=0.0),
    compared=(
        (
            "littleredxh/EasyPositiveHardNegative",
            '`released`, mining "semihard" and "hard": value 2e-15, gradient 1e-15',
            "d9bf740",
        ),
        (
            "littleredxh/HardNegative, shn and hn",
            "value 2e-15, gradient 1e-15",
            "4908e78",
        ),
    ),
)
class EPSHN(PairLoss):
    """Easy positive, semi-hard negative: the most similar positive against the most similar negative below it.

        s_p = max_{P_i} S,    s_n = max of S over N_i with S <= s_p   ("hard": over all N_i, the paper's EPHN)
        L = mean over usable queries of log(1 + exp((s_n - s_p) / T))

    W_p = -sigmoid((s_n - s_p) / T) / T, W_n its negative; equally similar ones share it. A query all of whose negatives
    are more similar than its positives is not used. The released code chooses by value (`released`): it deletes
    positives with S > 0.9999, and with them true duplicates, and drops queries with s_p <= 0 or s_n <= 0.
    """

    reduction = "terms"

    def __init__(
        self,
        temperature: Scale = 0.1,
        mining: Literal["semihard", "hard"] = "semihard",
        released: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.temperature, self.mining, self.released = temperature, mining, released

    def weigh(self, block: Block) -> Weighted:
        chosen = choose(block, self.mining == "semihard", 0.0 if self.released else None)
        return _against(chosen, self.temperature, chosen.found)


@register(
    "sct",
    "Xuan et al., Hard Negative Examples are Hard, but Useful, ECCV 2020",
    year=2020,
    no_recipe="none is named here: the publication was not at hand",
    claims=(Claim("cub", "R50-64", 57.7), Claim("cars196", "R50-64", 73.4), Claim("sop", "R50-512", 81.9)),
    space={"lam": Real(0.1, 10.0, log=True), "temperature": Real(0.02, 0.5, log=True)},
    presets={"released": {"released": True}},
    plain={"method.params.lam": 0.0},
    similarities="SPN",
    compared=(
        (
            "littleredxh/HardNegative",
            'default and preset "released": value 2e-15, gradient 2e-15',
            "4908e78",
        ),
    ),
)
class SCT(PairLoss):
    """Selectively contrastive triplet: where the hardest negative beats the easiest positive, only push it away.

        s_p = max_{P_i} S,  s_n = max_{N_i} S;   hard: s_n > s_p or s_n > threshold
        L = 1/U sum over usable queries of   lam s_n  if hard,   log(1 + exp((s_n - s_p) / T))  otherwise

    W_n = lam / U and W_p = 0 for hard queries, -+sigmoid((s_n - s_p) / T) / (T U) for others; equally similar ones
    share it. The released code chooses by value (`released`): it deletes positives with S > 0.9999, drops queries with
    s_p <= -1 or s_n <= -1, and those with s_n = s_p are in neither set.
    """

    reduction = "terms"

    def __init__(
        self,
        lam: Weight = 1.0,
        threshold: Number = 0.8,
        temperature: Scale = 0.1,
        released: bool = False,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.lam, self.threshold, self.temperature, self.released = lam, threshold, temperature, released

    def weigh(self, block: Block) -> Weighted:
        chosen = choose(block, semihard=False, least=-1.0 if self.released else None)
        tie = rounding(chosen.s_pos)
        hard = ((chosen.s_neg > chosen.s_pos + tie) | (chosen.s_neg > self.threshold)) & chosen.found
        easy = chosen.found & ~hard
        if self.released:
            easy = easy & (chosen.s_neg < chosen.s_pos - tie)
        value, pos, neg, *_ = _against(chosen, self.temperature, easy)
        push = self.lam * hard.to(value.dtype)
        return Weighted(value + push * chosen.s_neg, pos, neg.addcmul_(chosen.neg, push[:, None]), chosen.found)


def _against(chosen: Chosen, temperature: float, used: Tensor) -> Weighted:
    """log(1 + exp((s_n - s_p) / T)) of the `used` queries."""
    gap = (chosen.s_neg - chosen.s_pos) / temperature
    lost = (torch.sigmoid(gap) * used / temperature)[:, None]
    return Weighted(F.softplus(gap) * used, -lost * chosen.pos, lost * chosen.neg, used)
