"""Recall among the first k of the ranking that a query induces, made smooth.

Axes: B queries of a block, P positives, N references. See `nearfield.pairs` for what a block is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Unpack

from nearfield.config import OptimizerConfig
from nearfield.losses.parameters import Count, Scale, Seed
from nearfield.losses.registry import Claim, Real, register
from nearfield.pairs import Block, EngineOptions, Pairing, PairLoss, Weighted
from nearfield.pairs.mixing import fold, mix, mix_within_classes

Counts = Annotated[Sequence[Count], Field(min_length=1, max_length=64)]
THREE = "Patel et al., Three Things to Know about Deep Metric Learning, 2024, Table 5"


@register(
    "recall_at_k",
    "Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022",
    year=2022,
    claims=(
        Claim("sop", "R50-512", 82.7),
        Claim("sop", "ViT-B/32", 85.1),
        Claim("sop", "ViT-B/16", 88.0),
        Claim("cars196", "R50-512", 88.3),
        Claim("cars196", "ViT-B/16", 89.5),
        Claim("inaturalist", "R50-512", 71.8),
        Claim("sop", "DiHT ViT-L/14", 90.8, THREE),
    ),
    space={"tau1": Real(0.002, 0.1, log=True), "tau2": Real(0.2, 5.0, log=True)},
    presets={"paper": {"simix": True}, "released": {"simix": True, "count_query": True}},
    similarities="PN",
    recipe=OptimizerConfig(name="adam", lr=1e-4, weight_decay=4e-4),
    compared=(
        (
            "yash0307/RecallatK_surrogate",
            "`count_query`: value 2e-16, gradient 9e-15; with SiMix at shares given to both 1e-15 and 2e-14",
            "aa418d6",
        ),
    ),
)
class RecallAtK(PairLoss):
    """Recall@k surrogate: the share of a query's positives among its k nearest, with soft ranks and a soft cut.

        r_p = 1 + sum_{z != p} sigmoid((S_iz - S_ip) / tau1),    h_kp = sigmoid((k - r_p) / tau2)
        R_k(i) = min(sum_{P_i} h_kp, k) / min(k, |P_i|),         L = mean over queries with a positive of 1 - mean_k R_k

    W_iz = c_p g (1 - g) / tau1 and W_ip the negative of their sum, with g the sigmoid in r_p and
    c_p = mean_k of h_kp (1 - h_kp) / (tau2 min(k, |P_i|)) where sum_p h_kp < k. Another positive ranked above p is
    pushed down, so positives get both signs. L is not 0 at perfection: sigmoid(0) = 1/2 for the positive at place k.

    `simix` adds to the batch a virtual item a x_i + (1 - a) x_j for every pair of a class, a uniform in [0, 1), as
    query and as reference; it is not normalised. References other than the batch are not mixed.
    The released code ranks the query against itself (`count_query`), so that its k means k - 1; it allows only 3, 4 or
    6 items a class, and reads the temperatures tau2 from the list of evaluation cut-offs, which is too short for SOP,
    iNaturalist and VehicleID.
    """

    needs = "positive"
    reduction = "usable"

    def __init__(
        self,
        ks: Counts = (1, 2, 4, 8, 16),
        tau1: Scale = 0.01,
        tau2: Scale = 1.0,
        count_query: bool = False,
        simix: bool = False,
        seed: Seed = 0,
        **engine: Unpack[EngineOptions],
    ) -> None:
        super().__init__(**engine)
        self.ks, self.tau1, self.tau2 = tuple(ks), tau1, tau2
        self.shows_self, self.simix, self.seed = count_query, simix, seed

    def pairing(self, labels: Tensor) -> Pairing | None:
        return mix_within_classes(labels, self.seed, self.turn) if self.simix else None

    def combine(self, x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor | None]:
        return mix(x, pairing), None

    def unfold(self, weights: Tensor, pairing: Pairing, full: Tensor) -> Tensor:
        return fold(weights, pairing, full)

    def weigh(self, block: Block) -> Weighted:
        ranked = block.pos_mask  # (B, P)
        wanted = ranked if block.itself is None else ranked & ~block.itself  # the query itself is ranked, not wanted
        s = torch.where(ranked, block.pos, 0.0)
        ranks = torch.ones_like(s)
        for p in range(s.shape[1]):
            above_pos, above_neg = self._above(block, s, ranked, p)
            ranks[:, p] += above_pos.sum(1) + above_neg.sum(1)
        value, slope = self._recall(ranks, wanted)
        pos, neg = torch.zeros_like(s), torch.zeros_like(block.neg)
        for p in range(s.shape[1]):
            above_pos, above_neg = self._above(block, s, ranked, p)
            pull_pos = (above_pos - above_pos.square()).mul_(slope[:, p, None] / self.tau1)
            pull_neg = torch.addcmul(above_neg, above_neg, above_neg, value=-1).mul_(slope[:, p, None] / self.tau1)
            neg += pull_neg
            pos += pull_pos
            pos[:, p] -= pull_pos.sum(1) + pull_neg.sum(1)
        return Weighted(value, pos, neg)

    def _above(self, block: Block, s: Tensor, ranked: Tensor, p: int) -> tuple[Tensor, Tensor]:
        """How far each positive (B, P) and each negative (B, N + 1) is above the positive p, from 0 to 1."""
        own = s[:, p : p + 1]
        above = torch.sigmoid((s - own) / self.tau1) * ranked
        above[:, p] = 0.0
        return above, (block.neg - own).div_(self.tau1).sigmoid_()

    def _recall(self, ranks: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """1 - mean_k R_k of each query, (B,), and its derivative with respect to each rank, (B, P)."""
        matches = wanted.sum(1).clamp(min=1).to(ranks.dtype)  # (B,)
        recall, slope = ranks.new_zeros(len(ranks)), torch.zeros_like(ranks)
        for k in self.ks:
            inside = torch.sigmoid((k - ranks) / self.tau2) * wanted  # (B, P)
            found, most = inside.sum(1), matches.clamp(max=k)  # (B,)
            recall += found.clamp(max=k) / most
            slope += (inside - inside.square()) * ((found < k) / most)[:, None]
        return 1 - recall / len(self.ks), slope / (len(self.ks) * self.tau2)
