"""Losses of single items, for which a tuple of pairs is read as weights of items; proxy losses are such too.

Axes: M queries, B queries of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from nearfield.compat.pml.base import BridgeLoss, PairBridge, zero
from nearfield.compat.pml.distances import CosineSimilarity, LpDistance
from nearfield.compat.pml.tuples import Batch, Indices, element_weights
from nearfield.errors import InputError
from nearfield.losses.neighbourhood import (
    NCA,
)
from nearfield.losses.pairwise import Histogram
from nearfield.losses.ranking import FastAP
from nearfield.pairs import Block, PairLoss, Weighted


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
