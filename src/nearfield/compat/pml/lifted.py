"""Lifted structure losses, under the names, parameters and defaults of pytorch-metric-learning 2.9.

Axes: M queries, B queries of a block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nearfield.compat.pml.base import PairBridge, zero
from nearfield.compat.pml.distances import LpDistance
from nearfield.compat.pml.tuples import Batch, Indices, Rule, as_pairs
from nearfield.losses.neighbourhood import (
    Lifted,
    LiftedGeneralized,
)
from nearfield.pairs import Block, PairLoss, Weighted, log_sum_exp
from nearfield.pairs.listed import Side


class _Shifted(LiftedGeneralized):
    """[log sum exp(pos_margin - S) + log sum exp(S - neg_margin)]_+, mean over queries; an empty sum counts as 0."""

    needs = "nothing"
    reduction = "batch"  # type: ignore[assignment]

    def __init__(self, pos_margin: float, neg_margin: float, normalize: bool) -> None:
        super().__init__(lam=pos_margin, normalize=normalize)
        self.neg_margin = neg_margin

    def weigh(self, block: Block) -> Weighted:
        return super().weigh(replace(block, neg=block.neg - self.neg_margin))


class GeneralizedLiftedStructureLoss(PairBridge):
    """Lifted structure of whole sets (Hermans et al., 2017)."""

    once = True

    default_distance = LpDistance

    def __init__(self, neg_margin: float = 1, pos_margin: float = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.neg_margin, self.pos_margin = neg_margin, pos_margin
        self.loss = _Shifted(self.sign * pos_margin, self.sign * neg_margin, self.distance.normalize_embeddings)


class _LiftedPair(PairLoss):
    """1/2 [log sum exp(neg_margin - d_an) + d_ap - pos_margin]_+^2, each query being one positive pair and the
    negatives of its ends; the logarithm of an empty sum counts as 0.
    """

    measure = "euclidean"
    needs = "positive"

    def __init__(self, neg_margin: float, pos_margin: float) -> None:
        super().__init__()
        self.neg_margin, self.pos_margin = neg_margin, pos_margin

    def weigh(self, block: Block) -> Weighted:
        push, share = log_sum_exp(self.neg_margin - block.neg)
        j = (push[:, None] + block.pos - self.pos_margin).clamp(min=0)
        return Weighted(j[:, 0].square() / 2, j, -j * share)


class LiftedStructureLoss(PairBridge):
    """Lifted structure: each positive pair against all negatives of both of its ends; streamed for a whole batch."""

    default_distance = LpDistance
    sees = "distance"
    streams: tuple[str, ...] = ("euclidean",)

    def __init__(self, neg_margin: float = 1, pos_margin: float = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.neg_margin, self.pos_margin = neg_margin, pos_margin
        self.whole = Lifted(margin=neg_margin - pos_margin, normalize=self.distance.normalize_embeddings)
        self.loss = _LiftedPair(self.sign * neg_margin, self.sign * pos_margin)

    def stream(self, batch: Batch) -> Tensor:
        if not batch.own:
            return self.over_list(batch, None)
        return zero(batch.embeddings) if len(batch.embeddings) < 2 else self.whole(batch.embeddings, batch.labels)

    def fits(self, rule: Rule) -> bool:
        return False

    def over_list(self, batch: Batch, given: Indices | None) -> Tensor:
        """Each positive pair against the listed negatives of its anchor, and of the query of its positive's number."""
        mat = self.distance(batch.embeddings, None if batch.ref_emb is batch.embeddings else batch.ref_emb)
        a1, p, a2, n = batch.all_pairs() if given is None else as_pairs(given)
        if not (len(a1) and len(a2)):
            return zero(mat)
        pair, at = ((a1[:, None] == a2) | (p[:, None] == a2)).nonzero(as_tuple=True)
        every = torch.arange(len(a1), device=mat.device)
        return self.weigh(mat, Side(mat[a1, p], every), Side(mat[a2[at], n[at]], pair), torch.zeros_like(a1))
