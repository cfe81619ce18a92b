"""Maps of the test embeddings in two dimensions by t-SNE, with the same items for every method.

Axes: Q test images, P points of a map, D embedding dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfield.data.dataset import Integers
from nearfield.report.cache import Cache, digest
from nearfield.report.packing import pack

POINTS = 3_000
FEWEST = 10  # no map of fewer points
DIMS = 50  # principal components that t-SNE starts from
STEPS = 500
PERPLEXITY = 30.0
Floats = NDArray[np.float64]


def sample(labels: Integers, limit: int = POINTS, seed: int = 0) -> Integers:
    """At most `limit` items (P,), an equal share of every class, ascending."""
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    places = np.arange(min(limit, len(labels))) * len(labels) // min(limit, len(labels))
    return np.sort(by_class[places]).astype(np.int64)


def maps(embeddings: Sequence[NDArray[Any]], chosen: Integers, cosine: bool, cache: Cache) -> list[Floats]:
    """A map (P, 2) of the chosen rows of each (Q, D), all rotated to match the first, within [0, 1]."""
    found: list[Floats] = []
    for each in embeddings:
        rows = each[chosen].astype(np.float32)
        key = digest(rows, f"{cosine} {DIMS} {STEPS} {PERPLEXITY}")
        points = cache.get("map", key, lambda rows=rows: {"points": tsne(rows, cosine)})["points"]  # type: ignore[misc]
        found.append(aligned(points, found[0]) if found else points)
    return [_unit(points) for points in found]


def tsne(rows: NDArray[np.float32], cosine: bool) -> Floats:
    """Barnes-Hut t-SNE (P, 2) of embeddings (P, D), centred; deterministic."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if cosine:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    few = PCA(min(DIMS, *rows.shape), random_state=0, svd_solver="full").fit_transform(rows)
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    tool = TSNE(init="pca", learning_rate="auto", perplexity=perplexity, max_iter=STEPS, random_state=0)
    points: Floats = np.asarray(tool.fit_transform(few), dtype=np.float64)
    return np.asarray(points - points.mean(axis=0))


def aligned(points: Floats, like: Floats) -> Floats:
    """`points` rotated and mirrored to match `like` as closely as possible (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ like)
    return np.asarray(points @ left @ right)


def _unit(points: Floats) -> Floats:
    low, high = points.min(axis=0), points.max(axis=0)
    size = max(float((high - low).max()), 1e-12)
    return np.asarray((points - (low + high) / 2) / size + 0.5)


def atlas(methods: Sequence[int], found: Sequence[Floats], chosen: Integers) -> dict[str, Any]:
    """The data that the page draws: the items, and the coordinates of each method in 1/65,535."""
    packed = [
        {"method": method, "xy": pack(np.round(points * 65_535).astype(np.uint16))}
        for method, points in zip(methods, found, strict=True)
    ]
    return {"items": pack(chosen.astype(np.uint32)), "maps": packed}
