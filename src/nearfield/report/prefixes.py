"""Scores of test embeddings that are cut short: what a shorter vector costs, and in how many bytes.

Axes: Q test images, F networks side by side, D dims of each, d dims of a prefix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.data.dataset import Integers
from nearfield.metrics import retrieval_metrics
from nearfield.metrics.prefixes import BYTES, halves
from nearfield.report.cache import Cache, digest

SHOWN = {"recall@1": "recall", "map@r": "map_at_r"}  # keys of the scores and what computes them


def prefix_scores(method: int, rows: NDArray[Any], networks: int, labels: Integers, cache: Cache) -> dict[str, Any]:
    """The data that the page draws for one method: recall@1 and MAP@R by cosine of its embeddings' halves.

    Of `networks` side by side, (Q, F D), every one is cut to its first d dims and normalised again.
    """
    dims = halves(rows.shape[1] // networks)

    def compute() -> dict[str, NDArray[Any]]:
        found = [retrieval_metrics(cut(rows, networks, d), labels, (1,), metrics=tuple(SHOWN.values())) for d in dims]
        return {key: np.array([scores[key] for scores in found]) for key in SHOWN}

    scores = cache.get("prefixes", digest(rows, labels, f"{networks} {dims}"), compute)
    return {
        "method": method,
        "dims": [networks * d for d in dims],
        "bytes": [BYTES * networks * d for d in dims],
        "scores": {key: scores[key].round(5).tolist() for key in SHOWN},
    }


def cut(rows: NDArray[Any], networks: int, d: int) -> NDArray[np.float32]:
    """The first d dims of each network's embedding at length 1, side by side, (Q, F d)."""
    parts = rows.astype(np.float32).reshape(len(rows), networks, -1)[:, :, :d]
    lengths = np.maximum(np.linalg.norm(parts, axis=2, keepdims=True), 1e-12)
    return np.asarray((parts / lengths).reshape(len(rows), -1), dtype=np.float32)
