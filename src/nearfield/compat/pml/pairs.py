"""Losses over pairs, under the names, parameters and defaults of pytorch-metric-learning 2.9.

Axes: M queries, B queries of a block.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from nearfield.compat.pml.base import PairBridge, zero
from nearfield.compat.pml.distances import BaseDistance, CosineSimilarity, LpDistance, SNRDistance
from nearfield.compat.pml.tuples import Batch
from nearfield.errors import InputError
from nearfield.losses.neighbourhood import (
    Circle,
    MultiSimilarity,
    NTXent,
    SupCon,
)
from nearfield.losses.pairwise import Contrastive
from nearfield.pairs import Block, PairLoss, Weighted
from nearfield.pairs.listed import Side


class _MeanOverPairs(Contrastive):
    """Contrastive hinges, averaged over all pairs instead of the active ones."""

    def survey(self, block: Block) -> Tensor:
        return torch.stack([block.num_pos, block.num_neg], 1)


class ContrastiveLoss(PairBridge):
    """Hinges on positives beyond `pos_margin` and negatives within `neg_margin`, averaged over those above 0."""

    default_distance = LpDistance
    default_reducer = "nonzero"
    reducers = ("mean",)
    sees = "distance"
    streams: tuple[str, ...] = ("euclidean", "sqeuclidean", "snr")

    def __init__(self, pos_margin: float = 0, neg_margin: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pos_margin, self.neg_margin = pos_margin, neg_margin
        build = Contrastive if self.reduction == "nonzero" else _MeanOverPairs
        near, away, normalize = self.sign * pos_margin, self.sign * neg_margin, self.distance.normalize_embeddings
        self.loss = build(form="hinge", pos_margin=near, neg_margin=away, normalize=normalize)
        self.loss.measure = cast(Any, self.distance.measure or "euclidean")


class SignalToNoiseRatioContrastiveLoss(ContrastiveLoss):
    """Contrastive hinges on the signal-to-noise distance."""

    def __init__(self, distance: BaseDistance | None = None, **kwargs: Any) -> None:
        super().__init__(distance=SNRDistance() if distance is None else distance, **kwargs)
        if not isinstance(self.distance, SNRDistance):
            raise InputError(f"distance must be SNRDistance; got {type(self.distance).__name__}.")


class _EveryRow(MultiSimilarity):
    """Multi-Similarity in which a query with positives or negatives alone counts too."""

    needs = "nothing"


class MultiSimilarityLoss(PairBridge):
    """Multi-Similarity without its mining, which is `MultiSimilarityMiner`'s."""

    once = True

    def __init__(self, alpha: float = 2, beta: float = 50, base: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha, self.beta, self.base = alpha, beta, base
        normalize = self.distance.normalize_embeddings
        self.loss = _EveryRow(alpha=alpha, beta=beta, lam=self.sign * base, mine=False, normalize=normalize)


class _AboveZero(PairLoss):
    """A loss averaged over the queries whose value is above 0."""

    reduction = "terms"

    def weigh(self, block: Block) -> Weighted:
        found = super().weigh(block)
        return found._replace(terms=(found.value > 0).to(found.value.dtype))


class _Circle(_AboveZero, Circle):
    reduction = "terms"  # type: ignore[assignment]


class CircleLoss(PairBridge):
    """Circle loss, of cosines."""

    once = True

    default_reducer = "nonzero"

    def __init__(self, m: float = 0.4, gamma: float = 80, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(self.distance, CosineSimilarity):
            raise InputError(f"distance must be CosineSimilarity; got {type(self.distance).__name__}.")
        self.m, self.gamma = m, gamma
        self.loss = _Circle(scale=gamma, margin=m)


class _SupCon(_AboveZero, SupCon):
    reduction = "terms"  # type: ignore[assignment]


class SupConLoss(PairBridge):
    """Supervised contrastive: each positive against all other items; 0 where the batch has no negative pair at all."""

    once = True

    default_reducer = "nonzero"
    unpaired = False

    def __init__(self, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature
        self.loss = _SupCon(temperature=temperature, normalize=self.distance.normalize_embeddings)

    def stream(self, batch: Batch) -> Tensor:
        labels, references = cast(Tensor, batch.labels), cast(Tensor, batch.ref_labels)
        one = bool((labels == labels[0]).all()) and bool((references == labels[0].to(references.device)).all())
        return zero(batch.embeddings) if one else super().stream(batch)

    def weigh(self, mat: Tensor, pos: Side, neg: Side, labels: Tensor) -> Tensor:
        return super().weigh(mat, pos, neg, labels) if len(pos.rows) and len(neg.rows) else zero(mat)


class NTXentLoss(PairBridge):
    """Normalised temperature-scaled cross-entropy: each positive against the negatives of its anchor."""

    unpaired = False

    def __init__(self, temperature: float = 0.07, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature
        self.loss = NTXent(temperature=temperature, normalize=self.distance.normalize_embeddings)

    def out_of(self, pos: Side, neg: Side) -> int:
        return len(pos.rows)  # a positive without negatives has no loss, and counts
