"""The best scores of queries whose class is in the gallery, and of the same queries with their class taken out of it.

For query i of class c: same_i is its best match of class c, other_i its best match of any other class. With c in the
gallery the best match scores max(same_i, other_i), and is right if same_i > other_i; without c it scores other_i. The
largest of n similarities grows with n, so other_i is also taken over random sub-galleries.

Axes: Q queries, N gallery items, S sub-galleries, D dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
FRACTIONS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # of the gallery


class Labelled(NamedTuple):
    """Vectors (N, D) of length 1 with the number of their class (N,) and of their content (N,)."""

    vectors: npt.NDArray[np.float32]
    classes: Integers
    contents: Integers


@dataclass(frozen=True)
class BestScores:
    """What calibration starts from."""

    classes: Integers  # (Q,)
    same: Floats  # (Q,) best match of the query's class
    other: Floats  # (Q, S) best match of another class in each sub-gallery; the last is the whole gallery
    sizes: Integers  # (S,) items of the sub-galleries

    @property
    def known(self) -> Floats:
        """(Q,) the best score while the class is in the gallery."""
        return np.maximum(self.same, self.other[:, -1])

    @property
    def unknown(self) -> Floats:
        """(Q,) the best score while it is not."""
        return self.other[:, -1]

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """(Q,) whether the best match is of the query's class; a tie is not."""
        return self.same > self.other[:, -1]


def best_scores(
    queries: Labelled, gallery: Iterable[Labelled], fractions: Sequence[float] = FRACTIONS, seed: int = 0
) -> BestScores:
    """Best scores of the queries against a gallery that comes in blocks.

    Items with the content of a query (the query itself and its copies) are no match for it. Sub-galleries are nested:
    an item belongs to those whose fraction is above a random number of its own.
    """
    draw = np.random.default_rng(seed)
    count = len(queries.classes)
    same = np.full(count, -np.inf)
    other = np.full((count, len(fractions)), -np.inf)
    sizes = np.zeros(len(fractions), np.int64)
    for block in gallery:
        chance = draw.random(len(block.classes))
        scores = queries.vectors @ block.vectors.T  # (Q, block)
        own = queries.classes[:, None] == block.classes
        copy = queries.contents[:, None] == block.contents
        same = np.maximum(same, np.where(own & ~copy, scores, -np.inf).max(1, initial=-np.inf))
        scores[own | copy] = -np.inf
        for place, fraction in enumerate(fractions):
            inside = chance < fraction
            sizes[place] += inside.sum()
            other[:, place] = np.maximum(other[:, place], scores[:, inside].max(1, initial=-np.inf))
    return BestScores(queries.classes, same, other, sizes)
