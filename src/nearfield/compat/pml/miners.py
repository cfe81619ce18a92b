"""Miners under the names of pytorch-metric-learning: `miner(embeddings, labels)` gives a tuple for `indices_tuple`.

The tuple is enumerated when somebody looks at it. A loss called with it on the same batch lets the engine apply the
rule of `MultiSimilarityMiner`, `BatchHardMiner`, `PairMarginMiner` and, for triplets, `TripletMarginMiner` by blocks.
Axes: M queries, N references, T pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearfield.compat.pml.distances import BaseDistance, CosineSimilarity, LpDistance
from nearfield.compat.pml.errors import NotMapped, Version, check_version, refuse
from nearfield.compat.pml.tuples import Batch, Mined, Pairs, Rule
from nearfield.errors import InputError, require_one_of
from nearfield.pairs import Block
from nearfield.pairs.mining import DistanceWeightedMiner as DrawByDistance
from nearfield.pairs.mining import HardMiner, keep
from nearfield.pairs.mining import MultiSimilarityMiner as MineBySimilarity

STRATEGIES = ("hard", "semihard", "easy", "all")


class BaseMiner(nn.Module):
    """A rule that selects pairs or triplets of a batch; `mine` enumerates them."""

    size: ClassVar[int] = 4  # of the tuple
    eager: ClassVar[bool] = False  # whether it draws at random, and so must do it when it is called
    default_distance: ClassVar[Callable[[], BaseDistance]] = LpDistance

    def __init__(
        self, distance: BaseDistance | None = None, collect_stats: bool | None = None, version: Version = 2
    ) -> None:
        super().__init__()
        check_version(version)
        self.distance = type(self).default_distance() if distance is None else distance
        self.version, self.collect_stats = version, collect_stats
        self.last: Mined | None = None

    def select(self, batch: Batch) -> tuple[Tensor, ...]:
        """The tuple, enumerated."""
        raise NotImplementedError

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
        """The tuple, enumerated; what a miner of your own overrides, as in pytorch-metric-learning."""
        return self.select(Batch(embeddings, labels, ref_emb, ref_labels, ref_labels is labels))

    def rule(self) -> Rule | None:
        """What the engine can apply instead, if anything."""
        return None

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Mined:
        """The pairs or triplets of a batch, as indices of queries and references."""
        if len(embeddings) != len(labels):
            raise InputError(f"labels must be one for each of the {len(embeddings)} embeddings; got {len(labels)}.")
        batch = Batch.of(embeddings, labels, ref_emb, ref_labels, self.version)
        self.last = Mined(batch, type(self).size, self.mine, self.rule())
        if type(self).eager:
            _ = self.last.found
        return self.last

    def _rule(self, mine: Callable[[Block], Block] | None, **facts: Any) -> Rule | None:
        measure = self.distance.measure
        return None if measure is None else Rule(mine, measure, self.distance.normalize_embeddings, **facts)

    def _count(self, part: int) -> int:
        return 0 if self.last is None else len(self.last[part])

    @property
    def num_triplets(self) -> int:
        """How many triplets the last call found."""
        return self._count(0) if type(self).size == 3 else 0

    @property
    def num_pos_pairs(self) -> int:
        """How many positive pairs the last call found."""
        return self._count(0) if type(self).size == 4 else 0

    @property
    def num_neg_pairs(self) -> int:
        """How many negative pairs the last call found."""
        return self._count(2) if type(self).size == 4 else 0

    def _matrix(self, batch: Batch) -> Tensor:
        mat: Tensor = self.distance(batch.embeddings, None if batch.ref_emb is batch.embeddings else batch.ref_emb)
        return mat


class MultiSimilarityMiner(BaseMiner):
    """Negatives nearer than the farthest positive, positives farther than the nearest negative, within `epsilon`."""

    default_distance = CosineSimilarity

    def __init__(self, epsilon: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def rule(self) -> Rule | None:
        return self._rule(MineBySimilarity(self.epsilon), paired=True)

    def select(self, batch: Batch) -> Pairs:
        near = self._matrix(batch) * (1.0 if self.distance.is_inverted else -1.0)  # larger is nearer
        same, differ = batch.matches()
        farthest = near.masked_fill(~same, math.inf).amin(1, keepdim=True)
        nearest = near.masked_fill(~differ, -math.inf).amax(1, keepdim=True)
        a1, p = (same & (near - self.epsilon < nearest)).nonzero(as_tuple=True)
        a2, n = (differ & (near + self.epsilon > farthest)).nonzero(as_tuple=True)
        return a1, p, a2, n


@dataclass(frozen=True)
class _Beyond:
    """Keep positives beyond one margin and negatives within another; signs reversed for similarities."""

    pos_margin: float
    neg_margin: float

    def __call__(self, block: Block) -> Block:
        sign = math.copysign(1.0, block.far)
        pos, neg = sign * (block.pos - self.pos_margin), sign * (self.neg_margin - block.neg)
        return keep(block, pos.gt_(0), neg.gt_(0))


class PairMarginMiner(BaseMiner):
    """Positives farther than `pos_margin` and negatives nearer than `neg_margin`."""

    def __init__(self, pos_margin: float = 0.2, neg_margin: float = 0.8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pos_margin, self.neg_margin = pos_margin, neg_margin

    def rule(self) -> Rule | None:
        return self._rule(_Beyond(self.pos_margin, self.neg_margin), paired=False)

    def select(self, batch: Batch) -> Pairs:
        mat, (same, differ) = self._matrix(batch), batch.matches()
        sign = -1.0 if self.distance.is_inverted else 1.0
        a1, p = (same & (sign * (mat - self.pos_margin) > 0)).nonzero(as_tuple=True)
        a2, n = (differ & (sign * (self.neg_margin - mat) > 0)).nonzero(as_tuple=True)
        return a1, p, a2, n


class TripletMarginMiner(BaseMiner):
    """Triplets that violate the margin ("all"), of these the "hard" (negative nearer) or "semihard" ones, or "easy"."""

    size = 3

    def __init__(self, margin: float = 0.2, type_of_triplets: str = "all", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.margin = margin
        self.type_of_triplets = require_one_of(
            "type_of_triplets", type_of_triplets, ("all", "hard", "semihard", "easy")
        )

    def rule(self) -> Rule | None:
        return self._rule(None, paired=True, triplets=self.type_of_triplets, margin=self.margin)

    def select(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mat, (same, differ) = self._matrix(batch), batch.matches()
        away = -mat if self.distance.is_inverted else mat
        a, p = same.nonzero(as_tuple=True)
        gap = away[a] - away[a, p][:, None]  # (T, N) of every positive pair and every column
        wanted = gap > self.margin if self.type_of_triplets == "easy" else gap <= self.margin
        if self.type_of_triplets == "hard":
            wanted &= gap <= 0
        elif self.type_of_triplets == "semihard":
            wanted &= gap > 0
        pair, n = (wanted & differ[a]).nonzero(as_tuple=True)
        return a[pair], p[pair], n


class BatchEasyHardMiner(BaseMiner):
    """One positive and one negative of each anchor: the hardest, the easiest, or the hardest that is "semihard".

    "semihard" of one side is relative to the other: a negative farther than the positive, a positive nearer than the
    negative. With "all", every pair of that side. Ranges keep only pairs whose distance is inside them.
    """

    HARD, SEMIHARD, EASY, ALL = STRATEGIES

    def __init__(
        self,
        pos_strategy: str = "easy",
        neg_strategy: str = "semihard",
        allowed_pos_range: tuple[float, float] | None = None,
        allowed_neg_range: tuple[float, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pos_strategy = require_one_of("pos_strategy", pos_strategy, STRATEGIES)
        self.neg_strategy = require_one_of("neg_strategy", neg_strategy, STRATEGIES)
        if "semihard" in (pos_strategy, neg_strategy) and (
            pos_strategy == neg_strategy or "all" in (pos_strategy, neg_strategy)
        ):
            raise InputError(
                'pos_strategy and neg_strategy must not be "semihard" both, nor together with "all"; '
                f"got {pos_strategy!r} and {neg_strategy!r}."
            )
        self.allowed_pos_range, self.allowed_neg_range = allowed_pos_range, allowed_neg_range

    def select(self, batch: Batch) -> tuple[Tensor, ...]:
        mat, (same, differ) = self._matrix(batch), batch.matches()
        away = -mat if self.distance.is_inverted else mat
        every = torch.arange(len(mat), device=mat.device)
        sides = {
            "pos": (self.pos_strategy, same, self.allowed_pos_range),
            "neg": (self.neg_strategy, differ, self.allowed_neg_range),
        }
        chosen: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for side in ("pos", "neg") if self.neg_strategy == "semihard" else ("neg", "pos"):
            strategy, allowed, bounds = sides[side]
            if strategy == "all":
                continue
            if bounds is not None:
                allowed = allowed & (mat >= bounds[0]) & (mat <= bounds[1])
            if strategy == "semihard":
                other = chosen["pos" if side == "neg" else "neg"][0][:, None]
                allowed = allowed & (away > other if side == "neg" else away < other)
            farthest = (side == "pos") != (strategy == "easy")  # hard positives and easy negatives are far
            chosen[side] = _best(away, allowed, farthest)
        if len(chosen) == 2:
            (_, p, has_p), (_, n, has_n) = chosen["pos"], chosen["neg"]
            both = has_p & has_n
            return every[both], p[both], every[both], n[both]
        found = []
        for side in ("pos", "neg"):
            if side in chosen:
                _, column, has = chosen[side]
                found += [every[has], column[has]]
            else:
                found += sides[side][1].nonzero(as_tuple=True)
        return tuple(found)


def _best(away: Tensor, allowed: Tensor, farthest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The farthest or nearest allowed column of each row: its distance, its index, and whether there is one, (M,)."""
    sign = 1.0 if farthest else -1.0
    value, column = (sign * away).masked_fill(~allowed, -math.inf).max(1)
    return sign * value, column, allowed.any(1)


