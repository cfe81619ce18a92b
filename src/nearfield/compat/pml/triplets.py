"""Losses over triplets, under the names, parameters and defaults of pytorch-metric-learning 2.9.

Axes: M queries, B queries of a block, T triplets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.compat.pml.base import PairBridge, zero
from nearfield.compat.pml.distances import LpDistance
from nearfield.compat.pml.errors import Version
from nearfield.compat.pml.tuples import Batch, Indices, Rule, as_triplets
from nearfield.losses.triplets import Triplet
from nearfield.pairs import Block, PairLoss, Weighted, check_classes
from nearfield.pairs.listed import Side


class TripletMarginLoss(PairBridge):
    """[d_ap - d_an + margin]_+, averaged over those above 0; `margin` is 0.05 by default, in version 3 it is 0.2."""

    default_distance = LpDistance
    default_reducer = "nonzero"
    reducers = ("mean",)
    sees = "either"
    triplets = True
    streams: tuple[str, ...] = ("dot", "euclidean", "sqeuclidean", "snr")

    def __init__(
        self,
        margin: float | None = None,
        swap: bool = False,
        smooth_loss: bool = False,
        triplets_per_anchor: str | int = "all",
        *,
        version: Version = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(version=version, **kwargs)
        if triplets_per_anchor != "all":
            raise self.refuse(f"triplets_per_anchor={triplets_per_anchor}", "all triplets cost less than a random few.")
        self.margin = (0.05 if version == 2 else 0.2) if margin is None else margin
        self.swap, self.smooth_loss = swap, smooth_loss
        over: Any = "active" if self.reduction == "nonzero" else "all"
        self.loss = Triplet(margin=self.margin, reduction=over, normalize=self.distance.normalize_embeddings)
        self.loss.measure = self.distance.measure or "euclidean"
        if swap or smooth_loss:
            self.streams = ()

    def fits(self, rule: Rule) -> bool:
        if rule.mine is not None:
            return True
        return rule.triplets in ("all", "semihard") and rule.margin >= self.margin and self.reduction == "nonzero"

    @contextmanager
    def over_triplets(self, rule: Rule) -> Iterator[None]:
        """Triplets beyond the loss's own margin have no loss, so that a wider rule is that of the engine."""
        loss = cast(Triplet, self.loss)
        loss.mining = "pml" if rule.triplets == "semihard" else "all"
        try:
            yield
        finally:
            loss.mining = "all"

    def over_list(self, batch: Batch, given: Indices | None) -> Tensor:
        if not (self.swap or self.smooth_loss):
            return super().over_list(batch, given)
        if self.swap and batch.ref_emb is not batch.embeddings:
            raise self.refuse("swap=True with references", "a positive has no row of its own to swap with.")
        a, p, n = as_triplets(batch.all_pairs() if given is None else given)
        mat = self.distance(batch.embeddings, None if batch.ref_emb is batch.embeddings else batch.ref_emb)
        to_pos, to_neg = mat[a, p], mat[a, n]
        if self.swap:
            to_neg = (torch.maximum if self.distance.is_inverted else torch.minimum)(to_neg, mat[p, n])
        if self.smooth_loss:  # the only formula here that is not one of the library's losses
            gap = (to_pos - to_neg) * (-1 if self.distance.is_inverted else 1) + self.margin
            return F.softplus(gap).mean() if len(a) else zero(mat)
        every = torch.arange(len(a), device=mat.device)
        return self.weigh(mat, Side(to_pos, every), Side(to_neg, every), torch.zeros_like(a))


class _Margin(PairLoss):
    """([d_ap - beta + margin]_+ + [beta - d_an + margin]_+ + nu beta), summed over triplets, over the number of hinges
    above 0; 0 if there is none.
    """

    measure = "euclidean"
    reduction = "terms"

    def __init__(self, margin: float, beta: nn.Parameter, nu: float, normalize: bool) -> None:
        super().__init__(normalize=normalize)
        self.margin, self.beta, self.nu = margin, beta, nu
        self.surveys = nu != 0

    def pair_parameters(self) -> tuple[nn.Parameter, ...]:
        return (self.beta,)

    def held(self, labels: Tensor) -> None:
        if len(self.beta) > 1:
            check_classes(labels, len(self.beta))

    def survey(self, block: Block) -> Tensor:
        terms = self._hinges(block).terms
        return cast(Tensor, terms)[:, None]

    def weigh(self, block: Block) -> Weighted:
        found = self._hinges(block)
        if not self.nu:
            return found
        of, each = self._of(block), self.nu * block.num_pos * block.num_neg * (block.survey.sum() > 0)  # (B,)
        beta, (to_beta,) = self.beta.detach()[of].to(each), found.params
        return found._replace(value=found.value + beta * each, params=(to_beta.index_add(0, of, each.to(to_beta)),))

    def _of(self, block: Block) -> Tensor:
        """Which beta a query has."""
        return block.labels if len(self.beta) > 1 else torch.zeros_like(block.labels)

    def _hinges(self, block: Block) -> Weighted:
        of = self._of(block)
        beta = self.beta.detach().to(block.pos.dtype)[of, None]  # (B, 1)
        times_pos, times_neg = block.num_neg[:, None], block.num_pos[:, None]  # triplets that a pair is part of
        far, near = (block.pos - beta + self.margin).clamp(min=0), (beta - block.neg + self.margin).clamp(min=0)
        value = (far * times_pos).sum(1) + (near * times_neg).sum(1)
        on_pos, on_neg = far.gt_(0).mul_(times_pos), near.gt_(0).mul_(times_neg)
        pulls, pushes = on_pos.sum(1), on_neg.sum(1)
        to_beta = torch.zeros_like(self.beta).index_add_(0, of, (pushes - pulls).to(self.beta.dtype))
        return Weighted(value, on_pos, -on_neg, pulls + pushes, (to_beta,))


class MarginLoss(PairBridge):
    """Margin loss over the triplets of a miner, or all: a boundary `beta`, learned or not, one or one a class."""

    default_distance = LpDistance
    default_reducer = "divisor"
    sees = "distance"
    triplets = True
    streams: tuple[str, ...] = ("euclidean",)

    def __init__(
        self,
        margin: float = 0.2,
        nu: float = 0,
        beta: float = 1.2,
        triplets_per_anchor: str | int = "all",
        learn_beta: bool = False,
        num_classes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if self.distance.is_inverted or triplets_per_anchor != "all":
            raise self.refuse("a similarity, or random triplets,", "beta is a distance, and all triplets cost less.")
        self.margin, self.nu, self.learn_beta = margin, nu, learn_beta
        every = nn.Parameter(torch.full((num_classes or 1,), float(beta)), requires_grad=learn_beta)
        inside = nu if learn_beta and num_classes else 0.0  # one beta is regularised as it is
        self.loss = _Margin(margin, every, inside, self.distance.normalize_embeddings)

    @property
    def beta(self) -> Tensor:
        """The boundaries, one or one for each class."""
        return cast(_Margin, self.loss).beta

    def fits(self, rule: Rule) -> bool:
        return rule.mine is not None

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        value = super().compute(batch, given)
        if (
            not (self.nu and self.learn_beta)
            or len(self.beta) > 1
            or not len(as_triplets(given or batch.all_pairs())[0])
        ):
            return value
        return value + self.nu * self.beta[0]
