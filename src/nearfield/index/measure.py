"""What is measured on an index when it changes: recall of its engine against exact search, latency, bytes a vector.

Axes: N items, Q queries, K neighbours, D dims.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfield.index.engines import Engine, Floats, Found, Ids, ordered, recall
from nearfield.index.store import Row, Store

QUERIES = 200  # items that serve as queries
KS = (1, 10)
BLOCK = 16_384  # vectors read at a time


def measure(store: Store, engine: Engine, rows: Sequence[Row]) -> dict[str, Any]:
    """Recall@K, milliseconds a query (one at a time, the median), kind of engine and bytes a vector.

    Queries are indexed items, and each is left out of its own result.
    """
    ids = np.array([row.id for row in rows], np.int64)
    facts: dict[str, Any] = {"items": len(rows), **engine.facts(), "queries": min(QUERIES, len(rows))}
    if len(rows) < 2:
        return facts
    chosen = np.sort(np.random.default_rng(0).choice(ids, min(QUERIES, len(ids)), replace=False))
    queries = store.vectors(chosen.tolist())
    k = min(max(KS), len(rows) - 1)
    exact = _without(exact_search(store, ids, queries, k + 1), chosen, k)
    found, seconds = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(engine.search(query[None], k + 1))
        seconds.append(time.perf_counter() - start)
    joined = Found(np.vstack([part.ids for part in found]), np.vstack([part.scores for part in found]))
    near = _without(joined, chosen, k)
    for depth in KS:
        if depth <= k:
            facts[f"recall@{depth}"] = recall(near[:, :depth], exact[:, :depth])
    return {**facts, "milliseconds": 1e3 * float(np.median(seconds))}


def exact_search(store: Store, ids: Ids, queries: Floats, k: int) -> Found:
    """The K nearest of the items `ids`, by comparing all of them."""
    best = Found(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32))
    for block, vectors in vector_blocks(store, ids):
        scores = queries @ vectors.T  # (Q, BLOCK)
        best = ordered(np.hstack([best.ids, np.broadcast_to(block, scores.shape)]), np.hstack([best.scores, scores]), k)
    return best


def vector_blocks(store: Store, ids: Ids) -> Iterator[tuple[Ids, Floats]]:
    """The vectors of items, a block at a time."""
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        yield block, store.vectors(block.tolist())


def _without(found: Found, own: npt.NDArray[np.int64], k: int) -> Ids:
    """The neighbours (Q, K) other than the query itself."""
    ids = np.where(found.ids == own[:, None], -1, found.ids)
    scores = np.where(found.ids == own[:, None], -np.inf, found.scores).astype(np.float32)
    return ordered(ids, scores, k).ids
