"""From a call of pytorch-metric-learning to the engine, or to a list of pairs.

    no tuple, a measure that the engine streams         the engine, by labels
    the tuple of a miner whose rule the engine knows    the engine, with that rule as its miner
    anything else                                       the dense matrix of the distance, and the pairs as a list

All three give one value: the list is exact for every tuple and every distance, and only takes more memory.
Axes: M queries, N references, T pairs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nearfield.compat.pml.distances import BaseDistance, CosineSimilarity
from nearfield.compat.pml.errors import NotMapped, Version, check_version
from nearfield.compat.pml.reducers import BaseReducer
from nearfield.compat.pml.tuples import Batch, Indices, Mined, Rule, as_pairs, as_triplets
from nearfield.errors import InputError
from nearfield.pairs import Block, PairLoss
from nearfield.pairs.listed import Side, listed_loss
from nearfield.pairs.mining import keep

Regularizer = Callable[[Tensor], Tensor]


class BridgeLoss(nn.Module):
    """What all losses of the bridge share: a distance, a reducer, a regulariser, and the loss of this library."""

    default_distance: ClassVar[Callable[[], BaseDistance]] = CosineSimilarity
    default_reducer: ClassVar[str] = "mean"
    reducers: ClassVar[tuple[str, ...]] = ()  # that are mapped, beside the default one
    loss: PairLoss

    def __init__(
        self,
        *,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        embedding_regularizer: Regularizer | None = None,
        embedding_reg_weight: float = 1,
        collect_stats: bool | None = None,
        version: Version = 2,
    ) -> None:
        super().__init__()
        check_version(version)
        self.version, self.collect_stats = version, collect_stats
        self.distance = type(self).default_distance() if distance is None else distance
        self.reduction = type(self).default_reducer if reducer is None else getattr(reducer, "kind", "")
        if self.reduction not in (type(self).default_reducer, *type(self).reducers):
            given = type(reducer).__name__
            raise NotMapped(f"reducer={given} of {type(self).__name__}", "a loss here carries its own average.")
        self.embedding_regularizer, self.embedding_reg_weight = embedding_regularizer, embedding_reg_weight

    @property
    def last(self) -> dict[str, int]:
        """How many anchors the last call had, and how many it could not use: what the training doctor reads."""
        return self.loss.last

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, a 0-dim tensor; arguments as in pytorch-metric-learning."""
        if labels is None and indices_tuple is None:
            raise InputError("labels or indices_tuple must be given; got neither.")
        if labels is not None and len(labels) != len(embeddings):
            raise InputError(f"labels must be one for each of the {len(embeddings)} embeddings; got {len(labels)}.")
        value = self.compute(Batch.of(embeddings, labels, ref_emb, ref_labels, self.version), indices_tuple)
        if self.embedding_regularizer is not None:
            value = value + self.embedding_reg_weight * self.embedding_regularizer(embeddings)
        return value

    @abstractmethod
    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        """The value without the regulariser."""
        raise NotImplementedError

    def refuse(self, what: str, why: str) -> NotMapped:
        """The error for an argument that is not mapped."""
        return NotMapped(f"{what} of {type(self).__name__}", why)


def zero(embeddings: Tensor) -> Tensor:
    """0 with a gradient of 0: the loss of a batch without pairs."""
    return (embeddings * 0).sum()


