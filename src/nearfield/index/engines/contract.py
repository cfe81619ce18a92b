"""What an engine is: vectors of length 1 with ids and classes, searched by inner product.

Axes: N vectors, Q queries, K neighbours, D dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
EXACT_UP_TO = 200_000  # vectors; beyond, an approximate index is faster by more than it loses


class Found(NamedTuple):
    """The nearest vectors of each query, by descending score, then ascending id; -1 and -inf where there are fewer."""

    ids: Ids  # (Q, K)
    scores: Floats  # (Q, K)


class Engine(Protocol):
    """Where vectors are searched. Adding an id again replaces it; deleting an unknown id does nothing."""

    snapshots: bool  # whether changes are invisible to other readers until `save`

    def add(self, ids: Ids, vectors: Floats, labels: Sequence[str | None]) -> None:
        """Make vectors (N, D) of length 1 searchable."""

    def search(self, queries: Floats, k: int, label: str | None = None) -> Found:
        """The K nearest vectors of each query (Q, D), only those of class `label` if it is given."""

    def delete(self, ids: Ids) -> None:
        """Forget vectors."""

    def __len__(self) -> int: ...

    def save(self) -> str:
        """Write what was added and deleted; the name under which `open_engine` finds it."""

    def drop(self) -> None:
        """Delete everything that this engine holds, where it holds it."""

    def close(self) -> None:
        """Release files and connections."""

    def facts(self) -> dict[str, object]:
        """Kind, parameters and bytes, human-readable."""


def ordered(ids: Ids, scores: Floats, k: int) -> Found:
    """The first `k` of candidates (Q, M) by descending score, then ascending id; id -1 marks none."""
    scores = np.where(ids < 0, np.float32(-np.inf), scores).astype(np.float32)
    ids = np.where(np.isneginf(scores), -1, ids)
    width = k - ids.shape[1]
    if width > 0:
        ids = np.pad(ids, ((0, 0), (0, width)), constant_values=-1)
        scores = np.pad(scores, ((0, 0), (0, width)), constant_values=-np.inf)
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return Found(np.take_along_axis(ids, order, 1).astype(np.int64), np.take_along_axis(scores, order, 1))


def recall(found: Ids, exact: Ids) -> float:
    """The share of the exact neighbours (Q, K) that were found; places without a neighbour (-1) do not count."""
    hits = (exact[:, :, None] == found[:, None, :]).any(2) & (exact >= 0)
    return float(hits.sum() / max(1, (exact >= 0).sum()))
