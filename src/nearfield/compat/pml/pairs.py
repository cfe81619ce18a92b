"""Losses over pairs and triplets, under the names, parameters and defaults of pytorch-metric-learning 2.9.

Axes: M queries, B queries of a block, T triplets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfield.compat.pml.base import BridgeLoss, PairBridge, zero
from nearfield.compat.pml.distances import BaseDistance, CosineSimilarity, LpDistance, SNRDistance
from nearfield.compat.pml.errors import Version
from nearfield.compat.pml.tuples import Batch, Indices, Rule, as_pairs, as_triplets, element_weights
from nearfield.errors import InputError
from nearfield.losses.neighbourhood import (
    NCA,
    Circle,
    Lifted,
    LiftedGeneralized,
    MultiSimilarity,
    NTXent,
    SupCon,
)
from nearfield.losses.pairwise import Contrastive, Histogram
from nearfield.losses.ranking import FastAP
from nearfield.losses.triplets import Triplet
from nearfield.pairs import Block, PairLoss, Weighted, check_classes, log_sum_exp
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
    """1/2 [log sum exp(margin - d_an) + d_ap]_+^2, each query being one positive pair and the negatives of its ends; an
    empty sum counts as 0.
    """

    measure = "euclidean"
    needs = "positive"

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def weigh(self, block: Block) -> Weighted:
        push, share = log_sum_exp(self.margin - block.neg)
        j = (push[:, None] + block.pos).clamp(min=0)
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
        self.loss = _LiftedPair(self.sign * (neg_margin - pos_margin))

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


class WeightedRows(PairLoss):
    """A loss whose queries have weights, how often a tuple names them."""

    row_weights: Tensor | None = None

    def weigh(self, block: Block) -> Weighted:
        found = super().weigh(block)
        if self.row_weights is None:
            return found
        each = self.row_weights.to(found.value.dtype)[block.rows]
        return found._replace(value=found.value * each, pos=found.pos * each[:, None], neg=found.neg * each[:, None])


class WeightedBridge(BridgeLoss):
    """A loss of single items, for which a tuple is read as weights of items."""

    anchors_only: ClassVar[bool] = False  # whether only the anchors of a tuple count
    loss: WeightedRows

    @contextmanager
    def weighted(self, batch: Batch, given: Indices | None) -> Iterator[None]:
        """The loss with the weights that a tuple means."""
        anchors = self.anchors_only or not batch.own
        self.loss.row_weights = element_weights(given, len(batch.embeddings), batch.embeddings, anchors)
        try:
            yield
        finally:
            self.loss.row_weights = None


class _NCA(WeightedRows, NCA):
    pass


class NCALoss(WeightedBridge, PairBridge):
    """Neighbourhood components analysis; of a distance d it takes exp(-softmax_scale d)."""

    default_distance = partial(LpDistance, power=2)

    def __init__(self, softmax_scale: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.softmax_scale = softmax_scale
        self.of_units = self.distance.measure == "sqeuclidean" and self.distance.normalize_embeddings
        self.streams = ("dot", "sqeuclidean") if self.of_units else ("dot",)
        scale = 2 * softmax_scale if self.of_units else softmax_scale  # exp(-d^2) is exp(2 S), up to a factor
        self.loss = _NCA(scale=scale, reduction="mean", normalize=self.distance.normalize_embeddings)

    @property
    def sign(self) -> float:
        return super().sign * (0.5 if self.of_units else 1.0)  # S is -d^2 / 2, up to a constant

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        if batch.labels is None:
            raise InputError("labels must be given to NCALoss; got None.")
        if len(batch.embeddings) < 2:
            return zero(batch.embeddings)
        batch = batch._replace(own=batch.ref_emb is batch.embeddings)  # whatever the labels
        with self.weighted(batch, given):
            return super().compute(batch, None)


class _FastAP(WeightedRows, FastAP):
    pass


class FastAPLoss(WeightedBridge):
    """FastAP, of squared distances of unit vectors."""

    default_distance = partial(LpDistance, power=2)

    def __init__(self, num_bins: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.distance.measure != "sqeuclidean" or not self.distance.normalize_embeddings:
            raise self.refuse("another distance", "its bins divide the squared distances of unit vectors.")
        self.num_bins = int(num_bins)
        self.loss = _FastAP(bins=self.num_bins)

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        labels = own_labels(self, batch)
        with self.weighted(batch, given):
            return zero(batch.embeddings) if len(labels) < 2 else self.loss(batch.embeddings, labels)


class HistogramLoss(BridgeLoss):
    """Histogram loss, of cosines."""

    def __init__(self, n_bins: int | None = None, delta: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if n_bins is None:
            n_bins = 100 if delta is None else round(2 / delta)
        if delta is not None and abs(delta - 2 / n_bins) > 1e-9:
            raise InputError(f"delta must be 2 / n_bins, a whole number of bins; got {delta} and {n_bins}.")
        if not isinstance(self.distance, CosineSimilarity):
            raise self.refuse("another distance", "its bins divide the cosines.")
        self.delta = 2 / n_bins
        self.loss = Histogram(nodes=n_bins + 1)

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        if given is not None:
            raise self.refuse(
                "indices_tuple", "PML keeps one of two mirrored pairs; use the `histogram` loss with a miner."
            )
        labels = own_labels(self, batch)
        return zero(batch.embeddings) if len(labels) < 2 else self.loss(batch.embeddings, labels)


def own_labels(loss: BridgeLoss, batch: Batch) -> Tensor:
    """The labels of a batch that is compared with itself; an error for any other."""
    if batch.labels is None:
        raise InputError(f"labels must be given to {type(loss).__name__}; got None.")
    if batch.ref_emb is not batch.embeddings:
        raise InputError(f"{type(loss).__name__} takes no ref_emb, as in pytorch-metric-learning; leave it out.")
    return batch.labels