class PairBridge(BridgeLoss):
    """A loss over pairs or triplets. `sees` is the sense that its formula is written in; for the other, values change
    their sign (`sign`), and the constructor negates its margins.
    """

    sees: ClassVar[Literal["similarity", "distance", "either"]] = "similarity"
    triplets: ClassVar[bool] = False  # whether a tuple of 3 stays triplets
    once: ClassVar[bool] = False  # whether a pair that is listed twice counts once
    unpaired: ClassVar[bool] = True  # whether a query may have only positives or only negatives in a miner's rule
    streams: tuple[str, ...] = ("dot",)  # measures of the engine that its formula fits

    @property
    def sign(self) -> float:
        """-1 if the distance and the formula have opposite senses."""
        return -1.0 if self.sees != "either" and (self.sees == "similarity") != self.distance.is_inverted else 1.0

    def compute(self, batch: Batch, given: Indices | None) -> Tensor:
        streamed = batch.ref_emb is batch.embeddings or not batch.own
        if streamed and self.distance.measure in self.streams and batch.labels is not None:
            if given is None:
                return self.stream(batch)
            rule = self._rule(batch, given)
            if rule is not None:
                with self._applied(rule):
                    return self.stream(batch)
        return self.over_list(batch, given)

    def stream(self, batch: Batch) -> Tensor:
        """The value by the engine."""
        if batch.own:
            return zero(batch.embeddings) if len(batch.embeddings) < 2 else self.loss(batch.embeddings, batch.labels)
        value: Tensor = self.loss(batch.embeddings, batch.labels, batch.ref_emb, batch.ref_labels)
        return value

    def over_list(self, batch: Batch, given: Indices | None) -> Tensor:
        """The value over a list of pairs, or of triplets."""
        mat = self.distance(batch.embeddings, None if batch.ref_emb is batch.embeddings else batch.ref_emb)
        if self.triplets and given is not None and len(given) == 3:
            a, p, n = as_triplets(given)
            every, labels = torch.arange(len(a), device=mat.device), self._labels(batch)[a]
            return self.weigh(mat, Side(mat[a, p], every), Side(mat[a, n], every), labels)
        a1, p, a2, n = batch.all_pairs() if given is None else as_pairs(given)
        if self.once and given is not None:
            (a1, p), (a2, n) = _distinct(a1, p, mat), _distinct(a2, n, mat)
        return self.weigh(mat, Side(mat[a1, p], a1), Side(mat[a2, n], a2), self._labels(batch))

    def weigh(self, mat: Tensor, pos: Side, neg: Side, labels: Tensor) -> Tensor:
        """The value of listed pairs, given their measures."""
        if not len(pos.values) + len(neg.values):
            return zero(mat)
        inverted = (self.distance.is_inverted) if self.sees == "either" else self.sees == "similarity"
        near, away = (Side(self.sign * side.values, side.rows) for side in (pos, neg))
        far = -math.inf if inverted else math.inf
        return listed_loss(self.loss, near, away, labels, far, self.out_of(pos, neg))

    def out_of(self, pos: Side, neg: Side) -> int | None:
        """What the sum over listed pairs is divided by, where that is not the loss's own divisor."""
        return None

    @staticmethod
    def _labels(batch: Batch) -> Tensor:
        device = batch.embeddings.device
        return (
            torch.zeros(len(batch.embeddings), dtype=torch.int64, device=device)
            if batch.labels is None
            else batch.labels.to(device)
        )

    def _rule(self, batch: Batch, given: Indices) -> Rule | None:
        """The rule of a miner that looked at this very batch, if the engine can apply it here."""
        if not isinstance(given, Mined) or given.rule is None or given.batch.own != batch.own:
            return None
        if given.batch.embeddings is not batch.embeddings or given.batch.ref_emb is not batch.ref_emb:
            return None
        rule, normalize = given.rule, self.distance.normalize_embeddings
        if (rule.measure, rule.normalize) != (self.distance.measure, normalize):
            both = {rule.measure, self.distance.measure}
            if not (normalize and rule.normalize and rule.mine) or "snr" in both:
                return None
        return rule if self.fits(rule) else None

    def fits(self, rule: Rule) -> bool:
        """Whether this loss, with the rule as a miner of the engine, is the loss over the enumerated pairs."""
        return rule.mine is not None and (rule.paired or self.unpaired)

    @contextmanager
    def _applied(self, rule: Rule) -> Any:
        """The loss with the rule of a miner."""
        if rule.mine is None:
            with self.over_triplets(rule):
                yield
            return
        self.loss.miner = Converted(rule.mine, rule.measure)
        try:
            yield
        finally:
            self.loss.miner = None

    @contextmanager
    def over_triplets(self, rule: Rule) -> Any:
        """The loss with a rule over triplets, for losses where it `fits`."""
        yield


def _distinct(rows: Tensor, columns: Tensor, mat: Tensor) -> tuple[Tensor, Tensor]:
    """Each listed entry of the matrix once."""
    places = torch.unique(rows * mat.shape[1] + columns)
    return places // mat.shape[1], places % mat.shape[1]


@dataclass(frozen=True)
class Converted:
    """A miner that looks at another measure of unit vectors than the loss: |q - r|^2 = 2 - 2 q.r."""

    mine: Callable[[Block], Block]
    measure: str

    def __call__(self, block: Block) -> Block:
        if block.measure == self.measure:
            return self.mine(block)
        far = -math.inf if self.measure == "dot" else math.inf
        pos = torch.where(block.pos_mask, self._convert(block.pos, block.measure), -far)
        neg = torch.where(block.neg_mask, self._convert(block.neg, block.measure), far)
        found = self.mine(replace(block, pos=pos, neg=neg, far=far, measure=self.measure))
        return keep(block, found.pos_mask, found.neg_mask)

    def _convert(self, x: Tensor, given: str) -> Tensor:
        square = {"dot": lambda: 2 - 2 * x, "euclidean": lambda: x.square(), "sqeuclidean": lambda: x}[given]().clamp(
            min=0
        )
        if self.measure == "dot":
            return 1 - square / 2
        return square.sqrt() if self.measure == "euclidean" else square