class BatchHardMiner(BatchEasyHardMiner):
    """The farthest positive and the nearest negative of each anchor, as triplets."""

    size = 3

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(pos_strategy="hard", neg_strategy="hard", **kwargs)

    def rule(self) -> Rule | None:
        if self.allowed_pos_range is not None or self.allowed_neg_range is not None:
            return None
        return self._rule(_hardest, paired=True)

    def select(self, batch: Batch) -> tuple[Tensor, ...]:
        a, p, _, n = super().select(batch)
        return a, p, n


def _hardest(block: Block) -> Block:
    """The hardest positive and negative of queries that have both."""
    both = ((block.num_pos > 0) & (block.num_neg > 0)).to(block.neg.dtype)[:, None]
    return HardMiner()(keep(block, both.expand_as(block.pos), both.expand_as(block.neg)))


class DistanceWeightedMiner(BaseMiner):
    """For each positive pair one negative, drawn with a probability inverse to the density of its distance.

    PML draws as many triplets of an anchor as its class has items, each with a random positive; here every positive is
    used once. Log-weights are shifted by each row's own maximum. Draws follow torch's global random state.
    """

    size = 3
    eager = True

    def __init__(self, cutoff: float = 0.5, nonzero_loss_cutoff: float = 1.4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.distance.measure != "euclidean" or not self.distance.normalize_embeddings:
            raise NotMapped("DistanceWeightedMiner with another distance", "its density is that of unit vectors.")
        self.draw = DrawByDistance(float(cutoff), float(nonzero_loss_cutoff))

    def select(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        d, (same, differ) = self._matrix(batch), batch.matches()
        a, p = same.nonzero(as_tuple=True)
        weights = self.draw.weights(d.masked_fill(~differ, math.inf), batch.embeddings.shape[1])[0][a].cumsum(1)
        luck = torch.rand(len(a), 1, dtype=weights.dtype).to(weights.device)
        n = torch.searchsorted(weights, luck * weights[:, -1:], right=True)[:, 0] if len(a) else a
        found = n < d.shape[1]  # anchors without a negative within the cut-off draw none
        return a[found], p[found], n[found]


class EmbeddingsAlreadyPackagedAsTriplets(BaseMiner):
    """Rows come as anchor, positive, negative, anchor, ..."""

    size = 3

    def select(self, batch: Batch) -> tuple[Tensor, ...]:
        return torch.arange(len(batch.embeddings) // 3 * 3, device=batch.embeddings.device).view(-1, 3).unbind(1)


def __getattr__(name: str) -> Any:
    why = "Nearfield has no such miner. Losses here take any tuple, also that of PML's own miner."
    return refuse(name, __name__, dict.fromkeys(("AngularMiner", "HDCMiner", "UniformHistogramMiner"), why))
